#include "operator/reconciler/secret_keeper.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "operator/reconciler/create_owned.h"
#include "operator/reconciler/names.h"
#include "services/common/status_macros.h"
#include "services/transport/security/transport_security.h"

namespace sluice::reconciler {
namespace {

using kube::Json;

// One for the authority, one for what it signs, one that finds nothing to do, and a spare one.
constexpr int kMaxRounds = 4;
// After this time without showing up in the cache, a write counts as undone by another client.
constexpr absl::Duration kWriteLag = absl::Seconds(10);

}  // namespace

LiveSecrets SecretKeeper::Gather(const ObservedJob& job, const runtime::Informer& cache,
                                 absl::Time now) {
  LiveSecrets live;
  for (const runtime::ObjectPtr& secret : cache.ByIndex(kControllerIndex, job.uid)) {
    live[kube::KeyOf(*secret).name] = secret;
  }

  for (auto it = written_.begin(); it != written_.end();) {
    const auto& [secret, at] = it->second;
    const auto seen = live.find(it->first);

    const bool shown = seen != live.end() &&
                       kube::ResourceVersionOf(*seen->second) == kube::ResourceVersionOf(*secret);
    if (shown || now - at > kWriteLag) {
      it = written_.erase(it);
      continue;
    }

    live[it->first] = secret;
    ++it;
  }
  return live;
}

absl::Status SecretKeeper::Write(const ObservedJob& job, const Json& secret, kube::Client* client,
                                 absl::Time now) {
  const kube::ObjectKey key = kube::KeyOf(secret);
  // An existing Secret that the cache does not show yet is used as it is: another operator may have
  // made it, and it must not be made a second time.
  ASSIGN_OR_RETURN(Json written, kube::ResourceVersionOf(secret).empty()
                                     ? CreateOwned(client, Secrets(), job, secret)
                                     : client->Update(Secrets(), key, secret, {}));

  written_[key.name] = {std::make_shared<const Json>(std::move(written)), now};
  return absl::OkStatus();
}

absl::Status SecretKeeper::Ensure(const ObservedJob& job, uint32_t shards, kube::Client* client,
                                  const runtime::Informer& cache, absl::Time now) {
  const uint32_t workers = job.job.spec.worker().replicas();
  for (int round = 0; round < kMaxRounds; ++round) {
    const LiveSecrets live = Gather(job, cache, now);
    look_again_ = written_.empty() ? absl::InfiniteFuture() : now + kWriteLag;

    std::string state = absl::StrCat(shards, " ", workers);
    for (const auto& [name, secret] : live) {
      absl::StrAppend(&state, " ", name, "@", kube::ResourceVersionOf(*secret));
    }

    if (state == settled_ && now < settled_until_) {
      look_again_ = std::min(look_again_, settled_until_);
      return absl::OkStatus();
    }

    ASSIGN_OR_RETURN(const TlsPlan plan, PlanTls(job, shards, workers, live, now));
    // A plan that renews the authority alone reads no other certificate.
    if (plan.expiry != absl::InfiniteFuture()) expiry_ = plan.expiry;
    if (plan.writes.empty()) {
      settled_ = std::move(state);
      settled_until_ = plan.look_again;
      look_again_ = std::min(look_again_, settled_until_);
      return absl::OkStatus();
    }

    for (const Json& secret : plan.writes) {
      RETURN_IF_ERROR(Write(job, secret, client, now));
    }
  }
  return absl::UnavailableError(
      absl::StrCat("the Secrets of ", job.key.ToString(), " keep changing while they are written"));
}

std::shared_ptr<grpc::ChannelCredentials> SecretKeeper::ForOperator(const ObservedJob& job,
                                                                    const runtime::Informer& cache,
                                                                    absl::Time now) {
  const LiveSecrets live = Gather(job, cache, now);
  const auto authority = live.find(AuthoritySecretName(job.key.name));
  if (authority == live.end()) return nullptr;

  const std::string version = kube::ResourceVersionOf(*authority->second);
  if (credentials_ != nullptr && version == issued_by_ && now < issued_until_) return credentials_;
  const absl::StatusOr<OperatorCredentials> issued = IssueForOperator(job, *authority->second, now);
  if (!issued.ok()) return nullptr;

  issued_by_ = version;
  issued_until_ = issued->renew_at;
  credentials_ =
      security::TransportSecurity::FromMemory(issued->bundle, issued->pair)->channel_credentials();
  return credentials_;
}

}  // namespace sluice::reconciler

#include "operator/runtime/leader_election.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"
#include "operator/kube/object.h"
#include "services/common/status_macros.h"

namespace sluice::runtime {

using kube::Json;

namespace {

const kube::ResourceType& LeaseType() {
  static const auto* const type =
      new kube::ResourceType{"coordination.k8s.io", "v1", "leases", "Lease", true};
  return *type;
}

std::string HolderOf(const Json& lease) {
  return kube::GetString(lease, {"spec", "holderIdentity"});
}

}  // namespace

absl::Status LeaderElector::Validate(const Options& options) {
  if (options.identity.empty() || options.lease.name.empty() || options.lease.ns.empty()) {
    return absl::InvalidArgumentError(
        "an election needs an identity and a Lease's namespace and name");
  }

  if (options.lease_duration > options.renew_deadline &&
      options.renew_deadline > options.retry_period &&
      options.retry_period > absl::ZeroDuration()) {
    return absl::OkStatus();
  }

  return absl::InvalidArgumentError(
      absl::StrCat("an election needs lease duration > renew deadline > retry period > 0, got ",
                   absl::FormatDuration(options.lease_duration), ", ",
                   absl::FormatDuration(options.renew_deadline), ", ",
                   absl::FormatDuration(options.retry_period)));
}

LeaderElector::LeaderElector(kube::Client* client, const Clock* clock, Options options)
    : client_(client), clock_(clock), options_(std::move(options)) {}

bool LeaderElector::IsLeader() const {
  MutexLock lock(&mutex_);
  return clock_->Now() < leads_until_;
}

absl::Status LeaderElector::Check() {
  if (IsLeader()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("not written: ", options_.identity,
                                                    " does not hold the Lease ",
                                                    options_.lease.ToString(), " (any longer)"));
}

std::string LeaderElector::Holder() const {
  MutexLock lock(&mutex_);
  return holder_;
}

void LeaderElector::Observe(const Json& lease, absl::Time now) {
  if (kube::ResourceVersionOf(lease) != kube::ResourceVersionOf(observed_) ||
      kube::UidOf(lease) != kube::UidOf(observed_)) {
    observed_at_ = now;
  }
  observed_ = lease;
  MutexLock lock(&mutex_);
  holder_ = HolderOf(lease);
}

Json LeaderElector::Spec(const Json& before, absl::Time now) const {
  const bool ours = HolderOf(before) == options_.identity;
  Json spec = {{"holderIdentity", options_.identity},
               {"leaseDurationSeconds", absl::ToInt64Seconds(options_.lease_duration)},
               {"renewTime", kube::EncodeMicroTime(now)},
               {"acquireTime", kube::EncodeMicroTime(now)},
               {"leaseTransitions", kube::GetInt(before, {"spec", "leaseTransitions"})}};

  const std::string acquired = kube::GetString(before, {"spec", "acquireTime"});
  if (ours && !acquired.empty()) spec["acquireTime"] = acquired;
  if (!ours && !before.is_null()) {
    spec["leaseTransitions"] = kube::GetInt(before, {"spec", "leaseTransitions"}) + 1;
  }
  return spec;
}

absl::Status LeaderElector::Write(Json lease, absl::Time start) {
  const bool create = kube::ResourceVersionOf(lease).empty();
  // After a lost answer, the next attempt gets a conflict, reads the Lease, and finds its own name.
  ASSIGN_OR_RETURN(const Json written,
                   create ? client_->Create(LeaseType(), options_.lease.ns, lease, {})
                          : client_->Update(LeaseType(), options_.lease, lease, {}));
  Observe(written, clock_->Now());
  MutexLock lock(&mutex_);
  leads_until_ = start + options_.renew_deadline;
  return absl::OkStatus();
}

absl::Status LeaderElector::Acquire(absl::Time start) {
  absl::StatusOr<Json> lease = client_->Get(LeaseType(), options_.lease, kube::Subresource::kNone);
  if (absl::IsNotFound(lease.status())) {
    Json made = {{"metadata", {{"name", options_.lease.name}, {"namespace", options_.lease.ns}}}};
    made["spec"] = Spec(Json(), start);
    return Write(std::move(made), start);
  }

  RETURN_IF_ERROR(lease.status());
  Observe(*lease, clock_->Now());

  const std::string holder = HolderOf(*lease);
  // The holder's own duration applies: replicas of two versions may differ.
  const absl::Duration duration =
      std::max(options_.lease_duration,
               absl::Seconds(kube::GetInt(*lease, {"spec", "leaseDurationSeconds"})));
  if (!holder.empty() && holder != options_.identity && start < observed_at_ + duration) {
    MutexLock lock(&mutex_);
    leads_until_ = absl::InfinitePast();  // another replica is known to lead
    return absl::FailedPreconditionError(
        absl::StrCat("the Lease ", options_.lease.ToString(), " is held by ", holder));
  }

  (*lease)["spec"] = Spec(*lease, start);
  return Write(*std::move(lease), start);
}

absl::Status LeaderElector::Step() {
  const absl::Time start = clock_->Now();
  if (IsLeader() && HolderOf(observed_) == options_.identity) {
    Json lease = observed_;
    lease["spec"] = Spec(lease, start);
    const absl::Status renewed = Write(std::move(lease), start);
    // Another client has written or removed the Lease: read it.
    if (!kube::IsConflict(renewed) && !absl::IsNotFound(renewed)) return renewed;
  }
  return Acquire(clock_->Now());
}

absl::Status LeaderElector::Release() {
  const bool leader = IsLeader();
  {
    MutexLock lock(&mutex_);
    leads_until_ = absl::InfinitePast();
  }

  if (!leader) return absl::OkStatus();
  Json lease = observed_;
  lease["spec"]["holderIdentity"] = "";
  lease["spec"]["leaseDurationSeconds"] = 1;
  lease["spec"]["renewTime"] = kube::EncodeMicroTime(clock_->Now());

  const absl::StatusOr<Json> written = client_->Update(LeaseType(), options_.lease, lease, {});
  if (written.ok()) Observe(*written, clock_->Now());
  return written.status();
}

absl::Status LeaderElector::Run(kube::Cancellation* cancellation,
                                const std::function<void()>& on_started,
                                const std::function<void()>& on_stopped) {
  while (!Step().ok()) {
    if (cancellation->WaitFor(options_.retry_period)) return absl::CancelledError("stopped");
  }

  on_started();
  bool cancelled = false;
  while (!cancelled && IsLeader()) {
    cancelled = cancellation->WaitFor(options_.retry_period);
    if (!cancelled) Step().IgnoreError();  // IsLeader has the result
  }

  on_stopped();
  if (!cancelled)
    return absl::AbortedError("leadership was lost; " + Holder() + " holds the Lease");
  // If this fails, other replicas wait until the Lease expires.
  Release().IgnoreError();
  return absl::CancelledError("stopped");
}

}  // namespace sluice::runtime

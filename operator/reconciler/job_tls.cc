#include "operator/reconciler/job_tls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/owned.h"
#include "services/common/status_macros.h"
#include "services/transport/security/identity.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using Data = std::map<std::string, std::string>;  // decoded

constexpr char kBundle[] = "ca.crt";
constexpr char kAuthorityKey[] = "ca.key";
constexpr char kNext[] = "next.crt";
constexpr char kNextKey[] = "next.key";
constexpr char kOld[] = "old.crt";

// The clocks of nodes differ slightly.
constexpr absl::Duration kSkew = absl::Minutes(5);
// A Secret holds 1 MiB; a certificate and its key need about 1.2 KiB.
constexpr uint32_t kIndicesInSecret = 256;

std::string CertificateKey(uint32_t index) { return absl::StrCat(index, ".crt"); }
std::string PrivateKeyKey(uint32_t index) { return absl::StrCat(index, ".key"); }

Data DataOf(const Json& secret) {
  Data data;
  const Json* encoded = kube::Find(secret, {"data"});
  if (encoded == nullptr || !encoded->is_object()) return data;

  for (auto it = encoded->begin(); it != encoded->end(); ++it) {
    std::string text;
    if (it.value().is_string() && absl::Base64Unescape(it.value().get<std::string>(), &text)) {
      data[it.key()] = std::move(text);
    }
  }
  return data;
}

std::string At(const Data& data, const std::string& key) {
  const auto found = data.find(key);
  return found == data.end() ? std::string() : found->second;
}

const Json& SecretAt(const LiveSecrets& live, const std::string& name) {
  static const auto* const none = new Json();
  const auto found = live.find(name);
  return found == live.end() ? *none : *found->second;
}

// When a third of the validity is left.
absl::Time RenewAt(const tls::Validity& validity) {
  return validity.until - (validity.until - validity.from) / 3;
}

Json MakeSecret(const ObservedJob& job, const std::string& name, absl::string_view role,
                const Data& data, const Json& live) {
  Json secret = MakeOwned(Secrets(), job, name);
  secret["metadata"]["labels"]["app.kubernetes.io/component"] = std::string(role);

  if (const std::string version = kube::ResourceVersionOf(live); !version.empty()) {
    secret["metadata"]["resourceVersion"] = version;
  }

  secret["type"] = "Opaque";
  secret["data"] = Json::object();
  for (const auto& [key, text] : data) secret["data"][key] = absl::Base64Escape(text);
  return secret;
}

// ---- the authority

struct Authority {
  tls::KeyPair pair;
  tls::Validity validity;
};

std::optional<Authority> ReadAuthority(const Data& data, const char* certificate, const char* key,
                                       absl::Time now) {
  Authority authority = {{At(data, certificate), At(data, key)}, {}};
  const absl::StatusOr<tls::Certificate> read = tls::ReadCertificate(authority.pair.certificate);
  if (!read.ok() || !read->is_authority || read->validity.until <= now) return std::nullopt;
  if (!tls::CheckKey(authority.pair).ok()) return std::nullopt;
  authority.validity = read->validity;
  return authority;
}

absl::StatusOr<Authority> NewAuthority(const ObservedJob& job, absl::Time now) {
  const tls::Validity validity = {now - kSkew, now + kAuthorityLife};
  ASSIGN_OR_RETURN(tls::KeyPair pair,
                   tls::MakeAuthority(absl::StrCat("sluice ", job.key.ToString()), validity));
  return Authority{std::move(pair), validity};
}

// The certificates of a bundle that are still valid.
std::vector<std::string> Living(const std::string& bundle, absl::Time now) {
  std::vector<std::string> living;
  const auto split = tls::SplitBundle(bundle);
  if (!split.ok()) return living;

  for (const std::string& certificate : *split) {
    const auto read = tls::ReadCertificate(certificate);
    if (read.ok() && read->is_authority && read->validity.until > now) {
      living.push_back(certificate);
    }
  }
  return living;
}

struct Authorities {
  std::optional<Authority> current;
  std::optional<Authority> next;
  std::vector<std::string> old;  // older certificates that are still trusted

  std::string Bundle() const {
    std::string bundle = current->pair.certificate;
    if (next.has_value()) bundle += next->pair.certificate;
    for (const std::string& certificate : old) bundle += certificate;
    return bundle;
  }

  Data ToData() const {
    Data data = {{kBundle, current->pair.certificate}, {kAuthorityKey, current->pair.private_key}};
    if (next.has_value()) {
      data[kNext] = next->pair.certificate;
      data[kNextKey] = next->pair.private_key;
    }
    for (const std::string& certificate : old) data[kOld] += certificate;
    return data;
  }

  absl::Time look_again() const {
    return next.has_value() ? next->validity.from + kSkew + kBundleSpread
                            : RenewAt(current->validity);
  }
};

Authorities ReadAuthorities(const Json& secret, absl::Time now) {
  const Data data = DataOf(secret);
  Authorities authorities;
  authorities.current = ReadAuthority(data, kBundle, kAuthorityKey, now);
  authorities.next = ReadAuthority(data, kNext, kNextKey, now);
  authorities.old = Living(At(data, kOld), now);
  return authorities;
}

// Keeps trusting what pods trust but no stored authority explains: the certificates of a lost one.
void KeepTrusting(const LiveSecrets& live, absl::Time now, Authorities* authorities) {
  for (const auto& [name, secret] : live) {
    for (const std::string& certificate : Living(At(DataOf(*secret), kBundle), now)) {
      auto& old = authorities->old;
      if (std::find(old.begin(), old.end(), certificate) == old.end()) old.push_back(certificate);
    }
  }
}

absl::Status Advance(const ObservedJob& job, const LiveSecrets& live, absl::Time now,
                     Authorities* authorities) {
  if (!authorities->current.has_value()) {
    KeepTrusting(live, now, authorities);
    ASSIGN_OR_RETURN(authorities->current, NewAuthority(job, now));
    authorities->next.reset();
    return absl::OkStatus();
  }

  if (!authorities->next.has_value()) {
    if (now < RenewAt(authorities->current->validity)) return absl::OkStatus();
    ASSIGN_OR_RETURN(authorities->next, NewAuthority(job, now));
  } else if (now >= authorities->look_again()) {
    authorities->old.push_back(authorities->current->pair.certificate);
    authorities->current = std::exchange(authorities->next, std::nullopt);
  }
  return absl::OkStatus();
}

// ---- what it signs

// When the entry has to be renewed; in the past: now.
absl::Time GoodUntil(const tls::KeyPair& pair, const security::PeerIdentity& identity,
                     const std::string& bundle, absl::Time now) {
  const absl::StatusOr<tls::Certificate> read = tls::ReadCertificate(pair.certificate);
  if (!read.ok() || !tls::CheckKey(pair).ok()) return absl::InfinitePast();

  const absl::StatusOr<security::PeerIdentity> theirs = security::IdentityOf(*read);
  if (!theirs.ok() || security::UriOf(*theirs) != security::UriOf(identity)) {
    return absl::InfinitePast();
  }

  if (!tls::CheckTrusted(pair.certificate, bundle, now).ok()) return absl::InfinitePast();
  return RenewAt(read->validity);
}

class Planner {
 public:
  Planner(const ObservedJob& job, const LiveSecrets& live, absl::Time now)
      : job_(job), live_(live), now_(now) {}

  absl::StatusOr<TlsPlan> Run(uint32_t shards, uint32_t workers) {
    const std::string name = AuthoritySecretName(job_.key.name);
    const Json& secret = SecretAt(live_, name);

    authorities_ = ReadAuthorities(secret, now_);
    RETURN_IF_ERROR(Advance(job_, live_, now_, &authorities_));
    if (const Data data = authorities_.ToData(); data != DataOf(secret)) {
      plan_.writes.push_back(MakeSecret(job_, name, "ca", data, secret));
      return std::move(plan_);
    }

    plan_.look_again = authorities_.look_again();
    bundle_ = authorities_.Bundle();
    for (const auto& [role, count] : {std::pair{v1::COORDINATOR, 1u},
                                      {v1::SHARD, shards},
                                      {v1::WORKER, workers},
                                      {v1::READER, 1u}}) {
      for (uint32_t first = 0; first < count; first += kIndicesInSecret) {
        const uint32_t end = std::min(count, first + kIndicesInSecret);
        RETURN_IF_ERROR(PlanRole(role, first, end));
      }
    }
    return std::move(plan_);
  }

 private:
  absl::Status PlanRole(v1::Role role, uint32_t first, uint32_t end) {
    const std::string name = TlsSecretName(job_.key.name, role, first);
    const Json& secret = SecretAt(live_, name);
    const Data before = DataOf(secret);

    Data after = {{kBundle, bundle_}};
    for (uint32_t index = first; index < end; ++index) {
      RETURN_IF_ERROR(PlanEntry(role, index, before, &after));
    }
    KeepSurplus(role, end, before, &after);

    if (after != before) {
      plan_.writes.push_back(MakeSecret(job_, name, security::NameOf(role), after, secret));
    }
    return absl::OkStatus();
  }

  absl::Status PlanEntry(v1::Role role, uint32_t index, const Data& before, Data* after) {
    const security::PeerIdentity identity = {job_.key.ToString(), role, index};
    tls::KeyPair pair = {At(before, CertificateKey(index)), At(before, PrivateKeyKey(index))};
    const absl::StatusOr<tls::Certificate> live = tls::ReadCertificate(pair.certificate);
    if (live.ok()) plan_.expiry = std::min(plan_.expiry, live->validity.until);

    absl::Time renew_at = GoodUntil(pair, identity, bundle_, now_);
    if (renew_at <= now_) {
      const tls::Validity validity = {now_ - kSkew, now_ + kCertificateLife};
      ASSIGN_OR_RETURN(
          pair, tls::Issue(authorities_.current->pair, security::SubjectOf(identity), validity));
      renew_at = RenewAt(validity);
    }

    (*after)[CertificateKey(index)] = std::move(pair.certificate);
    (*after)[PrivateKeyKey(index)] = std::move(pair.private_key);
    plan_.look_again = std::min(plan_.look_again, renew_at);
    return absl::OkStatus();
  }

  // Keeps certificates of processes that are no longer wanted: they may still be leaving, or come
  // back.
  void KeepSurplus(v1::Role role, uint32_t end, const Data& before, Data* after) {
    for (const auto& [key, certificate] : before) {
      absl::string_view number = key;
      uint32_t index = 0;
      if (!absl::ConsumeSuffix(&number, ".crt") || !absl::SimpleAtoi(number, &index)) continue;
      if (index < end || key != CertificateKey(index)) continue;

      const tls::KeyPair pair = {certificate, At(before, PrivateKeyKey(index))};
      const absl::Time good_until =
          GoodUntil(pair, {job_.key.ToString(), role, index}, bundle_, now_);
      if (good_until <= now_) continue;
      (*after)[key] = pair.certificate;
      (*after)[PrivateKeyKey(index)] = pair.private_key;
    }
  }

  const ObservedJob& job_;
  const LiveSecrets& live_;
  const absl::Time now_;
  Authorities authorities_;
  std::string bundle_;
  TlsPlan plan_;
};

}  // namespace

std::string AuthoritySecretName(const std::string& job) { return absl::StrCat(job, "-tls-ca"); }

std::string TlsSecretName(const std::string& job, v1::Role role, uint32_t index) {
  const uint32_t block = index / kIndicesInSecret;
  return absl::StrCat(job, "-tls-", security::NameOf(role),
                      block == 0 ? "" : absl::StrCat("-", block));
}

Json TlsVolume(const std::string& name, const std::string& job, const policy::Replica& replica) {
  const auto item = [](const std::string& key, const char* path) {
    return Json{{"key", key}, {"path", path}};
  };
  return {{"name", name},
          {"secret",
           {{"secretName", TlsSecretName(job, replica.role, replica.index)},
            {"defaultMode", 0440},
            {"items",
             Json::array({item(kBundle, "ca.crt"), item(CertificateKey(replica.index), "tls.crt"),
                          item(PrivateKeyKey(replica.index), "tls.key")})}}}};
}

absl::StatusOr<TlsPlan> PlanTls(const ObservedJob& job, uint32_t shards, uint32_t workers,
                                const LiveSecrets& live, absl::Time now) {
  return Planner(job, live, now).Run(shards, workers);
}

absl::StatusOr<ProcessCredentials> CredentialsIn(const Json& secret, uint32_t index,
                                                 absl::Time now) {
  const Data data = DataOf(secret);
  ProcessCredentials credentials = {
      At(data, kBundle), {At(data, CertificateKey(index)), At(data, PrivateKeyKey(index))}};
  RETURN_IF_ERROR(tls::CheckKey(credentials.pair));
  RETURN_IF_ERROR(tls::CheckTrusted(credentials.pair.certificate, credentials.bundle, now));
  return credentials;
}

absl::StatusOr<OperatorCredentials> IssueForOperator(const ObservedJob& job,
                                                     const Json& authority_secret, absl::Time now) {
  const Authorities authorities = ReadAuthorities(authority_secret, now);
  if (!authorities.current.has_value()) {
    return absl::NotFoundError(absl::StrCat("Secret ", AuthoritySecretName(job.key.name),
                                            " has no certificate authority"));
  }

  const tls::Validity validity = {now - kSkew, now + kCertificateLife};
  ASSIGN_OR_RETURN(
      tls::KeyPair pair,
      tls::Issue(authorities.current->pair,
                 security::SubjectOf({job.key.ToString(), v1::OPERATOR, 0}), validity));
  return OperatorCredentials{authorities.Bundle(), std::move(pair),
                             std::min(RenewAt(validity), authorities.current->validity.until)};
}

}  // namespace sluice::reconciler

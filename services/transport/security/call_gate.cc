#include "services/transport/security/call_gate.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/transport/security/access_policy.h"
#include "services/transport/security/job_secret.h"

namespace sluice::security {
namespace {

const CallRate& RateOf(absl::string_view method) {
  if (method == "/sluice.v1.ParameterServer/Exchange" || method == "/sluice.v1.Coordinator/Join") {
    return kStreamRate;
  }
  return absl::StartsWith(method, "/sluice.v1.Stage/") ? kStageRate : kCallRate;
}

double AllowanceAt(double calls, absl::Duration passed, const CallRate& rate) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(passed));
  return std::min(rate.at_once, calls + seconds * rate.per_second);
}

}  // namespace

uint64_t LogLimit::Count(absl::Time now) {
  ++not_logged_;
  if (now - last_logged_ < kRefusalLogInterval) return 0;
  last_logged_ = now;
  return std::exchange(not_logged_, 0);
}

absl::Status CallGate::Admit(const Call& call, absl::Time now) {
  CallRefusal refusal;
  absl::Status status = Judge(call, now, &refusal.reason);
  if (options_.observer != nullptr) {
    if (status.ok()) {
      options_.observer->OnAdmitted(call.connection);
    } else if (!TakeAllowance(call.connection, kRefusalRate, now)) {
      options_.observer->OnFlood(call.connection);
    }
  }

  if (status.ok() || !options_.on_refused) return status;
  refusal.text = std::string(status.message());

  {
    MutexLock lock(&mutex_);
    refusal.to_log = log_.Count(now);
  }
  options_.on_refused(refusal);
  return status;
}

absl::Status CallGate::Judge(const Call& call, absl::Time now, absl::string_view* reason) {
  // The rate comes first: a refused caller must not be able to try a million secrets a second.
  const CallRate& rate = RateOf(call.method);
  if (!TakeAllowance(call.connection, rate, now)) {
    *reason = "call_rate";
    return absl::ResourceExhaustedError(
        absl::StrCat("a connection may begin ", rate.per_second,
                     " calls of this kind a second "
                     "(and ",
                     rate.at_once, " at once): begin fewer, and keep streams open"));
  }
  return CheckCaller(call, reason);
}

absl::Status CallGate::CheckCaller(const Call& call, absl::string_view* reason) const {
  if (!options_.secret.empty() &&
      !(call.secret.has_value() && SameSecret(options_.secret, *call.secret))) {
    *reason = "secret";
    return absl::UnauthenticatedError(absl::StrCat(
        "the call shows ", call.secret.has_value() ? "a wrong secret" : "no secret",
        "; the processes of this job require the secret in ", options_.secret_file,
        ": pass this file with --secret-file (in Python: secret_file= or SLUICE_SECRET_FILE)"));
  }

  if (!options_.job.has_value()) return absl::OkStatus();
  if (!call.peer.has_value()) {
    *reason = "certificate";
    return absl::UnauthenticatedError(
        "the certificate names no process of the job; use one that `sluice certificates` or the "
        "operator has created");
  }

  if (call.peer->job != *options_.job) {
    *reason = "job";
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate is that of ", call.peer->ToString(), ", but this is job ",
                     *options_.job, "; show a certificate of this job"));
  }

  *reason = "role";
  return MayCall(*call.peer, call.method);
}

bool CallGate::TakeAllowance(uint64_t connection, const CallRate& rate, absl::Time now) {
  MutexLock lock(&mutex_);
  auto found = allowances_.find({connection, &rate});
  if (found == allowances_.end()) {
    if (allowances_.size() >= kMaxRememberedConnections) ForgetQuietConnections(now);
    found =
        allowances_.emplace(std::make_pair(connection, &rate), Allowance{rate.at_once, now}).first;
  }

  Allowance& allowance = found->second;
  allowance.calls = AllowanceAt(allowance.calls, now - allowance.counted, rate);
  allowance.counted = now;

  if (allowance.calls < 1) return false;
  allowance.calls -= 1;
  return true;
}

void CallGate::ForgetQuietConnections(absl::Time now) {
  for (auto it = allowances_.begin(); it != allowances_.end();) {
    const CallRate& rate = *it->first.second;
    const bool quiet =
        AllowanceAt(it->second.calls, now - it->second.counted, rate) >= rate.at_once;
    it = quiet ? allowances_.erase(it) : std::next(it);
  }
  if (allowances_.size() >= kMaxRememberedConnections) allowances_.clear();
}

}  // namespace sluice::security

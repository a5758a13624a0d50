#include "services/transport/security/access_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::security {
namespace {

using Message = v1::MemberMessage;

bool Contains(const std::vector<v1::Role>& roles, v1::Role role) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

// Whether members of this role send this message of Coordinator.Join.
bool IsSentBy(Message::BodyCase body, v1::Role role) {
  switch (body) {
    case Message::kRegister:
    case Message::kHeartbeat:
    case Message::kFailure:
    case Message::kLeave:
      return role == v1::SHARD || role == v1::WORKER;
    case Message::kReady:
    case Message::kWorkerProgress:
    case Message::kEvaluationResult:
    case Message::kMetricValues:
    case Message::kJobRequest:
      return role == v1::WORKER;
    case Message::kStateReady:
    case Message::kPauseReply:
    case Message::kInstalled:
    case Message::kShardProgress:
    case Message::kSnapshotPinned:
    case Message::kSnapshotWritten:
    case Message::kSnapshotFailed:
      return role == v1::SHARD;
    case Message::BODY_NOT_SET:
      break;
  }
  return true;  // empty, or of a newer version: the core decides about it
}

}  // namespace

const std::vector<RpcRule>& RpcRules() {
  static const auto* const rules = new std::vector<RpcRule>{
      {"/sluice.v1.Coordinator/Join", {v1::SHARD, v1::WORKER}},
      {"/sluice.v1.JobControl/SetDesired", {v1::OPERATOR}},
      {"/sluice.v1.JobControl/GetProgress",
       {v1::OPERATOR, v1::COORDINATOR, v1::SHARD, v1::WORKER, v1::READER}},
      {"/sluice.v1.JobControl/OpenSnapshot", {v1::WORKER, v1::READER}},
      {"/sluice.v1.Rendezvous/Meet", {v1::WORKER}},
      {"/sluice.v1.ParameterServer/Exchange", {v1::SHARD, v1::WORKER, v1::READER}},
      // Each worker only for its own contexts: services/execution/shard/host.h.
      {"/sluice.v1.Stage/Open", {v1::WORKER}},
      {"/sluice.v1.Stage/Forward", {v1::WORKER}},
      {"/sluice.v1.Stage/Backward", {v1::WORKER}},
      {"/sluice.v1.Stage/ContextGradients", {v1::WORKER}},
  };
  return *rules;
}

absl::Status MayCall(const PeerIdentity& caller, absl::string_view method) {
  for (const RpcRule& rule : RpcRules()) {
    if (rule.method != method) continue;
    if (Contains(rule.callers, caller.role)) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        method, " is not for ", caller.ToString(), "; it is for: ",
        absl::StrJoin(rule.callers, ", ",
                      [](std::string* out, v1::Role role) { absl::StrAppend(out, NameOf(role)); }),
        ". Call it with a certificate of such a role"));
  }
  return absl::PermissionDeniedError(absl::StrCat(method, " may not be called by any role"));
}

absl::Status MaySend(const std::optional<PeerIdentity>& peer, const v1::MemberMessage& message) {
  if (!peer.has_value()) return absl::OkStatus();
  if (message.has_register_()) return CheckClaim(peer, message.register_().process());
  if (IsSentBy(message.body_case(), peer->role)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("a message (field ", message.body_case(),
                                                  " of MemberMessage) is not for ",
                                                  peer->ToString(), " to send"));
}

absl::Status MaySend(const std::optional<PeerIdentity>& peer, const v1::Header& header) {
  if (!peer.has_value() || !header.has_hello()) return absl::OkStatus();
  return MayRead(peer, header.hello().sender());
}

absl::Status MayRead(const std::optional<PeerIdentity>& peer, const v1::ProcessId& claimed) {
  // A worker may read as readers do: its program may inspect the job.
  if (peer.has_value() && peer->role == v1::WORKER && claimed.role() == v1::READER) {
    return absl::OkStatus();
  }
  return CheckClaim(peer, claimed);
}

}  // namespace sluice::security

// Which role may call which rpc and send which message on a stream: one table for every server.
//
// Intuition. A worker runs its user's code, so that code, with the worker's certificate, must not
// be able to harm anything but the worker's own contributions: a worker may join, push, pull and
// read, and never resize, suspend, pause or install. An rpc that is not in the table is refused to
// every role.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_ACCESS_POLICY_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_ACCESS_POLICY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/transport/security/identity.h"

namespace sluice::security {

// The roles that may call one rpc.
struct RpcRule {
  std::string method;  // "/sluice.v1.JobControl/SetDesired"
  std::vector<v1::Role> callers;
};

// One rule for every rpc that Sluice serves.
const std::vector<RpcRule>& RpcRules();

// PERMISSION_DENIED names the method, the caller and the roles that may call it.
absl::Status MayCall(const PeerIdentity& caller, absl::string_view method);

// For Coordinator.Join: a member sends only the messages of its role, under its own name. OK where
// there are no certificates (none).
absl::Status MaySend(const std::optional<PeerIdentity>& peer, const v1::MemberMessage& message);

// For ParameterServer.Exchange: the sender of a Hello names itself; from then on the shard relies
// on that name.
absl::Status MaySend(const std::optional<PeerIdentity>& peer, const v1::Header& header);

// For JobControl.OpenSnapshot, and for a reader's Hello: as CheckClaim, except that a worker may
// also act as a reader.
absl::Status MayRead(const std::optional<PeerIdentity>& peer, const v1::ProcessId& claimed);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_ACCESS_POLICY_H_

// Which role may call which rpc, and say what on a stream: one table, asked by every server.
//
// Intuition. A worker runs its user's code, so whatever that code does with the worker's
// certificate must harm nothing but the worker's own contributions: it may join, push, pull and
// read, and never size, suspend, pause or install. What is not in the table is for nobody.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_RULES_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_RULES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/transport/security/identity.h"

namespace sluice::security {

struct RpcRule {
  std::string method;  // "/sluice.v1.JobControl/SetDesired"
  std::vector<v1::Role> callers;
};

// Of every rpc that Sluice serves.
const std::vector<RpcRule>& RpcRules();

// PERMISSION_DENIED names the method, the caller and who may call it.
absl::Status MayCall(const PeerIdentity& caller, absl::string_view method);

// Of Coordinator.Join: a member says only what its role has to say, under its own name. OK where
// there are no certificates (none).
absl::Status MaySay(const std::optional<PeerIdentity>& peer, const v1::MemberMessage& message);

// Of ParameterServer.Exchange: a Hello is said under one's own name; from then on the shard goes by
// that.
absl::Status MaySay(const std::optional<PeerIdentity>& peer, const v1::Header& header);

// Of JobControl.OpenSnapshot, and a reader's Hello: as CheckClaim, and a worker may be a reader
// too.
absl::Status MayRead(const std::optional<PeerIdentity>& peer, const v1::ProcessId& claimed);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_RULES_H_

// The checks of the coordinator's messages before they change anything: one function per message.
//
// A shard obeys the coordinator. A message that contradicts itself or the shard's state fails the
// job, with an error that names the wrong value and what would be right (INVALID_ARGUMENT).
#ifndef SLUICE_SERVICES_PS_CORE_SESSION_COORDINATOR_CHECKS_H_
#define SLUICE_SERVICES_PS_CORE_SESSION_COORDINATOR_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/control.pb.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Checks that each partition of the layout has an owner among the message's shards.
absl::Status CheckPrepareState(const v1::PrepareState& prepare);
// `begun`: the version that the attempt began with.
absl::Status CheckInstall(const ShardState& state, uint64_t begun, const v1::Install& install);

// Checks that this shard has closed the committed version.
absl::Status CheckCommitted(const ShardState& state, const v1::Committed& committed);

// Checks that the factor on the learning rate is from 0 to 1.
absl::Status CheckDecisions(const v1::EvaluationDecisions& decisions);

// Checks that the snapshot has a number, and that its step is not after the job's last.
absl::Status CheckOpenSnapshot(const ShardState& state, const v1::OpenSnapshot& snapshot);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SESSION_COORDINATOR_CHECKS_H_

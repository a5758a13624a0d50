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

// Each partition of the layout has an owner, which is one of the shards that the message names.
absl::Status CheckPrepareState(const v1::PrepareState& prepare);
// `begun`: the version that the attempt began with.
absl::Status CheckInstall(const ShardState& state, uint64_t begun, const v1::Install& install);

// The committed version is not above the one that this shard has closed.
absl::Status CheckCommitted(const ShardState& state, const v1::Committed& committed);

// The factor on the learning rate is from 0 to 1.
absl::Status CheckDecisions(const v1::EvaluationDecisions& decisions);

// The snapshot has a number and names a step of the job.
absl::Status CheckOpenSnapshot(const ShardState& state, const v1::OpenSnapshot& snapshot);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SESSION_COORDINATOR_CHECKS_H_

// The checks of frame_checks.h for the messages that make copies.
#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_CHECKS_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/frame.pb.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// `sender`: the incarnation of a shard of the view. It owns the partition, and this shard is its
// follower or target. `bytes`: of the payload.
absl::Status CheckCopyState(const ShardState& state, uint64_t sender, const v1::CopyState& part,
                            uint64_t bytes);
// Of the view's mode: a step has no worker, other entries have one.
absl::Status CheckCopyEntry(const ShardState& state, uint64_t sender, const v1::CopyEntry& entry);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_CHECKS_H_

// The checks that a shard makes before a message changes anything: one function per message.
//
// Peers are not trusted. Each number that a peer sends is compared here with what the shard knows
// itself (the partitions' versions, the job's length, the samples of a step, the sender's clock,
// lease and permit). The cores call a message's function before they do anything else with it.
// docs/protocol.md 14 lists the checks of each field.
//
// The functions are pure and do not allocate for a valid message. An error names the wrong value
// and what would be right; it is INVALID_ARGUMENT unless a function says otherwise. Payloads are
// checked where they are split into blocks (SplitPayload).
#ifndef SLUICE_SERVICES_PS_CORE_SESSION_FRAME_CHECKS_H_
#define SLUICE_SERVICES_PS_CORE_SESSION_FRAME_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/interval_set.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// ---------------------------------------------------------------- any stream

// Checks protocol, job, shard and kind of the sender. The caller then checks whether the
// coordinator has admitted the process. FAILED_PRECONDITION, NOT_FOUND and PERMISSION_DENIED as in
// docs/protocol.md 3.2.
absl::Status CheckHello(const ShardState& state, const v1::Hello& hello);

// Whether a peer of this role may send such a frame at all. PERMISSION_DENIED for a reader that
// requests more than pinned versions.
absl::Status CheckSender(v1::Role role, const v1::Header& header);

// About how much memory a frame takes in addition to its payload.
size_t HeaderMemory(const v1::Header& header);

// ---------------------------------------------------------------- synchronous training

// `member` is the sender's number in the view.
absl::Status CheckStepPush(const ShardState& state, size_t member, const v1::Push& push);
absl::Status CheckVersionPull(const ShardState& state, const v1::Pull& pull);
// `sender` is the incarnation of a shard of the view; `step` is that of the receiver.
absl::Status CheckNorms(const ShardState& state, uint64_t sender, uint64_t step,
                        const v1::Norms& norms);
absl::Status CheckStepParticipants(const ShardState& state, uint64_t sender,
                                   const v1::StepParticipants& set);

// ---------------------------------------------------------------- asynchronous training

// A shard's facts about a worker in asynchronous training.
struct UpdateFacts {
  uint64_t applied = 0;  // clock of its newest update that is applied here
  uint64_t staged = 0;   // clock of the update that is being staged; 0: none
  bool whole = false;    // all of that update has arrived
  bool named = false;    // at least one partition of that update is complete
  uint64_t samples = 0;  // as stated in its pushes
  // Highest clock that its next frame may name (HighestClock).
  uint64_t highest_clock = 0;
  // At the arbiter.
  bool holds_lease = false;
  const v1::Permit* permit = nullptr;  // null: none
};

// A worker's clock is at most one above the highest that the arbiter has recorded. `reported`: the
// worker has sent the arbiter its clock in this attempt. In an attempt that restored a checkpoint,
// a worker's clock may be higher than the checkpoint's record of it. Until the worker has sent it,
// its clock is bounded by the number of updates that the job's attempts can have made. The same
// bound holds on the other shards, which do not record the clock to which the arbiter raised a
// worker.
uint64_t HighestClock(const ShardState& state, uint64_t recorded, bool reported);

absl::Status CheckUpdatePush(const ShardState& state, const UpdateFacts& facts,
                             const v1::Push& push);
// For an update that is not a repetition. `own`: the norms of the shard's own part; null: not
// measured.
absl::Status CheckApply(const ShardState& state, const UpdateFacts& facts, const v1::Apply& apply,
                        const IntervalSet& applied, const GradientNorm* own);
absl::Status CheckLivePull(const ShardState& state, const UpdateFacts& facts, const v1::Pull& pull);
absl::Status CheckLeaseRequest(const ShardState& state, const UpdateFacts& facts,
                               const v1::LeaseRequest& request);
absl::Status CheckPermitRequest(const ShardState& state, const UpdateFacts& facts,
                                const v1::PermitRequest& request);

// ---------------------------------------------------------------- pinned versions, version 0

// DataSender checks whether the snapshot is pinned.
absl::Status CheckSnapshotPull(const v1::Pull& pull);
// `pusher`: incarnation that has already pushed for this init request; 0: none.
absl::Status CheckInitPush(uint64_t pusher, uint64_t sender, const v1::InitPush& push);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SESSION_FRAME_CHECKS_H_

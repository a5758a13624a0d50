// What a shard compares before a message changes anything: one function for each message.
//
// Peers are not trusted. So each number that a peer sends is compared here with what the shard
// knows itself (the partitions' versions, the job's length, the samples of a step, the sender's
// clock, lease and permit), and the cores call the function of a message before they do anything
// else with it. docs/protocol.md 14 lists what is checked of each field.
//
// The functions are pure and allocate nothing when the message is right. An error says what is
// wrong, with which value, and what would be right; INVALID_ARGUMENT unless a function says
// otherwise. Payloads are checked where they are cut into blocks (SplitPayload).
#ifndef SLUICE_SERVICES_PS_FRAME_CHECKS_H_
#define SLUICE_SERVICES_PS_FRAME_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/interval_set.h"
#include "services/ps/shard_state.h"

namespace sluice::ps {

// ---------------------------------------------------------------- any stream

// Protocol, job, shard and kind of the sender; whether the coordinator has admitted it is asked
// after this. FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED as docs/protocol.md 3.2 says.
absl::Status CheckHello(const ShardState& state, const v1::Hello& hello);

// Whether a peer of this role may send such a frame at all. PERMISSION_DENIED for a reader that
// wants more than pinned versions.
absl::Status CheckSender(v1::Role role, const v1::Header& header);

// About what a frame takes in memory beside its payload.
size_t HeaderMemory(const v1::Header& header);

// ---------------------------------------------------------------- synchronous training

// `member` is the sender's number in the view.
absl::Status CheckStepPush(const ShardState& state, size_t member, const v1::Push& push);
absl::Status CheckVersionPull(const ShardState& state, const v1::Pull& pull);
// `sender` is the incarnation of a shard of the view; `step` is that of the receiver.
absl::Status CheckNorms(const ShardState& state, uint64_t sender, uint64_t step,
                        const v1::Norms& norms);
absl::Status CheckStepSet(const ShardState& state, uint64_t sender, const v1::StepSet& set);

// ---------------------------------------------------------------- asynchronous training

// What a shard knows of a worker that updates.
struct UpdateFacts {
  uint64_t applied = 0;  // clock of its newest update that is applied here
  uint64_t staged = 0;   // clock of the update that is being staged; 0: none
  bool whole = false;    // all of that is there
  bool named = false;    // some partition of it is complete
  uint64_t samples = 0;  // that its pushes said
  // Highest clock that its next frame may name (HighestClock).
  uint64_t highest_clock = 0;
  // At the arbiter.
  bool holds_lease = false;
  const v1::Permit* permit = nullptr;  // null: none
};

// A worker's clock is one above the highest that the arbiter has recorded, at most. `heard`: its
// clock was told to the arbiter in this attempt. In an attempt that restored a checkpoint a worker
// may have counted on further than the checkpoint says; until it was heard, and on other shards, on
// which nobody records what the arbiter raised it to, its clock is bounded by the updates that the
// job's attempts can have had.
uint64_t HighestClock(const ShardState& state, uint64_t recorded, bool heard);

absl::Status CheckUpdatePush(const ShardState& state, const UpdateFacts& facts,
                             const v1::Push& push);
// Of an update that is not a repetition. `own`: the norms of the shard's own part; null: not
// measured.
absl::Status CheckApply(const ShardState& state, const UpdateFacts& facts, const v1::Apply& apply,
                        const IntervalSet& applied, const GradientNorm* own);
absl::Status CheckLivePull(const ShardState& state, const UpdateFacts& facts, const v1::Pull& pull);
absl::Status CheckLeaseRequest(const ShardState& state, const UpdateFacts& facts,
                               const v1::LeaseRequest& request);
absl::Status CheckPermitRequest(const ShardState& state, const UpdateFacts& facts,
                                const v1::PermitRequest& request);

// ---------------------------------------------------------------- pinned versions, version 0

absl::Status CheckCutPull(const v1::Pull& pull);
// `pusher`: incarnation that has pushed for this ask before; 0: none.
absl::Status CheckBirthPush(uint64_t pusher, uint64_t sender, const v1::BirthPush& push);

// ---------------------------------------------------------------- the coordinator
// What it says is obeyed or, where it contradicts itself or what the shard holds, fails the job.

absl::Status CheckPrepare(const v1::Prepare& prepare);
// `begun`: the version that the attempt began with.
absl::Status CheckInstall(const ShardState& state, uint64_t begun, const v1::Install& install);
absl::Status CheckCommitted(const ShardState& state, const v1::Committed& committed);
absl::Status CheckOpenCut(const ShardState& state, const v1::OpenCut& cut);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_FRAME_CHECKS_H_

// The checkpoints that lead to a job's newest one, and the intervals between them, which
// `sluice verify` replays.
#ifndef SLUICE_CLI_VERIFY_HISTORY_H_
#define SLUICE_CLI_VERIFY_HISTORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "services/checkpoint/storage.h"
#include "services/protocol/arithmetic.h"

namespace sluice::verify {

// The checkpoints of the attempts that lead to the newest one, from the oldest that is kept.
struct History {
  std::vector<v1::CheckpointIndex> checkpoints;  // steps ascend
  // Whether the first one was trained from the job's beginning, in its own attempt.
  bool from_beginning = false;
  // The optimizer of each attempt whose claim records it.
  std::map<uint64_t, v1::OptimizerSpec> optimizers;
};

// Steps of training between two checkpoints.
struct Interval {
  std::optional<v1::CheckpointIndex> from;  // unset: the job's beginning
  v1::CheckpointIndex to;
  // With which it was trained; unset: with the job's.
  std::optional<v1::OptimizerSpec> optimizer;

  uint64_t first() const { return from.has_value() ? from->checkpoint().step() : 0; }
  uint64_t last() const { return to.checkpoint().step(); }
};

// The intervals that the user selects.
struct Selection {
  std::optional<uint64_t> from;  // 0: the job's beginning, unless there is a checkpoint of step 0
  std::optional<uint64_t> to;
  bool all = false;
};

// Follows the newest checkpoint back: to the one before it in its attempt, then to the attempt's
// parent. Reads indexes only. FAILED_PRECONDITION if the storage has no checkpoint; DATA_LOSS names
// a damaged index.
absl::StatusOr<History> ReadHistory(CheckpointStorage& storage);

// In ascending order; at least one. Errors list the existing checkpoints.
absl::StatusOr<std::vector<Interval>> SelectIntervals(const History& history,
                                                      const Selection& selection);

// FAILED_PRECONDITION gives the reason why a replay cannot repeat the interval's training: the
// result depended on timing, or on state that no checkpoint contains. `machine`:
// ThisMachine(). `exact`: whether every bit must be equal.
absl::Status CheckReplayable(const v1::JobSpec& job, const Interval& interval,
                             const MachineArithmetic& machine, bool exact);

// The job that trains one interval again, with one worker and one shard (with server-side
// execution, one shard for each stage). `from_directory`: of the checkpoint that it begins with;
// not used from the beginning. `hash_interval_steps`: how often the shards record state hashes.
v1::JobSpec ReplayJob(const v1::JobSpec& job, const Interval& interval,
                      const std::string& from_directory, uint64_t hash_interval_steps);

}  // namespace sluice::verify

#endif  // SLUICE_CLI_VERIFY_HISTORY_H_

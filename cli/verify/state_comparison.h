// Compares the state that a job stored with the state that its replay reached. Pure, but for the
// reading of partition files.
#ifndef SLUICE_CLI_VERIFY_STATE_COMPARISON_H_
#define SLUICE_CLI_VERIFY_STATE_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/storage.h"
#include "services/protocol/step_hashes.h"

namespace sluice::verify {

// The content of a partition's file.
struct SavedPartition {
  uint32_t partition = 0;
  std::vector<SafetensorsArray> arrays;  // blocks and optimizer state, by name
  std::string counts;                    // updates of each block
  uint64_t state_hash = 0;
  std::vector<StepHash> step_hashes;
};

// DATA_LOSS names the file and what is wrong with it.
absl::StatusOr<SavedPartition> ReadPartition(CheckpointStorage& storage,
                                             const v1::CheckpointRef& checkpoint,
                                             const v1::PartitionFile& file);

// How one partition of a replay differs from the recorded one.
struct PartitionComparison {
  uint32_t partition = 0;
  // After the last step: arrays whose bytes differ.
  std::vector<std::string> arrays;
  // The largest difference of an element, |a - b| / max(1, |a|), and its array. Infinite if one of
  // the two is not finite, or if more than elements differ.
  double largest = 0;
  std::string largest_array;
  // State hashes that both have, of steps after the interval's first.
  size_t hashes = 0;
  std::optional<uint64_t> first_step;   // the first whose hashes differ
  std::optional<uint64_t> equal_until;  // the last before it whose hashes are equal
  // The replay has the state hash that training recorded after the last step, and the checkpoint
  // does not: it was changed after it was written.
  bool stored_differs = false;

  bool equal() const { return arrays.empty() && !first_step.has_value(); }
};

// `from`, `to`: the interval's first and last step.
PartitionComparison ComparePartitions(const SavedPartition& recorded,
                                      const SavedPartition& replayed, uint64_t from, uint64_t to);

// The first difference of an interval.
struct Difference {
  // The state after step `after` was equal, and that after step `step` differs. If `stored`, the
  // training did not differ: the checkpoint of this step was changed after it was written.
  uint64_t after = 0;
  uint64_t step = 0;
  bool stored = false;
  std::vector<uint32_t> partitions;  // those that differ after this step
  std::vector<std::string> arrays;   // of the first of these partitions
};

// Nullopt: all are equal. `from`, `to`: the interval's first and last step.
std::optional<Difference> FirstDifference(const std::vector<PartitionComparison>& partitions,
                                          uint64_t from, uint64_t to);

// Whether the checkpoint at the beginning of an interval has the state that training had then, by
// the state hashes in the checkpoint at its end (`hashes`, by partition). Nullopt: it has, or there
// is no hash of its step.
std::optional<Difference> CompareBeginning(const v1::CheckpointIndex& from,
                                           const std::map<uint32_t, std::vector<StepHash>>& hashes);

// The steps between two recorded hashes; 0 if none is recorded.
uint64_t HashInterval(const std::map<uint32_t, std::vector<StepHash>>& hashes);

// "after step 537, in partition 3 (fc1.weight[0:4096])"; a range of steps where it is not known
// exactly.
std::string DifferenceText(const Difference& difference);

}  // namespace sluice::verify

#endif  // SLUICE_CLI_VERIFY_STATE_COMPARISON_H_

#include "cli/chaos/comparison.h"

#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/checkpoint/safetensors.h"
#include "services/common/status_macros.h"

namespace sluice::chaos {
namespace {

std::string DifferenceOf(const SafetensorsArray& baseline, const SafetensorsArray& job) {
  const std::string before(baseline.bytes);
  const std::string after(job.bytes);
  if (before.size() != after.size()) {
    return absl::StrCat("tensor ", job.name, " has ", after.size(), " bytes, and ", before.size(),
                        " in the baseline");
  }

  size_t count = 0;
  size_t first = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] != after[i] && count++ == 0) first = i;
  }

  if (count == 0) return "";
  return absl::StrCat("tensor ", job.name, " differs from the baseline's in ", count, " of ",
                      before.size(), " bytes, the first at ", first);
}

// By partition: parameters, optimizer state and counts in one number.
std::map<uint32_t, uint64_t> StateHashes(const v1::CheckpointIndex& index) {
  std::map<uint32_t, uint64_t> hashes;
  for (const v1::PartitionFile& file : index.files()) hashes[file.partition()] = file.state_hash();
  return hashes;
}

}  // namespace

absl::StatusOr<Comparison> CompareCheckpoints(CheckpointStorage& baseline, CheckpointStorage& job) {
  ASSIGN_OR_RETURN(const NewestCheckpoint before, ReadNewestCheckpoint(baseline));
  ASSIGN_OR_RETURN(const NewestCheckpoint after, ReadNewestCheckpoint(job));

  const v1::CheckpointIndex& expected = before.point.checkpoint_index;
  const v1::CheckpointIndex& found = after.point.checkpoint_index;
  Comparison comparison;
  comparison.tensors = before.tensors.size();

  if (expected.checkpoint().step() != found.checkpoint().step()) {
    comparison.difference =
        absl::StrCat("the last checkpoint is of step ", found.checkpoint().step(),
                     ", the baseline's of step ", expected.checkpoint().step());
    return comparison;
  }

  std::map<std::string, const SafetensorsArray*> by_name;
  for (const SafetensorsArray& tensor : after.tensors) by_name[tensor.name] = &tensor;
  for (const SafetensorsArray& tensor : before.tensors) {
    const auto other = by_name.find(tensor.name);
    comparison.difference = other == by_name.end()
                                ? absl::StrCat("tensor ", tensor.name, " is missing")
                                : DifferenceOf(tensor, *other->second);
    if (!comparison.equal()) return comparison;
  }

  const std::map<uint32_t, uint64_t> hashes = StateHashes(found);
  for (const auto& [partition, hash] : StateHashes(expected)) {
    const auto other = hashes.find(partition);
    if (other != hashes.end() && other->second == hash) continue;
    comparison.difference = absl::StrCat(
        "the parameters are equal, but the optimizer's state in "
        "partition ",
        partition, " differs from the baseline's");
    return comparison;
  }
  return comparison;
}

}  // namespace sluice::chaos

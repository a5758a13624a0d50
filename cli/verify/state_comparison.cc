#include "cli/verify/state_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/common/tensor_text.h"
#include "services/common/status_macros.h"

namespace sluice::verify {
namespace {

constexpr size_t kMaxNamed = 3;  // arrays or partitions in a sentence

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// |a - b| / max(1, |a|) of the elements that differ most.
double LargestDifference(const SafetensorsArray& recorded, const SafetensorsArray& replayed) {
  if (recorded.dtype != replayed.dtype || recorded.bytes.size() != replayed.bytes.size()) {
    return kInfinite;
  }
  if (recorded.dtype == v1::INT64) return kInfinite;  // a count is equal or wrong

  const std::vector<double> before = cli::ElementsOf(recorded);
  const std::vector<double> after = cli::ElementsOf(replayed);
  double largest = 0;

  for (size_t i = 0; i < before.size(); ++i) {
    const double difference = std::abs(before[i] - after[i]) / std::max(1.0, std::abs(before[i]));
    const bool both_nan = std::isnan(before[i]) && std::isnan(after[i]);
    if (before[i] == after[i] || both_nan) continue;
    largest = std::isfinite(difference) ? std::max(largest, difference) : kInfinite;
  }
  return largest;
}

void NoteArray(const std::string& name, double difference, PartitionComparison* comparison) {
  comparison->arrays.push_back(name);
  if (difference < comparison->largest) return;
  comparison->largest = difference;
  comparison->largest_array = name;
}

void CompareArrays(const SavedPartition& recorded, const SavedPartition& replayed,
                   PartitionComparison* comparison) {
  std::map<std::string, const SafetensorsArray*> others;
  for (const SafetensorsArray& array : replayed.arrays) others[array.name] = &array;

  for (const SafetensorsArray& array : recorded.arrays) {
    const auto other = others.find(array.name);
    if (other == others.end()) {
      NoteArray(array.name, kInfinite, comparison);
      continue;
    }
    if (array.bytes != other->second->bytes) {
      NoteArray(array.name, LargestDifference(array, *other->second), comparison);
    }
    others.erase(other);
  }

  for (const auto& [name, array] : others) NoteArray(name, kInfinite, comparison);
  if (recorded.counts != replayed.counts) NoteArray("counts", kInfinite, comparison);
}

// Null if there is no hash of this step.
const StepHash* HashAt(const std::vector<StepHash>& hashes, uint64_t step) {
  const auto found = std::lower_bound(hashes.begin(), hashes.end(), step,
                                      [](const StepHash& a, uint64_t b) { return a.step < b; });
  return found == hashes.end() || found->step != step ? nullptr : &*found;
}

// The blocks of a partition, named as in its file.
std::vector<std::string> BlocksOf(const v1::CheckpointIndex& index, uint32_t partition) {
  std::vector<std::string> names;
  for (const v1::Block& block : index.layout().blocks()) {
    if (block.partition() != partition) continue;
    names.push_back(absl::StrCat(index.table().tensors(static_cast<int>(block.tensor())).name(),
                                 "[", block.offset(), ":", block.offset() + block.count(), "]"));
  }
  return names;
}

// "a, b, c and 4 more"
template <typename T>
std::string ListText(const std::vector<T>& items) {
  const size_t shown = std::min(items.size(), kMaxNamed);
  std::string text =
      absl::StrJoin(items.begin(), items.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (items.size() > shown) absl::StrAppend(&text, " and ", items.size() - shown, " more");
  return text;
}

}  // namespace

absl::StatusOr<SavedPartition> ReadPartition(CheckpointStorage& storage,
                                             const v1::CheckpointRef& checkpoint,
                                             const v1::PartitionFile& file) {
  ASSIGN_OR_RETURN(const absl::Cord bytes, storage.ReadFile(checkpoint, file));
  const auto damaged = [&](const absl::Status& why) {
    return absl::DataLossError(
        absl::StrCat(CheckpointDirectory(checkpoint), "/", file.name(), ": ", why.message()));
  };

  SavedPartition saved;
  saved.partition = file.partition();
  saved.state_hash = file.state_hash();

  std::map<std::string, std::string> metadata;
  ASSIGN_OR_RETURN(saved.arrays, ReadSafetensors(bytes, &metadata), damaged(_));
  saved.counts = metadata["counts"];
  ASSIGN_OR_RETURN(saved.step_hashes, ParseStepHashes(metadata["step_hashes"]), damaged(_));
  return saved;
}

PartitionComparison ComparePartitions(const SavedPartition& recorded,
                                      const SavedPartition& replayed, uint64_t from, uint64_t to) {
  PartitionComparison comparison;
  comparison.partition = recorded.partition;
  CompareArrays(recorded, replayed, &comparison);

  for (const StepHash& entry : recorded.step_hashes) {
    const StepHash* const other = HashAt(replayed.step_hashes, entry.step);
    if (entry.step <= from || entry.step > to || other == nullptr) continue;
    ++comparison.hashes;
    if (comparison.first_step.has_value()) continue;
    if (entry.hash == other->hash) {
      comparison.equal_until = entry.step;
    } else {
      comparison.first_step = entry.step;
    }
  }
  comparison.stored_differs = !comparison.arrays.empty() && comparison.equal_until == to;
  return comparison;
}

std::optional<Difference> FirstDifference(const std::vector<PartitionComparison>& partitions,
                                          uint64_t from, uint64_t to) {
  std::optional<Difference> first;
  for (const PartitionComparison& partition : partitions) {
    if (partition.equal()) continue;

    Difference difference;
    difference.step = partition.first_step.value_or(to);
    difference.stored = partition.stored_differs;
    difference.after = partition.equal_until.value_or(from);

    if (!first.has_value() || difference.step < first->step) {
      first = std::move(difference);
      first->arrays = partition.arrays;
    } else if (difference.step > first->step) {
      continue;
    } else {
      // A difference in training explains a difference in storage.
      first->stored = first->stored && difference.stored;
      first->after = std::min(first->after, difference.after);
    }
    first->partitions.push_back(partition.partition);
  }
  return first;
}

std::optional<Difference> CompareBeginning(
    const v1::CheckpointIndex& from, const std::map<uint32_t, std::vector<StepHash>>& hashes) {
  std::optional<Difference> difference;
  for (const v1::PartitionFile& file : from.files()) {
    const auto found = hashes.find(file.partition());
    if (found == hashes.end()) continue;
    const StepHash* const recorded = HashAt(found->second, from.checkpoint().step());
    if (recorded == nullptr || recorded->hash == file.state_hash()) continue;

    if (!difference.has_value()) {
      difference.emplace();
      difference->after = difference->step = from.checkpoint().step();
      difference->stored = true;
      difference->arrays = BlocksOf(from, file.partition());
    }
    difference->partitions.push_back(file.partition());
  }
  return difference;
}

uint64_t HashInterval(const std::map<uint32_t, std::vector<StepHash>>& hashes) {
  uint64_t interval = 0;
  for (const auto& [partition, entries] : hashes) {
    for (const StepHash& entry : entries) interval = std::gcd(interval, entry.step);
  }
  return interval;
}

std::string DifferenceText(const Difference& difference) {
  const std::string steps =
      difference.after + 1 < difference.step
          ? absl::StrCat("between the steps ", difference.after, " and ", difference.step)
          : absl::StrCat("after step ", difference.step);
  return absl::StrCat(
      difference.partitions.size() == 1 ? "partition " : "partitions ",
      ListText(difference.partitions), " ", steps,
      difference.arrays.empty() ? "" : absl::StrCat(" (", ListText(difference.arrays), ")"));
}

}  // namespace sluice::verify

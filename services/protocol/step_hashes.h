// The state hashes that a partition had after recent steps, as text: the value of `step_hashes` in
// the partition's file (docs/checkpoints.md). Shards write it, `sluice verify` reads it.
#ifndef SLUICE_SERVICES_PROTOCOL_STEP_HASHES_H_
#define SLUICE_SERVICES_PROTOCOL_STEP_HASHES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The state hash of one version of a partition; the version is the number of steps closed. Two runs
// of a BitExact job have the same hashes at the same steps.
struct StepHash {
  uint64_t step = 0;
  uint64_t hash = 0;
};

// A shard keeps this many of each partition, the newest. Two checkpoints can be compared over the
// steps that both still have.
inline constexpr size_t kMaxStepHashes = 1000;

// "101:0123456789abcdef 102:...", in the given order.
std::string StepHashesText(const std::vector<StepHash>& hashes);

// INVALID_ARGUMENT unless the text is of this form, its steps ascend, and there are at most
// kMaxStepHashes.
absl::StatusOr<std::vector<StepHash>> ParseStepHashes(absl::string_view text);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_STEP_HASHES_H_

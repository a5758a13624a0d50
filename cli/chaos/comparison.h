// Compares the last checkpoints of two jobs byte by byte.
#ifndef SLUICE_CLI_CHAOS_COMPARISON_H_
#define SLUICE_CLI_CHAOS_COMPARISON_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "services/checkpoint/storage.h"

namespace sluice::chaos {

// The result of comparing the last checkpoints of a job and of its baseline.
struct Comparison {
  size_t tensors = 0;  // of parameters and buffers
  // The first difference, one sentence; empty: parameters and optimizer state are equal.
  std::string difference;

  bool equal() const { return difference.empty(); }
};

// Reads the newest whole checkpoints of both jobs. Errors of either storage; NOT_FOUND if one has
// no checkpoint.
absl::StatusOr<Comparison> CompareCheckpoints(CheckpointStorage& baseline, CheckpointStorage& job);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_COMPARISON_H_

// Reads the final checkpoint of a finished job.

#ifndef SLUICE_TESTS_TESTING_FINAL_STATE_H_
#define SLUICE_TESTS_TESTING_FINAL_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"

namespace sluice::testing {

// The manifest of the newest usable checkpoint. NOT_FOUND if there is none.
absl::StatusOr<v1::CheckpointIndex> FinalCheckpointIndex(const std::string& checkpoints);

// The parameters of a tensor of float64 or float32 in that checkpoint.
absl::StatusOr<std::vector<double>> FinalTensor(const std::string& checkpoints,
                                                const std::string& tensor);

// The state hash of each partition, by partition: equal lists mean equal bits of everything
// (parameters, optimizer state, counts).
absl::StatusOr<std::vector<uint64_t>> FinalStateHashes(const std::string& checkpoints);

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_FINAL_STATE_H_

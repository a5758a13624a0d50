// How many bytes the stages of a model exchange when the shards compute its layers.
#ifndef SLUICE_SERVICES_EXECUTION_WORKER_STAGE_SIZES_H_
#define SLUICE_SERVICES_EXECUTION_WORKER_STAGE_SIZES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace sluice {

// In training, the gradients of all of these but the first stage's input cross the network in the
// other direction.
struct StageSizes {
  uint64_t input_bytes = 0;  // of one sample
  uint64_t output_bytes = 0;
};

// Found by running one sample of zeros through the stages. `sample_shape`, `outputs` and `tokens`
// as in RemoteEngineOptions. INVALID_ARGUMENT or FAILED_PRECONDITION: the model or its stages are
// wrong. Blocks; computes on the CPU.
absl::StatusOr<std::vector<StageSizes>> MeasureStages(const v1::JobSpec& job,
                                                      const std::vector<int64_t>& sample_shape,
                                                      int64_t outputs, bool tokens);

}  // namespace sluice

#endif  // SLUICE_SERVICES_EXECUTION_WORKER_STAGE_SIZES_H_

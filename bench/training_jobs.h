// The jobs of the benchmarks of whole training steps, so that training with and without parameter
// servers has the same model, data, order and batches.

#ifndef SLUICE_BENCH_TRAINING_JOBS_H_
#define SLUICE_BENCH_TRAINING_JOBS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/protocol/layout.h"

namespace sluice::bench {

struct TrainingJobOptions {
  std::string model;
  std::string data;  // directory with the image models' IDX files
  uint32_t workers = 1;
  uint32_t shards = 1;
  uint32_t partitions = kDefaultPartitions;
  uint64_t steps = 0;
};

// The built-in models that can be measured.
std::vector<std::string> ModelNames();

// Synchronous training by plain SGD (additive: by Add; lstm-lm: by Adam); each worker gets one
// microbatch per step. No evaluation, no checkpoint but the last. INVALID_ARGUMENT for an unknown
// model.
absl::StatusOr<v1::JobSpec> MakeTrainingJob(const TrainingJobOptions& options);

// The output of these programs: one JSON line. `seconds` are the times of the measured steps;
// `more` is appended.
std::string RateAsJson(const TrainingJobOptions& options, const std::string& benchmark,
                       std::vector<double> seconds,
                       const std::vector<std::pair<std::string, double>>& more = {});

}  // namespace sluice::bench

#endif  // SLUICE_BENCH_TRAINING_JOBS_H_

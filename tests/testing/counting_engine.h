// A model that counts: element i of its only tensor is how often sample i was applied. So the
// parameters of a finished job show whether any sample was lost or applied twice, whatever happened
// to its processes.

#ifndef SLUICE_TESTS_TESTING_COUNTING_ENGINE_H_
#define SLUICE_TESTS_TESTING_COUNTING_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice::testing {

// The job's data is a CSV file whose only feature is the sample's number; its optimizer is Add and
// its aggregation Sum (CountingJob makes such a job).
class CountingEngine : public ComputeEngine {
 public:
  // model.dimensions["microseconds"] is how long a batch takes, so that faults hit work in
  // progress. `slow_while`: batches take that long only while this file exists; empty: always.
  CountingEngine(const v1::JobSpec& job, uint64_t samples, std::string slow_while = "");

  const v1::TensorTable& Describe() const override { return table_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t tensor) const override;
  absl::Status SetTensorRange(Buffer buffer, uint32_t tensor, uint64_t offset,
                              const absl::Cord& bytes) override;
  absl::StatusOr<absl::Cord> GetTensor(Buffer buffer, uint32_t tensor) const override;
  absl::Status Adopt() override;
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override;
  absl::StatusOr<BatchMetrics> Evaluate(Buffer buffer, const Batch& batch) override;

 private:
  absl::Duration time_per_batch_;
  const std::string slow_while_;
  v1::TensorTable table_;
  std::vector<double> current_;
  std::vector<double> incoming_;
  std::vector<double> evaluation_;
};

// A synchronous job of `epochs` epochs over `samples` samples; writes its data to `directory`.
v1::JobSpec CountingJob(const std::string& directory, uint64_t samples, uint64_t epochs);

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_COUNTING_ENGINE_H_

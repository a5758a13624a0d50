// Jobs that are saved or evaluated every few steps, and the steps at which they were.
#ifndef SLUICE_SERVICES_COORDINATOR_CORE_TESTING_SNAPSHOT_SCHEDULE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_TESTING_SNAPSHOT_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {

inline v1::JobSpec CheckpointEvery(uint64_t steps) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(steps);
  return spec;
}

inline v1::JobSpec EvaluateEvery(uint64_t steps) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(steps);
  return spec;
}

// The steps of all checkpoints that were made, the deleted ones included, in order.
inline std::vector<uint64_t> SavedSteps(const FakeJob& job) {
  std::vector<uint64_t> steps;
  for (const auto& [key, checkpoint_index] : job.checkpoint_indexes) steps.push_back(key.second);
  return steps;
}

// The steps at which the job was evaluated, in order.
inline std::vector<uint64_t> EvaluatedSteps(FakeJob& job) {
  std::vector<uint64_t> steps;
  const v1::JobProgress progress = job.Progress();
  for (const v1::Event& event : progress.events()) {
    if (event.has_evaluation()) steps.push_back(event.evaluation().step());
  }
  return steps;
}

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_TESTING_SNAPSHOT_SCHEDULE_H_

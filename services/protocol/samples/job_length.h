// A job's length in steps and in samples, conversions between the two, and what follows from its
// mode.

#ifndef SLUICE_SERVICES_PROTOCOL_SAMPLES_JOB_LENGTH_H_
#define SLUICE_SERVICES_PROTOCOL_SAMPLES_JOB_LENGTH_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/protocol/samples/sequence.h"

namespace sluice {

// An unspecified mode counts as synchronous.
inline bool IsSynchronous(v1::Mode mode) {
  return mode != v1::ASYNCHRONOUS && mode != v1::BOUNDED_STALENESS;
}

// Whether shards get and hand over partitions while the job trains (protocol.md, 7.14). With
// server-side execution they cannot, and with delay compensation, which needs the parameters that
// each worker pulled: a copy does not have them.
inline bool MovesPartitions(const v1::JobSpec& job) {
  const v1::TrainingSpec& training = job.training();
  return training.execution() != v1::TrainingSpec::SERVER &&
         (IsSynchronous(training.mode()) ||
          training.staleness().rule() != v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
}

// A job's steps as microbatches. InvalidArgument, naming the field, where the job defines none.
absl::StatusOr<StepSchedule> StepScheduleOf(const v1::TrainingSpec& training,
                                            uint64_t training_samples);

// The steps of a synchronous job. Without a plan the length of epochs is not known: 0.
uint64_t TotalSteps(const v1::TrainingSpec& training, const std::optional<StepSchedule>& plan);

// The samples of an asynchronous job: its global batches, or its epochs; saturates.
uint64_t TotalSamples(const v1::TrainingSpec& training, uint64_t training_samples);

// A job's length, once it is known how many samples there are. Cheap to copy.
class JobLength {
 public:
  // INVALID_ARGUMENT names the field of the job that is out of range.
  static absl::StatusOr<JobLength> Create(const v1::JobSpec& job, uint64_t training_samples);

  // Synchronous: steps; asynchronous: the global batches that the samples make.
  uint64_t total_steps() const { return total_steps_; }
  uint64_t total_samples() const { return total_samples_; }
  // In a full step; the last one of an epoch may have fewer.
  uint64_t microbatches() const { return plan_.MicrobatchesPerStep(); }
  const StepSchedule& plan() const { return plan_; }

  // Synchronous: samples in the steps before `step`.
  uint64_t SamplesAt(uint64_t step) const { return plan_.PositionsOf(step).begin; }
  // The first step that begins after at least this many samples.
  uint64_t StepFrom(uint64_t samples) const { return plan_.StepFrom(samples); }
  // Asynchronous: whole global batches, which schedules count as steps.
  uint64_t BatchesIn(uint64_t samples) const { return samples / batch_; }
  uint64_t SamplesOfBatches(uint64_t batches) const { return batches * batch_; }
  // As a fraction: 0.5 is half of the first epoch.
  double EpochsIn(uint64_t samples) const {
    return static_cast<double>(samples) / static_cast<double>(training_samples_);
  }

 private:
  JobLength(StepSchedule plan, uint64_t batch, uint64_t training_samples)
      : plan_(plan), batch_(batch), training_samples_(training_samples) {}

  StepSchedule plan_;
  uint64_t batch_;
  uint64_t training_samples_;
  uint64_t total_steps_ = 0;
  uint64_t total_samples_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_SAMPLES_JOB_LENGTH_H_

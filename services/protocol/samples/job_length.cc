#include "services/protocol/samples/job_length.h"

#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxJobSamples = uint64_t{1} << 60;

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return a != 0 && b > kMax / a ? kMax : a * b;
}

}  // namespace

absl::StatusOr<StepSchedule> StepScheduleOf(const v1::TrainingSpec& training,
                                            uint64_t training_samples) {
  return StepSchedule::Create({training_samples, training.global_batch_size(),
                               training.microbatch_size(),
                               training.last_batch() == v1::TrainingSpec::DROP});
}

uint64_t TotalSteps(const v1::TrainingSpec& training, const std::optional<StepSchedule>& plan) {
  if (training.steps() > 0) return training.steps();
  return plan.has_value() ? plan->StepsOfEpochs(training.epochs()) : 0;
}

uint64_t TotalSamples(const v1::TrainingSpec& training, uint64_t training_samples) {
  return training.steps() > 0 ? SaturatingProduct(training.steps(), training.global_batch_size())
                              : SaturatingProduct(training.epochs(), training_samples);
}

absl::StatusOr<JobLength> JobLength::Create(const v1::JobSpec& job, uint64_t training_samples) {
  v1::TrainingSpec training = job.training();
  if (training.microbatch_size() == 0) {
    training.set_microbatch_size(training.global_batch_size());
  }
  ASSIGN_OR_RETURN(StepSchedule plan, StepScheduleOf(training, training_samples));

  if ((training.steps() == 0) == (training.epochs() == 0)) {
    return absl::InvalidArgumentError(absl::StrCat("exactly one of training.steps (",
                                                   training.steps(), ") and training.epochs (",
                                                   training.epochs(), ") must be set"));
  }

  const uint64_t rounds = training.steps() > 0 ? training.steps() : training.epochs();
  const uint64_t round = training.steps() > 0 ? training.global_batch_size() : training_samples;
  if (round > 0 && rounds > kMaxJobSamples / round) {
    return absl::InvalidArgumentError(absl::StrCat(
        training.steps() > 0 ? "training.steps" : "training.epochs", " is ", rounds,
        ", and each has ", round, " samples: a job has at most ", kMaxJobSamples, " samples"));
  }

  JobLength length(plan, training.global_batch_size(), training_samples);
  length.total_steps_ = TotalSteps(training, plan);

  if (IsSynchronous(training.mode())) {
    length.total_samples_ = length.SamplesAt(length.total_steps_);
  } else {
    length.total_samples_ = TotalSamples(training, training_samples);
    if (training.steps() == 0) {
      length.total_steps_ = (length.total_samples_ + length.batch_ - 1) / length.batch_;
    }
  }
  return length;
}

}  // namespace sluice

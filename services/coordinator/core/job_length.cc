#include "services/coordinator/core/job_length.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::coordinator {
namespace {

constexpr uint64_t kMaxJobSamples = uint64_t{1} << 60;

}  // namespace

absl::StatusOr<JobLength> JobLength::Create(const v1::JobSpec& job, uint64_t training_samples) {
  const v1::TrainingSpec& training = job.training();
  StepSchedule::Options options;
  options.samples = training_samples;
  options.global_batch_size = training.global_batch_size();
  options.microbatch_size =
      training.microbatch_size() > 0 ? training.microbatch_size() : training.global_batch_size();
  absl::StatusOr<StepSchedule> plan = StepSchedule::Create(options);
  if (!plan.ok()) return plan.status();

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

  JobLength length(*plan, training.global_batch_size(), training_samples);
  length.total_steps_ =
      training.steps() > 0 ? training.steps() : plan->StepsOfEpochs(training.epochs());

  if (IsSynchronous(training.mode())) {
    length.total_samples_ = length.SamplesAt(length.total_steps_);
  } else if (training.steps() > 0) {
    length.total_samples_ = training.steps() * training.global_batch_size();
  } else {
    length.total_samples_ = training.epochs() * training_samples;
    length.total_steps_ = (length.total_samples_ + length.batch_ - 1) / length.batch_;
  }
  return length;
}

}  // namespace sluice::coordinator

#include "services/protocol/samples/smallest_batch.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/samples/sequence.h"

namespace sluice {
namespace {

std::string Count(uint64_t samples) {
  return absl::StrCat(samples, samples == 1 ? " sample" : " samples");
}

// Why each microbatch is computed by itself; empty: a worker computes all of its own as one batch.
std::string WhyOneByOne(const v1::JobSpec& job) {
  if (job.training().bit_exact()) return "determinism: BitExact";
  const bool sum = job.training().aggregation() == v1::TrainingSpec::SUM;
  return sum && job.model().type() == v1::ModelSpec::CUSTOM ? "aggregation: Sum" : "";
}

absl::Status TooSmall(const v1::Ready& ready, const std::string& what, const std::string& remedy) {
  const std::string& module = ready.smallest_batch_module();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model cannot be trained on fewer than ", Count(ready.smallest_batch()), " at once",
      module.empty() ? "" : absl::StrCat(", because of its module '", module, "'"), ", and ", what,
      ": set ", remedy));
}

absl::Status CheckStep(const v1::JobSpec& job, const v1::Ready& ready, const StepSchedule& plan,
                       uint64_t step) {
  const uint64_t smallest = ready.smallest_batch();
  const uint64_t samples = plan.PositionsOf(step).size();
  const uint64_t batch = job.training().global_batch_size();
  const bool rest = samples < batch;
  const std::string name =
      rest ? absl::StrCat("step ", step, ", the last of each epoch,") : "each step";
  const std::string keeps =
      ready.training_samples() > batch ? "training.lastBatch: Drop, or another " : "another ";
  if (samples < smallest) {
    return TooSmall(ready,
                    absl::StrCat(name, " would have ", Count(samples), " (",
                                 Count(ready.training_samples()), ", globalBatchSize ", batch, ")"),
                    rest ? absl::StrCat(keeps, "training.globalBatchSize")
                         : absl::StrCat("training.globalBatchSize to at least ", smallest));
  }

  const std::string why = WhyOneByOne(job);
  if (why.empty()) return absl::OkStatus();
  const uint64_t size = std::min(plan.microbatch_size(), samples);
  const uint64_t last = samples % size;
  if (size >= smallest && (last == 0 || last >= smallest)) return absl::OkStatus();
  const bool all = size < smallest;
  return TooSmall(ready,
                  absl::StrCat("with `", why, "`, which computes each microbatch by itself, ",
                               all ? "each" : "the last", " microbatch of ", name, " would have ",
                               Count(all ? size : last)),
                  all ? absl::StrCat("training.microbatchSize to at least ", smallest)
                      : absl::StrCat(rest ? keeps : "another ",
                                     "training.globalBatchSize or training.microbatchSize"));
}

}  // namespace

absl::Status CheckSmallestBatch(const v1::JobSpec& job, const v1::Ready& ready) {
  if (ready.smallest_batch() <= 1) return absl::OkStatus();
  v1::TrainingSpec training = job.training();
  if (training.microbatch_size() == 0) training.set_microbatch_size(training.global_batch_size());
  ASSIGN_OR_RETURN(const StepSchedule plan, StepScheduleOf(training, ready.training_samples()));
  if (!IsSynchronous(training.mode())) return absl::OkStatus();
  RETURN_IF_ERROR(CheckStep(job, ready, plan, 0));
  const uint64_t last = plan.StepsPerEpoch() - 1;
  if (last == 0 || last >= TotalSteps(training, plan)) return absl::OkStatus();
  return CheckStep(job, ready, plan, last);
}

}  // namespace sluice

#include "services/ps/core/state/update_arguments.h"

#include <algorithm>
#include <cmath>

#include "services/protocol/interval_set.h"
#include "services/protocol/worker_limits.h"
#include "services/ps/core/base/staleness.h"

namespace sluice::ps {

bool NeedsNorms(const v1::JobSpec& job) {
  return job.optimizer().clip_norm() > 0 || job.training().non_finite() == v1::TrainingSpec::SKIP;
}

double ClipFactor(double max_norm, double square_sum) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (std::sqrt(square_sum) + 1e-6));
}

double WeightOf(const ShardRules& rules, const v1::Push& push) {
  const bool weighed = push.has_weight() && rules.CountWeights();
  return weighed ? push.weight() : static_cast<double>(push.samples());
}

double GradientScale(const v1::JobSpec& job, double weight) {
  const bool divides = job.training().aggregation() == v1::TrainingSpec::MEAN;
  return divides && weight >= kMinWeight ? 1.0 / weight : 1.0;
}

bool IsWeightless(const v1::JobSpec& job, double weight) {
  return job.training().aggregation() == v1::TrainingSpec::MEAN && weight < kMinWeight;
}

v1::ClockRecord RecordOf(uint64_t worker, const v1::Apply& apply) {
  v1::ClockRecord record;
  record.set_worker(worker);
  record.set_clock(apply.clock());
  // Not a copy of the message, whose unknown fields would be kept and reported for ever.
  *record.mutable_samples() = ToProto(FromProto(apply.samples()));
  record.set_staleness(apply.staleness());
  record.set_square_sum(apply.square_sum());
  record.set_non_finite(apply.non_finite());
  return record;
}

bool IsSkipped(const v1::JobSpec& job, const v1::ClockRecord& record) {
  return record.non_finite() && job.training().non_finite() == v1::TrainingSpec::SKIP;
}

UpdateArguments ArgumentsFor(const v1::JobSpec& job, UpdateArguments staged,
                             const v1::ClockRecord& record) {
  staged.gradient_scale *= ClipFactor(job.optimizer().clip_norm(), record.square_sum());
  staged.staleness = EffectOf(job.training().staleness(), record.staleness());
  staged.check_finite = job.training().non_finite() == v1::TrainingSpec::FAIL;
  return staged;
}

}  // namespace sluice::ps

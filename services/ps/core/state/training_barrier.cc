#include "services/ps/core/state/training_barrier.h"

#include "services/common/check.h"

namespace sluice::ps {
namespace {

double FactorOf(const v1::EvaluationDecisions& decisions) {
  return decisions.learning_rate_factor() == 0 ? 1 : decisions.learning_rate_factor();
}

}  // namespace

void TrainingBarrier::Begin(uint64_t version, const v1::EvaluationDecisions& decisions) {
  version_ = version;
  decisions_ = decisions;
  learning_rate_factors_ = {{0, FactorOf(decisions)}};
}

void TrainingBarrier::Move(uint64_t version, const v1::EvaluationDecisions& decisions) {
  version_ = version;
  if (decisions.step() <= decisions_.step()) return;
  decisions_ = decisions;

  SLUICE_DCHECK(!learning_rate_factors_.empty(), "a view has begun with decisions");
  const double factor = FactorOf(decisions);
  if (factor != learning_rate_factors_.back().second) {
    learning_rate_factors_.emplace_back(decisions.step(), factor);
  }
}

double TrainingBarrier::LearningRateFactorAt(uint64_t step) const {
  double factor = 1;
  for (const auto& [from, value] : learning_rate_factors_) {
    if (from <= step) factor = value;
  }
  return factor;
}

}  // namespace sluice::ps

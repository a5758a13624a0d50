#ifndef SLUICE_SERVICES_PS_CORE_STATE_TRAINING_BARRIER_H_
#define SLUICE_SERVICES_PS_CORE_STATE_TRAINING_BARRIER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "proto/control.pb.h"

namespace sluice::ps {

// Where the coordinator lets training go: the barrier, and the decisions of evaluations that it
// sends with it.
class TrainingBarrier {
 public:
  // A view begins.
  void Begin(uint64_t version, const v1::EvaluationDecisions& decisions);
  // In a view. Decisions that are not newer have no effect.
  void Move(uint64_t version, const v1::EvaluationDecisions& decisions);

  // No step is closed at this version; asynchronous: leases end here; 0: none.
  uint64_t version() const { return version_; }
  // The newest.
  const v1::EvaluationDecisions& decisions() const { return decisions_; }
  // The factor on the learning rate for the close of `step`, as evaluations have decided it
  // (OptimizerSpec.plateau); 1 before the first decision.
  double LearningRateFactorAt(uint64_t step) const;

 private:
  uint64_t version_ = 0;
  v1::EvaluationDecisions decisions_;
  // The learning rate factors decided since the view's begin, each with its first step; ascending.
  std::vector<std::pair<uint64_t, double>> learning_rate_factors_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_TRAINING_BARRIER_H_

// The part of a step in which the workers sum the gradients of dense tensors among themselves
// (docs/protocol.md 7.12), as a worker's core sees it.
//
// Intuition. The result of a step is the same: the shards add what the members push. But instead of
// its whole gradient, a member pushes one part of the sum of all gradients. When the last of its
// dense gradients is ready, the member gives them to the group, and pushes the sums that come back
// in place of its own blocks. Everything else in the step is unchanged: partitions close by the set
// of members, sums are dropped with the view, gradients are kept until the next version is whole.
//
//   view --> joined --Start--> collecting --all resolved--> reducing --OnReduced--> done
//                                                              \--error--> broken
//
// If a group breaks, its workers give up unless a new view follows. If a member is gone, the
// coordinator installs a new view, and the worker waits for that. If no member is gone (the network
// between two workers is cut), a worker that leaves causes a new view. The workers do not leave all
// at once: the lower the rank, the earlier.
#ifndef SLUICE_SERVICES_WORKER_CORE_DENSE_REDUCTION_H_
#define SLUICE_SERVICES_WORKER_CORE_DENSE_REDUCTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "services/worker/collective/reduction_plan.h"
#include "services/worker/core/gradients/step_gradients.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

class DenseReduction {
 public:
  DenseReduction(const WorkerContext* context, WorkerOutput* out) : context_(context), out_(out) {}

  // The context's view is new: joins its group, or leaves the old group.
  void OnView();
  // Whether this worker takes part in a group. A view with one member has no group.
  bool active() const { return plan_ != nullptr; }

  // The gradients of a step start to arrive (again). They must stay until Stop or the next Start.
  void Start(const StepGradients* gradients, uint64_t step);
  // The gradients are gone: nothing is given to the group, and a result that still comes is
  // ignored.
  void Stop();
  // A partial sum's tensor is resolved.
  void OnResolved(uint32_t tensor);
  // Gives the gradients to the group once they are all there.
  void Proceed();
  // True: the sums are ready. An error fails the job.
  absl::StatusOr<bool> OnReduced(const v1::ViewId& view, uint64_t step,
                                 absl::StatusOr<ReducedPart> part);

  // ---- for the sender of pushes, while active

  // Whether the group sums the gradients of the tensor; then they are not pushed.
  bool Covers(uint32_t tensor) const { return covered_[tensor]; }
  // Whether this worker pushes the sum of the block.
  bool Owns(uint32_t block) const { return own_.count(block) != 0; }
  // Own gradients are missing; so may be their weight.
  bool collecting() const { return state_ == State::kCollecting; }
  // The sums are ready.
  bool done() const { return state_ == State::kDone; }
  // When done: the sum of a block that this worker owns; null: no member had a gradient.
  const absl::Cord* Sum(uint32_t block) const;

 private:
  // The states of the drawing above; kIdle: not started.
  enum class State { kIdle, kCollecting, kReducing, kDone, kBroken };

  // Whether every covered tensor of every partial sum is resolved, so that the sums can be made.
  bool AllAreResolved() const;
  // The sum of this worker's partial sums of a tensor, whole; nullopt: it has no gradient.
  std::optional<absl::Cord> SumOfPartialSums(uint32_t tensor) const;

  const WorkerContext* const context_;
  WorkerOutput* const out_;
  std::shared_ptr<const ReductionPlan> plan_;  // null: not active
  std::vector<bool> covered_;                  // by tensor
  std::map<uint32_t, size_t> own_;             // block -> place in the own part

  State state_ = State::kIdle;
  const StepGradients* gradients_ = nullptr;
  uint64_t step_ = 0;
  uint64_t unresolved_ = 0;  // (partial sum, covered tensor) pairs
  ReducedPart part_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_DENSE_REDUCTION_H_

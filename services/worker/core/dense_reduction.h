// The part of a step in which the workers sum the gradients of dense tensors among each other
// (docs/protocol.md 7.12), as a worker's core sees it.
//
// Intuition. What a step comes to is the same: the shards add what the members push. But instead of
// all of its own gradient a member pushes a part of the sum of all. So when the last of its dense
// gradients is there it gives them to the group, and what comes back is pushed, where its own
// blocks would have been. Everything else of the step stays as it is: partitions close by the set
// of members, sums are dropped with the view, gradients are kept until the next version is whole.
//
//   view --> joined --Start--> collecting --all resolved--> reducing --OnReduced--> done
//                                                              \--error--> broken
//
// A group that breaks while the view stays gives up the worker: the member that is gone makes a new
// view, which is waited for; where nobody is gone (a network that is cut between two workers), one
// that leaves makes one. Not all at once: the lower in rank the earlier.
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
#include "proto/frame.pb.h"
#include "services/worker/collective/reduction_plan.h"
#include "services/worker/core/step_gradients.h"
#include "services/worker/core/worker_context.h"

namespace sluice::worker {

class DenseReduction {
 public:
  explicit DenseReduction(WorkerContext* context) : context_(context) {}

  // The context's view is new: joins its group, or leaves the old one.
  void OnView();
  // Whether this worker takes part in a group. With nobody else there is none.
  bool active() const { return plan_ != nullptr; }

  // A step's gradients begin to come (again). They must stay until Stop, or the next Start.
  void Start(const StepGradients* gradients, uint64_t step);
  void Stop();
  // A unit's tensor is resolved.
  void OnResolved(uint32_t tensor);
  // Gives the gradients to the group once they are all there.
  void Proceed();
  // True: the sums that were waited for are there. An error fails the job.
  absl::StatusOr<bool> OnReduced(const v1::ViewId& view, uint64_t step,
                                 absl::StatusOr<ReducedPart> part);

  // ---- for whoever pushes, while active

  // Whether gradients of the tensor are summed by the group: they are not pushed.
  bool Covers(uint32_t tensor) const { return covered_[tensor]; }
  // Whether the block's sum is this worker's to push.
  bool Owns(uint32_t block) const { return own_.count(block) != 0; }
  // The sums are there.
  bool done() const { return state_ == State::kDone; }
  // When done, of a block that it owns; null: nobody had a gradient.
  const absl::Cord* Sum(uint32_t block) const;

 private:
  enum class State { kIdle, kCollecting, kReducing, kDone, kBroken };

  std::optional<absl::Cord> SumOfUnits(uint32_t tensor) const;

  WorkerContext* const context_;
  std::shared_ptr<const ReductionPlan> plan_;  // null: not active
  std::vector<bool> covered_;                  // by tensor
  std::map<uint32_t, size_t> own_;             // block -> place in the own part

  State state_ = State::kIdle;
  const StepGradients* gradients_ = nullptr;
  uint64_t step_ = 0;
  uint64_t unresolved_ = 0;  // (unit, covered tensor) pairs
  ReducedPart part_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_DENSE_REDUCTION_H_

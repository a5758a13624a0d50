// One member's gradients as bytes for another, and the sum of such messages.
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_PART_SUM_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_PART_SUM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "services/worker/collective/reduction_plan.h"

namespace sluice::worker {

// A message is what a member contributes to one part:
//
//   1 byte for each tensor of the plan: whether the member has a gradient of it; zeros up to a
//   multiple of 8; the part's pieces as the plan places them. Pieces of tensors without a gradient
//   have no meaning.
uint64_t MessageBytes(const ReductionPlan& plan, const ReductionPlan::Part& part);

// `to` has MessageBytes.
void WriteMessage(const ReductionPlan& plan, const ReductionPlan::Part& part,
                  const DenseGradients& gradients, absl::Span<char> to);

// Sums messages to the plan's own part, in the type in which gradients are summed; the result is
// rounded once to the tensor's own type. Its memory is reused once nothing refers to it any more.
// For one thread.
class PartSum {
 public:
  explicit PartSum(const ReductionPlan* plan);

  // Nothing is summed yet.
  void Begin();
  // A message of MessageBytes, aligned to 8 bytes.
  void Add(absl::Span<const char> message);
  // The sum of the messages since Begin, which must be called again before the next Add.
  ReducedPart Take();

 private:
  using Memory = std::shared_ptr<std::vector<uint64_t>>;

  const ReductionPlan& plan_;
  std::vector<uint64_t> places_;  // of each piece's sum, in 8 bytes
  uint64_t size_ = 0;             // of all sums, in 8 bytes
  std::vector<bool> touched_;     // some member had a gradient
  Memory sum_;
  std::vector<Memory> memories_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_PART_SUM_H_

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_OPTIMIZER_H_
#define SLUICE_SERVICES_PS_OPTIMIZER_OPTIMIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/half.h"

namespace sluice {

// The arguments of one step of one tensor.
struct StepArguments {
  // The group's learning rate times the schedule's factor (groups.h, schedule.h). Add ignores it.
  double learning_rate = 0;
  // Updates that this tensor has received, this one included: 1 for the first.
  uint64_t count = 1;
  // The gradient is multiplied by it first: 1 / samples, times the factor of norm clipping.
  double gradient_scale = 1;
  // SGD: subtracted from its momentum, which stays at least 0.
  double momentum_taken_off = 0;
  // Instead of the optimizer's momentum or beta1, where a schedule changes it.
  std::optional<double> momentum;
};

// An array of optimizer state with as many elements as the tensor.
struct SlotSpec {
  absl::string_view name;  // as in PyTorch's optimizer state: "exp_avg"; lives forever
  double initial_value;    // of every element, before the first update
};

// The most arrays of state that an update rule has beside the parameters (Adam with amsgrad).
inline constexpr size_t kMaxSlots = 3;

// One contiguous range of elements, in version s and in version s + 1. All spans have one size;
// `slots` and `slots_out` are filled up to the optimizer's number of slots, in its order.
//
// An output may be exactly its own input (update in place): parameters_out == parameters,
// slots_out[i] == slots[i]. No other overlap.
template <typename T>
struct StepRange {
  using Compute = ComputeType<T>;

  absl::Span<const T> parameters;
  absl::Span<const Compute> gradient;  // summed over all contributions
  std::array<absl::Span<const Compute>, kMaxSlots> slots;
  absl::Span<T> parameters_out;
  std::array<absl::Span<Compute>, kMaxSlots> slots_out;
};

// An update rule, with its hyper-parameters. Elementwise: a tensor may be updated in any pieces, in
// any order, on any threads, with the same bits. Arguments have PyTorch's names and meanings, and
// the results equal LibTorch's up to rounding.
//
// Parameters in BFloat16 and Float16 have their gradient and state in float, are updated in float,
// and rounded to nearest.
//
// Thread-safe; no call blocks. Spans of unequal size are a programming error and end the process.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // State beside each tensor, in the order of StepRange::slots. At most kMaxSlots; may be none.
  virtual absl::Span<const SlotSpec> slots() const = 0;

  // Whether a step leaves every element whose gradient is +0, and its state, unchanged bit for bit,
  // whatever the other arguments are, provided that a step has written that element before. (The
  // first step may change it: a parameter of -0 to which +0 is added becomes +0.)
  virtual bool KeepsWhereGradientIsZero() const { return false; }

  // Writes the next version of a range.
  void Step(const StepArguments& arguments, const StepRange<float>& range) const;
  void Step(const StepArguments& arguments, const StepRange<double>& range) const;
  void Step(const StepArguments& arguments, const StepRange<BFloat16>& range) const;
  void Step(const StepArguments& arguments, const StepRange<Float16>& range) const;

 protected:
  // The update itself; sizes have been checked. 16-bit ranges are passed as float, in parts.
  virtual void DoStep(const StepArguments& arguments, const StepRange<float>& range) const = 0;
  virtual void DoStep(const StepArguments& arguments, const StepRange<double>& range) const = 0;

 private:
  // Widens a part, updates it and rounds it back; a part fits in the L1 cache.
  template <typename Half>
  void StepHalf(const StepArguments& arguments, const StepRange<Half>& range) const;
};

// Makes the optimizer of a spec whose name is PLUGIN, from the shared library that the spec names.
// Thread-safe. Empty: the process opens no libraries.
using OptimizerLibraries =
    std::function<absl::StatusOr<std::unique_ptr<Optimizer>>(const v1::OptimizerSpec&)>;

// The optimizer that `spec` names, with exactly its values (a 0 is a 0, not a default; schedule,
// clip_norm and groups are handled elsewhere: see groups.h). INVALID_ARGUMENT names the field whose
// value is out of the range that PyTorch allows.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::OptimizerSpec& spec,
                                                         const OptimizerLibraries& libraries = {});

}  // namespace sluice

#endif  // SLUICE_SERVICES_PS_OPTIMIZER_OPTIMIZER_H_

// RMSprop, as torch.optim.RMSprop (T. Tieleman, G. Hinton, "Lecture 6.5 - rmsprop", 2012; centered:
// A. Graves, "Generating Sequences With Recurrent Neural Networks", arXiv:1308.0850):
//
//   g = gradient + weight_decay w
//   square_avg = alpha square_avg + (1 - alpha) g^2
//   grad_avg   = alpha grad_avg   + (1 - alpha) g          centered only
//   d = g / (sqrt(square_avg) + eps), or centered  g / (sqrt(square_avg - grad_avg^2) + eps)
//   momentum_buffer = momentum momentum_buffer + d         with momentum only
//   w = w - learning_rate d, or with momentum  w - learning_rate momentum_buffer

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_RMSPROP_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_RMSPROP_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct RmspropFactors {
  RmspropFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments)
      : gradient_scale(static_cast<T>(arguments.gradient_scale)),
        weight_decay(static_cast<T>(spec.weight_decay())),
        alpha(static_cast<T>(spec.alpha())),
        alpha_rest(static_cast<T>(1 - spec.alpha())),
        eps(static_cast<T>(spec.eps())),
        momentum(static_cast<T>(arguments.momentum.value_or(spec.momentum()))),
        step_size(static_cast<T>(-arguments.learning_rate)),
        centered(spec.centered()) {}

  T gradient_scale;
  T weight_decay;
  T alpha;
  T alpha_rest;
  T eps;
  T momentum;
  T step_size;
  bool centered;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_RMSPROP_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/rmsprop.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

// The slots are square_avg, and then those of momentum_buffer and grad_avg that are in use.
template <bool kMomentum, bool kCentered, typename T>
void Rmsprop(const RmspropFactors<T> f, const StepRange<T>& range) {
  constexpr size_t kMean = kMomentum ? 2 : 1;
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* square = range.slots[0].data();
  const T* buffer = range.slots[1].data();
  const T* mean = range.slots[kMean].data();
  T* w_out = range.parameters_out.data();
  T* square_out = range.slots_out[0].data();
  T* buffer_out = range.slots_out[1].data();
  T* mean_out = range.slots_out[kMean].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    T g = gradient[i] * f.gradient_scale;
    if (f.weight_decay != 0) g += f.weight_decay * w[i];
    T v = f.alpha * square[i] + f.alpha_rest * (g * g);
    square_out[i] = v;
    if constexpr (kCentered) {
      const T m = f.alpha * mean[i] + f.alpha_rest * g;
      mean_out[i] = m;
      v -= m * m;
    }
    T d = g / (std::sqrt(v) + f.eps);
    if constexpr (kMomentum) {
      d += f.momentum * buffer[i];
      buffer_out[i] = d;
    }
    w_out[i] = w[i] + f.step_size * d;
  }
}

template <typename T>
void AnyRmsprop(const RmspropFactors<T>& f, const StepRange<T>& range) {
  if (f.momentum != 0)
    return f.centered ? Rmsprop<true, true>(f, range) : Rmsprop<true, false>(f, range);
  return f.centered ? Rmsprop<false, true>(f, range) : Rmsprop<false, false>(f, range);
}

}  // namespace

void RmspropF32(const RmspropFactors<float>& f, const StepRange<float>& range) {
  AnyRmsprop(f, range);
}
void RmspropF64(const RmspropFactors<double>& f, const StepRange<double>& range) {
  AnyRmsprop(f, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(RmspropF32);
HWY_EXPORT(RmspropF64);

class RmspropOptimizer final : public Optimizer {
 public:
  explicit RmspropOptimizer(const v1::OptimizerSpec& spec) : spec_(spec) {
    if (spec.momentum() != 0) slots_.push_back({"momentum_buffer", 0.0});
    if (spec.centered()) slots_.push_back({"grad_avg", 0.0});
  }

  absl::Span<const SlotSpec> slots() const override { return slots_; }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(RmspropF32)(RmspropFactors<float>(spec_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(RmspropF64)(RmspropFactors<double>(spec_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
  std::vector<SlotSpec> slots_ = {{"square_avg", 0.0}};
};

}  // namespace

std::unique_ptr<Optimizer> MakeRmsprop(const v1::OptimizerSpec& spec) {
  return std::make_unique<RmspropOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

// Lion (X. Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675,
// algorithm 2), which PyTorch does not have:
//
//   w = (1 - learning_rate weight_decay) w
//   w = w - learning_rate sign(beta1 exp_avg + (1 - beta1) gradient)
//   exp_avg = beta2 exp_avg + (1 - beta2) gradient

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_LION_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_LION_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct LionFactors {
  LionFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments) {
    const double rate1 = arguments.momentum.value_or(spec.beta1());
    gradient_scale = static_cast<T>(arguments.gradient_scale);
    shrink = static_cast<T>(1 - arguments.learning_rate * spec.weight_decay());
    beta1 = static_cast<T>(rate1);
    beta1_rest = static_cast<T>(1 - rate1);
    beta2 = static_cast<T>(spec.beta2());
    beta2_rest = static_cast<T>(1 - spec.beta2());
    step_size = static_cast<T>(-arguments.learning_rate);
  }

  T gradient_scale;
  T shrink;  // of the parameter, before the step
  T beta1;
  T beta1_rest;
  T beta2;
  T beta2_rest;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_LION_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/lion.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Lion(const LionFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* average = range.slots[0].data();
  T* w_out = range.parameters_out.data();
  T* average_out = range.slots_out[0].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    const T g = gradient[i] * f.gradient_scale;
    const T c = f.beta1 * average[i] + f.beta1_rest * g;
    const T sign = c > 0 ? T{1} : c < 0 ? T{-1} : T{0};
    average_out[i] = f.beta2 * average[i] + f.beta2_rest * g;
    w_out[i] = f.shrink * w[i] + f.step_size * sign;
  }
}

}  // namespace

void LionF32(const LionFactors<float>& f, const StepRange<float>& range) { Lion(f, range); }
void LionF64(const LionFactors<double>& f, const StepRange<double>& range) { Lion(f, range); }

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(LionF32);
HWY_EXPORT(LionF64);

class LionOptimizer final : public Optimizer {
 public:
  explicit LionOptimizer(const v1::OptimizerSpec& spec) : spec_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {{"exp_avg", 0.0}};
    return kSlots;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(LionF32)(LionFactors<float>(spec_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(LionF64)(LionFactors<double>(spec_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeLion(const v1::OptimizerSpec& spec) {
  return std::make_unique<LionOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

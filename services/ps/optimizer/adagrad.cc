// Adagrad, as torch.optim.Adagrad (J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for
// Online Learning and Stochastic Optimization", JMLR 12, 2011; the diagonal form):
//
//   g = gradient + weight_decay w
//   sum = sum + g^2                          from initial_accumulator_value
//   w = w - learning_rate / (1 + (count - 1) lr_decay) g / (sqrt(sum) + eps)

#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_ADAGRAD_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_ADAGRAD_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct AdagradFactors {
  AdagradFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments)
      : gradient_scale(static_cast<T>(arguments.gradient_scale)),
        weight_decay(static_cast<T>(spec.weight_decay())),
        eps(static_cast<T>(spec.eps())),
        step_size(
            static_cast<T>(-arguments.learning_rate /
                           (1 + static_cast<double>(arguments.count - 1) * spec.lr_decay()))) {}

  T gradient_scale;
  T weight_decay;
  T eps;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_ADAGRAD_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/adagrad.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Adagrad(const AdagradFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* sum = range.slots[0].data();
  T* w_out = range.parameters_out.data();
  T* sum_out = range.slots_out[0].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    T g = gradient[i] * f.gradient_scale;
    if (f.weight_decay != 0) g += f.weight_decay * w[i];
    const T s = sum[i] + g * g;
    sum_out[i] = s;
    w_out[i] = w[i] + f.step_size * g / (std::sqrt(s) + f.eps);
  }
}

}  // namespace

void AdagradF32(const AdagradFactors<float>& f, const StepRange<float>& range) {
  Adagrad(f, range);
}
void AdagradF64(const AdagradFactors<double>& f, const StepRange<double>& range) {
  Adagrad(f, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(AdagradF32);
HWY_EXPORT(AdagradF64);

class AdagradOptimizer final : public Optimizer {
 public:
  explicit AdagradOptimizer(const v1::OptimizerSpec& spec)
      : spec_(spec), slot_{"sum", spec.initial_accumulator_value()} {}

  absl::Span<const SlotSpec> slots() const override { return absl::MakeConstSpan(&slot_, 1); }
  bool KeepsWhereGradientIsZero() const override {
    // Without eps, 0 / sqrt(0) is not a number.
    return spec_.weight_decay() == 0 && static_cast<float>(spec_.eps()) > 0;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(AdagradF32)(AdagradFactors<float>(spec_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(AdagradF64)(AdagradFactors<double>(spec_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
  const SlotSpec slot_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdagrad(const v1::OptimizerSpec& spec) {
  return std::make_unique<AdagradOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

// Adam and AdamW, as torch.optim.Adam and torch.optim.AdamW. D. Kingma, J. Ba, "Adam: A Method for
// Stochastic Optimization", arXiv:1412.6980; I. Loshchilov, F. Hutter, "Decoupled Weight Decay
// Regularization", arXiv:1711.05101 (AdamW); S. Reddi, S. Kale, S. Kumar, "On the Convergence of
// Adam and Beyond", arXiv:1904.09237 (amsgrad).
//
//   Adam:  g = gradient + weight_decay w
//   AdamW: w = (1 - learning_rate weight_decay) w, g = gradient
//   both:
//   exp_avg    = beta1 exp_avg    + (1 - beta1) g
//   exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
//   v = exp_avg_sq, or with amsgrad  v = max_exp_avg_sq = max(max_exp_avg_sq, exp_avg_sq)
//   w = w - learning_rate / (1 - beta1^count) exp_avg / (sqrt(v) / sqrt(1 - beta2^count) + eps)
//
// eps is outside of the bias correction, as in PyTorch; the paper's other form has it inside.

#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_ADAM_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_ADAM_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct AdamFactors {
  AdamFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments) {
    const bool decoupled = spec.name() == v1::OptimizerSpec::ADAM_W;
    const auto count = static_cast<double>(arguments.count);
    const double rate1 = arguments.momentum.value_or(spec.beta1());

    gradient_scale = static_cast<T>(arguments.gradient_scale);
    weight_decay = static_cast<T>(decoupled ? 0.0 : spec.weight_decay());
    shrink = static_cast<T>(decoupled ? 1 - arguments.learning_rate * spec.weight_decay() : 1.0);

    beta1 = static_cast<T>(rate1);
    beta1_rest = static_cast<T>(1 - rate1);
    beta2 = static_cast<T>(spec.beta2());
    beta2_rest = static_cast<T>(1 - spec.beta2());
    root_correction = static_cast<T>(std::sqrt(1 - std::pow(spec.beta2(), count)));
    eps = static_cast<T>(spec.eps());
    step_size = static_cast<T>(-arguments.learning_rate / (1 - std::pow(rate1, count)));
  }

  T gradient_scale;
  T weight_decay;  // into the gradient
  T shrink;        // of the parameter, before the step
  T beta1;
  T beta1_rest;
  T beta2;
  T beta2_rest;
  T root_correction;
  T eps;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_ADAM_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/adam.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <bool kAmsgrad, typename T>
void Adam(const AdamFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* average = range.slots[0].data();
  const T* average_square = range.slots[1].data();
  const T* max_average_square = range.slots[2].data();
  T* w_out = range.parameters_out.data();
  T* average_out = range.slots_out[0].data();
  T* average_square_out = range.slots_out[1].data();
  T* max_average_square_out = range.slots_out[2].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    T g = gradient[i] * f.gradient_scale;
    if (f.weight_decay != 0) g += f.weight_decay * w[i];
    const T m = f.beta1 * average[i] + f.beta1_rest * g;
    T v = f.beta2 * average_square[i] + f.beta2_rest * (g * g);
    average_out[i] = m;
    average_square_out[i] = v;
    if constexpr (kAmsgrad) {
      v = v <= max_average_square[i] ? max_average_square[i] : v;  // keeps a NaN
      max_average_square_out[i] = v;
    }
    w_out[i] = f.shrink * w[i] + f.step_size * m / (std::sqrt(v) / f.root_correction + f.eps);
  }
}

}  // namespace

void AdamF32(const AdamFactors<float>& f, const StepRange<float>& range) { Adam<false>(f, range); }
void AdamF64(const AdamFactors<double>& f, const StepRange<double>& range) {
  Adam<false>(f, range);
}
void AmsgradF32(const AdamFactors<float>& f, const StepRange<float>& range) {
  Adam<true>(f, range);
}
void AmsgradF64(const AdamFactors<double>& f, const StepRange<double>& range) {
  Adam<true>(f, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(AdamF32);
HWY_EXPORT(AdamF64);
HWY_EXPORT(AmsgradF32);
HWY_EXPORT(AmsgradF64);

class AdamOptimizer final : public Optimizer {
 public:
  explicit AdamOptimizer(const v1::OptimizerSpec& spec) : spec_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {
        {"exp_avg", 0.0}, {"exp_avg_sq", 0.0}, {"max_exp_avg_sq", 0.0}};
    return absl::MakeConstSpan(kSlots, spec_.amsgrad() ? 3 : 2);
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    const AdamFactors<float> f(spec_, arguments);
    if (spec_.amsgrad()) return HWY_DYNAMIC_DISPATCH(AmsgradF32)(f, range);
    HWY_DYNAMIC_DISPATCH(AdamF32)(f, range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    const AdamFactors<double> f(spec_, arguments);
    if (spec_.amsgrad()) return HWY_DYNAMIC_DISPATCH(AmsgradF64)(f, range);
    HWY_DYNAMIC_DISPATCH(AdamF64)(f, range);
  }

 private:
  const v1::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdam(const v1::OptimizerSpec& spec) {
  return std::make_unique<AdamOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

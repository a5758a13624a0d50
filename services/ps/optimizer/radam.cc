// RAdam, as torch.optim.RAdam (L. Liu et al., "On the Variance of the Adaptive Learning Rate and
// Beyond", arXiv:1908.03265):
//
// With decoupled_weight_decay:
//   w = (1 - learning_rate weight_decay) w, g = gradient
// otherwise:
//   g = gradient + weight_decay w
// and then:
//   exp_avg = beta1 exp_avg + (1 - beta1) g
//
//   exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
//
//   m = exp_avg / (1 - beta1^count)
//
//   limit = 2 / (1 - beta2) - 1
//
//   length = limit - 2 count beta2^count / (1 - beta2^count)
//
// While length is at most 5:
//   w = w - learning_rate m
// and otherwise:
//   r = sqrt((length - 4) (length - 2) limit / ((limit - 4) (limit - 2) length))
//
//   w = w - learning_rate m r sqrt(1 - beta2^count) / (sqrt(exp_avg_sq) + eps)

#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_RADAM_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_RADAM_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct RadamFactors {
  RadamFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments) {
    const double rate1 = arguments.momentum.value_or(spec.beta1());
    const double rate2 = spec.beta2();
    const bool decoupled = spec.decoupled_weight_decay();
    const auto count = static_cast<double>(arguments.count);

    const double power2 = std::pow(rate2, count);
    const double limit = 2 / (1 - rate2) - 1;
    const double length = limit - 2 * count * power2 / (1 - power2);
    adaptive = length > 5;

    // Early in training the average square is too uncertain, and the step does not divide by it.
    double step = -arguments.learning_rate / (1 - std::pow(rate1, count));
    if (adaptive) {
      step *= std::sqrt(1 - power2) *
              std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
    }

    gradient_scale = static_cast<T>(arguments.gradient_scale);
    weight_decay = static_cast<T>(decoupled ? 0.0 : spec.weight_decay());
    shrink = static_cast<T>(decoupled ? 1 - arguments.learning_rate * spec.weight_decay() : 1.0);
    beta1 = static_cast<T>(rate1);
    beta1_rest = static_cast<T>(1 - rate1);
    beta2 = static_cast<T>(rate2);
    beta2_rest = static_cast<T>(1 - rate2);
    eps = static_cast<T>(spec.eps());
    step_size = static_cast<T>(step);
  }

  bool adaptive;
  T gradient_scale;
  T weight_decay;  // into the gradient
  T shrink;        // of the parameter, before the step
  T beta1;
  T beta1_rest;
  T beta2;
  T beta2_rest;
  T eps;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_RADAM_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/radam.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Radam(const RadamFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* average = range.slots[0].data();
  const T* average_square = range.slots[1].data();
  T* w_out = range.parameters_out.data();
  T* average_out = range.slots_out[0].data();
  T* average_square_out = range.slots_out[1].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    T g = gradient[i] * f.gradient_scale;
    if (f.weight_decay != 0) g += f.weight_decay * w[i];
    const T m = f.beta1 * average[i] + f.beta1_rest * g;
    const T v = f.beta2 * average_square[i] + f.beta2_rest * (g * g);
    average_out[i] = m;
    average_square_out[i] = v;
    const T divisor = f.adaptive ? std::sqrt(v) + f.eps : T{1};
    w_out[i] = f.shrink * w[i] + f.step_size * m / divisor;
  }
}

}  // namespace

void RadamF32(const RadamFactors<float>& f, const StepRange<float>& range) { Radam(f, range); }
void RadamF64(const RadamFactors<double>& f, const StepRange<double>& range) { Radam(f, range); }

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(RadamF32);
HWY_EXPORT(RadamF64);

class RadamOptimizer final : public Optimizer {
 public:
  explicit RadamOptimizer(const v1::OptimizerSpec& spec) : spec_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {{"exp_avg", 0.0}, {"exp_avg_sq", 0.0}};
    return kSlots;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(RadamF32)(RadamFactors<float>(spec_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(RadamF64)(RadamFactors<double>(spec_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeRadam(const v1::OptimizerSpec& spec) {
  return std::make_unique<RadamOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

// Adamax, as torch.optim.Adamax (D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization",
// arXiv:1412.6980, section 7):
//
//   g = gradient + weight_decay w
//   exp_avg = beta1 exp_avg + (1 - beta1) g
//   exp_inf = max(beta2 exp_inf, |g| + eps)
//   w = w - learning_rate / (1 - beta1^count) exp_avg / exp_inf

#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_ADAMAX_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_ADAMAX_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct AdamaxFactors {
  AdamaxFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments) {
    const double rate1 = arguments.momentum.value_or(spec.beta1());
    gradient_scale = static_cast<T>(arguments.gradient_scale);
    weight_decay = static_cast<T>(spec.weight_decay());
    beta1 = static_cast<T>(rate1);
    beta1_rest = static_cast<T>(1 - rate1);
    beta2 = static_cast<T>(spec.beta2());
    eps = static_cast<T>(spec.eps());
    step_size = static_cast<T>(-arguments.learning_rate /
                               (1 - std::pow(rate1, static_cast<double>(arguments.count))));
  }

  T gradient_scale;
  T weight_decay;
  T beta1;
  T beta1_rest;
  T beta2;
  T eps;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_ADAMAX_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/adamax.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Adamax(const AdamaxFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* average = range.slots[0].data();
  const T* largest = range.slots[1].data();
  T* w_out = range.parameters_out.data();
  T* average_out = range.slots_out[0].data();
  T* largest_out = range.slots_out[1].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    T g = gradient[i] * f.gradient_scale;
    if (f.weight_decay != 0) g += f.weight_decay * w[i];
    const T m = f.beta1 * average[i] + f.beta1_rest * g;
    const T size = std::abs(g) + f.eps;
    const T decayed = f.beta2 * largest[i];
    const T u = decayed > size ? decayed : size;  // a NaN stays: m has it too
    average_out[i] = m;
    largest_out[i] = u;
    w_out[i] = w[i] + f.step_size * m / u;
  }
}

}  // namespace

void AdamaxF32(const AdamaxFactors<float>& f, const StepRange<float>& range) { Adamax(f, range); }
void AdamaxF64(const AdamaxFactors<double>& f, const StepRange<double>& range) { Adamax(f, range); }

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(AdamaxF32);
HWY_EXPORT(AdamaxF64);

class AdamaxOptimizer final : public Optimizer {
 public:
  explicit AdamaxOptimizer(const v1::OptimizerSpec& spec) : spec_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {{"exp_avg", 0.0}, {"exp_inf", 0.0}};
    return kSlots;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(AdamaxF32)(AdamaxFactors<float>(spec_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(AdamaxF64)(AdamaxFactors<double>(spec_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdamax(const v1::OptimizerSpec& spec) {
  return std::make_unique<AdamaxOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

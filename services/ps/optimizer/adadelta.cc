// Adadelta, as torch.optim.Adadelta (M. Zeiler, "ADADELTA: An Adaptive Learning Rate Method",
// arXiv:1212.5701):
//
//   g = gradient + weight_decay w
//   square_avg = rho square_avg + (1 - rho) g^2
//   d = sqrt(acc_delta + eps) / sqrt(square_avg + eps) g
//   acc_delta = rho acc_delta + (1 - rho) d^2
//   w = w - learning_rate d

#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_ADADELTA_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_ADADELTA_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct AdadeltaFactors {
  AdadeltaFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments)
      : gradient_scale(static_cast<T>(arguments.gradient_scale)),
        weight_decay(static_cast<T>(spec.weight_decay())),
        rho(static_cast<T>(spec.rho())),
        rho_rest(static_cast<T>(1 - spec.rho())),
        eps(static_cast<T>(spec.eps())),
        step_size(static_cast<T>(-arguments.learning_rate)) {}

  T gradient_scale;
  T weight_decay;
  T rho;
  T rho_rest;
  T eps;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_ADADELTA_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/adadelta.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Adadelta(const AdadeltaFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* square = range.slots[0].data();
  const T* change = range.slots[1].data();
  T* w_out = range.parameters_out.data();
  T* square_out = range.slots_out[0].data();
  T* change_out = range.slots_out[1].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    T g = gradient[i] * f.gradient_scale;
    if (f.weight_decay != 0) g += f.weight_decay * w[i];
    const T v = f.rho * square[i] + f.rho_rest * (g * g);
    const T d = std::sqrt(change[i] + f.eps) / std::sqrt(v + f.eps) * g;
    square_out[i] = v;
    change_out[i] = f.rho * change[i] + f.rho_rest * (d * d);
    w_out[i] = w[i] + f.step_size * d;
  }
}

}  // namespace

void AdadeltaF32(const AdadeltaFactors<float>& f, const StepRange<float>& range) {
  Adadelta(f, range);
}
void AdadeltaF64(const AdadeltaFactors<double>& f, const StepRange<double>& range) {
  Adadelta(f, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(AdadeltaF32);
HWY_EXPORT(AdadeltaF64);

class AdadeltaOptimizer final : public Optimizer {
 public:
  explicit AdadeltaOptimizer(const v1::OptimizerSpec& spec) : spec_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {{"square_avg", 0.0}, {"acc_delta", 0.0}};
    return kSlots;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(AdadeltaF32)(AdadeltaFactors<float>(spec_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(AdadeltaF64)(AdadeltaFactors<double>(spec_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdadelta(const v1::OptimizerSpec& spec) {
  return std::make_unique<AdadeltaOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

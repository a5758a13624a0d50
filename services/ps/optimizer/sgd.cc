// Stochastic gradient descent, as torch.optim.SGD:
//
//   g = gradient + weight_decay w
//   b = momentum b + (1 - dampening) g      at the first update: b = g
//   d = g + momentum b if nesterov, b if momentum, else g
//   w = w - learning_rate d
//
// Momentum in PyTorch's form, with the learning rate outside of the buffer: I. Sutskever, J.
// Martens, G. Dahl, G. Hinton, "On the importance of initialization and momentum in deep learning",
// ICML 2013, describes the difference.

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_SGD_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_SGD_ONCE_
namespace sluice::optimizer_internal {
namespace {

template <typename T>
struct SgdFactors {
  SgdFactors(const v1::OptimizerSpec& spec, const StepArguments& arguments)
      : gradient_scale(static_cast<T>(arguments.gradient_scale)),
        weight_decay(static_cast<T>(spec.weight_decay())),
        keep(static_cast<T>(arguments.count > 1 ? Momentum(spec, arguments) : 0.0)),
        take(static_cast<T>(arguments.count > 1 ? 1 - spec.dampening() : 1.0)),
        momentum(static_cast<T>(Momentum(spec, arguments))),
        step_size(static_cast<T>(-arguments.learning_rate)) {}

  static double Momentum(const v1::OptimizerSpec& spec, const StepArguments& arguments) {
    return std::max(0.0,
                    arguments.momentum.value_or(spec.momentum()) - arguments.momentum_taken_off);
  }

  T gradient_scale;
  T weight_decay;
  T keep;  // of the buffer
  T take;  // of the gradient, into the buffer
  T momentum;
  T step_size;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_SGD_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/sgd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
inline T Decayed(const SgdFactors<T>& f, T gradient, T w) {
  const T g = gradient * f.gradient_scale;
  return f.weight_decay != 0 ? g + f.weight_decay * w : g;
}

template <typename T>
void Plain(const SgdFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  T* w_out = range.parameters_out.data();
  const size_t count = range.parameters.size();
  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    w_out[i] = w[i] + f.step_size * Decayed(f, gradient[i], w[i]);
  }
}

template <bool kNesterov, typename T>
void WithMomentum(const SgdFactors<T> f, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* gradient = range.gradient.data();
  const T* buffer = range.slots[0].data();
  T* w_out = range.parameters_out.data();
  T* buffer_out = range.slots_out[0].data();
  const size_t count = range.parameters.size();

  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) {
    const T g = Decayed(f, gradient[i], w[i]);
    const T b = f.keep * buffer[i] + f.take * g;
    buffer_out[i] = b;
    w_out[i] = w[i] + f.step_size * (kNesterov ? g + f.momentum * b : b);
  }
}

}  // namespace

void SgdF32(const SgdFactors<float>& f, const StepRange<float>& range) { Plain(f, range); }
void SgdF64(const SgdFactors<double>& f, const StepRange<double>& range) { Plain(f, range); }
void MomentumF32(const SgdFactors<float>& f, const StepRange<float>& range) {
  WithMomentum<false>(f, range);
}
void MomentumF64(const SgdFactors<double>& f, const StepRange<double>& range) {
  WithMomentum<false>(f, range);
}
void NesterovF32(const SgdFactors<float>& f, const StepRange<float>& range) {
  WithMomentum<true>(f, range);
}
void NesterovF64(const SgdFactors<double>& f, const StepRange<double>& range) {
  WithMomentum<true>(f, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(SgdF32);
HWY_EXPORT(SgdF64);
HWY_EXPORT(MomentumF32);
HWY_EXPORT(MomentumF64);
HWY_EXPORT(NesterovF32);
HWY_EXPORT(NesterovF64);

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const v1::OptimizerSpec& spec) : spec_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {{"momentum_buffer", 0.0}};
    return absl::MakeConstSpan(kSlots, spec_.momentum() != 0 ? 1 : 0);
  }
  bool KeepsWhereGradientIsZero() const override {
    return spec_.momentum() == 0 && spec_.weight_decay() == 0;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    const SgdFactors<float> f(spec_, arguments);
    if (spec_.momentum() == 0) return HWY_DYNAMIC_DISPATCH(SgdF32)(f, range);
    if (spec_.nesterov()) return HWY_DYNAMIC_DISPATCH(NesterovF32)(f, range);
    HWY_DYNAMIC_DISPATCH(MomentumF32)(f, range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    const SgdFactors<double> f(spec_, arguments);
    if (spec_.momentum() == 0) return HWY_DYNAMIC_DISPATCH(SgdF64)(f, range);
    if (spec_.nesterov()) return HWY_DYNAMIC_DISPATCH(NesterovF64)(f, range);
    HWY_DYNAMIC_DISPATCH(MomentumF64)(f, range);
  }

 private:
  const v1::OptimizerSpec spec_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const v1::OptimizerSpec& spec) {
  return std::make_unique<Sgd>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

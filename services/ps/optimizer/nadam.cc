// NAdam, as torch.optim.NAdam (T. Dozat, "Incorporating Nesterov Momentum into Adam", ICLR workshop
// 2016):
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
//   mu(k) = beta1 (1 - 0.96^(k momentum_decay) / 2)
//
//   product(k) = mu(1) mu(2) ... mu(k)
//
//   d = sqrt(exp_avg_sq / (1 - beta2^count)) + eps
//   w = w - learning_rate (1 - mu(count)) / (1 - product(count)) g / d
//         - learning_rate mu(count + 1) / (1 - product(count + 1)) exp_avg / d
//
// PyTorch keeps the product as state of each tensor. It is a function of the count alone.

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

#ifndef SLUICE_SERVICES_PS_OPTIMIZER_NADAM_ONCE_
#define SLUICE_SERVICES_PS_OPTIMIZER_NADAM_ONCE_
namespace sluice::optimizer_internal {
namespace {

// The momentum of each update, and the product of all of them so far.
class MomentumProduct {
 public:
  explicit MomentumProduct(const v1::OptimizerSpec& spec)
      : beta1_(spec.beta1()), decay_(spec.momentum_decay()) {
    // Both bounds are reached within some thousand updates, whatever the options are: a decay that
    // takes long to end keeps the momentum near one half in the meantime.
    for (double count = 1; products_.back() > kNegligible && Decay(count) > kNegligible; ++count) {
      products_.push_back(products_.back() * At(count));
    }
  }

  double At(double count) const { return beta1_ * (1 - 0.5 * Decay(count)); }

  double UpTo(uint64_t count) const {
    const size_t known = products_.size() - 1;
    if (count <= known) return products_[count];
    // From there on the momentum is beta1, or the product no longer matters beside 1.
    return products_.back() * std::pow(beta1_, static_cast<double>(count - known));
  }

 private:
  static constexpr double kNegligible = 0x1p-60;

  double Decay(double count) const { return std::pow(0.96, count * decay_); }

  const double beta1_;
  const double decay_;
  std::vector<double> products_ = {1};  // by count
};

template <typename T>
struct NadamFactors {
  NadamFactors(const v1::OptimizerSpec& spec, const MomentumProduct& product,
               const StepArguments& arguments) {
    const bool decoupled = spec.decoupled_weight_decay();
    const double rate = arguments.learning_rate;
    const auto count = static_cast<double>(arguments.count);

    const double up_to_now = product.UpTo(arguments.count);
    const double next = product.At(count + 1);

    gradient_scale = static_cast<T>(arguments.gradient_scale);
    weight_decay = static_cast<T>(decoupled ? 0.0 : spec.weight_decay());
    shrink = static_cast<T>(decoupled ? 1 - rate * spec.weight_decay() : 1.0);
    beta1 = static_cast<T>(spec.beta1());
    beta1_rest = static_cast<T>(1 - spec.beta1());
    beta2 = static_cast<T>(spec.beta2());
    beta2_rest = static_cast<T>(1 - spec.beta2());
    correction = static_cast<T>(1 - std::pow(spec.beta2(), count));
    eps = static_cast<T>(spec.eps());
    gradient_step = static_cast<T>(-rate * (1 - product.At(count)) / (1 - up_to_now));
    average_step = static_cast<T>(-rate * next / (1 - up_to_now * next));
  }

  T gradient_scale;
  T weight_decay;  // into the gradient
  T shrink;        // of the parameter, before the step
  T beta1;
  T beta1_rest;
  T beta2;
  T beta2_rest;
  T correction;
  T eps;
  T gradient_step;
  T average_step;
};

}  // namespace
}  // namespace sluice::optimizer_internal
#endif  // SLUICE_SERVICES_PS_OPTIMIZER_NADAM_ONCE_

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/nadam.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Nadam(const NadamFactors<T> f, const StepRange<T>& range) {
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
    const T divisor = std::sqrt(v / f.correction) + f.eps;
    w_out[i] = f.shrink * w[i] + f.gradient_step * (g / divisor) + f.average_step * (m / divisor);
  }
}

}  // namespace

void NadamF32(const NadamFactors<float>& f, const StepRange<float>& range) { Nadam(f, range); }
void NadamF64(const NadamFactors<double>& f, const StepRange<double>& range) { Nadam(f, range); }

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(NadamF32);
HWY_EXPORT(NadamF64);

class NadamOptimizer final : public Optimizer {
 public:
  explicit NadamOptimizer(const v1::OptimizerSpec& spec) : spec_(spec), product_(spec) {}

  absl::Span<const SlotSpec> slots() const override {
    static constexpr SlotSpec kSlots[] = {{"exp_avg", 0.0}, {"exp_avg_sq", 0.0}};
    return kSlots;
  }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(NadamF32)(NadamFactors<float>(spec_, product_, arguments), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(NadamF64)(NadamFactors<double>(spec_, product_, arguments), range);
  }

 private:
  const v1::OptimizerSpec spec_;
  const MomentumProduct product_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeNadam(const v1::OptimizerSpec& spec) {
  return std::make_unique<NadamOptimizer>(spec);
}

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

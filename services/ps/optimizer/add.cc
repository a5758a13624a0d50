// w = w + gradient: sums the pushed values. For values that are already updates (federated
// averaging, models that compute their own step), and for tests, where integers in floating point
// make every result exact. Takes no learning rate.

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/registry.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/ps/optimizer/add.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::optimizer_internal {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void AddUpdate(T scale, const StepRange<T>& range) {
  const T* w = range.parameters.data();
  const T* update = range.gradient.data();
  T* w_out = range.parameters_out.data();
  const size_t count = range.parameters.size();
  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) w_out[i] = w[i] + scale * update[i];
}

}  // namespace

void AddF32(float scale, const StepRange<float>& range) { AddUpdate(scale, range); }
void AddF64(double scale, const StepRange<double>& range) { AddUpdate(scale, range); }

}  // namespace HWY_NAMESPACE
}  // namespace sluice::optimizer_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::optimizer_internal {
namespace {

HWY_EXPORT(AddF32);
HWY_EXPORT(AddF64);

class AddOptimizer final : public Optimizer {
 public:
  absl::Span<const SlotSpec> slots() const override { return {}; }
  bool KeepsWhereGradientIsZero() const override { return true; }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    HWY_DYNAMIC_DISPATCH(AddF32)(static_cast<float>(arguments.gradient_scale), range);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    HWY_DYNAMIC_DISPATCH(AddF64)(arguments.gradient_scale, range);
  }
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdd() { return std::make_unique<AddOptimizer>(); }

}  // namespace sluice::optimizer_internal
#endif  // HWY_ONCE

#include "services/ps/core/base/staleness.h"

#include <algorithm>
#include <type_traits>

#include "services/common/check.h"

namespace sluice::ps {
namespace {

template <typename T>
ComputeType<T> Wide(T value) {
  if constexpr (std::is_same_v<T, ComputeType<T>>) {
    return value;
  } else {
    return ToFloat(value);
  }
}

}  // namespace

StalenessEffect EffectOf(const v1::TrainingSpec::Staleness& rule, uint64_t staleness) {
  StalenessEffect effect;
  const auto tau = static_cast<double>(staleness);
  switch (rule.rule()) {
    case v1::TrainingSpec::Staleness::DAMPED:
      effect.learning_rate_factor = 1 / (1 + rule.factor() * tau);
      break;
    case v1::TrainingSpec::Staleness::INVERSE:
      effect.learning_rate_factor = 1 / std::max(1.0, tau);
      break;
    case v1::TrainingSpec::Staleness::DELAY_COMPENSATION:
      effect.delay_compensation = rule.lambda();
      break;
    case v1::TrainingSpec::Staleness::MOMENTUM_CORRECTION:
      effect.momentum_taken_off = tau / (1 + tau);
      break;
    default:
      break;
  }
  return effect;
}

template <typename T>
void CompensateDelay(double factor, absl::Span<const T> now, absl::Span<const T> base,
                     absl::Span<ComputeType<T>> gradient) {
  SLUICE_DCHECK(now.size() == gradient.size() && base.size() == gradient.size(),
                "a gradient and both versions have one size");
  const auto f = static_cast<ComputeType<T>>(factor);
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] += f * gradient[i] * gradient[i] * (Wide(now[i]) - Wide(base[i]));
  }
}

template void CompensateDelay<float>(double, absl::Span<const float>, absl::Span<const float>,
                                     absl::Span<float>);
template void CompensateDelay<double>(double, absl::Span<const double>, absl::Span<const double>,
                                      absl::Span<double>);
template void CompensateDelay<BFloat16>(double, absl::Span<const BFloat16>,
                                        absl::Span<const BFloat16>, absl::Span<float>);
template void CompensateDelay<Float16>(double, absl::Span<const Float16>, absl::Span<const Float16>,
                                       absl::Span<float>);

}  // namespace sluice::ps

#include "services/worker/models/initial_values.h"

#include <cmath>

#include "services/common/arithmetic/splitmix64.h"

namespace sluice {

void FillUniform(uint64_t seed, absl::string_view name, double bound, uint64_t offset,
                 absl::Span<double> out) {
  const uint64_t stream = SplitMix64Mix(seed ^ Fnv1a64(name));
  for (double& value : out) value = (2 * UnitDouble(SplitMix64At(stream, offset++)) - 1) * bound;
}

void FillNormal(uint64_t seed, absl::string_view name, uint64_t offset, absl::Span<double> out) {
  constexpr double kTwoPi = 6.283185307179586;
  const uint64_t stream = SplitMix64Mix(seed ^ Fnv1a64(name));
  for (double& value : out) {
    const double u = UnitDouble(SplitMix64At(stream, 2 * offset));
    const double v = UnitDouble(SplitMix64At(stream, 2 * offset + 1));
    value = std::sqrt(-2 * std::log1p(-u)) * std::cos(kTwoPi * v);
    ++offset;
  }
}

double UniformBound(int64_t fan_in) { return 1 / std::sqrt(static_cast<double>(fan_in)); }

}  // namespace sluice

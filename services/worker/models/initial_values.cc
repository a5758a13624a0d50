#include "services/worker/models/initial_values.h"

#include <cmath>

#include "services/common/splitmix64.h"

namespace sluice {

void FillUniform(uint64_t seed, absl::string_view name, double bound, uint64_t offset,
                 absl::Span<double> out) {
  const uint64_t stream = SplitMix64Mix(seed ^ Fnv1a64(name));
  for (double& value : out) value = (2 * UnitDouble(SplitMix64At(stream, offset++)) - 1) * bound;
}

double UniformBound(int64_t fan_in) { return 1 / std::sqrt(static_cast<double>(fan_in)); }

}  // namespace sluice

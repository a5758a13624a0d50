#include "services/coordinator/core/decisions/batch_size.h"

#include <algorithm>
#include <cmath>

namespace sluice::coordinator {
namespace {

bool IsKnown(double speed) { return speed > 0 && std::isfinite(speed); }

}  // namespace

uint64_t BatchSize(double speed, const std::vector<double>& speeds, const BatchBounds& bounds) {
  double sum = 0;
  double known = 0;
  for (double other : speeds) {
    if (!IsKnown(other)) continue;
    sum += other;
    ++known;
  }
  const auto usual = static_cast<double>(bounds.usual);
  const double wished = IsKnown(speed) && known > 0 ? usual * speed * known / sum : usual;
  const auto least = static_cast<double>(std::max<uint64_t>(bounds.min, 1));
  const double most = std::max(least, static_cast<double>(bounds.max));
  return static_cast<uint64_t>(std::llround(std::clamp(wished, least, most)));
}

}  // namespace sluice::coordinator

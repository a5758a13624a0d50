#include "services/common/time/backoff.h"

#include <algorithm>

#include "absl/random/uniform_real_distribution.h"

namespace sluice {

absl::Duration Backoff::Next(absl::BitGenRef random) {
  const absl::Duration full = next_;
  next_ = std::min(next_ * options_.multiplier, options_.max);
  absl::uniform_real_distribution<double> spread(1.0 - options_.jitter, 1.0);
  return full * spread(random);
}

}  // namespace sluice

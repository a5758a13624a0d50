// The numbers of a parent's SetDesired requests (docs/protocol.md 14.6).
#ifndef SLUICE_SERVICES_PROTOCOL_DESIRED_NUMBER_H_
#define SLUICE_SERVICES_PROTOCOL_DESIRED_NUMBER_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice {

// Far above the microseconds since 1970, so that a parent can always take a higher number.
inline constexpr uint64_t kMaxDesiredNumber = uint64_t{1} << 62;

// Gives a request a higher number than every request before it. The numbers are times, so that
// those of a parent that starts later are higher than those that an earlier parent has left in the
// network. If a clock was set back, the coordinator's reply says which number is the highest. One
// thread at a time.
class DesiredNumbers {
 public:
  uint64_t Next(absl::Time now) {
    const auto micros = static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixMicros(now)));
    return last_ = std::max(last_ + 1, micros);
  }

  // Whether the coordinator has ignored the request `sent`, as it knows a higher number: it must be
  // sent again. Then the next number is above `highest`, or above kMaxDesiredNumber if that is
  // smaller.
  bool Ignored(uint64_t sent, uint64_t highest) {
    if (highest <= sent) return false;
    last_ = std::max(last_, std::min(highest, kMaxDesiredNumber));
    return true;
  }

 private:
  uint64_t last_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_DESIRED_NUMBER_H_

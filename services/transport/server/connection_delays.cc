#include "services/transport/server/connection_delays.h"

#include <algorithm>
#include <iterator>

namespace sluice {

absl::Duration ConnectionDelays::DelayOf(const std::string& address, absl::Time now) const {
  const auto found = records_.find(address);
  if (found == records_.end() || now - found->second.flooded >= kDelayMemory) {
    return absl::ZeroDuration();
  }
  return found->second.delay;
}

void ConnectionDelays::OnFlood(const std::string& address, absl::Time now) {
  Record& record = RecordOf(address, now);
  if (now - record.flooded >= kDelayMemory) {
    record.delay = kFirstDelay;
  } else if (now - record.flooded >= record.delay) {
    record.delay = std::min(2 * record.delay, kLongestDelay);
  } else {
    return;
  }

  record.flooded = now;
  any_until_ = now + kDelayMemory;
}

bool ConnectionDelays::OnSuspectEnd(const std::string& address, absl::Time now) {
  Record& record = RecordOf(address, now);
  if (record.counted != absl::InfinitePast()) {
    const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - record.counted));
    record.ends = std::min(kEndsAtOnce, record.ends + seconds * kEndsPerSecond);
  }
  record.counted = now;

  if (record.ends >= 1) {
    record.ends -= 1;
    return false;
  }

  OnFlood(address, now);
  return true;
}

ConnectionDelays::Record& ConnectionDelays::RecordOf(const std::string& address, absl::Time now) {
  if (records_.size() >= kMaxRememberedAddresses && records_.count(address) == 0) {
    for (auto it = records_.begin(); it != records_.end();) {
      const bool old = now - std::max(it->second.flooded, it->second.counted) >= kDelayMemory;
      it = old ? records_.erase(it) : std::next(it);
    }
    if (records_.size() >= kMaxRememberedAddresses) records_.clear();
  }

  return records_[address];
}

}  // namespace sluice

#include "services/coordinator/core/decisions/own_link.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"

namespace sluice::coordinator {
namespace {

// A cut of up to three heartbeat timeouts costs nothing, even if the parent's calls pass. After it,
// the processes' messages may be late, because they are sent again, or streams are opened again.
constexpr int kAllFrozenTimeouts = 5;
// A parent calls every second.
constexpr absl::Duration kCallsPause = absl::Seconds(3);

}  // namespace

OwnLink::OwnLink(absl::Duration heartbeat, absl::Duration heartbeat_timeout)
    : heartbeat_timeout_(heartbeat_timeout),
      doubt_after_(std::max(heartbeat_timeout / 2, 1.5 * heartbeat)) {}

absl::Duration OwnLink::OnMessage(absl::Time now) {
  SLUICE_DCHECK(message_ <= now, "times do not go backwards");
  const absl::Time before = std::exchange(message_, now);
  if (before == absl::InfinitePast()) return absl::ZeroDuration();
  return connected_ && now - before <= doubt_after_ ? absl::ZeroDuration() : now - before;
}

void OwnLink::OnCall(absl::Time now) {
  if (now - last_call_ > std::max(heartbeat_timeout_, kCallsPause)) first_call_ = now;
  last_call_ = now;
}

absl::Time OwnLink::JudgedAt(absl::Time limit) const {
  if (connected_ && limit < message_ + doubt_after_) return limit;
  return std::max(limit, AllFrozenAt());
}

absl::Time OwnLink::AllFrozenAt() const {
  const absl::Time all_frozen =
      std::max(message_, first_call_) + kAllFrozenTimeouts * heartbeat_timeout_;
  return all_frozen <= last_call_ ? all_frozen : absl::InfiniteFuture();
}

}  // namespace sluice::coordinator

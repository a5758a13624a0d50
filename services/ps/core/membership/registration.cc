#include "services/ps/core/membership/registration.h"

#include "services/common/check.h"

namespace sluice::ps {

void Registration::OnConnected(const v1::ViewId& obeyed) {
  Connect(state_.view().has_value() ? state_.view()->id() : v1::ViewId(), obeyed);
  SetNextHeartbeat(state_.now() + heartbeat_);
  if (leaves()) SendLeave(leave_reason());
}

void Registration::OnDisconnected() {
  Disconnect();
  if (leaves()) AwaitCoordinator();
}

void Registration::OnRegistered(const v1::JobSpec& job) {
  alone_until_ = absl::InfiniteFuture();
  if (job.timeouts().heartbeat() <= 0) return;
  heartbeat_ = absl::Seconds(job.timeouts().heartbeat());
  SetNextHeartbeat(std::min(next_heartbeat(), state_.now() + heartbeat_));
}

// The coordinator answers with Finish once it no longer needs the shard's state. Another
// coordinator may take the attempt over in the meantime, and needs the state as well.
void Registration::Leave(std::string reason, absl::Duration grace) {
  if (leaves()) return;
  AskToLeave(std::move(reason), state_.now() + grace);
  if (!connected()) AwaitCoordinator();
}

// A stream that breaks before a coordinator has answered does not prolong the wait.
void Registration::AwaitCoordinator() {
  const absl::Duration wait =
      state_.view().has_value() ? kCoordinatorReturns : absl::ZeroDuration();
  alone_until_ = std::min(alone_until_, state_.now() + wait);
  ExitIfDue();
}

void Registration::ExitIfDue() {
  SLUICE_DCHECK(leaves() || LeaveDeadline() == absl::InfiniteFuture(),
                "a shard that leaves has a reason");
  if (state_.now() >= LeaveDeadline()) out_.ExitNow({ExitReason::kLeft, leave_reason()});
}

absl::Time Registration::NextDeadline() const {
  return connected() ? std::min(next_heartbeat(), LeaveDeadline()) : LeaveDeadline();
}

}  // namespace sluice::ps

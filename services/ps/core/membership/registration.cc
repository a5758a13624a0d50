#include "services/ps/core/membership/registration.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"
#include "services/protocol/wire_version.h"

namespace sluice::ps {

void Registration::OnConnected(const v1::ViewId& obeyed) {
  connected_ = true;
  v1::MemberMessage message;
  *message.mutable_register_() = state_.options().identity;
  message.mutable_register_()->set_wire_version(wire_version_);
  if (state_.view().has_value()) {
    *message.mutable_register_()->mutable_newest_view() = state_.view()->id();
  }
  if (obeyed.attempt() > 0) *message.mutable_register_()->mutable_obeyed() = obeyed;
  out_.Report(std::move(message));
  next_heartbeat_ = state_.now() + heartbeat_;
  if (leave_reason_.has_value()) SendLeave();
}

void Registration::OnDisconnected() {
  connected_ = false;
  if (leave_reason_.has_value()) AwaitCoordinator();
}

v1::Header Registration::MakeHello(const v1::ProcessId& shard) const {
  v1::Header header = state_.NewHeader();
  v1::Hello& hello = *header.mutable_hello();
  hello.set_min_wire_version(SpokenWireVersions().oldest);
  hello.set_max_wire_version(SpokenWireVersions().newest);
  hello.set_job(state_.options().identity.job());
  *hello.mutable_sender() = state_.options().identity.process();
  hello.set_shard_incarnation(shard.incarnation());
  return header;
}

void Registration::OnRegistered(const v1::JobSpec& job) {
  alone_until_ = absl::InfiniteFuture();
  if (job.timeouts().heartbeat() <= 0) return;
  heartbeat_ = absl::Seconds(job.timeouts().heartbeat());
  next_heartbeat_ = std::min(next_heartbeat_, state_.now() + heartbeat_);
}

void Registration::OnRefusal(const v1::Refusal& refusal) {
  switch (refusal.code()) {
    case v1::Refusal::FINISHED:
      return out_.ExitNow(ExitReason::kFinished, refusal.reason());
    case v1::Refusal::EXPELLED:
    case v1::Refusal::DUPLICATE:
      return out_.ExitNow(ExitReason::kExpelled, refusal.reason(), refusal.code());
    case v1::Refusal::WIRE_VERSION:
      if (wire_version_ > SpokenWireVersions().oldest) {
        // The coordinator closes the stream. The next stream begins with an older version.
        --wire_version_;
        return;
      }
      [[fallthrough]];
    default:
      return out_.ExitNow(ExitReason::kRefused, refusal.reason(), refusal.code());
  }
}

void Registration::OnFinish(const v1::Finish& finish) {
  v1::MemberMessage leave;
  leave.mutable_leave()->set_reason(finish.reason());
  out_.Report(std::move(leave));
  out_.ExitNow(finish.succeeded() ? ExitReason::kFinished : ExitReason::kFailed, finish.reason());
}

// The coordinator answers with Finish once it no longer needs the shard's state. Another
// coordinator may take the attempt over in the meantime, and needs the state as well.
void Registration::Leave(std::string reason, absl::Duration grace) {
  if (leave_reason_.has_value()) return;
  leave_reason_ = std::move(reason);
  leave_until_ = state_.now() + grace;
  if (connected_) {
    SendLeave();
  } else {
    AwaitCoordinator();
  }
}

void Registration::SendLeave() {
  v1::MemberMessage message;
  message.mutable_leave()->set_reason(*leave_reason_);
  out_.Report(std::move(message));
}

// A stream that breaks before a coordinator has answered does not prolong the wait.
void Registration::AwaitCoordinator() {
  const absl::Duration wait =
      state_.view().has_value() ? kCoordinatorReturns : absl::ZeroDuration();
  alone_until_ = std::min(alone_until_, state_.now() + wait);
  ExitIfDue();
}

void Registration::ExitIfDue() {
  SLUICE_DCHECK(leave_reason_.has_value() || LeaveDeadline() == absl::InfiniteFuture(),
                "a shard that leaves has a reason");
  if (state_.now() >= LeaveDeadline()) out_.ExitNow(ExitReason::kLeft, *leave_reason_);
}

bool Registration::HeartbeatIsDue() const { return connected_ && state_.now() >= next_heartbeat_; }

void Registration::SendHeartbeat() {
  next_heartbeat_ = state_.now() + heartbeat_;
  v1::MemberMessage message;
  message.mutable_heartbeat()->set_sequence(++heartbeats_);
  out_.Report(std::move(message));
}

absl::Time Registration::NextDeadline() const {
  return connected_ ? std::min(next_heartbeat_, LeaveDeadline()) : LeaveDeadline();
}

}  // namespace sluice::ps

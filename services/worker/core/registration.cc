#include "services/worker/core/registration.h"

#include <algorithm>

#include "services/common/check.h"
#include "services/protocol/timeouts.h"

namespace sluice::worker {
namespace {

constexpr absl::Duration kProgressPause = absl::Milliseconds(50);

}  // namespace

void Registration::OnConnected(bool was_member) {
  registered_ = false;
  // Only a former member can have been expelled by a view that it has not received. A worker that
  // waits to become a member is one for the next coordinator too.
  Connect(was_member ? context_.view.id() : v1::ViewId(), /*obeyed=*/v1::ViewId());
}

void Registration::OnRegistered() {
  registered_ = true;
  SetNextHeartbeat(context_.now);
  SendReady();
  for (const auto& [kind, request] : requests_) SendRequest(request);
  if (leaves()) SendLeave(leave_reason());
}

void Registration::Send(v1::MemberMessage message) {
  if (connected()) out_.Add(SendToCoordinator{std::move(message)});
}

void Registration::SetReady(v1::Ready ready) {
  ready_ = std::move(ready);
  SendReady();
}

void Registration::SendReady() {
  if (!registered_ || !ready_) return;
  v1::MemberMessage message;
  *message.mutable_ready() = *ready_;
  Send(std::move(message));
}

void Registration::Request(v1::JobRequest::Kind kind, std::string reason) {
  if (kind == v1::JobRequest::STOP && requests_.count(kind) > 0) return;
  v1::JobRequest& request = requests_[kind];
  request.set_kind(kind);
  request.set_reason(std::move(reason));
  request.set_number(++request_number_);
  if (registered_) SendRequest(request);
}

void Registration::SendRequest(const v1::JobRequest& request) {
  v1::MemberMessage message;
  *message.mutable_job_request() = request;
  Send(std::move(message));
}

void Registration::SendProgress() {
  const bool empty = out_.progress()->steps_size() == 0 &&
                     out_.progress()->recomputed_samples() == 0 &&
                     out_.progress()->owing_size() == 0;
  if (empty || !registered_) return;
  v1::MemberMessage message;
  *out_.progress()->mutable_view() = context_.view.id();
  *message.mutable_worker_progress() = out_.TakeProgress();
  Send(std::move(message));
  next_progress_ = context_.now + kProgressPause;
}

void Registration::SendDue() {
  SLUICE_DCHECK(connected() || !registered_, "a worker registers on each new connection");
  if (context_.now >= next_progress_) SendProgress();
  if (!registered_ || context_.now < next_heartbeat()) return;
  SendHeartbeat(context_.now + TimeoutOr(context_.job.timeouts().heartbeat(), kDefaultHeartbeat));
}

absl::Time Registration::NextDeadline() const {
  if (!registered_) return leave_until();
  const absl::Time next = std::min(leave_until(), next_heartbeat());
  return out_.progress()->steps_size() > 0 ? std::min(next, next_progress_) : next;
}

}  // namespace sluice::worker

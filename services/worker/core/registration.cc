#include "services/worker/core/registration.h"

#include <algorithm>

#include "services/common/check.h"
#include "services/protocol/timeouts.h"

namespace sluice::worker {
namespace {

constexpr absl::Duration kProgressPause = absl::Milliseconds(50);

}  // namespace

void Registration::OnConnected(bool was_member) {
  connected_ = true;
  registered_ = false;
  v1::MemberMessage message;
  v1::Register& request = *message.mutable_register_();
  request = request_;
  request.set_wire_version(wire_version_);
  // Only a former member can have been expelled by a view that it has not received. A worker that
  // waits to become a member is one for the next coordinator too.
  if (was_member) *request.mutable_newest_view() = context_.view.id();
  Send(std::move(message));
}

void Registration::OnRegistered() {
  registered_ = true;
  next_heartbeat_ = context_.now;
  SendReady();
  for (const auto& [kind, request] : requests_) SendRequest(request);
  if (leaves()) SendLeave(*leave_reason_);
}

bool Registration::OfferOlderVersion() {
  if (wire_version_ <= SpokenWireVersions().oldest) return false;
  --wire_version_;  // the coordinator closes this connection
  return true;
}

void Registration::Send(v1::MemberMessage message) {
  if (connected_) out_.Add(SendToCoordinator{std::move(message)});
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

void Registration::SendLeave(const std::string& reason) {
  v1::MemberMessage message;
  message.mutable_leave()->set_reason(reason);
  Send(std::move(message));
}

void Registration::Leave(std::string reason, absl::Duration grace) {
  leave_reason_ = std::move(reason);
  leave_until_ = context_.now + grace;
  SendLeave(*leave_reason_);
}

bool Registration::LeaveIsOver() const {
  SLUICE_DCHECK(leaves() || leave_until_ == absl::InfiniteFuture(),
                "a worker that leaves has a reason");
  return context_.now >= leave_until_;
}

void Registration::SendDue() {
  SLUICE_DCHECK(connected_ || !registered_, "a worker registers on each new connection");
  if (context_.now >= next_progress_) SendProgress();
  if (!registered_ || context_.now < next_heartbeat_) return;
  v1::MemberMessage message;
  message.mutable_heartbeat()->set_sequence(++heartbeats_);
  Send(std::move(message));
  next_heartbeat_ =
      context_.now + TimeoutOr(context_.job.timeouts().heartbeat(), kDefaultHeartbeat);
}

absl::Time Registration::NextDeadline() const {
  if (!registered_) return leave_until_;
  const absl::Time next = std::min(leave_until_, next_heartbeat_);
  return out_.progress()->steps_size() > 0 ? std::min(next, next_progress_) : next;
}

}  // namespace sluice::worker

#include "services/protocol/member_registration.h"

#include <algorithm>

namespace sluice {

v1::Hello MemberRegistration::MakeHello(uint64_t shard) const {
  v1::Hello hello;
  hello.set_min_wire_version(SpokenWireVersions().oldest);
  hello.set_max_wire_version(SpokenWireVersions().newest);
  hello.set_job(identity_.job());
  *hello.mutable_sender() = identity_.process();
  hello.set_shard_incarnation(shard);
  return hello;
}

void MemberRegistration::Connect(const v1::ViewId& newest_view, const v1::ViewId& obeyed) {
  connected_ = true;
  v1::MemberMessage message;
  v1::Register& request = *message.mutable_register_();
  request = identity_;
  request.set_wire_version(wire_version_);
  if (newest_view.attempt() > 0) *request.mutable_newest_view() = newest_view;
  if (obeyed.attempt() > 0) *request.mutable_obeyed() = obeyed;
  Send(std::move(message));
}

std::optional<Exit> MemberRegistration::ExitAfter(const v1::Refusal& refusal) {
  switch (refusal.code()) {
    case v1::Refusal::FINISHED:
      return Exit{ExitReason::kFinished, refusal.reason()};
    case v1::Refusal::EXPELLED:
    case v1::Refusal::DUPLICATE:
      return Exit{leaves() ? ExitReason::kLeft : ExitReason::kExpelled, refusal.reason(),
                  refusal.code()};
    case v1::Refusal::WIRE_VERSION:
      if (wire_version_ == SpokenWireVersions().oldest) break;
      --wire_version_;
      return std::nullopt;
    default:
      break;
  }
  return Exit{ExitReason::kRefused, refusal.reason(), refusal.code()};
}

Exit MemberRegistration::ExitAfter(const v1::Finish& finish) {
  SendLeave(finish.reason());
  return {finish.succeeded() ? ExitReason::kFinished : ExitReason::kFailed, finish.reason()};
}

void MemberRegistration::AskToLeave(std::string reason, absl::Time until) {
  leave_until_ = std::min(leave_until_, until);
  if (leaves()) return;
  leave_reason_ = std::move(reason);
  if (connected_) SendLeave(*leave_reason_);
}

void MemberRegistration::SendHeartbeat(absl::Time next) {
  next_heartbeat_ = next;
  v1::MemberMessage message;
  message.mutable_heartbeat()->set_sequence(++heartbeats_);
  Send(std::move(message));
}

void MemberRegistration::SendLeave(const std::string& reason) {
  v1::MemberMessage message;
  message.mutable_leave()->set_reason(reason);
  Send(std::move(message));
}

}  // namespace sluice

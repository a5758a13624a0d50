#include "services/coordinator/core/members/registrar.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/coordinator/core/base/phase.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

void Registrar::OnConnected(StreamId stream, absl::Time now) {
  if (members_.Connected(stream, now)) return;
  ++refused_;
  output_.Close(stream, absl::ResourceExhaustedError(absl::StrCat(
                            "on ", Membership::kMaxRegistering,
                            " streams no process has registered yet (kMaxRegistering): try "
                            "again")));
}

Registrar::Admission Registrar::OnRegister(StreamId stream, const v1::Register& request,
                                           const std::string& end, absl::Time now) {
  if (std::optional<v1::Refusal> refusal = Check(request.process(), end); refusal.has_value()) {
    members_.Disconnected(stream, now);
    Refuse(stream, *std::move(refusal));
    return {};
  }

  Membership::Admission admission = members_.Register(stream, request, now);
  switch (admission.kind) {
    case Membership::Admission::Kind::kRefused:
      if (admission.refusal.code() == v1::Refusal::WIRE_VERSION) {
        output_.Warn(admission.refusal.reason(), now);
      }
      Refuse(stream, std::move(admission.refusal));
      return {};
    case Membership::Admission::Kind::kLater:
      ++refused_;
      output_.Close(stream, absl::UnavailableError(admission.why));
      return {};
    case Membership::Admission::Kind::kReturned:
      if (admission.closed_stream != 0) {
        output_.Close(admission.closed_stream, absl::AbortedError("replaced by a newer stream"));
      }
      break;
    case Membership::Admission::Kind::kNew:
      break;
  }
  return {true, std::move(admission.displaced)};
}

// Why the process is refused, for a reason that membership does not know.
std::optional<v1::Refusal> Registrar::Check(const v1::ProcessId& id, const std::string& end) const {
  v1::Refusal refusal;
  if (IsLeaving(facts_.phase) && members_.Find(id.incarnation()) == nullptr) {
    refusal.set_code(v1::Refusal::FINISHED);
    refusal.set_reason(end);
    return refusal;
  }
  if (readers_.Has(id.incarnation())) {
    refusal.set_code(v1::Refusal::DUPLICATE);
    refusal.set_reason("this incarnation is a reader's");
    return refusal;
  }
  return std::nullopt;
}

bool Registrar::IsLeftBehind(const Process& shard) const {
  const Training& training = facts_.training;
  return facts_.phase == Phase::kRunning && training.has_view() &&
         shard.newest_view.attempt() == facts_.attempt.id.number &&
         Compare(shard.newest_view, training.view().id()) <= 0 &&
         !facts_.attempt.HasShard(shard.incarnation()) && facts_.Stays(shard) &&
         training.change().HasInstalled(shard.incarnation()) &&
         !training.change().Asks(shard.incarnation());
}

void Registrar::Answer(const Process& process, uint64_t attempt, absl::Time now) {
  SLUICE_DCHECK(facts_.attempt.id.term.counter() > 0 && facts_.attempt.id.term.coordinator() != 0,
                "R1: the term is known before it is sent");
  members_.Answered(process.incarnation(), now);
  v1::CoordinatorMessage message;
  v1::Registered& registered = *message.mutable_registered();
  *registered.mutable_term() = facts_.attempt.id.term;
  *registered.mutable_job() = facts_.job();
  registered.set_attempt(attempt);
  output_.Send(process, std::move(message));
  // Before an attempt begins, the list of an earlier coordinator may still be in use.
  if (process.id.role() == v1::SHARD && HasAttempt(facts_.phase)) {
    output_.Send(process, AdmittedMessage());
  }
}

void Registrar::Refuse(StreamId stream, v1::Refusal refusal) {
  SLUICE_DCHECK(members_.OnStream(stream) == nullptr, "a process that is refused is no member");
  ++refused_;
  absl::Status status = absl::PermissionDeniedError(refusal.reason());
  v1::CoordinatorMessage message;
  *message.mutable_refusal() = std::move(refusal);
  output_.Add(Send{stream, std::move(message)});
  output_.Close(stream, std::move(status));
}

void Registrar::SendAdmitted() {
  if (!HasAttempt(facts_.phase)) return;
  const uint64_t changes = members_.changes() + readers_.changes();
  SLUICE_DCHECK(sent_changes_ <= changes, "changes are only added");
  if (sent_changes_ == changes) return;
  sent_changes_ = changes;
  const v1::CoordinatorMessage message = AdmittedMessage();
  for (const Process* shard : members_.LivingAndConnected(v1::SHARD)) {
    if (shard->answered) output_.Send(*shard, message);
  }
}

v1::CoordinatorMessage Registrar::AdmittedMessage() const {
  v1::CoordinatorMessage message;
  v1::Admitted& admitted = *message.mutable_admitted();
  for (const Process* worker : members_.Living(v1::WORKER)) {
    *admitted.add_processes() = worker->id;
  }
  readers_.ForEach([&](const ReaderHold& hold) { *admitted.add_processes() = hold.reader; });
  return message;
}

}  // namespace sluice::coordinator

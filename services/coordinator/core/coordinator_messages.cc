// The coordinator's control streams: registration, members' messages, departures.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/text/utf8.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

// ---- streams

void CoordinatorCore::OnConnected(StreamId stream, absl::Time now) {
  Handle(now, [&] {
    if (!Is(Phase::kExited)) registrar_.OnConnected(stream, now);
  });
}

void CoordinatorCore::OnDisconnected(StreamId stream, absl::Time now) {
  Handle(now, [&] {
    attempt_->views.OnDisconnected(stream);
    Process* process = facts_.members.Disconnected(stream, now);
    if (process == nullptr) return;
    const uint64_t incarnation = process->incarnation();
    // A process that was sent Finish, or a worker that was leaving, has left. A shard that was
    // leaving returns: its state is still needed.
    const bool left = process->leaving && process->id.role() == v1::WORKER;
    if (Leaving() || (left && !facts_.training.IsMember(incarnation))) {
      facts_.members.Leave(incarnation);
    } else if (left) {
      OnGone(*facts_.members.Leave(incarnation), now);
    }
  });
}

void CoordinatorCore::Breach(StreamId stream, const std::string& what, absl::Time now) {
  ++refusals_.messages;
  output_.Close(stream, absl::InvalidArgumentError(what));
  Process* process = facts_.members.Disconnected(stream, now);
  if (process == nullptr) return;
  const std::string name = ProcessName(process->id);
  if (++process->breaches < kMaxBreaches) {
    output_.Warn(absl::StrCat("a message of ", name, " is refused: ", what), now);
    return;
  }
  Expel(process->incarnation(), absl::StrCat("broke the protocol ", kMaxBreaches, " times: ", what),
        now);
}

// ---- registration

void CoordinatorCore::OnRegister(StreamId stream, const v1::Register& request, absl::Time now) {
  const v1::ProcessId& id = request.process();
  if ((id.role() != v1::SHARD && id.role() != v1::WORKER) || id.incarnation() == 0) {
    Breach(stream, "only shards and workers register, with an incarnation that is not 0", now);
    return;
  }
  if (absl::Status valid = CheckRegister(request); !valid.ok()) {
    Breach(stream, std::string(valid.message()), now);
    return;
  }
  const Registrar::Admission admission =
      registrar_.OnRegister(stream, request, attempt_->ending.message(), now);
  if (admission.displaced.has_value()) OnGone(*admission.displaced, now);
  if (!admission.admitted) return;
  if (id.role() == v1::SHARD && registrar_.IsLeftBehind(*facts_.members.Find(id.incarnation()))) {
    Expel(id.incarnation(), "is not in the view with which its attempt continues", now);
    return;
  }

  // Workers run user code: their reports are not trusted for terms and attempts.
  if (id.role() == v1::SHARD && request.has_newest_view()) {
    OnViewSeen(id.incarnation(), request.newest_view(), now);
    if (Is(Phase::kExited)) return;
  }
  if (id.role() == v1::SHARD && request.has_obeyed() &&
      !CarryOut(claims_.OnObeyed(request.obeyed()), now)) {
    return;
  }

  registrar_.SendAdmitted();  // before the worker learns the shards' addresses
  const Process& process = *facts_.members.Find(id.incarnation());
  if (claims_.known()) {
    registrar_.Answer(process, claims_.highest(), now);
    Resend(process);
  }
}

void CoordinatorCore::OnViewSeen(uint64_t shard, const v1::ViewId& seen, absl::Time now) {
  if (!CarryOut(claims_.OnViewSeen(seen), now)) return;
  if (Is(Phase::kGathering) && claims_.MissesAttempt()) ReadStorageAgain();
  attempt_->views.OnInstalled(shard, seen);
}

// Sends what the process may have missed while it had no stream. All these messages may be
// repeated.
void CoordinatorCore::Resend(const Process& process) {
  SLUICE_DCHECK(process.answered && !process.suspect(), "the process has a stream");
  const bool worker = process.id.role() == v1::WORKER;
  if (Is(Phase::kLeavingShards) || (Is(Phase::kLeavingWorkers) && worker)) {
    attempt_->ending.SendFinish(process);
    return;
  }

  if (Is(Phase::kTakingOver) && !worker) (void)attempt_->views.ResendChange(process);
  if (!HasAttempt()) return;
  if (worker) {
    if (Is(Phase::kPreparing)) attempt_->initialization.ResendToWorker(process);
    if (process.ready) attempt_->views.SendView(process);
    snapshots_.evaluations().ResendTo(process);
  } else if (facts_.attempt.HasShard(process.incarnation())) {
    ResendToShard(process);
  } else {
    (void)attempt_->views.ResendChange(process);  // to a new shard
  }
}

void CoordinatorCore::ResendToShard(const Process& shard) {
  if (!facts_.training.has_view()) attempt_->initialization.ResendToShard(shard);
  if (attempt_->views.ResendChange(shard) || !facts_.training.has_view()) return;
  snapshots_.ResendTo(shard);
  attempt_->views.ResendCommitted(shard);
}

// ---- messages

void CoordinatorCore::OnMessage(StreamId stream, const v1::MemberMessage& message, absl::Time now) {
  Handle(now, [&] {
    if (!Is(Phase::kExited)) TakeMessage(stream, message, now);
  });
}

void CoordinatorCore::TakeMessage(StreamId stream, const v1::MemberMessage& message,
                                  absl::Time now) {
  facts_.members.OnMessage(stream, now);
  Process* process = facts_.members.OnStream(stream);

  if (message.has_register_()) {
    if (process != nullptr) {
      Breach(stream, "Register must be the first message of a stream, and only the first", now);
    } else {
      OnRegister(stream, message.register_(), now);
    }
  } else if (process == nullptr) {
    // This includes messages that were under way when the process was expelled.
    output_.Close(stream, absl::FailedPreconditionError("the first message must be Register"));
  } else if (message.has_heartbeat()) {
    v1::CoordinatorMessage reply;
    reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
    reply.mutable_heartbeat_reply()->set_batch_size(facts_.mode().BatchSizeOf(*process));
    output_.Send(*process, std::move(reply));
  } else if (message.has_failure()) {
    OnFailure(*process, message.failure(), now);
  } else if (message.has_leave()) {
    OnLeave(*process, now);
  } else if (process->id.role() == v1::WORKER) {
    OnWorkerMessage(*process, message, now);
  } else {
    OnShardMessage(*process, message, now);
  }
}

void CoordinatorCore::OnWorkerMessage(Process& process, const v1::MemberMessage& message,
                                      absl::Time now) {
  switch (message.body_case()) {
    case v1::MemberMessage::kReady:
      OnReady(process, message.ready(), now);
      break;
    case v1::MemberMessage::kWorkerProgress:
      OnWorkerProgress(process, message.worker_progress(), now);
      break;
    case v1::MemberMessage::kEvaluationResult:
      snapshots_.evaluations().OnResult(process.incarnation(), message.evaluation_result());
      break;
    case v1::MemberMessage::kMetricValues:
      snapshots_.evaluations().OnMetricValues(process.incarnation(), message.metric_values());
      break;
    case v1::MemberMessage::kJobRequest:
      OnJobRequest(process, message.job_request(), now);
      break;
    default:
      Breach(process.stream, "a worker does not send this message", now);
  }
}

void CoordinatorCore::OnShardMessage(Process& process, const v1::MemberMessage& message,
                                     absl::Time now) {
  if (IsOfOutsider(process, message)) return;
  if (absl::Status valid = CheckShardMessage(process, message); !valid.ok()) {
    Breach(process.stream, std::string(valid.message()), now);
    return;
  }

  switch (message.body_case()) {
    case v1::MemberMessage::kStateReady:
      OnStateReady(process, message.state_ready(), now);
      break;
    case v1::MemberMessage::kPauseReply:
      attempt_->views.OnPauseReply(process.incarnation(), message.pause_reply());
      break;
    case v1::MemberMessage::kInstalled:
      attempt_->views.OnInstalled(process.incarnation(), message.installed().view());
      break;
    case v1::MemberMessage::kShardProgress:
      OnShardProgress(process, message.shard_progress(), now);
      break;
    case v1::MemberMessage::kSnapshotPinned:
      snapshots_.OnPinned(process, message.snapshot_pinned());
      break;
    case v1::MemberMessage::kSnapshotWritten:
      snapshots_.OnWritten(process, message.snapshot_written(), now);
      break;
    case v1::MemberMessage::kSnapshotFailed:
      OnSnapshotFailed(process, message.snapshot_failed(), now);
      break;
    default:
      Breach(process.stream, "a shard does not send this message", now);
  }
}

// Whether the message reports on the attempt's partitions, and the shard is not in the attempt. A
// shard that joins sends StateReady and PauseReply, and one that a view leaves out sends Installed:
// the parts that take these know from which shards they await them.
bool CoordinatorCore::IsOfOutsider(const Process& shard, const v1::MemberMessage& message) const {
  switch (message.body_case()) {
    case v1::MemberMessage::kShardProgress:
    case v1::MemberMessage::kSnapshotPinned:
    case v1::MemberMessage::kSnapshotWritten:
    case v1::MemberMessage::kSnapshotFailed:
      return !facts_.attempt.HasShard(shard.incarnation());
    default:
      return false;
  }
}

// Checks the reports that the core will use. Reports of another attempt, view or snapshot are
// ignored later.
absl::Status CoordinatorCore::CheckShardMessage(const Process& process,
                                                const v1::MemberMessage& message) const {
  const Training& training = facts_.training;
  const auto of_snapshot = [&](const auto& report) {
    return snapshots_.IsOpen(report.snapshot_id(), report.name());
  };

  switch (message.body_case()) {
    case v1::MemberMessage::kShardProgress:
      if (!training.has_view() || !Same(message.shard_progress().view(), training.view().id())) {
        break;
      }
      return CheckShardProgress(message.shard_progress(), FactsOf(process));
    case v1::MemberMessage::kPauseReply:
      if (!training.change().Asks(process.incarnation()) ||
          !Same(message.pause_reply().pause(), training.change().pause().id())) {
        break;
      }
      return CheckPauseReply(message.pause_reply(), FactsOf(process));
    case v1::MemberMessage::kSnapshotPinned:
      if (!facts_.mode().synchronous() || !of_snapshot(message.snapshot_pinned())) break;
      return CheckSnapshotPinned(message.snapshot_pinned(), snapshots_.current()->step);
    case v1::MemberMessage::kSnapshotWritten:
      if (!of_snapshot(message.snapshot_written())) break;
      return CheckSnapshotWritten(message.snapshot_written());
    case v1::MemberMessage::kSnapshotFailed:
      if (!of_snapshot(message.snapshot_failed())) break;
      return CheckSnapshotFailed(message.snapshot_failed(), FactsOf(process));
    default:
      break;
  }
  return absl::OkStatus();
}

ShardFacts CoordinatorCore::FactsOf(const Process& shard) const {
  const Attempt& attempt = facts_.attempt;
  SLUICE_DCHECK(shard.id.role() == v1::SHARD && attempt.model.length.has_value(),
                "a shard's reports are compared with the job's length");
  ShardFacts facts;
  facts.synchronous = facts_.mode().synchronous();
  facts.total_steps = attempt.LastStep();
  facts.total_samples = attempt.LastSample();
  facts.first_version = attempt.facts().base_version;
  facts.owned = attempt.PartitionsWithBlocks(shard.incarnation());
  facts.shard = shard.incarnation();
  facts.empty = &attempt.facts().empty;
  facts.view = &facts_.training.view();
  facts.installs = &facts_.training.change().installs();
  facts.attempt = attempt.id.number;
  facts.term = attempt.id.term;
  return facts;
}

// ---- the beginning of an attempt

void CoordinatorCore::OnReady(Process& process, const v1::Ready& ready, absl::Time now) {
  if (Leaving()) return;
  if (absl::Status valid = CheckReady(ready); !valid.ok()) {
    Breach(process.stream, std::string(valid.message()), now);
    return;
  }

  std::string difference;
  if (!CarryOut(model_.OnReady(process.id, ready, &difference, now), now)) return;
  if (!difference.empty()) {
    v1::Refusal refusal;
    refusal.set_code(v1::Refusal::MODEL_DIFFERS);
    refusal.set_reason(difference);
    const Departure departure =
        *facts_.members.Expel(process.incarnation(), refusal.reason());  // ends `process`
    registrar_.Refuse(departure.process.stream, std::move(refusal));
    OnGone(departure, now);
    return;
  }

  if (const std::string missing = MissingSamples(facts_.job(), ready); !missing.empty()) {
    Fail(missing, now);
    return;
  }

  if (!process.ready) {
    process.ready = true;
    process.ready_since = now;
  }
  if (Is(Phase::kRunning)) attempt_->views.SendView(process);
}

void CoordinatorCore::OnStateReady(const Process& process, const v1::StateReady& ready,
                                   absl::Time now) {
  if (Is(Phase::kRunning)) {
    if (const std::string why = attempt_->moves.OnStateReady(process, ready); !why.empty()) {
      Expel(process.incarnation(), absl::StrCat("cannot join: ", why), now);
    }
    return;
  }
  if (!Is(Phase::kPreparing)) return;
  (void)CarryOut(attempt_->initialization.OnStateReady(process, ready), now);
}

// ---- requests of programs

void CoordinatorCore::OnJobRequest(Process& process, const v1::JobRequest& request,
                                   absl::Time now) {
  if (request.number() <= process.requests) return;
  process.requests = request.number();
  if (Leaving() || facts_.attempt.goal != Goal::kNone) return;
  const std::string name = ProcessName(process.id);
  switch (request.kind()) {
    case v1::JobRequest::STOP:
      if (!stop_request_.empty()) return;
      stop_request_ = absl::StrCat(name, ": ", CleanUtf8(request.reason(), kMaxReasonBytes));
      output_.Info(absl::StrCat("the program asks to end training; ", stop_request_), now);
      return;
    case v1::JobRequest::SAVE:
      if (!Is(Phase::kRunning) || !facts_.training.has_view()) return;
      output_.Info(absl::StrCat("the program of ", name, " asks for a checkpoint"), now);
      snapshots_.checkpoints().schedule().MakeDue(facts_.mode().ScheduleStep());
      return;
    default:
      Breach(process.stream, "a JobRequest of no known kind", now);
  }
}

// ---- progress

// Figures for people, from members only. Impossible figures are dropped.
void CoordinatorCore::OnWorkerProgress(Process& process, const v1::WorkerProgress& report,
                                       absl::Time now) {
  if (!process.was_member || !facts_.attempt.model.length.has_value()) return;
  v1::WorkerProgress progress = report;
  const v1::TrainingSpec& training = facts_.job().training();
  WorkerFacts facts;
  facts.synchronous = facts_.mode().synchronous();
  facts.total_steps = facts_.attempt.LastStep();
  facts.total_samples = facts_.attempt.LastSample();
  // An update is joined with samples that the model could not compute by themselves.
  facts.largest_step = std::max(training.global_batch_size(), training.max_batch_size()) +
                       facts_.attempt.model.ready->smallest_batch();
  facts.elapsed = now - process.reported;
  SLUICE_DCHECK(facts.elapsed >= absl::ZeroDuration(), "times do not go backwards");
  process.reported = now;
  refusals_.figures += KeepPossibleFigures(&progress, facts);
  facts_.meter.OnWorkerProgress(process.incarnation(), progress);
  batch_losses_.OnWorkerProgress(process.id.index(), facts.synchronous, progress);
  if (progress.owing_size() == 0) return;
  if (const auto overdue = attempt_->waits.OnOwing(process, progress, now); overdue.has_value()) {
    Expel(overdue->incarnation, overdue->why, now);
  }
}

void CoordinatorCore::OnShardProgress(const Process& process, const v1::ShardProgress& progress,
                                      absl::Time now) {
  Training& training = facts_.training;
  if (!training.has_view() || !Same(progress.view(), training.view().id())) return;
  const TrainingMode& mode = facts_.mode();
  const uint64_t samples_before = mode.Samples();
  if (!training.OnProgress(process.incarnation(), progress)) return;
  if (mode.synchronous()) {
    training.RaiseCommitted(progress.committed());
    // Where the job ends, no shard reports again that a version is committed.
    if (Leaving()) training.RaiseCommitted(training.LowestClosed());
  }
  facts_.load.OnReport(process.incarnation(), progress.busy_seconds());

  const bool evaluating = snapshots_.evaluations().running();
  const uint64_t samples = mode.Samples();
  facts_.meter.OnSamples(samples, now);
  if (samples > samples_before || evaluating) attempt_->waits.OnApplied(now);
  if (progress.awaited_size() == 0) return;
  for (const Waits::Expulsion& overdue :
       attempt_->waits.OnAwaited(process, progress, evaluating, now)) {
    Expel(overdue.incarnation, overdue.why, now);
  }
}

void CoordinatorCore::OnSnapshotFailed(const Process& process, const v1::SnapshotFailed& failed,
                                       absl::Time now) {
  if (!snapshots_.IsOpen(failed.snapshot_id(), failed.name())) return;
  // `past` is the highest version of its partitions. Its other partitions may be one version
  // behind, and `closed` is the lowest version, from which the committed one follows.
  if (failed.past() > 0) facts_.training.RaiseClosed(process.incarnation(), failed.past() - 1);
  snapshots_.OnFailed(process, failed, now);
}

// ---- departures

// A process reports that the job cannot be trained. The failure of a process that was never needed
// fails only that process.
void CoordinatorCore::OnFailure(Process& process, const v1::Failure& failure, absl::Time now) {
  if (Leaving()) return;
  const std::string reason = CleanUtf8(failure.reason(), kMaxReasonBytes);
  if (FailureEndsJob(process)) {
    Fail(absl::StrCat(ProcessName(process.id), ": ", reason), now);
    return;
  }
  Expel(process.incarnation(), absl::StrCat("failed: ", reason), now);
}

bool CoordinatorCore::FailureEndsJob(const Process& process) const {
  if (process.id.role() == v1::SHARD) {
    return facts_.attempt.facts().shards.empty() || facts_.attempt.HasShard(process.incarnation());
  }
  const std::vector<const Process*> ready = facts_.ReadyWorkers();
  const bool alone = std::all_of(ready.begin(), ready.end(), [&](const Process* worker) {
    return worker->incarnation() == process.incarnation();
  });
  return process.was_member || alone;
}

void CoordinatorCore::OnLeave(Process& process, absl::Time now) {
  const uint64_t incarnation = process.incarnation();
  const bool worker = process.id.role() == v1::WORKER;
  if (worker && !Leaving() && facts_.training.IsMember(incarnation)) {
    // The worker continues until there is a view without it.
    process.leaving = true;
    return;
  }

  if (!worker && NeedsStateOf(process)) {
    // The shard waits until other shards have its partitions, or its state is saved.
    const bool repeated = std::exchange(process.leaving, true);
    if (repeated) return;
    const char* what = !facts_.training.view().has_id() ? "its attempt is taken over first"
                       : facts_.CanDrain()              ? "other shards take its partitions"
                                                        : "the job saves a checkpoint";
    output_.Info(absl::StrCat(ProcessName(process.id), " asks to leave: ", what), now);
    return;
  }

  if (!worker && !Leaving()) SendRelease(process);
  const StreamId stream = process.stream;
  const Departure departure = *facts_.members.Leave(incarnation);  // ends `process`
  output_.Close(stream, absl::OkStatus());
  if (!Leaving()) OnGone(departure, now);
}

// Whether the attempt trains with the shard, or may be taken over with it.
bool CoordinatorCore::NeedsStateOf(const Process& shard) const {
  if (Is(Phase::kRunning)) {
    return facts_.training.view().has_id() && facts_.attempt.HasShard(shard.incarnation());
  }
  if (shard.newest_view.attempt() == 0) return false;
  return Is(Phase::kReading) || Is(Phase::kTakingOver) || (Is(Phase::kGathering) && MayTakeOver());
}

void CoordinatorCore::Expel(uint64_t incarnation, const std::string& why, absl::Time now) {
  if (std::optional<Departure> departure = facts_.members.Expel(incarnation, why);
      departure.has_value()) {
    OnGone(*departure, now);
  }
}

void CoordinatorCore::OnGone(const Departure& departure, absl::Time now) {
  const Process& process = departure.process;
  SLUICE_DCHECK(facts_.members.Find(process.incarnation()) == nullptr,
                "a process that is gone is not alive");
  facts_.meter.Forget(process.incarnation());
  if (Leaving() || Is(Phase::kExited)) return;

  const std::string what = departure.expelled
                               ? absl::StrCat(ProcessName(process.id), ": ", departure.reason)
                               : absl::StrCat(ProcessName(process.id), " left");
  if (departure.expelled) {
    output_.Warn(what, now);
    if (!process.suspect()) output_.Close(process.stream, absl::AbortedError(departure.reason));
  } else {
    output_.Info(what, now);
  }

  if (!HasAttempt() || !facts_.attempt.HasShard(process.incarnation())) return;
  if (Is(Phase::kRunning) && attempt_->moves.CanContinue()) {
    attempt_->gone[process.incarnation()] = what;  // the next view is made without it
    return;
  }
  if (process.leaving || !departure.expelled) {
    ContinueWithout(what, now);
  } else {
    LoseShard(what, now);
  }
}

}  // namespace sluice::coordinator

#include "services/coordinator/core/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/utf8.h"
#include "services/coordinator/core/coordinator_impl.h"
#include "services/coordinator/core/model_difference.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

const CoordinatorRules* AllRules() {
  static const CoordinatorRules rules;
  return &rules;
}

CoordinatorOptions WithDefaults(CoordinatorOptions options, double gradients_seconds) {
  // Shards cannot tell which worker an all-reduce waits for.
  const bool all_reduce =
      options.job.training().dense().aggregation() == v1::TrainingSpec::Dense::ALL_REDUCE;
  if (options.job.timeouts().gradients() <= 0 && !all_reduce) {
    options.job.mutable_timeouts()->set_gradients(gradients_seconds);
  }
  return options;
}

// If a tick is later than this after its deadline, the coordinator itself was frozen.
constexpr absl::Duration kLate = absl::Milliseconds(250);
// Within this time after a freeze, the coordinator has read the messages that wait in its streams.
constexpr absl::Duration kCatchUp = absl::Milliseconds(100);

}  // namespace

std::string JobName(const v1::JobSpec& job) { return FullJobName(job); }

CoordinatorCore::CoordinatorCore(CoordinatorOptions options, absl::Time now,
                                 const CoordinatorRules* rules)
    : impl_(std::make_unique<Impl>(std::move(options), now, rules ? rules : AllRules())) {}

CoordinatorCore::~CoordinatorCore() = default;

void CoordinatorCore::OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now) {
  impl_->OnStorageRead(std::move(contents), now);
}
void CoordinatorCore::OnConnected(StreamId stream, absl::Time now) {
  impl_->OnConnected(stream, now);
}
void CoordinatorCore::OnMessage(StreamId stream, const v1::MemberMessage& message, absl::Time now) {
  impl_->OnMessage(stream, message, now);
}
void CoordinatorCore::OnDisconnected(StreamId stream, absl::Time now) {
  impl_->OnDisconnected(stream, now);
}
void CoordinatorCore::OnClaimResult(uint64_t attempt, const absl::Status& status, absl::Time now) {
  impl_->OnClaimResult(attempt, status, now);
}
void CoordinatorCore::OnClaimsRead(absl::StatusOr<std::vector<v1::Claim>> claims, absl::Time now) {
  impl_->OnClaimsRead(std::move(claims), now);
}
void CoordinatorCore::OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint,
                                               const absl::Status& status, absl::Time now) {
  impl_->OnCheckpointIndexWritten(checkpoint, status, now);
}
void CoordinatorCore::OnIncompleteRemoved(absl::Time now) { impl_->OnIncompleteRemoved(now); }
void CoordinatorCore::OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now) {
  impl_->OnSetDesired(desired, now);
}
void CoordinatorCore::OnOpenSnapshot(uint64_t request, const v1::OpenSnapshotRequest& snapshot,
                                     absl::Time now) {
  impl_->OnOpenSnapshot(request, snapshot, now);
}
void CoordinatorCore::OnSnapshotCallEnded(uint64_t request, absl::Time now) {
  impl_->OnSnapshotCallEnded(request, now);
}
void CoordinatorCore::OnTick(absl::Time now) { impl_->OnTick(now); }
std::vector<Action> CoordinatorCore::TakeActions() { return impl_->TakeActions(); }
absl::Time CoordinatorCore::NextDeadline() const { return impl_->NextDeadline(); }
v1::JobProgress CoordinatorCore::Progress(uint64_t events_after, absl::Time now) const {
  v1::GetProgressRequest request;
  request.set_events_after(events_after);
  return impl_->Progress(request, now);
}
v1::JobProgress CoordinatorCore::Progress(const v1::GetProgressRequest& request,
                                          absl::Time now) const {
  return impl_->Progress(request, now);
}
CoordinatorCore::Refusals CoordinatorCore::refusals() const { return impl_->refusals(); }
const v1::View& CoordinatorCore::view() const { return impl_->view(); }

CoordinatorCore::Impl::Impl(CoordinatorOptions options, absl::Time now,
                            const CoordinatorRules* rules)
    : options_(WithDefaults(std::move(options), kDefaultGradientsSeconds)),
      rules_(rules),
      timers_(TimersFrom(options_.job.timeouts())),
      membership_({JobName(options_.job), SpokenWireVersions(), timers_.suspect,
                   timers_.heartbeat_timeout, rules->RefuseExpelled(),
                   options_.job.worker().replicas(),
                   std::max<uint32_t>(options_.job.parameter_server().replicas(), 1)}),
      meter_(20 * std::max<uint64_t>(options_.job.training().global_batch_size(), 1)),
      last_step_(now),
      wanted_workers_(options_.job.worker().replicas()),
      wanted_shards_(std::max<uint32_t>(options_.job.parameter_server().replicas(), 1)),
      mode_(options_.job.training().mode()),
      init_request_(rules),
      change_(rules),
      view_since_(now),
      checkpoints_(options_.job.checkpoint().interval_steps(),
                   absl::Seconds(options_.job.checkpoint().interval_seconds())),
      evaluations_(options_.job.data().evaluation().interval_steps(),
                   absl::Seconds(options_.job.data().evaluation().interval_seconds())) {
  term_.set_coordinator(options_.incarnation);
  for (const std::string& warning : options_.warnings) Warn(warning, now);
  ReadStorageAgain(now);
}

// ---- time

void CoordinatorCore::Impl::Step(absl::Time now) {
  // After this process was frozen, messages of other processes wait unread in its streams. Events
  // come in any order then, so no process is judged before these messages are read.
  const absl::Duration gap = now - last_step_;

  // The whole machine may have slept, including the members.
  if (gap > absl::Seconds(options_.job.timeouts().gradients()) / 2) {
    evaluated_at_ = applied_at_ = now;
  }

  if (gap > kLate) {
    const absl::Time judged =
        std::min(membership_.NextDeadline(), change_.NextDeadline(timers_.pause));
    absl::Duration forgiven = NextDeadline() + kLate < now ? gap : absl::ZeroDuration();
    // The process may also have been frozen between two events and have continued before its
    // deadline.
    const bool over = judged + forgiven <= now;
    if (over || (forgiven > absl::ZeroDuration() && judged + forgiven < now + kCatchUp)) {
      forgiven = now + kCatchUp - judged;
    }
    membership_.Forgive(forgiven);
    change_.Forgive(forgiven);
  }

  last_step_ = now;
}

void CoordinatorCore::Impl::Advance(absl::Time now) {
  if (phase_ == Phase::kExited) return;
  for (StreamId stream : membership_.TakeOverdueStreams(now)) {
    actions_.push_back(
        CloseStream{stream, absl::DeadlineExceededError("no process registered on the stream")});
  }
  for (const Departure& departure : membership_.ExpelOverdue(now)) OnGone(departure, now);
  TellAdmitted();

  Phase before;
  do {
    before = phase_;
    AdvanceStage(now);
  } while (phase_ != before && phase_ != Phase::kExited);
  TellAdmitted();
}

void CoordinatorCore::Impl::AdvanceStage(absl::Time now) {
  switch (phase_) {
    case Phase::kReading:
      if (!storage_pending_ && retry_at_ <= now) ReadStorageAgain(now);
      break;
    case Phase::kGathering:
      AdvanceGathering(now);
      break;
    case Phase::kClaiming:
      if (!claim_pending_ && retry_at_ <= now) Claim(/*end=*/false, now);
      break;
    case Phase::kPreparing:
      AdvancePreparing(now);
      break;
    case Phase::kRunning:
      AdvanceViews(now);
      if (phase_ == Phase::kRunning) AdvanceSnapshots(now);
      if (phase_ == Phase::kRunning) AdvanceEnding(now);
      break;
    case Phase::kLeavingWorkers:
    case Phase::kLeavingShards:
      AdvanceLeaving(now);
      break;
    case Phase::kExited:
      break;
  }
}

void CoordinatorCore::Impl::OnTick(absl::Time now) {
  Step(now);
  Advance(now);
}

absl::Time CoordinatorCore::Impl::NextDeadline() const {
  if (phase_ == Phase::kExited) return absl::InfiniteFuture();
  absl::Time deadline = membership_.NextDeadline();
  const auto at = [&](absl::Time time) { deadline = std::min(deadline, time); };

  switch (phase_) {
    case Phase::kReading:
      if (!storage_pending_) at(retry_at_);
      break;
    case Phase::kGathering:
      at(gather_at_);
      if (!looking_) at(look_at_);
      break;
    case Phase::kClaiming:
      if (!claim_pending_) at(retry_at_);
      break;
    case Phase::kPreparing:
      if (init_request_.active()) at(init_request_.deadline());
      break;
    case Phase::kRunning:
      at(change_.NextDeadline(timers_.pause));
      if (Idle()) {
        at(LeasesOverdue());
        const bool room =
            goal_ == Goal::kNone && (!snapshot_.has_value() || SnapshotIsForReadersOnly());
        at(join_at_);
        if (unbalanced_since_ != absl::InfiniteFuture()) {
          at(std::max(unbalanced_since_, view_since_) + timers_.rebalance);
        }
        if (room && last_step_ < checkpoints_.NextTime()) {
          at(checkpoints_.NextTime());
        }
        if (room && last_step_ < evaluations_.NextTime()) {
          at(evaluations_.NextTime());
        }
        if (snapshot_.has_value() && barrier_ > 0 &&
            (Synchronous() || ScheduleStep() >= barrier_)) {
          at(snapshot_->lingers_since + timers_.barrier);
        }
      }
      if (last_step_ < final_retry_at_) at(final_retry_at_);
      if (claim_.has_value() && !claim_pending_) at(retry_at_);
      at(suspend_deadline_);
      ForEachReader([&](const ReaderHold& hold) { at(hold.expires); });
      if (evaluation_.has_value()) at(evaluation_->NextDeadline());
      break;
    case Phase::kLeavingWorkers:
    case Phase::kLeavingShards:
      at(leave_deadline_);
      if (last_step_ < linger_until_) at(linger_until_);
      break;
    case Phase::kExited:
      break;
  }

  return deadline;
}

// ---- streams

void CoordinatorCore::Impl::OnConnected(StreamId stream, absl::Time now) {
  Step(now);
  if (phase_ != Phase::kExited && !membership_.Connected(stream, now)) {
    ++refusals_.registrations;
    actions_.push_back(CloseStream{
        stream, absl::ResourceExhaustedError(absl::StrCat(
                    "on ", Membership::kMaxRegistering,
                    " streams no process has registered yet (kMaxRegistering): try again"))});
  }
  Advance(now);
}

void CoordinatorCore::Impl::OnDisconnected(StreamId stream, absl::Time now) {
  Step(now);
  knows_model_.erase(stream);
  if (Process* process = membership_.Disconnected(stream, now); process != nullptr) {
    const uint64_t incarnation = process->incarnation();
    // The process was leaving, or had been sent Finish: it has left.
    const bool needed = IsMember(incarnation) || HoldsState(incarnation);
    if (Leaving() || (process->leaving && !needed)) {
      membership_.Leave(incarnation);
    } else if (process->leaving) {
      OnGone(*membership_.Leave(incarnation), now);
    }
  }
  Advance(now);
}

void CoordinatorCore::Impl::Breach(StreamId stream, const std::string& what, absl::Time now) {
  ++refusals_.messages;
  actions_.push_back(CloseStream{stream, absl::InvalidArgumentError(what)});
  Process* process = membership_.Disconnected(stream, now);
  if (process == nullptr) return;
  const std::string name = ProcessName(process->id);
  if (++process->breaches < kMaxBreaches) {
    Warn(absl::StrCat("a message of ", name, " is refused: ", what), now);
    return;
  }
  OnGone(*membership_.Expel(process->incarnation(),
                            absl::StrCat("broke the protocol ", kMaxBreaches, " times: ", what)),
         now);
}

void CoordinatorCore::Impl::Refuse(StreamId stream, v1::Refusal refusal) {
  ++refusals_.registrations;
  absl::Status status = absl::PermissionDeniedError(refusal.reason());
  v1::CoordinatorMessage message;
  *message.mutable_refusal() = std::move(refusal);
  actions_.push_back(coordinator::Send{stream, std::move(message)});
  actions_.push_back(CloseStream{stream, std::move(status)});
}

void CoordinatorCore::Impl::Send(const Process& process, v1::CoordinatorMessage message) {
  if (process.suspect()) return;
  actions_.push_back(coordinator::Send{process.stream, std::move(message)});
}

void CoordinatorCore::Impl::SendToShards(const v1::CoordinatorMessage& message) {
  for (uint64_t shard : facts_.shards) {
    if (const Process* process = membership_.Find(shard); process != nullptr) {
      Send(*process, message);
    }
  }
}

// ---- messages

void CoordinatorCore::Impl::OnMessage(StreamId stream, const v1::MemberMessage& message,
                                      absl::Time now) {
  Step(now);
  if (phase_ == Phase::kExited) return;
  membership_.OnMessage(stream, now);
  Process* process = membership_.OnStream(stream);

  if (message.has_register_()) {
    if (process != nullptr) {
      Breach(stream, "Register is the first message of a stream, and no other", now);
    } else {
      OnRegister(stream, message.register_(), now);
    }
  } else if (process == nullptr) {
    // This includes messages that were under way when the process was expelled.
    actions_.push_back(
        CloseStream{stream, absl::FailedPreconditionError("the first message must be Register")});
  } else if (message.has_heartbeat()) {
    v1::CoordinatorMessage reply;
    reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
    reply.mutable_heartbeat_reply()->set_batch_size(BatchSizeOf(*process));
    Send(*process, std::move(reply));
  } else if (message.has_failure()) {
    OnFailure(*process, message.failure(), now);
  } else if (message.has_leave()) {
    OnLeave(*process, now);
  } else if (process->id.role() == v1::WORKER) {
    OnWorkerMessage(*process, message, now);
  } else {
    OnShardMessage(*process, message, now);
  }

  Advance(now);
}

void CoordinatorCore::Impl::OnWorkerMessage(Process& process, const v1::MemberMessage& message,
                                            absl::Time now) {
  switch (message.body_case()) {
    case v1::MemberMessage::kReady:
      OnReady(process, message.ready(), now);
      break;
    case v1::MemberMessage::kWorkerProgress:
      OnWorkerProgress(process, message.worker_progress(), now);
      break;
    case v1::MemberMessage::kEvaluationResult:
      if (evaluation_.has_value()) {
        evaluation_->OnResult(process.incarnation(), message.evaluation_result());
      }
      break;
    default:
      Breach(process.stream, "a worker does not send this message", now);
  }
}

void CoordinatorCore::Impl::OnShardMessage(Process& process, const v1::MemberMessage& message,
                                           absl::Time now) {
  if (absl::Status valid = CheckShardMessage(process, message); !valid.ok()) {
    Breach(process.stream, std::string(valid.message()), now);
    return;
  }

  switch (message.body_case()) {
    case v1::MemberMessage::kStateReady:
      OnStateReady(process, message.state_ready(), now);
      break;
    case v1::MemberMessage::kPauseReply:
      change_.OnReply(process.incarnation(), message.pause_reply());
      break;
    case v1::MemberMessage::kInstalled:
      change_.OnInstalled(process.incarnation(), message.installed().view());
      break;
    case v1::MemberMessage::kShardProgress:
      OnShardProgress(process, message.shard_progress(), now);
      break;
    case v1::MemberMessage::kSnapshotPinned:
      OnSnapshotPinned(process, message.snapshot_pinned());
      break;
    case v1::MemberMessage::kSnapshotWritten:
      OnSnapshotWritten(process, message.snapshot_written(), now);
      break;
    case v1::MemberMessage::kSnapshotFailed:
      OnSnapshotFailed(process, message.snapshot_failed(), now);
      break;
    default:
      Breach(process.stream, "a shard does not send this message", now);
  }
}

void CoordinatorCore::Impl::OnRegister(StreamId stream, const v1::Register& request,
                                       absl::Time now) {
  const v1::ProcessId& id = request.process();
  if ((id.role() != v1::SHARD && id.role() != v1::WORKER) || id.incarnation() == 0) {
    Breach(stream, "only shards and workers register, with an incarnation that is not 0", now);
    return;
  }

  if (absl::Status valid = CheckRegister(request); !valid.ok()) {
    Breach(stream, std::string(valid.message()), now);
    return;
  }

  if (Leaving() && membership_.Find(id.incarnation()) == nullptr) {
    v1::Refusal refusal;
    refusal.set_code(v1::Refusal::FINISHED);
    refusal.set_reason(exit_message_);
    membership_.Disconnected(stream, now);
    Refuse(stream, std::move(refusal));
    return;
  }

  bool is_reader = false;
  ForEachReader([&](const ReaderHold& hold) {
    is_reader = is_reader || hold.reader.incarnation() == id.incarnation();
  });
  if (is_reader) {
    v1::Refusal refusal;
    refusal.set_code(v1::Refusal::DUPLICATE);
    refusal.set_reason("this incarnation is a reader's");
    membership_.Disconnected(stream, now);
    Refuse(stream, std::move(refusal));
    return;
  }

  Membership::Admission admission = membership_.Register(stream, request, now);
  if (admission.displaced.has_value()) OnGone(*admission.displaced, now);

  if (admission.kind == Membership::Admission::Kind::kRefused) {
    if (admission.refusal.code() == v1::Refusal::WIRE_VERSION) {
      Warn(admission.refusal.reason(), now);
    }
    Refuse(stream, std::move(admission.refusal));
    return;
  }

  if (admission.kind == Membership::Admission::Kind::kLater) {
    ++refusals_.registrations;
    actions_.push_back(CloseStream{stream, absl::UnavailableError(admission.why)});
    return;
  }

  if (admission.closed_stream != 0) {
    actions_.push_back(
        CloseStream{admission.closed_stream, absl::AbortedError("replaced by a newer stream")});
  }

  // Workers run user code: their reports are not trusted for terms and attempts.
  if (id.role() == v1::SHARD && request.has_newest_view()) NoteTerm(request.newest_view(), now);
  if (phase_ == Phase::kExited) return;
  if (id.role() == v1::SHARD && request.has_newest_view()) {
    change_.OnInstalled(id.incarnation(), request.newest_view());
  }

  // Sent before the worker learns the shards' addresses: shards refuse a worker that they do not
  // know.
  TellAdmitted();

  const Process& process = *membership_.Find(id.incarnation());
  if (storage_known_) {
    AnswerRegistration(process, now);
    Resend(process);
  }
}

// Sends the list to all registered shards if it has changed. Until an attempt begins no process
// opens a data stream, so none is sent before; the first list then names all workers that have
// registered.
void CoordinatorCore::Impl::TellAdmitted() {
  if (phase_ != Phase::kPreparing && phase_ != Phase::kRunning) return;
  if (admitted_changes_ == membership_.changes() + reader_changes_) return;
  admitted_changes_ = membership_.changes() + reader_changes_;
  const v1::CoordinatorMessage message = AdmittedMessage();
  for (const Process* shard : membership_.LivingAndConnected(v1::SHARD)) {
    if (shard->answered) Send(*shard, message);
  }
}

v1::CoordinatorMessage CoordinatorCore::Impl::AdmittedMessage() const {
  v1::CoordinatorMessage message;
  v1::Admitted& admitted = *message.mutable_admitted();
  for (const Process* worker : membership_.Living(v1::WORKER)) {
    *admitted.add_processes() = worker->id;
  }
  ForEachReader([&](const ReaderHold& hold) { *admitted.add_processes() = hold.reader; });
  return message;
}

// Sends what the process may have missed while it had no stream. All these messages may be
// repeated.
void CoordinatorCore::Impl::Resend(const Process& process) {
  const uint64_t incarnation = process.incarnation();

  if (phase_ == Phase::kLeavingShards ||
      (phase_ == Phase::kLeavingWorkers && process.id.role() == v1::WORKER)) {
    SendFinish(process);
    return;
  }

  if (phase_ != Phase::kPreparing && phase_ != Phase::kRunning) return;
  if (process.id.role() == v1::WORKER) {
    if (init_request_.active() && init_request_.worker() == incarnation &&
        phase_ == Phase::kPreparing) {
      v1::CoordinatorMessage message;
      *message.mutable_initialize() = InitializeMessage();
      Send(process, std::move(message));
    }
    if (process.ready) SendView(process);
    if (evaluation_.has_value()) {
      for (v1::Evaluate& owed : evaluation_->OwedBy(incarnation)) {
        v1::CoordinatorMessage message;
        *message.mutable_evaluate() = std::move(owed);
        Send(process, std::move(message));
      }
    }
    return;
  }

  if (std::find(facts_.shards.begin(), facts_.shards.end(), incarnation) == facts_.shards.end()) {
    return;
  }

  v1::CoordinatorMessage message;
  if (!change_.has_install()) {
    *message.mutable_prepare_state() = PrepareStateMessage();
    Send(process, message);
  }

  if (change_.pausing()) {
    *message.mutable_pause() = change_.pause();
    Send(process, message);
  } else if (change_.has_install() && !change_.HasInstalled(incarnation)) {
    *message.mutable_install() = change_.install();
    Send(process, message);
  } else if (change_.has_install()) {
    if (snapshot_.has_value()) {
      *message.mutable_open_snapshot() = snapshot_->Message();
      Send(process, message);
    }
    if (Synchronous()) Send(process, BarrierMessage());
    if (Synchronous() && committed_ >= length_->total_steps()) {
      *message.mutable_committed()->mutable_view() = view_.id();
      message.mutable_committed()->set_version(committed_);
      Send(process, message);
    }
  }
}

void CoordinatorCore::Impl::OnReady(Process& process, const v1::Ready& ready, absl::Time now) {
  if (Leaving()) return;
  if (absl::Status valid = CheckReady(ready); !valid.ok()) {
    Breach(process.stream, std::string(valid.message()), now);
    return;
  }
  if (!model_.has_value()) {
    if (!AcceptModel(ready, now)) return;
  } else if (std::string difference = Difference(*model_, ready); !difference.empty()) {
    OnOtherModel(process, difference, now);
    return;
  }
  ConfirmModel(process);
  if (!process.ready) {
    process.ready = true;
    process.ready_since = now;
  }
  if (phase_ == Phase::kRunning) SendView(process);
}

// A process reports that the job cannot be trained. The failure of a process that was never needed
// fails only that process.
void CoordinatorCore::Impl::OnFailure(Process& process, const v1::Failure& failure,
                                      absl::Time now) {
  if (Leaving()) return;
  const std::string reason = CleanUtf8(failure.reason(), kMaxReasonBytes);
  if (FailureEndsJob(process)) {
    Fail(absl::StrCat(ProcessName(process.id), ": ", reason), now);
    return;
  }
  OnGone(*membership_.Expel(process.incarnation(), absl::StrCat("failed: ", reason)), now);
}

bool CoordinatorCore::Impl::FailureEndsJob(const Process& process) const {
  if (process.id.role() == v1::SHARD) {
    return facts_.shards.empty() || absl::c_linear_search(facts_.shards, process.incarnation());
  }
  const std::vector<const Process*> ready = ReadyWorkers();
  const bool alone = std::all_of(ready.begin(), ready.end(), [&](const Process* worker) {
    return worker->incarnation() == process.incarnation();
  });
  return process.was_member || alone;
}

// Figures for people, from members only. Impossible figures are dropped.
void CoordinatorCore::Impl::OnWorkerProgress(Process& process, const v1::WorkerProgress& said,
                                             absl::Time now) {
  if (!process.was_member || !length_.has_value()) return;
  v1::WorkerProgress progress = said;
  const v1::TrainingSpec& training = options_.job.training();
  WorkerFacts facts;
  facts.synchronous = Synchronous();
  facts.total_steps = LastStep();
  facts.total_samples = LastSample();
  facts.largest_step = std::max(training.global_batch_size(), training.max_batch_size());
  facts.elapsed = now - process.reported;
  process.reported = now;
  refusals_.figures += KeepPossibleFigures(&progress, facts);
  meter_.OnWorkerProgress(process.incarnation(), progress);
  losses_.OnWorkerProgress(process.id.index(), Synchronous(), progress);
  if (progress.owing_size() > 0) OnOwing(process, progress, now);
}

// A checkpoint may be past the end of a job that was made shorter.
uint64_t CoordinatorCore::Impl::LastStep() const {
  return std::max(length_->total_steps(), facts_.base_version);
}

uint64_t CoordinatorCore::Impl::LastSample() const {
  const auto& applied = facts_.base_ledger.applied();
  return std::max(length_->total_samples(), applied.empty() ? 0 : applied.rbegin()->end());
}

ShardFacts CoordinatorCore::Impl::FactsOf(const Process& shard) const {
  ShardFacts facts;
  facts.synchronous = Synchronous();
  facts.total_steps = LastStep();
  facts.total_samples = LastSample();
  facts.first_version = facts_.base_version;
  for (uint32_t p = 0; p < facts_.owner.size(); ++p) {
    if (facts_.shards[facts_.owner[p]] == shard.incarnation() && !facts_.empty[p]) {
      facts.owned.push_back(p);
    }
  }
  facts.installs = &change_.installs();
  facts.attempt = attempt_;
  facts.term = term_;
  return facts;
}

// Checks the reports that the core will use. Reports of another attempt, view or snapshot are
// ignored later.
absl::Status CoordinatorCore::Impl::CheckShardMessage(const Process& process,
                                                      const v1::MemberMessage& message) const {
  if (!length_.has_value() || shard_states_.count(process.incarnation()) == 0) {
    return absl::OkStatus();
  }
  const auto of_snapshot = [&](const auto& report) {
    return IsOpenSnapshot(report.snapshot_id(), report.name());
  };

  switch (message.body_case()) {
    case v1::MemberMessage::kShardProgress:
      if (!change_.has_install() || !Same(message.shard_progress().view(), view_.id())) break;
      return CheckShardProgress(message.shard_progress(), FactsOf(process));
    case v1::MemberMessage::kPauseReply:
      if (!change_.pausing() || !Same(message.pause_reply().pause(), change_.pause().id())) break;
      return CheckPauseReply(message.pause_reply(), FactsOf(process));
    case v1::MemberMessage::kSnapshotPinned:
      if (!Synchronous() || !of_snapshot(message.snapshot_pinned())) break;
      return CheckSnapshotPinned(message.snapshot_pinned(), snapshot_->step);
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

CoordinatorCore::Refusals CoordinatorCore::Impl::refusals() const {
  Refusals refusals = refusals_;
  refusals.expelled = membership_.expelled();
  refusals.snapshots = OpenReaders();
  return refusals;
}

void CoordinatorCore::Impl::OnLeave(Process& process, absl::Time now) {
  if (process.id.role() == v1::WORKER && !Leaving() && IsMember(process.incarnation())) {
    // The worker continues until there is a view without it.
    process.leaving = true;
    return;
  }
  if (!Leaving() && AsksToLeave(process, now)) return;
  const StreamId stream = process.stream;
  const Departure departure = *membership_.Leave(process.incarnation());
  actions_.push_back(CloseStream{stream, absl::OkStatus()});
  if (!Leaving()) OnGone(departure, now);
}

void CoordinatorCore::Impl::OnShardProgress(const Process& process,
                                            const v1::ShardProgress& progress, absl::Time now) {
  if (!change_.has_install() || !Same(progress.view(), view_.id())) return;
  const auto found = shard_states_.find(process.incarnation());
  if (found == shard_states_.end()) return;
  const uint64_t samples_before = Samples();
  ShardState& state = found->second;
  state.closed = std::max(state.closed, progress.closed());
  state.samples = std::max(state.samples, progress.samples());
  state.skipped = std::max(state.skipped, progress.skipped_steps());
  state.dropped = std::max(state.dropped, progress.dropped_contributions());
  state.leaseholders = progress.leaseholders();
  if (Synchronous()) committed_ = std::max(committed_, progress.committed());
  meter_.OnSamples(Samples(), now);
  if (Samples() > samples_before || evaluation_.has_value()) applied_at_ = now;
  if (progress.awaited_size() > 0) OnAwaited(ProcessName(process.id), progress, now);
}

// timeouts.gradients: by a shard for a synchronous step, by the arbiter for the holders of leases.
// Workers do not train while they evaluate.
void CoordinatorCore::Impl::OnAwaited(const std::string& shard, const v1::ShardProgress& progress,
                                      absl::Time now) {
  const absl::Duration limit = absl::Seconds(options_.job.timeouts().gradients());
  if (evaluation_.has_value()) evaluated_at_ = now;
  if (now < evaluated_at_ + limit) return;
  for (uint64_t incarnation : progress.awaited()) {
    if (!IsMember(incarnation)) continue;
    const std::string why =
        Synchronous() ? absl::StrCat("has sent ", shard, " no gradients of step ",
                                     progress.closed(), " in ", absl::FormatDuration(limit))
                      : IdleLeaseholder(limit);
    if (std::optional<Departure> departure = membership_.Expel(incarnation, why);
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
}

// timeouts.weights. A shard that lacks the version and sends heartbeats waits for gradients itself.
// A single worker's report about a shard that sends heartbeats does not count: most members must
// wait for a version of it.
void CoordinatorCore::Impl::OnOwing(const Process& worker, const v1::WorkerProgress& progress,
                                    absl::Time now) {
  const absl::Duration limit = absl::Seconds(options_.job.timeouts().weights());
  if (limit <= absl::ZeroDuration() || !change_.has_install() ||
      !Same(progress.view(), view_.id()) || !IsMember(worker.incarnation()) ||
      progress.owed_version() > LastStep()) {
    return;
  }

  const std::string waits =
      absl::StrCat("owes ", ProcessName(worker.id), " version ", progress.owed_version(), " for ",
                   absl::FormatDuration(limit));
  for (uint64_t incarnation : progress.owing()) {
    const auto found = shard_states_.find(incarnation);
    const Process* const shard = membership_.Find(incarnation);
    if (found == shard_states_.end() || shard == nullptr) continue;

    const bool silent = now >= shard->last_message + limit;
    const bool has_it = found->second.closed >= progress.owed_version();
    std::map<uint64_t, absl::Time>& owed = owed_[incarnation];
    const auto [entry, first] = owed.try_emplace(worker.incarnation(), now);
    entry->second = now;
    const auto owed_now = std::count_if(owed.begin(), owed.end(), [&](const auto& to) {
      return to.second + 2 * limit > now && IsMember(to.first);
    });

    if (silent || (has_it && 2 * owed_now > view_.workers_size())) {
      OnGone(*membership_.Expel(incarnation, waits), now);
      return;  // the attempt is over
    }

    if (!first) continue;
    Warn(absl::StrCat(ProcessName(shard->id), " ", waits, ": ",
                      has_it ? "other members do not report it" : "it waits for gradients itself"),
         now);
  }
}

void CoordinatorCore::Impl::OnGone(const Departure& departure, absl::Time now) {
  const Process& process = departure.process;
  meter_.Forget(process.incarnation());
  if (Leaving() || phase_ == Phase::kExited) return;

  const std::string what = departure.expelled
                               ? absl::StrCat(ProcessName(process.id), ": ", departure.reason)
                               : absl::StrCat(ProcessName(process.id), " left");
  if (departure.expelled) {
    Warn(what, now);
    if (!process.suspect()) {
      actions_.push_back(CloseStream{process.stream, absl::AbortedError(departure.reason)});
    }
  } else {
    Info(what, now);
  }

  if (!HoldsState(process.incarnation())) return;
  if (phase_ != Phase::kPreparing && phase_ != Phase::kRunning) return;
  if (process.leaving || !departure.expelled) {
    GoOnWithout(what, now);
  } else {
    LoseShard(what, now);
  }
}

// ---- JobControl

void CoordinatorCore::Impl::OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now) {
  Step(now);
  if (!CheckSetDesired(desired).ok()) return;  // the shell has reported it
  if (desired.workers() > 0) wanted_workers_ = desired.workers();
  if (desired.shards() > 0) wanted_shards_ = desired.shards();
  membership_.SetWanted(wanted_workers_, wanted_shards_);
  suspend_ = suspend_ || desired.suspend();
  for (const v1::SetDesiredRequest::Death& death : desired.deaths()) {
    if (std::optional<Departure> departure = membership_.ReportDeath(death);
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
  Advance(now);
}

}  // namespace sluice::coordinator

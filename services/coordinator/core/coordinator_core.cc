#include "services/coordinator/core/coordinator_core.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/member_checks.h"
#include "services/coordinator/core/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

const CoordinatorRules* AllRules() {
  static const CoordinatorRules rules;
  return &rules;
}

// If a tick is later than this after its deadline, the coordinator itself was frozen.
constexpr absl::Duration kLate = absl::Milliseconds(250);
// Within this time after a freeze, the coordinator has read the messages that wait in its streams.
constexpr absl::Duration kCatchUp = absl::Milliseconds(100);
// Processes of a job that are asked to stop together learn of it within this time.
constexpr absl::Duration kStopTogether = absl::Seconds(2);

}  // namespace

std::string JobName(const v1::JobSpec& job) { return FullJobName(job); }

CoordinatorCore::CoordinatorCore(CoordinatorOptions options, absl::Time now,
                                 const CoordinatorRules* rules)
    : facts_(std::move(options), rules != nullptr ? rules : AllRules(), now),
      output_(facts_),
      claims_(facts_, &facts_.attempt, &facts_.storage, &output_),
      model_(facts_, &facts_.attempt, &output_),
      initialization_(facts_, &facts_.attempt, &output_),
      takeover_(facts_, &facts_.attempt, &facts_.training),
      views_(facts_, &facts_.training, &output_),
      waits_(facts_, &output_),
      snapshots_(facts_, &facts_.last_evaluation, &output_),
      ending_(facts_, &facts_.goal, &output_) {
  for (const std::string& warning : facts_.options.warnings) output_.Warn(warning, now);
  claims_.ReadStorage();
}

// ---- time

void CoordinatorCore::Step(absl::Time now) {
  // After this process was frozen, messages of other processes wait unread in its streams. Events
  // come in any order then, so no process is judged before these messages are read.
  const absl::Duration gap = now - facts_.newest_event;
  SLUICE_DCHECK(gap >= absl::ZeroDuration(), "times do not go backwards");

  // The whole machine may have slept, including the members.
  if (gap > absl::Seconds(facts_.job().timeouts().gradients()) / 2) waits_.Forgive(now);

  if (gap > kLate) {
    ViewChange& change = facts_.training.change();
    const absl::Time judged =
        std::min(facts_.members.NextDeadline(), change.NextDeadline(facts_.timers.pause));
    absl::Duration forgiven = NextDeadline() + kLate < now ? gap : absl::ZeroDuration();
    // The process may also have been frozen between two events and have continued before its
    // deadline.
    const bool over = judged + forgiven <= now;
    if (over || (forgiven > absl::ZeroDuration() && judged + forgiven < now + kCatchUp)) {
      forgiven = now + kCatchUp - judged;
    }
    facts_.members.Forgive(forgiven);
    change.Forgive(forgiven);
  }

  facts_.newest_event = now;
}

void CoordinatorCore::OnTick(absl::Time now) {
  Step(now);
  Advance(now);
}

absl::Time CoordinatorCore::NextDeadline() const {
  if (Is(Phase::kExited)) return absl::InfiniteFuture();
  return std::min({stop_at_, facts_.members.NextDeadline(), claims_.NextDeadline(),
                   initialization_.NextDeadline(), views_.NextDeadline(),
                   waits_.NextDeadline(snapshots_.evaluations().running()),
                   snapshots_.NextDeadline(), ending_.NextDeadline()});
}

// ---- phases

void CoordinatorCore::Transition(Phase from, Phase to) {
  SLUICE_DCHECK(facts_.phase == from && IsLegalMove(from, to), "the move of phases is legal");
  facts_.phase = to;
}

void CoordinatorCore::Advance(absl::Time now) {
  if (Is(Phase::kExited)) return;
  for (StreamId stream : facts_.members.TakeOverdueStreams(now)) {
    output_.Close(stream, absl::DeadlineExceededError("no process registered on the stream"));
  }
  for (const Departure& departure : facts_.members.ExpelOverdue(now)) OnGone(departure, now);
  SendAdmitted();
  AdvanceStop(now);

  Phase before;
  do {
    before = facts_.phase;
    AdvancePhase(now);
  } while (!Is(before) && !Is(Phase::kExited));
  SendAdmitted();
}

void CoordinatorCore::AdvancePhase(absl::Time now) {
  switch (facts_.phase) {
    case Phase::kReading:
      claims_.Advance(now);
      break;
    case Phase::kGathering:
      AdvanceGathering(now);
      break;
    case Phase::kTakingOver:
      AdvanceTakingOver(now);
      break;
    case Phase::kClaiming:
      if (claims_.RetryDue(now)) Claim(/*end=*/false, now);
      break;
    case Phase::kPreparing:
      AdvancePreparing(now);
      break;
    case Phase::kRunning:
      AdvanceViews(now);
      if (Is(Phase::kRunning)) AdvanceSnapshots(now);
      if (Is(Phase::kRunning)) AdvanceEnding(now);
      break;
    case Phase::kLeavingWorkers:
    case Phase::kLeavingShards:
      AdvanceLeaving(now);
      break;
    case Phase::kExited:
      break;
  }
}

bool CoordinatorCore::CarryOut(const Verdict& verdict, absl::Time now) {
  switch (verdict.kind) {
    case Verdict::Kind::kContinue:
      return true;
    case Verdict::Kind::kRestore:
      Restore(verdict.why, now);
      break;
    case Verdict::Kind::kSuperseded:
      Supersede(ExitReason::kSuperseded, verdict.why);
      break;
    case Verdict::Kind::kEnded:
      ending_.LingerUntil(now + facts_.timers.suspect);
      Leave(ExitReason::kSucceeded, verdict.why, now, verdict.code);
      break;
    case Verdict::Kind::kFailed:
      Fail(verdict.why, now, verdict.code);
      break;
  }
  return false;
}

// ---- storage and claims

void CoordinatorCore::ReadStorageAgain() {
  Transition(facts_.phase, Phase::kReading);
  claims_.ReadStorage();
}

void CoordinatorCore::OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now) {
  Step(now);
  if (Is(Phase::kReading) && claims_.reading()) {
    const bool first = !claims_.known();
    const bool read = contents.ok();
    if (CarryOut(claims_.OnStorageRead(std::move(contents), now), now) && read) {
      Transition(Phase::kReading, Phase::kGathering);
      for (v1::Role role : {v1::SHARD, v1::WORKER}) {
        if (!first) break;
        for (const Process* process : facts_.members.LivingAndConnected(role)) {
          AnswerRegistration(*process, now);
        }
      }
    }
  }
  Advance(now);
}

void CoordinatorCore::AdvanceGathering(absl::Time now) {
  if (SuspendBeforeTraining(now)) return;
  ReleaseLeavingShards(now);  // their attempt ended before they could leave
  const bool gathered = initialization_.Gathered(now);
  if (claims_.looking()) return;  // continues once the claims are read
  if (!gathered) {
    // Another coordinator, earlier or later, may have ended or continued the job: then no process
    // would ever register here.
    claims_.LookAtClaims(now);
    return;
  }
  claims_.StopLooking();
  if (claims_.unused()) {
    BeginAttempt(now);
  } else if (MayTakeOver()) {
    BeginTakeover(now);
  } else {
    Claim(/*end=*/false, now);
  }
}

bool CoordinatorCore::SuspendBeforeTraining(absl::Time now) {
  if (!facts_.suspend) return false;
  Leave(ExitReason::kSuspended, "suspended before training began", now);
  return true;
}

void CoordinatorCore::Claim(bool end, absl::Time now) {
  const bool requested = claims_.Claim(end, now);
  if (!end && !Is(Phase::kClaiming)) Transition(Phase::kGathering, Phase::kClaiming);
  if (!requested) OnClaimResult(claims_.requested(), absl::OkStatus(), now);
}

void CoordinatorCore::OnClaimResult(uint64_t attempt, const absl::Status& status, absl::Time now) {
  Step(now);
  if (!claims_.Awaits(attempt) || Leaving() || Is(Phase::kExited)) return;
  const bool end = claims_.for_end();
  if (CarryOut(claims_.OnClaimResult(status, now), now)) {
    if (end) snapshots_.checkpoints().OnEndRecord(status, now);
    if (end && status.ok()) {
      const bool target = facts_.goal == Goal::kTarget;
      Leave(ExitReason::kSucceeded, target ? "the target was reached" : "training is complete",
            now);
    } else if (status.ok()) {
      Transition(Phase::kClaiming, Phase::kGathering);
    }
  }
  Advance(now);
}

void CoordinatorCore::OnClaimsRead(const absl::StatusOr<std::vector<v1::Claim>>& claims,
                                   absl::Time now) {
  Step(now);
  if (claims_.looking()) {
    if (claims_.OnClaimsSeen(claims)) ReadStorageAgain();
  } else if (Is(Phase::kRunning) && snapshots_.checkpoints().ChecksClaim()) {
    (void)CarryOut(snapshots_.checkpoints().OnClaimsRead(claims, now), now);
  }
  Advance(now);
}

void CoordinatorCore::OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint,
                                               const absl::Status& status, absl::Time now) {
  Step(now);
  if (Is(Phase::kRunning)) snapshots_.checkpoints().OnIndexWritten(checkpoint, status, now);
  Advance(now);
}

// ---- the attempt of an earlier coordinator

bool CoordinatorCore::MayTakeOver() const {
  const std::optional<uint64_t> attempt = takeover_.AttemptOfShards();
  return attempt.has_value() && claims_.MayTakeOver(*attempt);
}

void CoordinatorCore::BeginTakeover(absl::Time now) {
  ForgetAttempt();
  claims_.TakeOver(*takeover_.AttemptOfShards());
  takeover_.Begin();
  Transition(Phase::kGathering, Phase::kTakingOver);
  BeginPause(/*at_once=*/true, now);
}

void CoordinatorCore::AdvanceTakingOver(absl::Time now) {
  ViewChange& change = facts_.training.change();
  for (const uint64_t shard : change.Overdue(now, facts_.timers.pause)) {
    Expel(
        shard,
        absl::StrCat("did not answer a view change in ", absl::FormatDuration(facts_.timers.pause)),
        now);
  }

  absl::Status continues = takeover_.Lost().has_value()
                               ? absl::FailedPreconditionError("a shard of it is gone")
                               : absl::OkStatus();
  if (continues.ok() && !change.AllReplied()) return;
  if (continues.ok()) continues = CompleteTakeover(now);
  if (!continues.ok()) {
    output_.Warn(absl::StrCat("attempt ", facts_.attempt.number, " cannot be continued: ",
                              continues.message(), "; the next attempt begins"),
                 now);
    BeginNextAttempt(now);
    return;
  }

  output_.Info(absl::StrCat("attempt ", facts_.attempt.number,
                            " continues with another coordinator, without a restoration"),
               now);
  Transition(Phase::kTakingOver, Phase::kRunning);
  for (const v1::ProcessId& worker : takeover_.LeftOut()) {
    v1::SetDesiredRequest::Death death;
    *death.mutable_process() = worker;
    death.set_reason("was not in the view with which another coordinator continued");
    if (std::optional<Departure> departure = facts_.members.ReportDeath(death);
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
  Decide(now);
}

absl::Status CoordinatorCore::CompleteTakeover(absl::Time now) {
  RETURN_IF_ERROR(takeover_.Complete(now));
  for (const uint64_t shard : facts_.attempt.facts.shards) {
    RETURN_IF_ERROR(CheckPauseReply(facts_.training.change().replies().at(shard),
                                    FactsOf(*facts_.members.Find(shard))));
  }
  model_.Confirm();
  snapshots_.checkpoints().BeginAttempt();
  return absl::OkStatus();
}

// ---- an attempt

void CoordinatorCore::BeginAttempt(absl::Time now) {
  ForgetAttempt();
  if (absl::Status begun = initialization_.BeginAttempt(now); !begun.ok()) {
    Fail(std::string(begun.message()), now);
    return;
  }
  facts_.training.Begin();
  snapshots_.checkpoints().BeginAttempt();
  RequestInit(now);
}

void CoordinatorCore::RequestInit(absl::Time now) {
  if (!initialization_.Begin(now)) {
    if (!Is(Phase::kGathering)) Transition(facts_.phase, Phase::kGathering);
    return;
  }
  Transition(facts_.phase, Phase::kPreparing);
  SendAdmitted();  // before the worker is asked
  initialization_.SendRequest();
}

void CoordinatorCore::AdvancePreparing(absl::Time now) {
  if (SuspendBeforeTraining(now)) return;
  switch (initialization_.Check(now)) {
    case Initialization::State::kWaiting:
      break;
    case Initialization::State::kComplete:
      Transition(Phase::kPreparing, Phase::kRunning);
      BeginPause(/*at_once=*/true, now);
      break;
    case Initialization::State::kAskNextWorker:
      RequestInit(now);
      break;
  }
}

void CoordinatorCore::ForgetAttempt() {
  facts_.attempt.Forget(facts_.job().training().mode());
  facts_.training.Forget();
  initialization_.Forget();
  views_.Forget();
  waits_.Forget();
  snapshots_.Forget(absl::UnavailableError("the job is being restored"));
  ending_.Forget();
}

// A shard of the attempt is gone, and its state is lost.
void CoordinatorCore::LoseShard(const std::string& why, absl::Time now) {
  if (facts_.training.has_view()) {
    Restore(why, now);
  } else if (SpendRestoration(why, now)) {
    // Nothing was trained in this attempt: it begins again with the shards that come.
    ForgetAttempt();
    Transition(facts_.phase, Phase::kGathering);
  }
}

// A shard of the attempt left before its state was saved, or there was nothing to save.
void CoordinatorCore::ContinueWithout(const std::string& why, absl::Time now) {
  output_.Info(absl::StrCat(why, "; the job continues with another shard"), now);
  if (facts_.training.has_view()) {
    BeginNextAttempt(now);
  } else {
    // Nothing was trained in this attempt: it begins again with the shards that come.
    ForgetAttempt();
    Transition(facts_.phase, Phase::kGathering);
  }
}

void CoordinatorCore::Restore(const std::string& why, absl::Time now) {
  if (SpendRestoration(why, now)) BeginNextAttempt(now);
}

// False: the job was restored too often, and failed.
bool CoordinatorCore::SpendRestoration(const std::string& why, absl::Time now) {
  if (restorations_ >= facts_.job().backoff_limit()) {
    Fail(absl::StrCat(why, "; the job was restored ", restorations_,
                      " times, and backoffLimit allows no more"),
         now);
    return false;
  }
  ++restorations_;
  // The event of the claim names the attempt and its checkpoint. This event has no number, because
  // this coordinator does not know how often earlier coordinators restored the job.
  output_.Warn(absl::StrCat(why, "; the job is restored"), now);
  return true;
}

// The next attempt begins with what the storage holds.
void CoordinatorCore::BeginNextAttempt(absl::Time /*now*/) {
  ForgetAttempt();
  claims_.OnAttemptOver();
  ReadStorageAgain();
}

// Releases the shards that ask to leave and whose state is saved, or whose attempt is over.
void CoordinatorCore::ReleaseLeavingShards(absl::Time now) {
  std::vector<uint64_t> leaving;
  for (const Process* shard : facts_.members.Living(v1::SHARD)) {
    if (shard->leaving) leaving.push_back(shard->incarnation());
  }
  for (const uint64_t incarnation : leaving) {
    const Process& shard = *facts_.members.Find(incarnation);
    v1::CoordinatorMessage message;
    message.mutable_finish()->set_succeeded(true);
    message.mutable_finish()->set_reason("released; the job continues with another shard");
    output_.Send(shard, std::move(message));
    if (!shard.suspect()) output_.Close(shard.stream, absl::OkStatus());
    const Departure departure = *facts_.members.Leave(incarnation);  // ends `shard`
    facts_.meter.Forget(incarnation);
    output_.Info(absl::StrCat(ProcessName(departure.process.id), " left"), now);
  }
}

// ---- views

void CoordinatorCore::AdvanceViews(absl::Time now) {
  Training& training = facts_.training;
  for (const uint64_t shard : training.change().Overdue(now, facts_.timers.pause)) {
    Expel(
        shard,
        absl::StrCat("did not answer a view change in ", absl::FormatDuration(facts_.timers.pause)),
        now);
    if (!Is(Phase::kRunning)) return;
  }

  if (training.change().AllReplied()) Decide(now);
  if (!Is(Phase::kRunning)) return;
  if (training.change().pausing()) {
    if (views_.IsStuck()) BeginPause(/*at_once=*/true, now);
    return;
  }

  if (!training.has_view()) return;
  Views::Needs needs;
  if (training.idle()) {
    needs.leases_overdue = waits_.LeasesOverdue(snapshots_.evaluations().running()) <= now;
    needs.snapshot = snapshots_.NeedsView(now);
  }
  const Views::Change change = views_.Wanted(needs, now);
  if (change.wanted && (change.at_once || training.idle())) BeginPause(change.at_once, now);
  if (training.idle()) views_.SendCommitted();
}

void CoordinatorCore::BeginPause(bool at_once, absl::Time now) {
  views_.BeginPause(facts_.attempt.NextNumber(), at_once, now);
}

void CoordinatorCore::Decide(absl::Time now) {
  for (const uint64_t worker : views_.TakeIdleLeaseholders()) {
    Expel(worker, IdleLeaseholderReason(absl::Seconds(facts_.job().timeouts().gradients())), now);
  }
  if (!Is(Phase::kRunning)) return;  // a shard named a shard of the attempt as a leaseholder
  waits_.OnView(now);

  const Decision decision = views_.Decide();
  switch (decision.outcome) {
    case Decision::Outcome::kDecided:
      Install(decision, now);
      break;
    case Decision::Outcome::kSuperseded:
      Supersede(ExitReason::kSuperseded, decision.reason);
      break;
    case Decision::Outcome::kLost:
      Restore(decision.reason, now);
      break;
    case Decision::Outcome::kNotReady:
      facts_.training.change().GiveUp();
      RequestInit(now);
      break;
  }
}

void CoordinatorCore::Install(const Decision& decision, absl::Time now) {
  const bool first = !facts_.training.has_view();  // of this coordinator in the attempt
  v1::Install install = views_.MakeInstall(decision);
  snapshots_.OnDecision(decision, &install, now);
  views_.Adopt(install, now);
  if (first) {
    claims_.OnFirstView();
    snapshots_.OnFirstView(now);
  }

  const v1::View& view = facts_.training.view();
  output_.events().Add(
      v1::Event::VIEW,
      absl::StrCat("view ", ShortName(view.id()), " begins at step ", view.first_step(), " with ",
                   view.workers_size(), " workers and ", view.shards_size(), " shards"),
      now);
  snapshots_.SetBarrier(&install, now);

  views_.Send(std::move(install), now);
  facts_.meter.OnSamples(facts_.mode().Samples(), now);
  for (const auto& member : view.workers()) {
    if (Process* worker = facts_.members.Find(member.process().incarnation()); worker != nullptr) {
      worker->was_member = true;
    }
  }
}

// ---- snapshots

void CoordinatorCore::AdvanceSnapshots(absl::Time now) {
  const bool closed = snapshots_.Serve(now);
  // An asynchronous snapshot begins with a view: the next one may be due.
  if (closed && !facts_.mode().synchronous()) AdvanceViews(now);
  if (Is(Phase::kRunning)) snapshots_.Plan(now);
}

void CoordinatorCore::OnOpenSnapshot(uint64_t request, const v1::OpenSnapshotRequest& snapshot,
                                     absl::Time now) {
  Step(now);
  // The shards learn of the reader before the reader learns of the shards.
  if (snapshots_.readers().OnOpen(request, snapshot, now)) SendAdmitted();
  Advance(now);
}

void CoordinatorCore::OnSnapshotCallEnded(uint64_t request, absl::Time now) {
  Step(now);
  snapshots_.readers().OnCallEnded(request);
  Advance(now);
}

// ---- the end

void CoordinatorCore::AdvanceEnding(absl::Time now) {
  const Training& training = facts_.training;
  const Goal before = facts_.goal;
  Ending::Findings findings;
  findings.waits_for_storage = snapshots_.checkpoints().LastFails() || claims_.EndFails();
  findings.target_reached = snapshots_.evaluations().target_reached();
  ending_.ChooseGoal(findings, now);
  if (facts_.goal == Goal::kNone) return;

  if (facts_.goal != before) {
    if (before == Goal::kNone) {
      snapshots_.readers().EndAll(absl::UnavailableError("the job is ending"));
    } else {
      snapshots_.checkpoints().RetryLastNow();
    }
    // What this makes due: a view without workers, or the last snapshot.
    AdvanceViews(now);
    if (Is(Phase::kRunning)) AdvanceSnapshots(now);
    if (!Is(Phase::kRunning)) return;
  }

  bool saved = training.has_view() && training.idle() && !snapshots_.current().has_value() &&
               !(StopsTraining(facts_.goal) && training.view().workers_size() > 0);
  if (saved) {
    const SnapshotPlan missing = snapshots_.Missing();
    saved = !missing.checkpoint && !missing.evaluation;
  }
  switch (ending_.Next(saved, now)) {
    case Ending::Step::kWait:
      break;
    case Ending::Step::kLeaveSuspended:
      Leave(ExitReason::kSuspended, ending_.SuspendedMessage(now), now);
      break;
    case Ending::Step::kRecordEnd:
      if (claims_.EndDue(now)) Claim(/*end=*/true, now);
      break;
    case Ending::Step::kHandOver:
      ReleaseLeavingShards(now);
      BeginNextAttempt(now);
      break;
    case Ending::Step::kNextAttempt:
      BeginNextAttempt(now);
      break;
  }
}

void CoordinatorCore::Leave(ExitReason reason, const std::string& message, absl::Time now,
                            const std::string& code) {
  snapshots_.GiveUp(absl::UnavailableError(message));
  claims_.GiveUp();
  Transition(facts_.phase, Phase::kLeavingWorkers);
  ending_.BeginLeaving(reason, message, code, model_.refused(), now);
}

void CoordinatorCore::Fail(const std::string& why, absl::Time now, const std::string& code) {
  if (!Leaving() && !Is(Phase::kExited)) Leave(ExitReason::kFailed, why, now, code);
}

void CoordinatorCore::AdvanceLeaving(absl::Time now) {
  if (!ending_.HaveLeft(now)) return;
  if (Is(Phase::kLeavingWorkers)) {
    Transition(Phase::kLeavingWorkers, Phase::kLeavingShards);
    ending_.FinishShards(now);
  } else {
    Transition(Phase::kLeavingShards, Phase::kExited);
    ending_.Exit();
  }
}

void CoordinatorCore::Supersede(ExitReason reason, const std::string& why) {
  snapshots_.readers().EndAll(absl::UnavailableError(why));
  ending_.Supersede(reason, why);
  Transition(facts_.phase, Phase::kExited);
}

void CoordinatorCore::OnAskedToStop(absl::Time now) {
  Step(now);
  stop_at_ = std::min(stop_at_, now + kStopTogether);
  Advance(now);
}

void CoordinatorCore::AdvanceStop(absl::Time now) {
  if (stop_at_ == absl::InfiniteFuture()) return;
  const std::vector<const Process*> shards = facts_.members.Living(v1::SHARD);
  const bool together = std::any_of(shards.begin(), shards.end(),
                                    [](const Process* shard) { return shard->leaving; });
  if (Leaving() || facts_.suspend || together) {
    // The coordinator exits when all processes have left.
    stop_at_ = absl::InfiniteFuture();
    facts_.suspend = facts_.suspend || together;
  } else if (stop_at_ <= now) {
    stop_at_ = absl::InfiniteFuture();
    Supersede(ExitReason::kLeft, "asked to stop; another coordinator continues");
  }
}

// ---- JobControl

void CoordinatorCore::OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now) {
  Step(now);
  if (!CheckSetDesired(desired).ok()) return;  // the shell has reported it
  if (desired.workers() > 0) facts_.wanted_workers = desired.workers();
  if (desired.shards() > 0) facts_.wanted_shards = desired.shards();
  facts_.members.SetWanted(facts_.wanted_workers, facts_.wanted_shards);
  facts_.suspend = facts_.suspend || desired.suspend();
  for (const v1::SetDesiredRequest::Death& death : desired.deaths()) {
    if (std::optional<Departure> departure = facts_.members.ReportDeath(death);
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
  Advance(now);
}

}  // namespace sluice::coordinator

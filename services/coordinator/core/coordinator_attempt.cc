// The coordinator's attempts: the storage and the claims, and how an attempt begins, is taken over,
// and ends.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

// ---- storage and claims

void CoordinatorCore::ReadStorageAgain() {
  Transition(Phase::kReading);
  claims_.ReadStorage();
}

void CoordinatorCore::OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now) {
  Handle(now, [&] {
    if (!Is(Phase::kReading) || !claims_.reading()) return;
    const bool first = !claims_.known();
    const bool read = contents.ok();
    if (!CarryOut(claims_.OnStorageRead(std::move(contents), now), now) || !read) return;
    Transition(Phase::kGathering);
    for (v1::Role role : {v1::SHARD, v1::WORKER}) {
      if (!first) break;
      for (const Process* process : facts_.members.LivingAndConnected(role)) {
        registrar_.Answer(*process, claims_.highest(), now);
      }
    }
  });
}

void CoordinatorCore::AdvanceGathering(absl::Time now) {
  if (SuspendBeforeTraining(now)) return;
  // Their attempt ended before they could leave. If it may continue, it needs their state.
  if (!MayTakeOver()) ReleaseLeavingShards(now);
  // With one copy of each partition, the attempt is lost without a shard that has not registered.
  const bool has_copies = facts_.MovesPartitions() && facts_.job().parameter_server().copies() > 1;
  const bool gathered = attempt_->initialization.Gathered(has_copies && MayTakeOver(), now);
  if (claims_.rereading()) return;  // continues once the claims are read
  if (!gathered) {
    // Another coordinator, earlier or later, may have ended or continued the job: then no process
    // would ever register here.
    claims_.RereadClaims(now);
    return;
  }
  claims_.StopRereading();
  if (claims_.unused()) {
    BeginAttempt(now);
  } else if (MayTakeOver()) {
    BeginTakeover(now);
  } else if (facts_.suspend) {
    LeaveSuspended(now);
  } else {
    Claim(/*end=*/false, now);
  }
}

bool CoordinatorCore::SuspendBeforeTraining(absl::Time now) {
  if (!facts_.suspend) return false;
  suspend_since_ = std::min(suspend_since_, now);
  if (now < SuspendBy()) return false;
  LeaveSuspended(now);
  return true;
}

void CoordinatorCore::LeaveSuspended(absl::Time now) {
  Leave(ExitReason::kSuspended, "suspended before training began", now);
}

// The attempt of an earlier coordinator is taken over first, or its steps since the newest
// checkpoint would be lost.
absl::Time CoordinatorCore::SuspendBy() const {
  if (!facts_.suspend) return absl::InfiniteFuture();
  if (!Is(Phase::kGathering) || !claims_.HasOpenAttempt()) return suspend_since_;
  if (MayTakeOver() && !facts_.members.LivingAndConnected(v1::WORKER).empty()) {
    return suspend_since_ + facts_.timers.suspend_checkpoint;
  }
  // All shards are new, and the attempt's shards are gone.
  const bool all_new =
      !MayTakeOver() && facts_.members.LivingAndConnected(v1::SHARD).size() >= facts_.wanted_shards;
  return suspend_since_ + (all_new ? absl::ZeroDuration() : facts_.timers.reconnect);
}

void CoordinatorCore::Claim(bool end, absl::Time now) {
  const bool requested = claims_.Claim(end, now);
  if (!end && !Is(Phase::kClaiming)) Transition(Phase::kClaiming);
  if (!requested) OnClaimResult(claims_.requested(), absl::OkStatus(), now);
}

void CoordinatorCore::OnClaimResult(uint64_t attempt, const absl::Status& status, absl::Time now) {
  Handle(now, [&] {
    if (attempt_->losses.Awaits(attempt)) {
      (void)CarryOut(attempt_->losses.OnResult(status, now), now);
    } else if (claims_.Awaits(attempt) && !Leaving() && !Is(Phase::kExited)) {
      TakeClaimResult(status, now);
    }
  });
}

// "stopped at step 12: ...", of the evaluations or else of a program.
std::string CoordinatorCore::StopReason() const {
  if (!facts_.attempt.decisions.stop_reason().empty())
    return facts_.attempt.decisions.stop_reason();
  return absl::StrCat("stopped at step ", facts_.mode().FinalVersion(), " by the program of ",
                      stop_request_);
}

void CoordinatorCore::LeaveComplete(absl::Time now) {
  const Attempt& attempt = facts_.attempt;
  const uint64_t first = attempt.base.has_value() ? attempt.base->step() : 0;
  const uint64_t last = facts_.mode().FinalVersion();
  if (last > first && facts_.training.skipped() >= last - first) {
    output_.Warn(
        absl::StrCat("all ", last - first, " steps from step ", first, " on were skipped, because ",
                     "no gradient was finite (training.nonFinite: Skip): the model is unchanged. "
                     "Lower optimizer.learningRate, or check the data and the loss"),
        now);
    return Leave(ExitReason::kSucceeded, "training is complete, but all steps were skipped", now,
                 kNothingTrained);
  }
  const std::string why = facts_.attempt.goal == Goal::kTarget    ? "the target was reached"
                          : facts_.attempt.goal == Goal::kStopped ? StopReason()
                                                                  : "training is complete";
  Leave(ExitReason::kSucceeded, why, now);
}

void CoordinatorCore::TakeClaimResult(const absl::Status& status, absl::Time now) {
  const bool end = claims_.for_end();
  if (!CarryOut(claims_.OnClaimResult(status, now), now)) return;
  if (end) snapshots_.checkpoints().OnEndRecord(status, now);
  if (end && status.ok()) {
    LeaveComplete(now);
  } else if (status.ok()) {
    Transition(Phase::kGathering);
  }
}

void CoordinatorCore::OnClaimsRead(const absl::StatusOr<std::vector<v1::Claim>>& claims,
                                   absl::Time now) {
  Handle(now, [&] {
    if (claims_.rereading()) {
      if (claims_.OnClaimsSeen(claims)) ReadStorageAgain();
    } else if (Is(Phase::kRunning) && snapshots_.checkpoints().ChecksClaim()) {
      if (claims.ok() && attempt_->losses.IsSuperseded(*claims)) {
        Supersede(ExitReason::kSuperseded, "another coordinator has made a loss record");
      } else {
        (void)CarryOut(snapshots_.checkpoints().OnClaimsRead(claims, now), now);
      }
    }
  });
}

void CoordinatorCore::OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint,
                                               const absl::Status& status, absl::Time now) {
  Handle(now, [&] {
    if (Is(Phase::kRunning)) snapshots_.checkpoints().OnIndexWritten(checkpoint, status, now);
  });
}

// ---- the attempt of an earlier coordinator

bool CoordinatorCore::MayTakeOver() const {
  const std::optional<uint64_t> attempt = attempt_->takeover.AttemptOfShards();
  return attempt.has_value() && claims_.MayTakeOver(*attempt);
}

void CoordinatorCore::BeginTakeover(absl::Time now) {
  LeaveAttempt();
  claims_.TakeOver(*attempt_->takeover.AttemptOfShards());
  attempt_->takeover.Begin(now);
  Transition(Phase::kTakingOver);
  BeginPause(/*at_once=*/true, now);
}

void CoordinatorCore::AdvanceTakingOver(absl::Time now) {
  ExpelUnanswering(now);

  if (attempt_->takeover.Lost() && attempt_->takeover.Retry()) {
    BeginPause(/*at_once=*/true, now);
    return;
  }
  absl::Status continues = attempt_->takeover.Lost() || facts_.attempt.facts().shards.empty()
                               ? absl::FailedPreconditionError("a shard of it is gone")
                               : absl::OkStatus();
  if (continues.ok() && !facts_.training.change().AllReplied()) return;
  if (continues.ok()) {
    switch (attempt_->takeover.MissingShards(now)) {
      case Takeover::Missing::kNone:
        break;
      case Takeover::Missing::kMayCome:
        return;
      case Takeover::Missing::kHaveCome:
        attempt_->takeover.Ask(now);
        BeginPause(/*at_once=*/true, now);
        return;
    }
  }
  if (continues.ok() && attempt_->takeover.MissesLossRecord(AttemptClaim()) &&
      !std::exchange(read_losses_again_, true)) {
    claims_.GiveBack();
    ReadStorageAgain();
    return;
  }
  if (continues.ok()) continues = CompleteTakeover(now);
  if (!continues.ok()) {
    output_.Warn(absl::StrCat("attempt ", facts_.attempt.id.number, " cannot be continued: ",
                              continues.message(), "; the next attempt begins"),
                 now);
    BeginNextAttempt(now);
    return;
  }

  output_.Info(absl::StrCat("attempt ", facts_.attempt.id.number,
                            " continues with another coordinator, without a restoration"),
               now);
  for (const v1::ProcessId& process : attempt_->takeover.LeftOut()) {
    v1::SetDesiredRequest::Death death;
    *death.mutable_process() = process;
    death.set_reason("was not in the view with which another coordinator continued");
    if (std::optional<Departure> departure = facts_.members.ReportDeath(death);
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
  Transition(Phase::kRunning);
  Decide(now);
}

// The claim of the attempt that is taken over.
const v1::Claim& CoordinatorCore::AttemptClaim() const {
  SLUICE_DCHECK(!facts_.storage.claims.empty(), "an attempt that is taken over has a claim");
  return facts_.storage.claims.back();
}

absl::Status CoordinatorCore::CompleteTakeover(absl::Time now) {
  ASSIGN_OR_RETURN(const v1::View newest, attempt_->takeover.NewestView(AttemptClaim()));
  for (const uint64_t shard : attempt_->takeover.Unkept(newest, AttemptClaim())) {
    attempt_->views.Drop(shard);
  }
  RETURN_IF_ERROR(attempt_->takeover.Continue(newest, now));
  for (const auto& [shard, reply] : facts_.training.change().replies()) {
    RETURN_IF_ERROR(CheckPauseReply(reply, FactsOf(*facts_.members.Find(shard))));
  }
  attempt_->losses.Continue(facts_.training.view(), AttemptClaim());
  if (const Decision decision = attempt_->views.Decide();
      decision.result == Decision::Result::kLost) {
    return absl::FailedPreconditionError(decision.reason);
  }
  // The job may have been scaled since this coordinator's manifest was written.
  if (!knows_wanted_shards_ && facts_.MovesPartitions()) {
    for (const v1::View::Shard& shard : facts_.training.view().shards()) {
      facts_.wanted_shards = std::max<uint64_t>(facts_.wanted_shards, shard.process().index() + 1);
    }
    facts_.members.SetWanted(facts_.wanted_workers, facts_.wanted_shards);
  }
  model_.Confirm();
  snapshots_.checkpoints().BeginAttempt();
  snapshots_.evaluations().Begin(attempt_->takeover.NewestDecisions());
  return absl::OkStatus();
}

// ---- an attempt

void CoordinatorCore::BeginAttempt(absl::Time now) {
  SLUICE_DCHECK(claims_.unused() && Is(Phase::kGathering), "R11: a claimed attempt begins once");
  LeaveAttempt();
  if (absl::Status begun = attempt_->initialization.BeginAttempt(now); !begun.ok()) {
    Fail(std::string(begun.message()), now);
    return;
  }
  facts_.training.Begin();
  snapshots_.checkpoints().BeginAttempt();
  // Another job's checkpoint gives the parameters only.
  if (facts_.attempt.base.has_value() && facts_.storage.foreign_directory.empty()) {
    v1::EvaluationDecisions decisions = DecisionsOf(facts_.job(), facts_.storage.newest);
    // A job that was asynchronous has counted its versions differently.
    decisions.set_step(std::min(decisions.step(), facts_.attempt.facts().base_version));
    snapshots_.evaluations().Begin(decisions);
  }
  RequestInit(now);
}

void CoordinatorCore::RequestInit(absl::Time now) {
  if (!attempt_->initialization.Begin(now)) {
    if (!Is(Phase::kGathering)) Transition(Phase::kGathering);
    return;
  }
  Transition(Phase::kPreparing);
  registrar_.SendAdmitted();  // before the worker is asked
  attempt_->initialization.SendRequest();
}

void CoordinatorCore::AdvancePreparing(absl::Time now) {
  if (SuspendBeforeTraining(now)) return;
  switch (attempt_->initialization.Check(now)) {
    case Initialization::State::kWaiting:
      break;
    case Initialization::State::kComplete:
      Transition(Phase::kRunning);
      BeginPause(/*at_once=*/true, now);
      break;
    case Initialization::State::kAskNextWorker:
      RequestInit(now);
      break;
  }
}

void CoordinatorCore::LeaveAttempt() {
  snapshots_.LeaveAttempt(absl::UnavailableError("the job is being restored"));
  facts_.LeaveAttempt();
  attempt_.emplace(&facts_, &output_);
}

// A shard of the attempt is gone, and there is no copy of its state.
void CoordinatorCore::LoseShard(const std::string& why, absl::Time now) {
  if (facts_.training.view().has_id()) {
    Restore(why, now);
  } else if (SpendRestoration(why, now)) {
    // Nothing was trained in this attempt: it begins again with the shards that come.
    LeaveAttempt();
    Transition(Phase::kGathering);
  }
}

// A shard of the attempt left before its state was saved, or there was nothing to save.
void CoordinatorCore::ContinueWithout(const std::string& why, absl::Time now) {
  output_.Info(absl::StrCat(why, "; the job continues with another shard"), now);
  if (facts_.training.view().has_id()) {
    BeginNextAttempt(now);
  } else {
    // Nothing was trained in this attempt: it begins again with the shards that come.
    LeaveAttempt();
    Transition(Phase::kGathering);
  }
}

void CoordinatorCore::Restore(const std::string& why, absl::Time now) {
  if (SpendRestoration(why, now)) BeginNextAttempt(now);
}

// False: the job was restored too often, and failed.
bool CoordinatorCore::SpendRestoration(const std::string& why, absl::Time now) {
  SLUICE_DCHECK(HasAttempt(), "the state of an attempt was lost");
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
  LeaveAttempt();
  claims_.OnAttemptOver();
  ReadStorageAgain();
}

// Releases the shards that ask to leave and whose state is saved, or whose attempt is over.
void CoordinatorCore::ReleaseLeavingShards(absl::Time now) {
  std::vector<uint64_t> leaving;
  for (const Process* shard : facts_.members.Living(v1::SHARD)) {
    if (shard->leaving) leaving.push_back(shard->incarnation());
  }
  for (const uint64_t incarnation : leaving) Release(incarnation, " left", now);
}

// Releases the shards that leave, or that the job no longer wants, and that have nothing.
void CoordinatorCore::ReleaseDrainedShards(absl::Time now) {
  for (const uint64_t incarnation : attempt_->moves.Released()) {
    Release(incarnation, " was drained: other shards have its partitions", now);
  }
}

void CoordinatorCore::SendRelease(const Process& shard) {
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(true);
  message.mutable_finish()->set_reason("released; the job continues with other shards");
  output_.Send(shard, std::move(message));
}

void CoordinatorCore::Release(uint64_t incarnation, const std::string& what, absl::Time now) {
  const Process& shard = *facts_.members.Find(incarnation);
  SLUICE_DCHECK(!Is(Phase::kRunning) || facts_.attempt.goal == Goal::kHandOver ||
                    !facts_.attempt.HasShard(incarnation),
                "a shard that has a part of the state stays until it is saved");
  SendRelease(shard);
  if (!shard.suspect()) output_.Close(shard.stream, absl::OkStatus());
  const Departure departure = *facts_.members.Leave(incarnation);  // ends `shard`
  facts_.meter.Forget(incarnation);
  output_.Info(absl::StrCat(ProcessName(departure.process.id), what), now);
}

}  // namespace sluice::coordinator

#include "services/coordinator/core/snapshots/snapshots.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/text/utf8.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

constexpr uint64_t kMaxLead = 1 << 20;
// A reader's snapshot makes room this long before the step of a checkpoint or an evaluation, so
// that the shards learn of the next snapshot in time.
constexpr absl::Duration kReaderNotice = absl::Milliseconds(500);

}  // namespace

void Snapshots::LeaveAttempt(const absl::Status& why) {
  GiveUp(why);
  barrier_ = 0;
  installed_factor_ = 1;
  checkpoints_.LeaveAttempt();
  evaluations_.LeaveAttempt();
}

void Snapshots::GiveUp(const absl::Status& why) {
  readers_.EndAll(why);
  if (snapshot_.has_value()) Abandon();
}

// ---- after each event

bool Snapshots::Serve(absl::Time now) {
  SLUICE_DCHECK(facts_.phase == Phase::kRunning, "snapshots are of a job that trains");
  SLUICE_DCHECK(!evaluations_.running() ||
                    (snapshot_.has_value() && evaluations_.version() == snapshot_->step),
                "the version of the open snapshot is evaluated");
  SLUICE_DCHECK(snapshot_.has_value() || !InUse(), "what is in use is open");
  readers_.Advance(now);
  if (!snapshot_.has_value()) return false;
  evaluations_.Advance(now);
  checkpoints_.Advance(now);
  readers_.Answer(now);
  if (InUse()) return false;
  Close();
  return true;
}

void Snapshots::Plan(absl::Time now) {
  if (snapshot_.has_value()) {
    const bool evaluating =
        evaluations_.pending() && snapshot_->PinnedBy(facts_.attempt.facts().shards);
    const bool lingers = snapshot_->reached && !evaluating && InUseByJob();
    snapshot_->lingers_since =
        lingers ? std::min(snapshot_->lingers_since, now) : absl::InfiniteFuture();
  }

  if (facts_.mode().synchronous() && facts_.training.has_view() && facts_.training.idle()) {
    OpenSynchronous(now);
    // After the snapshot: the shards wait until they know of it.
    MoveBarrier(now);
  }
}

// Asynchronous: training has reached the barrier, and only a view moves it.
bool Snapshots::NeedsView(absl::Time now) const {
  if (facts_.mode().synchronous()) return false;
  return AsynchronousDue(now) ||
         LearningRateFactor(facts_.attempt.decisions) != installed_factor_ ||
         (barrier_ > 0 && facts_.mode().ScheduleStep() >= barrier_ && Lingers(now));
}

// ---- planning

// Whether the open snapshot has served only a checkpoint for longer than training is held for it.
bool Snapshots::Lingers(absl::Time now) const {
  return snapshot_.has_value() && now >= snapshot_->lingers_since + facts_.timers.barrier;
}

bool Snapshots::ForReadersOnly() const {
  return facts_.attempt.goal == Goal::kNone && !InUseByJob() && readers_.holding();
}

// The lowest step that no shard is past when a message about it arrives.
uint64_t Snapshots::EarliestStep(absl::Time now) const {
  const Training& training = facts_.training;
  if (!facts_.mode().synchronous()) return facts_.mode().ScheduleStep();
  if (training.view().workers_size() == 0 || facts_.attempt.goal != Goal::kNone) {
    return training.LowestClosed();
  }
  const uint64_t highest = training.HighestClosed();
  const uint64_t earliest =
      std::min(highest + std::max(lead_, facts_.StepsIn(kControlDelay, now) + 1),
               facts_.attempt.model.length->total_steps());
  return barrier_ >= highest && barrier_ > 0 ? std::min(earliest, barrier_) : earliest;
}

// Steps before a checkpoint or an evaluation at which readers make room.
uint64_t Snapshots::ReaderLead(absl::Time now) const { return facts_.StepsIn(kReaderNotice, now); }

std::optional<SnapshotPlan> Snapshots::PlanNow(absl::Time now) const {
  if (facts_.attempt.goal != Goal::kNone) {
    const SnapshotPlan last = Missing();
    if (checkpoints_.LastWaits(now)) return std::nullopt;
    return last.checkpoint || last.evaluation ? std::optional<SnapshotPlan>(last) : std::nullopt;
  }
  static const IntervalSchedule kNever(0, absl::ZeroDuration());
  const uint64_t earliest = EarliestStep(now);
  std::optional<SnapshotPlan> plan = PlanSnapshot(
      checkpoints_.schedule(), facts_.EvaluationSamples() > 0 ? evaluations_.schedule() : kNever,
      earliest, facts_.attempt.model.length->total_steps(), now);
  if (plan.has_value() && plan->evaluation && !plan->checkpoint &&
      facts_.job().checkpoint().has_keep_best()) {
    plan->checkpoint = plan->only_if_best = true;
  }
  const bool near = plan.has_value() && plan->step <= earliest + ReaderLead(now);
  if (readers_.waiting() && !near) plan = SnapshotPlan{earliest, false, false};
  return plan;
}

// The parts of the last checkpoint and the last evaluation that are still missing.
SnapshotPlan Snapshots::Missing() const {
  const Goal goal = facts_.attempt.goal;
  // Only a version that no longer changes can be final.
  if (StopsTraining(goal) && facts_.training.view().workers_size() > 0 &&
      facts_.mode().synchronous()) {
    return {};
  }
  SnapshotPlan plan;
  plan.step = facts_.mode().FinalVersion();
  plan.checkpoint = !checkpoints_.Has(plan.step);
  plan.evaluation = EndsWithEvaluation(goal) && !evaluations_.FinalDone(plan.step);
  return plan;
}

void Snapshots::OpenSynchronous(absl::Time now) {
  // Training has ended before the step of the snapshot that was opened for later.
  if (facts_.attempt.goal != Goal::kNone && snapshot_.has_value() &&
      facts_.training.view().workers_size() == 0 &&
      snapshot_->step > facts_.mode().FinalVersion()) {
    Close();
  }
  const std::optional<SnapshotPlan> plan = PlanNow(now);
  if (!plan.has_value()) return;
  if (snapshot_.has_value()) {
    if (!MakesRoomFor(*plan, now)) return;
    Close();
  }
  OpenNew(*plan, plan->step);
  output_.SendToShards(OpenMessage());
}

// Synchronous. Requires an open snapshot.
bool Snapshots::MakesRoomFor(const SnapshotPlan& plan, absl::Time now) const {
  SLUICE_DCHECK(snapshot_.has_value(), "an announced snapshot may make room for another one");
  if (snapshot_->final) return false;
  if (facts_.attempt.goal == Goal::kComplete && evaluations_.running()) return false;
  if (facts_.attempt.goal != Goal::kNone) return true;
  // A reader's snapshot makes room for a due snapshot of the job.
  const bool due =
      (plan.checkpoint || plan.evaluation) && plan.step <= EarliestStep(now) + ReaderLead(now);
  if (ForReadersOnly() && due) return true;
  // A snapshot that no shard has reached makes room for a snapshot that is due before it.
  return !snapshot_->reached && plan.step < snapshot_->step;
}

// An asynchronous snapshot is made by a view change, and is therefore due only once its step is
// reached.
bool Snapshots::AsynchronousDue(absl::Time now) const {
  if (snapshot_.has_value() && !ForReadersOnly()) return false;
  const std::optional<SnapshotPlan> plan = PlanNow(now);
  if (!plan.has_value()) return false;
  const bool for_readers = !plan->checkpoint && !plan->evaluation;
  if (snapshot_.has_value() && for_readers) return false;
  return facts_.attempt.goal != Goal::kNone || plan->step <= facts_.mode().ScheduleStep();
}

// ---- opening and closing

void Snapshots::OpenNew(const SnapshotPlan& plan, uint64_t step) {
  SLUICE_DCHECK(!snapshot_.has_value(), "one snapshot is open at a time");
  Snapshot& snapshot = snapshot_.emplace();
  snapshot.id = ++last_id_;
  snapshot.step = step;
  snapshot.name.set_attempt(facts_.attempt.id.number);
  snapshot.name.set_step(step);
  snapshot.write = plan.checkpoint;
  if (snapshot.write) snapshot.directory = facts_.options.checkpoint_directory(snapshot.name);
  snapshot.final = facts_.attempt.goal != Goal::kNone;
  readers_.OnOpened();
  evaluations_.OnOpened(plan.evaluation);
  checkpoints_.OnOpened(plan.only_if_best);
  SLUICE_DCHECK(InUse(), "a snapshot is opened for a checkpoint, an evaluation or readers");
}

void Snapshots::Abandon() {
  SLUICE_DCHECK(snapshot_.has_value(), "an open snapshot is abandoned");
  readers_.OnClose();
  evaluations_.OnClose();
  checkpoints_.OnClose();
  snapshot_.reset();
}

void Snapshots::Close() {
  v1::CoordinatorMessage message;
  message.mutable_close_snapshot()->set_snapshot_id(snapshot_->id);
  output_.SendToShards(message);
  Abandon();
}

v1::CoordinatorMessage Snapshots::OpenMessage() const {
  v1::CoordinatorMessage message;
  *message.mutable_open_snapshot() = snapshot_->Message();
  return message;
}

// ---- the barrier

// The first version, not below `from`, that is due for evaluation and is not the open snapshot's;
// 0: none.
uint64_t Snapshots::NextBarrier(uint64_t from, absl::Time now) const {
  const TrainingMode& mode = facts_.mode();
  if (!mode.InStep() || facts_.EvaluationSamples() == 0) return 0;
  const uint64_t end = facts_.attempt.model.length->total_steps();
  // Only the evaluation of a version, which decides, lets training continue past it.
  if (evaluations_.HoldTraining()) {
    if (!facts_.attempt.decisions.stop_reason().empty())
      return std::max(from, facts_.attempt.decisions.step());
    const uint64_t due = evaluations_.schedule().NextMultiple(from);
    return due < end ? due : 0;
  }
  if (facts_.attempt.goal != Goal::kNone || Lingers(now)) return 0;
  if (evaluations_.pending()) {
    from = std::max(from, mode.ScheduleStepOf(*snapshot_) + 1);
  }
  const uint64_t due = evaluations_.schedule().NextMultiple(from);
  return due < end ? due : 0;
}

void Snapshots::MoveBarrier(absl::Time now) {
  const uint64_t highest = facts_.training.HighestClosed();
  const bool holds = barrier_ > 0 && highest <= barrier_;
  const uint64_t barrier = NextBarrier(holds ? highest : EarliestStep(now), now);
  if (barrier == barrier_) return;
  barrier_ = barrier;
  output_.SendToShards(BarrierMessage());
}

void Snapshots::SetBarrier(v1::Install* install, absl::Time now) {
  barrier_ = NextBarrier(facts_.mode().ScheduleStep(), now);
  SLUICE_DCHECK(barrier_ == 0 || barrier_ >= facts_.mode().ScheduleStep(),
                "no shard is past the barrier with which a view begins");
  install->set_barrier(facts_.mode().InstalledBarrier(barrier_));
  installed_factor_ = LearningRateFactor(facts_.attempt.decisions);
  if (facts_.attempt.decisions.step() > 0) *install->mutable_decisions() = facts_.attempt.decisions;
}

v1::CoordinatorMessage Snapshots::BarrierMessage() const {
  v1::CoordinatorMessage message;
  *message.mutable_barrier()->mutable_view() = facts_.training.view().id();
  message.mutable_barrier()->set_version(barrier_);
  if (facts_.attempt.decisions.step() > 0) {
    *message.mutable_barrier()->mutable_decisions() = facts_.attempt.decisions;
  }
  return message;
}

// ---- view changes

void Snapshots::OnDecision(const Decision& decision, v1::Install* install, absl::Time now) {
  SLUICE_DCHECK(decision.result == Decision::Result::kDecided &&
                    install->view().first_step() == decision.first_step,
                "the Install is made of the decision");
  if (facts_.mode().synchronous()) {
    if (snapshot_.has_value()) {
      if (facts_.rules.AbandonIncompleteSnapshots() &&
          !SurvivesViewChange(*snapshot_, decision.first_step, facts_.attempt.facts().shards,
                              facts_.attempt.OwnersChange(install->view()))) {
        Abandon();
      } else if (snapshot_->step > decision.first_step) {
        snapshot_->pinned.clear();
        snapshot_->reached = false;
        checkpoints_.OnPinsDropped();
      }
    }
  } else {
    // The pins of an owner that is gone are gone too.
    if (snapshot_.has_value() && facts_.rules.AbandonIncompleteSnapshots() &&
        facts_.attempt.OwnersChange(install->view())) {
      Abandon();
    }
    if (ForReadersOnly() && AsynchronousDue(now)) Abandon();
    if (!snapshot_.has_value() && facts_.training.has_view() && AsynchronousDue(now)) {
      OpenNew(*PlanNow(now), decision.first_step);
      snapshot_->ledger = decision.ledger;
    }
  }
  if (snapshot_.has_value() && facts_.rules.CarrySnapshots()) {
    *install->mutable_snapshot() = snapshot_->Message();
  }
}

bool Snapshots::AllowsOwnerChange() const {
  return !snapshot_.has_value() ||
         (!snapshot_->reached && snapshot_->step > facts_.training.HighestClosed());
}

bool Snapshots::AllowsOwnerChangeAt(uint64_t first_step) const {
  return !snapshot_.has_value() || snapshot_->step > first_step;
}

void Snapshots::OnFirstView(absl::Time now) {
  SLUICE_DCHECK(!snapshot_.has_value(), "an attempt begins without an open snapshot");
  const TrainingMode& mode = facts_.mode();
  const uint64_t step = mode.ScheduleStep();
  checkpoints_.OnFirstView(now);
  // If the first version is due and is not known to be evaluated, this attempt evaluates it.
  const std::optional<v1::Evaluation>& last = facts_.last_evaluation;
  const bool known = evaluations_.HoldTraining()
                         ? evaluations_.HasDecided(step)
                         : last.has_value() && last->step() == facts_.training.view().first_step();
  const bool evaluated = !mode.InStep() || step == 0 || known;
  evaluations_.schedule().Done(step - (evaluated ? 0 : 1), now);
}

// ---- reports of shards

bool Snapshots::IsOpen(uint64_t snapshot, const v1::CheckpointRef& name) const {
  return snapshot_.has_value() && snapshot == snapshot_->id &&
         name.attempt() == snapshot_->name.attempt() && name.step() == snapshot_->name.step();
}

// (R14) The Install of the newest view drops pins above the view's first step. A shard may repeat a
// report on such a pin on a new stream before it has this Install: one without blocks, which pins
// versions that do not exist yet. After the Install it reports again.
bool Snapshots::IsOutdated(const v1::ViewId& view) const {
  SLUICE_DCHECK(snapshot_.has_value(), "the report is on the open snapshot");
  return !Same(view, facts_.training.view().id()) &&
         snapshot_->step > facts_.training.view().first_step();
}

void Snapshots::OnPinned(const Process& shard, const v1::SnapshotPinned& pinned) {
  if (!IsOpen(pinned.snapshot_id(), pinned.name()) || IsOutdated(pinned.view())) return;
  SLUICE_DCHECK(facts_.attempt.HasShard(shard.incarnation()), "shards of the view pin versions");
  snapshot_->pinned.insert(shard.incarnation());
  snapshot_->reached = snapshot_->reached || facts_.attempt.HasBlocks(shard.incarnation());
  lead_ = 1;
}

void Snapshots::OnWritten(const Process& shard, const v1::SnapshotWritten& written,
                          absl::Time now) {
  if (!IsOpen(written.snapshot_id(), written.name()) || IsOutdated(written.view())) return;
  if (!checkpoints_.OnWritten(shard, written, now)) return;
  snapshot_->pinned.insert(shard.incarnation());
  // A shard without partitions reports before training has reached the step.
  snapshot_->reached = snapshot_->reached || !written.files().empty();
}

void Snapshots::OnFailed(const Process& shard, const v1::SnapshotFailed& failed, absl::Time now) {
  if (!IsOpen(failed.snapshot_id(), failed.name())) return;
  SLUICE_DCHECK(facts_.attempt.HasShard(shard.incarnation()), "shards of the view pin versions");
  if (failed.past() == 0) {
    checkpoints_.Fail(
        absl::StrCat(ProcessName(shard.id), ": ", CleanUtf8(failed.reason(), kMaxReasonBytes)),
        now);
    return;
  }
  lead_ = std::min(lead_ * 2, kMaxLead);
  if (barrier_ > 0 && failed.past() > barrier_) {
    // It is too late for some shards; release the others too.
    barrier_ = 0;
    output_.SendToShards(BarrierMessage());
  }
  Close();
}

void Snapshots::ResendTo(const Process& shard) {
  SLUICE_DCHECK(facts_.attempt.HasShard(shard.incarnation()) && facts_.training.has_view(),
                "the shard has the current view");
  if (snapshot_.has_value()) output_.Send(shard, OpenMessage());
  if (facts_.mode().synchronous()) output_.Send(shard, BarrierMessage());
}

absl::Time Snapshots::NextDeadline() const {
  if (facts_.phase != Phase::kRunning) return absl::InfiniteFuture();
  absl::Time deadline =
      std::min({readers_.NextDeadline(), checkpoints_.NextDeadline(), evaluations_.NextDeadline()});
  if (!facts_.training.idle()) return deadline;

  if (facts_.attempt.goal == Goal::kNone && (!snapshot_.has_value() || ForReadersOnly())) {
    for (const IntervalSchedule* schedule : {&checkpoints_.schedule(), &evaluations_.schedule()}) {
      const absl::Time due = schedule->NextTime();
      if (facts_.newest_event < due) deadline = std::min(deadline, due);
    }
  }
  const TrainingMode& mode = facts_.mode();
  if (snapshot_.has_value() && barrier_ > 0 && !evaluations_.HoldTraining() &&
      (mode.synchronous() || mode.ScheduleStep() >= barrier_)) {
    deadline = std::min(deadline, snapshot_->lingers_since + facts_.timers.barrier);
  }
  return deadline;
}

}  // namespace sluice::coordinator

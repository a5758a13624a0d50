#include "services/coordinator/core/coordinator_core.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/common/check.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/facts/training_mode.h"
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
// Processes of a job that are asked to stop together all receive the signal within this time.
constexpr absl::Duration kStopTogether = absl::Seconds(2);

}  // namespace

std::string JobName(const v1::JobSpec& job) { return FullJobName(job); }

CoordinatorCore::CoordinatorCore(CoordinatorOptions options, absl::Time now,
                                 const CoordinatorRules* rules)
    : facts_(std::move(options), rules != nullptr ? rules : AllRules(), now),
      output_(facts_),
      claims_(facts_, &facts_.attempt.id, &facts_.storage, &output_),
      model_(facts_, &facts_.attempt.model, &output_),
      snapshots_(facts_, &facts_.last_evaluation, &facts_.attempt.decisions, &output_),
      registrar_(facts_, &facts_.members, snapshots_.readers(), &output_) {
  attempt_.emplace(&facts_, &output_);
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
  if (gap > absl::Seconds(facts_.job().timeouts().gradients()) / 2)
    attempt_->waits.ExtendDeadlines(now);

  if (gap > kLate) {
    const absl::Time judged = std::min(facts_.members.NextDeadline(), AnswersDue());
    absl::Duration forgiven = NextDeadline() + kLate < now ? gap : absl::ZeroDuration();
    // The process may also have been frozen between two events and have continued before its
    // deadline.
    const bool over = judged + forgiven <= now;
    if (over || (forgiven > absl::ZeroDuration() && judged + forgiven < now + kCatchUp)) {
      forgiven = now + kCatchUp - judged;
    }
    facts_.members.ExtendDeadlines(forgiven);
    attempt_->views.ExtendDeadlines(forgiven);
    attempt_->takeover.ExtendDeadlines(forgiven);
  }

  facts_.newest_event = now;
}

// Messages come again after a time in which this coordinator may have been cut off.
void CoordinatorCore::ExtendDeadlinesOfQuiet(absl::Time now) {
  const Membership::Quiet quiet = facts_.members.TakeQuiet();
  const absl::Duration longest = std::max(quiet.all, quiet.shards);
  if (longest == absl::ZeroDuration()) return;
  attempt_->views.ExtendDeadlines(longest);
  attempt_->takeover.ExtendDeadlines(longest);
  if (longest > absl::Seconds(facts_.job().timeouts().gradients()) / 2)
    attempt_->waits.ExtendDeadlines(now);
  if (longest < facts_.timers.heartbeat_timeout || Leaving()) return;
  output_.Warn(
      absl::StrCat(quiet.all >= facts_.timers.heartbeat_timeout ? "no process" : "no shard",
                   " sent anything for ",
                   absl::FormatDuration(absl::Trunc(longest, absl::Milliseconds(100))),
                   ": the coordinator may have been cut off, and has expelled none"),
      now);
}

void CoordinatorCore::OnTick(absl::Time now) {
  Handle(now, [] {});
}

absl::Time CoordinatorCore::NextDeadline() const {
  if (Is(Phase::kExited)) return absl::InfiniteFuture();
  // A coordinator that was asked to stop waits for shards that leave.
  const absl::Time stop_at = stop_at_ > facts_.newest_event ? stop_at_ : absl::InfiniteFuture();
  const absl::Time suspend_by =
      SuspendBy() > facts_.newest_event ? SuspendBy() : absl::InfiniteFuture();
  return std::min({stop_at, suspend_by, facts_.members.NextDeadline(), claims_.NextDeadline(),
                   attempt_->initialization.NextDeadline(), attempt_->takeover.NextDeadline(),
                   attempt_->losses.NextDeadline(), attempt_->moves.NextDeadline(),
                   attempt_->views.NextDeadline(),
                   attempt_->waits.NextDeadline(snapshots_.evaluations().running()),
                   snapshots_.NextDeadline(), attempt_->ending.NextDeadline()});
}

// ---- phases

void CoordinatorCore::Transition(Phase to) {
  SLUICE_DCHECK(IsLegalMove(facts_.phase, to), "the move of phases is legal");
  facts_.phase = to;
}

void CoordinatorCore::Advance(absl::Time now) {
  if (Is(Phase::kExited)) return;
  ExtendDeadlinesOfQuiet(now);
  for (StreamId stream : facts_.members.TakeOverdueStreams(now)) {
    output_.Close(stream, absl::DeadlineExceededError("no process registered on the stream"));
  }
  for (const Departure& departure : facts_.members.ExpelOverdue(now)) OnGone(departure, now);
  registrar_.SendAdmitted();
  AdvanceStop(now);

  Phase before;
  do {
    before = facts_.phase;
    AdvancePhase(now);
  } while (!Is(before) && !Is(Phase::kExited));
  registrar_.SendAdmitted();
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

void CoordinatorCore::CheckInvariants(absl::Time now) const {
  if (!DebugChecksAreOn() || Is(Phase::kExited)) return;
  const Attempt& attempt = facts_.attempt;
  const Training& training = facts_.training;
  SLUICE_DCHECK(NextDeadline() > now, "what is due was started");
  SLUICE_DCHECK(restorations_ <= facts_.job().backoff_limit(), "restorations are bounded");
  SLUICE_DCHECK(facts_.attempt.goal == Goal::kNone || Is(Phase::kRunning) || Leaving(),
                "training that ends has begun");
  SLUICE_DCHECK(Is(Phase::kRunning) || !snapshots_.current().has_value(),
                "snapshots are of a job that trains");
  SLUICE_DCHECK(!snapshots_.evaluations().running() || snapshots_.current().has_value(),
                "a version is evaluated while it is pinned");
  SLUICE_DCHECK(!Is(Phase::kTakingOver) || training.change().pausing(),
                "an attempt is taken over by a Pause");
  SLUICE_DCHECK(!HasAttempt() || (attempt.id.number != 0 && !attempt.facts().shards.empty() &&
                                  attempt.model.ready.has_value() && claims_.known()),
                "an attempt has a claim, shards and a model");
  SLUICE_DCHECK(attempt.model.ready.has_value() == attempt.model.length.has_value(),
                "the job's length follows from its data");
  SLUICE_DCHECK(!Is(Phase::kPreparing) || !training.has_view(), "a view follows the first state");
  if (!Is(Phase::kRunning)) return;

  SLUICE_DCHECK(training.has_view() || training.change().pausing(),
                "the first view is being made, or there is one");
  if (!training.has_view()) return;
  SLUICE_DCHECK(training.view().id().attempt() == attempt.id.number, "the view is of the attempt");
  for (const uint64_t shard : attempt.facts().shards) {
    SLUICE_DCHECK(facts_.members.Find(shard) != nullptr || attempt_->gone.count(shard) > 0,
                  "a shard of the view is alive, or the next view is made without it");
  }
}

bool CoordinatorCore::CarryOut(const Verdict& verdict, absl::Time now) {
  switch (verdict.kind) {
    case Verdict::Kind::kContinue:
      return true;
    case Verdict::Kind::kUnloadable:
      // Nothing was trained in this attempt. Reading all files finds the damage, and an older
      // checkpoint for the next attempt; if not, the job fails.
      output_.Warn(absl::StrCat(verdict.why, "; the files of its checkpoints are checked"), now);
      claims_.OnUnloadable(*facts_.attempt.base, verdict.why);
      BeginNextAttempt(now);
      break;
    case Verdict::Kind::kSuperseded:
      Supersede(ExitReason::kSuperseded, verdict.why);
      break;
    case Verdict::Kind::kEnded:
      attempt_->ending.LingerUntil(now + facts_.timers.suspect);
      Leave(ExitReason::kSucceeded, verdict.why, now, verdict.code);
      break;
    case Verdict::Kind::kFailed:
      Fail(verdict.why, now, verdict.code);
      break;
  }
  return false;
}

// ---- views

// When shards that owe an answer to a view change are expelled.
absl::Time CoordinatorCore::AnswersDue() const {
  return facts_.members.JudgedShardAt(facts_.training.change().NextDeadline(facts_.timers.pause));
}

void CoordinatorCore::ExpelUnanswering(absl::Time now) {
  if (now < AnswersDue()) return;
  const Phase before = facts_.phase;
  for (const uint64_t shard : facts_.training.change().Overdue(now, facts_.timers.pause)) {
    Expel(
        shard,
        absl::StrCat("did not answer a view change in ", absl::FormatDuration(facts_.timers.pause)),
        now);
    if (!Is(before)) return;
  }
}

void CoordinatorCore::AdvanceViews(absl::Time now) {
  const Training& training = facts_.training;
  ExpelUnanswering(now);
  if (!Is(Phase::kRunning)) return;

  if (training.change().pausing() && attempt_->views.LacksShard()) {
    BeginPause(/*at_once=*/true, now);
    return;
  }
  if (training.change().AllReplied()) Decide(now);
  if (!Is(Phase::kRunning)) return;
  attempt_->views.SendToOthers(now);
  if (training.change().pausing()) {
    if (!training.change().AllReplied() && attempt_->views.IsStuck())
      BeginPause(/*at_once=*/true, now);
    return;
  }

  if (!training.has_view()) return;
  attempt_->moves.Advance(now);
  Views::Needs needs;
  needs.dead_shard = attempt_->moves.HasDeadShard();
  if (training.idle()) {
    ReleaseDrainedShards(now);
    MeasureLoad(now);
    needs.move = attempt_->moves.Due(snapshots_.AllowsOwnerChange(), now);
    needs.leases_overdue = facts_.members.JudgedShardAt(attempt_->waits.LeasesOverdue(
                               snapshots_.evaluations().running())) <= now;
    needs.snapshot = snapshots_.NeedsView(now);
  }
  const Views::Change change = attempt_->views.Wanted(needs, now);
  if (change.wanted && (change.at_once || training.idle())) BeginPause(change.at_once, now);
  if (training.idle()) attempt_->views.SendCommitted();
}

void CoordinatorCore::MeasureLoad(absl::Time now) {
  if (!facts_.load.Due(now)) return;
  for (const ShardLoad::Change& change : facts_.load.Measure(attempt_->moves.Holdings(), now)) {
    const Process* shard = facts_.members.Find(change.shard);
    if (shard == nullptr) continue;
    const std::string name = ProcessName(shard->id);
    output_.Info(
        change.cost == ShardLoad::kNormalCost
            ? absl::StrCat(name, " is no busier than the other shards any more: it gets its part ",
                           "of the partitions again")
            : absl::StrFormat("%s was %.1f times as busy as the median shard for a minute: other "
                              "shards take over partitions",
                              name, change.load),
        now);
  }
}

void CoordinatorCore::BeginPause(bool at_once, absl::Time now) {
  SLUICE_DCHECK(Is(Phase::kTakingOver) || Is(Phase::kRunning), "the shards have a state");
  attempt_->views.BeginPause(facts_.attempt.NextNumber(), attempt_->moves.Asked(), at_once, now);
}

void CoordinatorCore::Decide(absl::Time now) {
  for (const uint64_t worker : attempt_->views.TakeIdleLeaseholders()) {
    Expel(worker, IdleLeaseholderReason(absl::Seconds(facts_.job().timeouts().gradients())), now);
  }
  SLUICE_DCHECK(Is(Phase::kRunning) && !attempt_->views.LacksShard(),
                "only workers are leaseholders");
  attempt_->waits.OnView(now);

  const Decision decision = attempt_->views.Decide();
  switch (decision.result) {
    case Decision::Result::kDecided:
      Install(decision, now);
      break;
    case Decision::Result::kSuperseded:
      Supersede(ExitReason::kSuperseded, decision.reason);
      break;
    case Decision::Result::kLost: {
      std::string why;
      for (const auto& [shard, gone] : attempt_->gone) absl::StrAppend(&why, gone, "; ");
      Restore(absl::StrCat(why, decision.reason), now);
      break;
    }
    case Decision::Result::kNotReady:
      SLUICE_DCHECK(!facts_.training.has_view(), "the first state is requested before any view");
      attempt_->views.GiveUpPause();
      RequestInit(now);
      break;
  }
}

void CoordinatorCore::Install(const Decision& decision, absl::Time now) {
  const bool first = !facts_.training.has_view();  // of this coordinator in the attempt
  v1::Install install = attempt_->views.MakeInstall(decision);
  std::vector<uint64_t> replied;
  for (const auto& [shard, reply] : facts_.training.change().replies()) replied.push_back(shard);
  attempt_->moves.Fill(decision, replied, snapshots_.AllowsOwnerChangeAt(decision.first_step),
                       &install);
  // (R4) Promised shards wait until the record is durable; then the decision is made again.
  if (!attempt_->losses.MayInstall(install.view(), now)) return;

  std::set<uint64_t> losers = attempt_->moves.Losers(install);
  snapshots_.OnDecision(decision, &install, now);
  ReportShards(install.view(), now);
  attempt_->views.Adopt(install, now);
  facts_.attempt.OnView(install.view());
  attempt_->losses.OnView();
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

  attempt_->views.Send(std::move(install), std::move(losers), now);
  facts_.meter.OnSamples(facts_.mode().Samples(), now);
  for (const auto& member : view.workers()) {
    if (Process* worker = facts_.members.Find(member.process().incarnation()); worker != nullptr) {
      worker->was_member = true;
    }
  }
}

// Reports which shards the next view has gained, and where the partitions of shards that are gone
// continue.
void CoordinatorCore::ReportShards(const v1::View& next, absl::Time now) {
  const Attempt& attempt = facts_.attempt;
  const bool takes_over = !facts_.training.has_view() && !facts_.training.view().shards().empty();
  std::map<uint64_t, std::pair<uint64_t, std::set<std::string>>> moved;  // by the owner before
  for (uint32_t p = 0; p < attempt.facts().owner.size(); ++p) {
    if (attempt.facts().empty[p]) continue;
    auto& [partitions, owners] = moved[attempt.facts().shards[attempt.facts().owner[p]]];
    ++partitions;
    owners.insert(
        ProcessName(next.shards(static_cast<int>(next.owner(static_cast<int>(p)))).process()));
  }
  for (const v1::View::Shard& shard : attempt.shards()) {
    const uint64_t incarnation = shard.process().incarnation();
    if (facts_.members.Find(incarnation) != nullptr) continue;
    const auto gone = attempt_->gone.find(incarnation);
    std::string why = gone != attempt_->gone.end()
                          ? gone->second
                          : absl::StrCat(ProcessName(shard.process()), " is gone");
    const auto& [partitions, owners] = moved[incarnation];
    output_.Warn(partitions == 0
                     ? absl::StrCat(why, "; it had no partitions")
                     : absl::StrCat(why, "; its ", partitions, " partitions continue on ",
                                    absl::StrJoin(owners, ", ")),
                 now);
  }
  attempt_->gone.clear();

  if (!facts_.training.has_view() && !takes_over) return;
  for (const v1::View::Shard& shard : next.shards()) {
    if (attempt.HasShard(shard.process().incarnation())) continue;
    output_.Info(absl::StrCat(ProcessName(shard.process()), " joined"), now);
  }
}

// ---- snapshots

void CoordinatorCore::AdvanceSnapshots(absl::Time now) {
  const bool closed = snapshots_.Serve(now);
  // An asynchronous snapshot begins with a view: the next one may be due.
  // A decision may have changed the learning rate, and the snapshot still be saved.
  const bool idle = facts_.training.has_view() && facts_.training.idle();
  if (!facts_.mode().synchronous() && (closed || (idle && snapshots_.NeedsView(now)))) {
    AdvanceViews(now);
  }
  if (Is(Phase::kRunning)) snapshots_.Plan(now);
}

void CoordinatorCore::OnOpenSnapshot(uint64_t request, const v1::OpenSnapshotRequest& snapshot,
                                     absl::Time now) {
  Handle(now, [&] {
    // The shards learn of the reader before the reader learns of the shards.
    if (snapshots_.readers().OnOpen(request, snapshot, now)) registrar_.SendAdmitted();
  });
}

void CoordinatorCore::OnSnapshotCallEnded(uint64_t request, absl::Time now) {
  Handle(now, [&] { snapshots_.readers().OnCallEnded(request); });
}

// ---- the end

void CoordinatorCore::AdvanceEnding(absl::Time now) {
  const Training& training = facts_.training;
  const Goal before = facts_.attempt.goal;
  Ending::Findings findings;
  findings.waits_for_storage = snapshots_.checkpoints().LastFails() || claims_.EndFails();
  findings.target_reached = snapshots_.evaluations().target_reached();
  findings.stopped = !facts_.attempt.decisions.stop_reason().empty() || !stop_request_.empty();
  attempt_->ending.ChooseGoal(findings, now);
  if (facts_.attempt.goal == Goal::kNone) return;

  if (facts_.attempt.goal != before) {
    if (before == Goal::kNone) {
      snapshots_.readers().EndAll(absl::UnavailableError("the job is ending"));
    } else {
      snapshots_.checkpoints().RetryLastNow();
    }
    // The new goal makes a view without workers, or the last snapshot, due.
    AdvanceViews(now);
    if (Is(Phase::kRunning)) AdvanceSnapshots(now);
    if (!Is(Phase::kRunning)) return;
  }

  bool saved = training.has_view() && training.idle() && !snapshots_.current().has_value() &&
               !(StopsTraining(facts_.attempt.goal) && training.view().workers_size() > 0);
  if (saved) {
    const SnapshotPlan missing = snapshots_.Missing();
    saved = !missing.checkpoint && !missing.evaluation;
  }
  switch (attempt_->ending.Next(saved, now)) {
    case Ending::Step::kWait:
      break;
    case Ending::Step::kLeaveSuspended:
      Leave(ExitReason::kSuspended, attempt_->ending.SuspendedMessage(now), now);
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
  Transition(Phase::kLeavingWorkers);
  attempt_->ending.BeginLeaving(reason, message, code, model_.refused(), now);
}

void CoordinatorCore::Fail(const std::string& why, absl::Time now, const std::string& code) {
  if (!Leaving() && !Is(Phase::kExited)) Leave(ExitReason::kFailed, why, now, code);
}

void CoordinatorCore::AdvanceLeaving(absl::Time now) {
  if (!attempt_->ending.HaveLeft(now)) return;
  if (Is(Phase::kLeavingWorkers)) {
    Transition(Phase::kLeavingShards);
    attempt_->ending.FinishShards(now);
  } else {
    Transition(Phase::kExited);
    attempt_->ending.Exit();
  }
}

void CoordinatorCore::Supersede(ExitReason reason, const std::string& why) {
  snapshots_.readers().EndAll(absl::UnavailableError(why));
  attempt_->ending.Supersede(reason, why);
  Transition(Phase::kExited);
}

void CoordinatorCore::OnAskedToStop(absl::Time now) {
  Handle(now, [&] { stop_at_ = std::min(stop_at_, now + kStopTogether); });
}

void CoordinatorCore::AdvanceStop(absl::Time now) {
  if (stop_at_ == absl::InfiniteFuture()) return;
  const std::vector<const Process*> shards = facts_.members.Living(v1::SHARD);
  const bool shard_leaves = std::any_of(shards.begin(), shards.end(),
                                        [](const Process* shard) { return shard->leaving; });
  const bool together = shard_leaves && Is(Phase::kRunning) && !facts_.CanDrain();
  if (Leaving() || facts_.suspend || together) {
    // The coordinator exits when all processes have left.
    stop_at_ = absl::InfiniteFuture();
    facts_.suspend = facts_.suspend || together;
  } else if (stop_at_ <= now && !shard_leaves) {
    stop_at_ = absl::InfiniteFuture();
    Supersede(ExitReason::kLeft, "asked to stop; another coordinator continues");
  }
}

// ---- JobControl

void CoordinatorCore::OnParentCall(absl::Time now) {
  Handle(now, [&] { facts_.members.OnCall(now); });
}

void CoordinatorCore::OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now) {
  Handle(now, [&] {
    facts_.members.OnCall(now);
    SetDesired(desired, now);
  });
}

void CoordinatorCore::SetSizes(const v1::SetDesiredRequest& desired) {
  const bool older = desired.number() != 0 && desired.number() <= desired_number_;
  desired_number_ = std::max(desired_number_, desired.number());
  if (older && facts_.rules.IgnoreOlderRequests()) return;
  if (desired.workers() > 0) facts_.wanted_workers = desired.workers();
  if (desired.shards() > 0) {
    facts_.wanted_shards = desired.shards();
    knows_wanted_shards_ = true;
  }
  facts_.members.SetWanted(facts_.wanted_workers, facts_.wanted_shards);
}

// A suspension is final, and a death is of one incarnation: neither depends on the order.
void CoordinatorCore::SetDesired(const v1::SetDesiredRequest& desired, absl::Time now) {
  SetSizes(desired);
  facts_.suspend = facts_.suspend || desired.suspend();
  for (const v1::SetDesiredRequest::Death& death : desired.deaths()) {
    if (std::optional<Departure> departure = facts_.members.ReportDeath(death);
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
}

}  // namespace sluice::coordinator

#include "services/coordinator/core/views/views.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"
#include "services/coordinator/core/decisions/assignment.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"

namespace sluice::coordinator {

// ---- when

Views::Change Views::Wanted(const Needs& needs, absl::Time now) {
  SLUICE_DCHECK(training_.has_view() && !change_.pausing(),
                "a view is compared with the processes only while no Pause is pending");
  if (HasDeadMember() || needs.dead_shard) return {true, true};
  if (!training_.idle()) return {};

  const v1::View& view = training_.view();
  const bool asynchronous = !facts_.mode().synchronous();
  if (StopsTraining(facts_.attempt.goal) && view.workers_size() > 0) return {true, asynchronous};
  if (needs.leases_overdue) {
    judge_leases_ = true;
    return {true, true};
  }
  if (needs.snapshot) return {true, true};
  if (HasLeavingMember()) return {true, asynchronous};
  // At once if there is no member that would finish the step.
  if (JoinDue(now)) return {true, asynchronous || view.workers_size() == 0};
  if (needs.move) return {true, asynchronous || view.workers_size() == 0};
  if (RebalanceDue(now)) return {true, false};
  return {};
}

bool Views::HasDeadMember() const {
  const auto& members = training_.view().workers();
  return std::any_of(members.begin(), members.end(), [&](const auto& member) {
    return facts_.members.Find(member.process().incarnation()) == nullptr;
  });
}

bool Views::HasLeavingMember() const {
  SLUICE_DCHECK(!HasDeadMember(), "a dead member is removed first");
  const auto& members = training_.view().workers();
  return std::any_of(members.begin(), members.end(), [&](const auto& member) {
    return facts_.members.Find(member.process().incarnation())->leaving;
  });
}

bool Views::LacksShard() const {
  const std::vector<uint64_t>& asked = change_.asked();
  return std::any_of(asked.begin(), asked.end(),
                     [&](uint64_t shard) { return facts_.members.Find(shard) == nullptr; });
}

// Step k cannot be closed any more if a member of the view is dead, or if a shard is held at a
// version before it and has stopped there (other shards may be past that version).
bool Views::IsStuck() const {
  SLUICE_DCHECK(change_.pausing(), "a Pause is pending");
  if (change_.pause().now() || !facts_.rules.NowOverrides()) return false;
  if (HasDeadMember()) return true;

  const uint64_t step = change_.pause().after_step();
  return std::any_of(change_.replies().begin(), change_.replies().end(), [&](const auto& reply) {
    const auto& partitions = reply.second.partitions();
    return std::any_of(partitions.begin(), partitions.end(),
                       [&](const auto& partition) { return partition.version() <= step; });
  });
}

// Whether a ready worker that could be a member is not one. True only after a short wait, so that
// workers that come together cause one change.
bool Views::JoinDue(absl::Time now) {
  absl::Time since = absl::InfiniteFuture();
  const Goal goal = facts_.attempt.goal;
  if (goal == Goal::kNone || (goal == Goal::kComplete && training_.view().workers_size() == 0)) {
    for (const Process* member : NextMembers()) {
      if (!training_.IsMember(member->incarnation())) since = std::min(since, member->ready_since);
    }
  }
  if (since == absl::InfiniteFuture()) {
    join_at_ = absl::InfiniteFuture();
    return false;
  }
  join_at_ = std::max(since, training_.view_since()) + facts_.timers.join;
  if (join_at_ > now) return false;
  join_at_ = absl::InfiniteFuture();
  return true;
}

bool Views::RebalanceDue(absl::Time now) {
  std::vector<Interval> ranges;
  std::vector<double> speeds;
  if (facts_.mode().synchronous() && facts_.attempt.goal == Goal::kNone) {
    for (const auto& member : training_.view().workers()) {
      ranges.push_back(member.microbatches().empty() ? Interval()
                                                     : FromProto(member.microbatches(0)));
      speeds.push_back(facts_.meter.SpeedOf(member.process().incarnation()));
    }
  }
  if (ranges.empty() || Imbalance(ranges, speeds, DivisionOf(facts_)) < kRebalanceThreshold) {
    unbalanced_since_ = absl::InfiniteFuture();
    return false;
  }
  unbalanced_since_ = std::min(unbalanced_since_, now);
  return std::max(unbalanced_since_, training_.view_since()) + facts_.timers.rebalance <= now;
}

void Views::BeginPause(uint64_t number, std::vector<uint64_t> shards, bool at_once,
                       absl::Time now) {
  SLUICE_DCHECK(!shards.empty(), "a Pause goes to the shards that have the state");
  SLUICE_DCHECK(at_once || training_.idle(),
                "training finishes a step first only if no change is under way");
  v1::Pause pause;
  pause.mutable_id()->set_attempt(facts_.attempt.id.number);
  *pause.mutable_id()->mutable_term() = facts_.attempt.id.term;
  pause.mutable_id()->set_number(number);
  pause.set_now(at_once);
  if (!at_once) {
    const uint64_t soon = training_.HighestClosed() + facts_.StepsIn(kControlDelay, now);
    pause.set_after_step(std::min(soon, facts_.attempt.model.length->total_steps() - 1));
  }
  v1::CoordinatorMessage message;
  *message.mutable_pause() = change_.Begin(std::move(pause), std::move(shards), now);
  for (const uint64_t shard : change_.asked()) {
    output_.Send(*facts_.members.Find(shard), message);
  }
}

// ---- members and state

std::vector<const Process*> Views::NextMembers() const {
  std::vector<const Process*> members;
  if (StopsTraining(facts_.attempt.goal)) return members;
  // Current members first, in their order, so that ranges move as little as possible.
  for (const auto& member : training_.view().workers()) {
    const Process* process = facts_.members.Find(member.process().incarnation());
    if (process != nullptr && !process->leaving) members.push_back(process);
  }
  for (const Process* worker : facts_.ReadyWorkers()) {
    if (!training_.IsMember(worker->incarnation())) members.push_back(worker);
  }
  if (members.size() > facts_.mode().MaxMembers()) members.resize(facts_.mode().MaxMembers());
  return members;
}

std::vector<uint64_t> Views::TakeIdleLeaseholders() {
  SLUICE_DCHECK(change_.AllReplied(), "the arbiter's reply names the leaseholders");
  if (!std::exchange(judge_leases_, false)) return {};
  // The arbiter may name any process.
  std::vector<uint64_t> idle = facts_.mode().IdleLeaseholders();
  idle.erase(std::remove_if(idle.begin(), idle.end(),
                            [&](uint64_t worker) { return !training_.IsMember(worker); }),
             idle.end());
  return idle;
}

Decision Views::Decide() const {
  SLUICE_DCHECK(!judge_leases_, "idle leaseholders are expelled before the decision");
  absl::flat_hash_set<uint64_t> staying;
  for (const Process* member : NextMembers()) {
    if (training_.IsMember(member->incarnation())) staying.insert(member->incarnation());
  }
  return facts_.mode().Decide(staying);
}

v1::View Views::MakeView(const Decision& decision) const {
  const Attempt& attempt = facts_.attempt;
  v1::View view;
  view.mutable_id()->set_attempt(attempt.id.number);
  *view.mutable_id()->mutable_term() = attempt.id.term;
  view.mutable_id()->set_number(change_.pause().id().number());
  view.set_mode(attempt.mode);
  view.set_first_step(decision.first_step);

  std::vector<double> speeds;
  for (const Process* member : NextMembers()) {
    *view.add_workers()->mutable_process() = member->id;
    speeds.push_back(facts_.meter.SpeedOf(member->incarnation()));
  }
  SLUICE_DCHECK(speeds.size() <= facts_.mode().MaxMembers(), "further workers are standbys");
  facts_.mode().DivideWork(speeds, &view);

  view.set_loss_record(attempt.losses.newest);
  *view.mutable_init_id() = attempt.facts().init_id;
  if (attempt.base.has_value()) *view.mutable_base() = *attempt.base;
  view.set_layout_hash(attempt.layout_hash);
  if (decision.previous.has_value()) *view.mutable_previous() = decision.previous->id();
  return view;
}

v1::Install Views::MakeInstall(const Decision& decision) const {
  v1::Install install;
  *install.mutable_pause() = change_.pause().id();
  *install.mutable_view() = MakeView(decision);
  *install.mutable_clocks() = {decision.clocks.begin(), decision.clocks.end()};
  *install.mutable_leases() = {decision.leases.begin(), decision.leases.end()};
  *install.mutable_ledger() = decision.ledger;
  if (facts_.mode().synchronous()) install.set_committed(decision.first_step);
  return install;
}

void Views::Adopt(const v1::Install& install, absl::Time now) {
  SLUICE_DCHECK(!training_.has_view() || Compare(training_.view().id(), install.view().id()) < 0,
                "a view's id is above those of all views before it");
  SLUICE_DCHECK(install.view().id().attempt() == facts_.attempt.id.number &&
                    Compare(install.view().id().term(), facts_.attempt.id.term) == 0,
                "R1: a view has the attempt and term of its coordinator");
  SLUICE_DCHECK(!StopsTraining(facts_.attempt.goal) || install.view().workers().empty(),
                "training has stopped: the view has no workers");
  training_.OnView(install, SamplesIn(install.ledger()), now);
  unbalanced_since_ = absl::InfiniteFuture();
}

void Views::Send(v1::Install install, std::set<uint64_t> losers, absl::Time now) {
  SLUICE_DCHECK(Same(install.view().id(), training_.view().id()),
                "the view that shards install is the current one");
  change_.Decide(std::move(install), std::move(losers), now);
  SendInstall();
  for (const Process* worker : facts_.members.LivingAndConnected(v1::WORKER)) {
    if (worker->ready) SendView(*worker);
  }
}

void Views::SendToOthers(absl::Time now) {
  if (change_.ShouldInstallOthers(now)) SendInstall();
}

void Views::SendInstall() {
  v1::CoordinatorMessage message;
  *message.mutable_install() = change_.install();
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (change_.MaySendTo(shard->incarnation())) output_.Send(*shard, message);
  }
}

// ---- messages

void Views::SendView(const Process& worker) {
  SLUICE_DCHECK(worker.id.role() == v1::WORKER && worker.ready,
                "a view is sent to workers that have the model");
  if (!training_.has_view()) return;
  v1::CoordinatorMessage message;
  *message.mutable_new_view()->mutable_view() = training_.view();
  if (knows_model_.insert(worker.stream).second) {
    *message.mutable_new_view()->mutable_table() = facts_.attempt.model.ready->table();
    *message.mutable_new_view()->mutable_layout() = facts_.attempt.layout;
  }
  output_.Send(worker, std::move(message));
}

bool Views::ResendChange(const Process& shard) {
  v1::CoordinatorMessage message;
  if (change_.pausing()) {
    if (!change_.Asks(shard.incarnation())) return false;
    *message.mutable_pause() = change_.pause();
  } else if (change_.has_install() && change_.MaySendTo(shard.incarnation())) {
    *message.mutable_install() = change_.install();
  } else {
    return false;
  }
  output_.Send(shard, std::move(message));
  return true;
}

void Views::SendCommitted() {
  SLUICE_DCHECK(training_.idle(), "all shards have the current view");
  const std::optional<uint64_t> last = StepToCommit();
  if (!last.has_value() || training_.committed() >= *last || training_.LowestClosed() < *last ||
      !facts_.rules.SendCommitted()) {
    return;
  }
  training_.RaiseCommitted(*last);
  output_.SendToShards(CommittedMessage());
}

void Views::ResendCommitted(const Process& shard) {
  const std::optional<uint64_t> last = StepToCommit();
  if (last.has_value() && training_.committed() >= *last) output_.Send(shard, CommittedMessage());
}

std::optional<uint64_t> Views::StepToCommit() const {
  if (!facts_.mode().synchronous()) return std::nullopt;
  return facts_.attempt.model.length->total_steps();
}

v1::CoordinatorMessage Views::CommittedMessage() const {
  v1::CoordinatorMessage message;
  *message.mutable_committed()->mutable_view() = training_.view().id();
  message.mutable_committed()->set_version(training_.committed());
  return message;
}

absl::Time Views::NextDeadline() const {
  if (facts_.phase != Phase::kTakingOver && facts_.phase != Phase::kRunning) {
    return absl::InfiniteFuture();
  }
  absl::Time deadline = facts_.members.JudgedShardAt(change_.NextDeadline(facts_.timers.pause));
  if (!training_.idle()) return deadline;
  deadline = std::min(deadline, join_at_);
  if (unbalanced_since_ == absl::InfiniteFuture()) return deadline;
  return std::min(deadline,
                  std::max(unbalanced_since_, training_.view_since()) + facts_.timers.rebalance);
}

}  // namespace sluice::coordinator

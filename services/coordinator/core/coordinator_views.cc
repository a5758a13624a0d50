// View changes: when they begin, their members, and the state that is kept.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/coordinator/core/assignment.h"
#include "services/coordinator/core/batch_size.h"
#include "services/coordinator/core/coordinator_impl.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

bool CoordinatorCore::Impl::IsMember(uint64_t incarnation) const {
  return std::any_of(view_.workers().begin(), view_.workers().end(), [&](const auto& member) {
    return member.process().incarnation() == incarnation;
  });
}

// ---- progress of the shards

// A shard that owns only empty partitions closes nothing, and pins any version at once.
bool CoordinatorCore::Impl::OwnsBlocks(uint64_t shard) const {
  return PartitionsWithBlocks(shard) > 0;
}

uint32_t CoordinatorCore::Impl::PartitionsWithBlocks(uint64_t shard) const {
  uint32_t partitions = 0;
  for (size_t p = 0; p < facts_.owner.size(); ++p) {
    if (facts_.shards[facts_.owner[p]] == shard && !facts_.empty[p]) ++partitions;
  }
  return partitions;
}

uint64_t CoordinatorCore::Impl::LowestClosed() const {
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (const uint64_t shard : facts_.shards) {
    if (OwnsBlocks(shard)) lowest = std::min(lowest, shard_states_.at(shard).closed);
  }
  return lowest == std::numeric_limits<uint64_t>::max() ? view_.first_step() : lowest;
}

uint64_t CoordinatorCore::Impl::HighestClosed() const {
  uint64_t highest = view_.first_step();
  for (const auto& [shard, state] : shard_states_) highest = std::max(highest, state.closed);
  return highest;
}

uint64_t CoordinatorCore::Impl::Samples() const {
  if (facts_.shards.empty() || !length_.has_value()) return 0;
  if (Synchronous()) {
    return length_->SamplesAt(change_.has_install() ? std::max(LowestClosed(), committed_)
                                                    : committed_);
  }
  return shard_states_.at(facts_.shards[facts_.owner[0]]).samples;  // the arbiter
}

// ---- when

void CoordinatorCore::Impl::AdvanceViews(absl::Time now) {
  for (uint64_t shard : change_.Overdue(now, timers_.pause)) {
    if (std::optional<Departure> departure = membership_.Expel(
            shard,
            absl::StrCat("did not answer a view change in ", absl::FormatDuration(timers_.pause)));
        departure.has_value()) {
      OnGone(*departure, now);
    }
    if (phase_ != Phase::kRunning) return;
  }

  if (change_.AllReplied()) Decide(now);
  if (phase_ != Phase::kRunning) return;
  if (change_.pausing()) {
    // (R5) Step k cannot be closed any more if a member of the view is dead, or if a shard is held
    // at a version before it and has stopped there (other shards may be past that version).
    const bool stuck = HasDeadMember() || HasStoppedBefore(change_.pause().after_step());
    if (!change_.pause().now() && stuck && rules_->NowOverrides()) {
      BeginPause(/*at_once=*/true, now);
    }
    return;
  }

  if (!change_.has_install()) return;
  const WantedChange change = Wanted(now);
  if (change.wanted && (change.now || Idle())) BeginPause(change.now, now);
  if (Idle()) TellCommitted();
}

// timeouts.gradients in asynchronous modes: the time by which a sample must be applied while
// workers hold leases.
absl::Time CoordinatorCore::Impl::LeasesOverdue() const {
  const double limit = options_.job.timeouts().gradients();
  if (Synchronous() || limit <= 0 || !change_.has_install() || evaluation_.has_value() ||
      shard_states_.at(facts_.shards[facts_.owner[0]]).leaseholders == 0) {
    return absl::InfiniteFuture();
  }
  return applied_at_ + absl::Seconds(limit);
}

std::string CoordinatorCore::Impl::IdleLeaseholder(absl::Duration limit) {
  return absl::StrCat("holds samples and has applied nothing in ", absl::FormatDuration(limit));
}

// Judges by the arbiter's records. With bounded staleness, faster workers may be waiting for the
// slowest: only the slowest are expelled.
void CoordinatorCore::Impl::ExpelIdleLeaseholders(absl::Time now) {
  const v1::PauseReply& arbiter = change_.replies().at(facts_.shards[facts_.owner[0]]);
  std::map<uint64_t, uint64_t> clocks;  // of the leaseholders
  for (const v1::LeaseRecord& lease : arbiter.leases()) clocks[lease.worker()] = 0;
  for (const v1::ClockRecord& record : arbiter.clocks()) {
    const auto holder = clocks.find(record.worker());
    if (holder != clocks.end()) holder->second = record.clock();
  }

  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (const auto& [worker, clock] : clocks) lowest = std::min(lowest, clock);
  for (const auto& [worker, clock] : clocks) {
    if (mode_ == v1::BOUNDED_STALENESS && clock > lowest) continue;
    if (std::optional<Departure> departure = membership_.Expel(
            worker, IdleLeaseholder(absl::Seconds(options_.job.timeouts().gradients())));
        departure.has_value()) {
      OnGone(*departure, now);
    }
  }
}

bool CoordinatorCore::Impl::HasDeadMember() const {
  return std::any_of(view_.workers().begin(), view_.workers().end(), [&](const auto& member) {
    return membership_.Find(member.process().incarnation()) == nullptr;
  });
}

bool CoordinatorCore::Impl::HasStoppedBefore(uint64_t step) const {
  return std::any_of(change_.replies().begin(), change_.replies().end(), [&](const auto& reply) {
    const auto& partitions = reply.second.partitions();
    return std::any_of(partitions.begin(), partitions.end(),
                       [&](const auto& partition) { return partition.version() <= step; });
  });
}

CoordinatorCore::Impl::WantedChange CoordinatorCore::Impl::Wanted(absl::Time now) {
  if (HasDeadMember()) return {true, true};
  if (!Idle()) return {};
  if (Stopping() && view_.workers_size() > 0) return {true, !Synchronous()};
  if (LeasesOverdue() <= now) {
    judge_leases_ = true;
    return {true, true};
  }
  if (!Synchronous() && (AsynchronousSnapshotDue(now) || BarrierLapses(now))) return {true, true};
  const bool left =
      std::any_of(view_.workers().begin(), view_.workers().end(), [&](const auto& member) {
        return membership_.Find(member.process().incarnation())->leaving;
      });
  if (left) return {true, !Synchronous()};
  // At once if there is no member that would finish the step.
  if (JoinDue(now)) return {true, !Synchronous() || view_.workers_size() == 0};
  if (RebalanceDue(now)) return {true, false};
  return {};
}

// Whether a ready worker that could be a member is not one. True only after a short wait, so that
// workers that come together cause one change.
bool CoordinatorCore::Impl::JoinDue(absl::Time now) {
  absl::Time since = absl::InfiniteFuture();
  if (goal_ == Goal::kNone || (goal_ == Goal::kComplete && view_.workers_size() == 0)) {
    for (const Process* member : NextMembers()) {
      if (!IsMember(member->incarnation())) since = std::min(since, member->ready_since);
    }
  }
  if (since == absl::InfiniteFuture()) {
    join_at_ = absl::InfiniteFuture();
    return false;
  }
  join_at_ = std::max(since, view_since_) + timers_.join;
  if (join_at_ > now) return false;
  join_at_ = absl::InfiniteFuture();
  return true;
}

bool CoordinatorCore::Impl::RebalanceDue(absl::Time now) {
  std::vector<Interval> ranges;
  std::vector<double> speeds;
  if (Synchronous() && goal_ == Goal::kNone) {
    for (const auto& member : view_.workers()) {
      ranges.push_back(FromProto(member.microbatches(0)));
      speeds.push_back(meter_.SpeedOf(member.process().incarnation()));
    }
  }
  if (Imbalance(ranges, speeds, options_.job.training().bit_exact()) < kRebalanceThreshold) {
    unbalanced_since_ = absl::InfiniteFuture();
    return false;
  }
  unbalanced_since_ = std::min(unbalanced_since_, now);
  return std::max(unbalanced_since_, view_since_) + timers_.rebalance <= now;
}

// Samples in each of the worker's next updates; 0: training.globalBatchSize.
uint64_t CoordinatorCore::Impl::BatchSizeOf(const Process& worker) const {
  const v1::TrainingSpec& training = options_.job.training();
  if (training.max_batch_size() == 0 || Synchronous() || !IsMember(worker.incarnation())) return 0;
  std::vector<double> speeds;
  for (const auto& member : view_.workers()) {
    speeds.push_back(meter_.SpeedOf(member.process().incarnation()));
  }
  return BatchSize(
      meter_.SpeedOf(worker.incarnation()), speeds,
      {training.global_batch_size(), training.min_batch_size(), training.max_batch_size()});
}

void CoordinatorCore::Impl::BeginPause(bool at_once, absl::Time now) {
  v1::Pause pause;
  pause.mutable_id()->set_attempt(attempt_);
  *pause.mutable_id()->mutable_term() = term_;
  pause.mutable_id()->set_number(NextNumber());
  pause.set_now(at_once);
  if (!at_once) {
    const uint64_t soon = HighestClosed() + StepsIn(kControlDelay, now);
    pause.set_after_step(std::min(soon, length_->total_steps() - 1));
  }
  v1::CoordinatorMessage message;
  *message.mutable_pause() = change_.Begin(std::move(pause), now);
  SendToShards(message);
}

// Steps that shards may close in this time.
uint64_t CoordinatorCore::Impl::StepsIn(absl::Duration time, absl::Time now) const {
  const double batch =
      static_cast<double>(std::max<uint64_t>(options_.job.training().global_batch_size(), 1));
  const double steps = meter_.SamplesPerSecond(now) / batch * absl::ToDoubleSeconds(time);
  return static_cast<uint64_t>(std::clamp(std::floor(steps), 0.0, 1e6));
}

// ---- members and state

std::vector<const Process*> CoordinatorCore::Impl::NextMembers() const {
  std::vector<const Process*> members;
  if (Stopping()) return members;
  // Current members first, in their order, so that ranges move as little as possible.
  for (const auto& member : view_.workers()) {
    const Process* process = membership_.Find(member.process().incarnation());
    if (process != nullptr && !process->leaving) members.push_back(process);
  }
  for (const Process* worker : ReadyWorkers()) {
    if (!IsMember(worker->incarnation())) members.push_back(worker);
  }
  // A member of a synchronous view has at least one microbatch; further workers are standbys.
  if (Synchronous() && members.size() > length_->microbatches()) {
    members.resize(length_->microbatches());
  }
  return members;
}

v1::View CoordinatorCore::Impl::MakeView(const Decision& decision,
                                         const std::vector<const Process*>& members) const {
  v1::View view;
  view.mutable_id()->set_attempt(attempt_);
  *view.mutable_id()->mutable_term() = term_;
  view.mutable_id()->set_number(change_.pause().id().number());
  view.set_mode(mode_);
  view.set_first_step(decision.first_step);

  std::vector<double> speeds;
  for (const Process* member : members) {
    *view.add_workers()->mutable_process() = member->id;
    speeds.push_back(meter_.SpeedOf(member->incarnation()));
  }
  if (Synchronous()) {
    const std::vector<Interval> ranges =
        Apportion(length_->microbatches(), speeds, options_.job.training().bit_exact());
    for (size_t i = 0; i < ranges.size(); ++i) {
      *view.mutable_workers(static_cast<int>(i))->add_microbatches() = ToProto(ranges[i]);
    }
  }

  *view.mutable_shards() = {shards_.begin(), shards_.end()};
  *view.mutable_owner() = {facts_.owner.begin(), facts_.owner.end()};
  *view.mutable_init_id() = facts_.init_id;
  if (base_.has_value()) *view.mutable_base() = *base_;
  view.set_layout_hash(layout_hash_);
  if (decision.previous.has_value()) *view.mutable_previous() = *decision.previous;
  return view;
}

void CoordinatorCore::Impl::Decide(absl::Time now) {
  if (std::exchange(judge_leases_, false)) ExpelIdleLeaseholders(now);
  applied_at_ = now;
  owed_.clear();

  const std::vector<const Process*> members = NextMembers();
  Decision decision;
  if (Synchronous()) {
    decision = DecideSynchronous(facts_, change_.replies(), *rules_);
  } else {
    absl::flat_hash_set<uint64_t> staying;
    for (const Process* member : members) {
      if (IsMember(member->incarnation())) staying.insert(member->incarnation());
    }
    decision = DecideAsynchronous(facts_, change_.replies(), staying, change_.installs(), *rules_);
  }

  switch (decision.outcome) {
    case Decision::Outcome::kDecided:
      break;
    case Decision::Outcome::kSuperseded:
      Supersede(decision.reason);
      return;
    case Decision::Outcome::kLost:
      Restore(decision.reason, now);
      return;
    case Decision::Outcome::kNotReady:
      change_.GiveUp();
      RequestInit(now);
      return;
  }

  v1::Install install;
  *install.mutable_pause() = change_.pause().id();
  *install.mutable_view() = MakeView(decision, members);
  *install.mutable_clocks() = {decision.clocks.begin(), decision.clocks.end()};
  *install.mutable_leases() = {decision.leases.begin(), decision.leases.end()};
  *install.mutable_ledger() = decision.ledger;
  if (Synchronous()) install.set_committed(decision.first_step);
  CarrySnapshot(decision, &install, now);

  view_ = install.view();
  view_since_ = now;
  unbalanced_since_ = absl::InfiniteFuture();
  committed_ = std::max(committed_, decision.first_step);
  const uint64_t applied = SamplesIn(decision.ledger);
  for (auto& [shard, state] : shard_states_) {
    state.closed = decision.first_step;
    state.samples = applied;
  }

  if (claim_unused_) {
    claim_unused_ = false;
    unloadable_.reset();
    checkpoints_.Done(ScheduleStep(), now);
    // If the first version is due and is not known to be evaluated, this attempt evaluates it.
    const bool evaluated = !InStep() || ScheduleStep() == 0 ||
                           (last_result_.has_value() && last_result_->step() == view_.first_step());
    evaluations_.Done(ScheduleStep() - (evaluated ? 0 : 1), now);
  }

  events_.Add(
      v1::Event::VIEW,
      absl::StrCat("view ", ShortName(view_.id()), " begins at step ", view_.first_step(), " with ",
                   view_.workers_size(), " workers and ", view_.shards_size(), " shards"),
      now);
  // All shards are at the first step, so any version from here on can be held exactly.
  barrier_ = NextBarrier(ScheduleStep(), now);
  install.set_barrier(Synchronous() ? barrier_ : length_->SamplesOfBatches(barrier_));

  v1::CoordinatorMessage message;
  *message.mutable_install() = install;
  change_.Decide(std::move(install), now);
  meter_.OnSamples(Samples(), now);
  SendToShards(message);
  for (const Process* worker : membership_.LivingAndConnected(v1::WORKER)) {
    if (worker->ready) SendView(*worker);
  }
  for (const auto& member : view_.workers()) {
    if (Process* worker = membership_.Find(member.process().incarnation()); worker != nullptr) {
      worker->was_member = true;
    }
  }
}

// (R14) The Install names the open snapshot, or none; an asynchronous snapshot begins with the
// Install.
void CoordinatorCore::Impl::CarrySnapshot(const Decision& decision, v1::Install* install,
                                          absl::Time now) {
  if (snapshot_.has_value() && Synchronous()) {
    if (rules_->AbandonIncompleteSnapshots() &&
        !SurvivesViewChange(*snapshot_, decision.first_step, facts_.shards)) {
      ReplanSoon();
    } else if (snapshot_->step > decision.first_step) {
      snapshot_->pinned.clear();
      snapshot_->reached = false;
    }
  }
  if (!Synchronous() && SnapshotIsForReadersOnly() && AsynchronousSnapshotDue(now)) ReplanSoon();
  if (!snapshot_.has_value() && !Synchronous() && change_.has_install() &&
      AsynchronousSnapshotDue(now)) {
    OpenNewSnapshot(*PlanNow(now), decision.first_step);
    snapshot_->ledger = decision.ledger;
  }
  if (snapshot_.has_value() && rules_->CarrySnapshots())
    *install->mutable_snapshot() = snapshot_->Message();
}

void CoordinatorCore::Impl::SendView(const Process& worker) {
  if (!change_.has_install()) return;
  v1::CoordinatorMessage message;
  *message.mutable_new_view()->mutable_view() = view_;
  if (knows_model_.insert(worker.stream).second) {
    *message.mutable_new_view()->mutable_table() = model_->table();
    *message.mutable_new_view()->mutable_layout() = layout_;
  }
  Send(worker, std::move(message));
}

void CoordinatorCore::Impl::TellCommitted() {
  if (!Synchronous() || committed_ >= length_->total_steps() ||
      LowestClosed() < length_->total_steps() || !rules_->TellCommitted()) {
    return;
  }
  committed_ = length_->total_steps();
  v1::CoordinatorMessage message;
  *message.mutable_committed()->mutable_view() = view_.id();
  message.mutable_committed()->set_version(committed_);
  SendToShards(message);
}

}  // namespace sluice::coordinator

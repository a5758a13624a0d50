// The part of Asynchronous at the edges of a view: what a view begins with, and what is reported of
// it to the coordinator.

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "services/common/check.h"
#include "services/ps/core/training/asynchronous.h"

namespace sluice::ps {

void Asynchronous::AdoptRecords(const std::vector<v1::ClockRecord>& clocks) {
  for (const v1::ClockRecord& record : clocks) {
    v1::ClockRecord& own = clocks_[record.worker()];
    if (record.clock() > own.clock()) own = record;
  }
}

void Asynchronous::Settle(const v1::Install& install) {
  for (const v1::ClockRecord& winner : install.clocks()) {
    const auto staged = staged_.find(winner.worker());
    const bool behind = staged != staged_.end() && staged->second.clock == winner.clock() &&
                        AppliedClock(winner.worker()) < winner.clock() && IsWhole(staged->second);
    if (behind && state_.rules().ApplyWinners()) {
      if (!ApplyStaged(winner.worker(), staged->second, winner)) return;
    }
  }
  if (state_.rules().DropStaged()) staged_.clear();
}

void Asynchronous::OnInstalled(const v1::Install& install) {
  for (const v1::ClockRecord& winner : install.clocks()) {
    arbiter_.Reached(winner.worker(), winner.clock());
  }
  for (auto it = pulled_.begin(); it != pulled_.end();) {
    it = state_.view()->MemberIndex(it->first).has_value() ? std::next(it) : pulled_.erase(it);
  }

  AdoptRecords({install.clocks().begin(), install.clocks().end()});
  if (absl::StatusOr<IntervalSet> applied = IntervalSet::FromProtos(install.ledger().applied());
      applied.ok()) {
    ledger_ = *std::move(applied);
  }

  updates_.count = install.view().first_step();
  SetVersions();

  std::map<uint64_t, IntervalSet> leases;
  for (const v1::LeaseRecord& lease : install.leases()) {
    const Interval rest = FromProto(lease.samples());
    if (!rest.empty()) leases[lease.worker()].Add(rest);
    arbiter_.Reached(lease.worker(), lease.clock());
  }
  arbiter_.Reset(ArbiterLimits(), state_.view()->members(), ledger_, leases, state_.updates());

  // A new view is not progress: each checkpoint causes one.
  std::map<uint64_t, absl::Time> progressed;
  for (const auto& [worker, lease] : leases) {
    const auto known = progressed_.find(worker);
    progressed[worker] = known == progressed_.end() ? state_.now() : known->second;
  }
  progressed_ = std::move(progressed);
}

Arbiter::Limits Asynchronous::ArbiterLimits() const {
  const v1::TrainingSpec& training = state_.job().training();
  Arbiter::Limits limits;
  limits.total_samples = state_.TotalSamples();
  if (state_.last_position() != 0) {
    limits.total_samples = std::min(limits.total_samples, state_.last_position());
  }
  if (state_.barrier().version() != 0) limits.barrier = state_.barrier().version();
  limits.update_samples = training.global_batch_size();
  limits.together =
      state_.view()->proto().mode() == v1::BOUNDED_STALENESS && training.max_staleness() == 0;
  // The copies are staged, too.
  const uint64_t copies = state_.view()->proto().follower().empty() ? 1 : 2;
  limits.permits =
      std::max<uint64_t>(1, state_.options().max_staged_bytes /
                                std::max<uint64_t>(1, copies * state_.model()->total_bytes()));
  return limits;
}

void Asynchronous::FillPauseReply(v1::PauseReply* reply) const {
  for (const auto& [worker, record] : clocks_) *reply->add_clocks() = record;
  for (const auto& [worker, staged] : staged_) {
    SLUICE_DCHECK(state_.view()->MemberIndex(worker).has_value() || state_.failed(),
                  "updates are staged of members only");
    if (!IsWhole(staged)) continue;
    v1::StagedUpdate& entry = *reply->add_staged();
    entry.set_worker(worker);
    entry.set_clock(staged.clock);
  }

  for (const auto& [worker, lease] : arbiter_.leases()) {
    for (const Interval& rest : lease.Intervals()) {
      v1::LeaseRecord& entry = *reply->add_leases();
      entry.set_worker(worker);
      *entry.mutable_samples() = ToProto(rest);
      entry.set_clock(arbiter_.ClockOf(worker));
    }
  }

  ledger_.ToProtos(reply->mutable_ledger()->mutable_applied());
  reply->mutable_ledger()->set_updates(state_.updates());
}

void Asynchronous::FillRecords(PartitionContent* content) const {
  for (const auto& [worker, record] : clocks_) content->clocks.push_back(record);
}

std::vector<uint64_t> Asynchronous::Awaited() const {
  const absl::Duration limit = absl::Seconds(state_.job().timeouts().gradients());
  std::vector<uint64_t> awaited;
  if (limit <= absl::ZeroDuration() || !state_.MayChange() || !state_.view()->is_arbiter() ||
      state_.view()->proto().mode() != v1::ASYNCHRONOUS) {
    return awaited;
  }
  const std::vector<uint64_t> waiting = arbiter_.Waiting();  // for a permit that other workers hold
  for (const auto& [worker, since] : progressed_) {
    SLUICE_DCHECK(arbiter_.HoldsLease(worker), "progress is awaited of lease holders");
    if (state_.now() < since + limit) continue;
    if (std::find(waiting.begin(), waiting.end(), worker) == waiting.end()) {
      awaited.push_back(worker);
    }
  }
  return awaited;
}

bool Asynchronous::IsHeld() const {
  const uint64_t barrier = state_.barrier().version();
  return barrier != 0 && ledger_.Count() >= barrier;
}

// An update that the copies lack may be taken back.
void Asynchronous::FillProgress(v1::ShardProgress* progress) const {
  uint64_t samples = ledger_.Count();
  uint64_t closed = progress->closed();
  for (const auto& [worker, record] : clocks_) {
    if (!copies_.log().Awaits({CopyWait::kApplied, worker})) continue;
    samples -= FromProto(record.samples()).size();
    --closed;
  }
  progress->set_samples(samples);
  progress->set_closed(closed);
  if (state_.view()->is_arbiter()) progress->set_leaseholders(arbiter_.LeaseHolders().size());
  for (uint64_t worker : Awaited()) progress->add_awaited(worker);
}

}  // namespace sluice::ps

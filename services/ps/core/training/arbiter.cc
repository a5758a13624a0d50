#include "services/ps/core/training/arbiter.h"

#include <algorithm>

#include "services/common/check.h"

namespace sluice::ps {
void Arbiter::Reset(const Limits& limits, size_t members, const IntervalSet& applied,
                    const std::map<uint64_t, IntervalSet>& leases, uint64_t next_ordinal) {
  limits_ = limits;
  members_ = members;
  taken_ = applied;
  leases_ = leases;
  for (const auto& [worker, lease] : leases_) {
    SLUICE_DCHECK(!lease.empty(), "a recorded lease has samples left");
    taken_.Add(lease);
  }
  // Between views no update is in flight: the clock that a holder has reached here is applied on
  // all shards, or belongs to no update.
  clocks_at_lease_.clear();
  for (const auto& [worker, lease] : leases_) clocks_at_lease_[worker] = ClockOf(worker);
  waiting_for_lease_.clear();
  permits_.clear();
  repeated_permits_.clear();
  waiting_for_permit_.clear();
  next_ordinal_ = next_ordinal;
}

uint64_t Arbiter::ClockOf(uint64_t worker) const {
  const auto found = clocks_.find(worker);
  return found == clocks_.end() ? 0 : found->second;
}

uint64_t Arbiter::ClockAtLease(uint64_t worker) const {
  const auto found = clocks_at_lease_.find(worker);
  if (found == clocks_at_lease_.end()) return 0;
  SLUICE_DCHECK(found->second <= ClockOf(worker), "a worker's clock only rises");
  return found->second;
}

void Arbiter::Reached(uint64_t worker, uint64_t clock) {
  uint64_t& reached = clocks_[worker];
  reached = std::max(reached, clock);
}

// R13: the lowest clock of the lease holders, or the highest known clock if there are none.
uint64_t Arbiter::RaisedClock(uint64_t worker) const {
  if (!rules_->RaiseClocks()) return ClockOf(worker);
  std::optional<uint64_t> lowest;
  for (const auto& [holder, lease] : leases_) {
    lowest = std::min(lowest.value_or(ClockOf(holder)), ClockOf(holder));
  }
  if (!lowest.has_value()) {
    lowest = 0;
    for (const auto& [other, clock] : clocks_) lowest = std::max(*lowest, clock);
  }
  return std::max(*lowest, ClockOf(worker));
}

// As long as requested, but short enough that all members have work until near the end.
std::optional<Interval> Arbiter::Grant(uint64_t worker, uint64_t wished) {
  const uint64_t end = std::min(limits_.total_samples, limits_.barrier);
  const uint64_t left = end - std::min(end, taken_.Count());
  const uint64_t share = left / (2 * std::max<uint64_t>(1, members_));
  const uint64_t update = std::max<uint64_t>(1, limits_.update_samples);
  const uint64_t several = std::max(update, std::min(wished, share) / update * update);
  const uint64_t limit = limits_.together ? update : several;
  // No single sample is left over, unless each update is one: some models cannot compute it by
  // itself.
  const bool joined = update > 1 && taken_.FirstGap(0, end, limit + 2).size() == limit + 1;
  const Interval granted = taken_.FirstGap(0, end, joined ? limit + 1 : limit);
  if (granted.empty()) return std::nullopt;
  SLUICE_DCHECK(!taken_.Intersects(granted), "a sample is leased once");
  const uint64_t clock = RaisedClock(worker);
  taken_.Add(granted);
  leases_[worker].Add(granted);
  Reached(worker, clock);
  clocks_at_lease_[worker] = ClockOf(worker);
  return granted;
}

v1::Lease Arbiter::MakeLease(uint64_t worker, const Interval& samples) const {
  SLUICE_DCHECK(Covers(worker, samples), "R8: a lease is recorded before it is given");
  v1::Lease lease;
  *lease.mutable_samples() = ToProto(samples);
  lease.set_clock(ClockOf(worker));
  return lease;
}

v1::Lease Arbiter::RequestLease(uint64_t worker, uint64_t wished, uint64_t clock) {
  Reached(worker, clock);
  const auto recorded = leases_.find(worker);
  if (recorded != leases_.end() && rules_->RepeatLeases()) {
    SLUICE_DCHECK(!recorded->second.empty(), "a finished lease is erased");
    // A worker that requests a lease has no update in flight.
    clocks_at_lease_[worker] = ClockOf(worker);
    return MakeLease(worker, recorded->second.Intervals().front());
  }

  if (const std::optional<Interval> granted = Grant(worker, wished); granted.has_value()) {
    return MakeLease(worker, *granted);
  }

  v1::Lease none;
  none.set_clock(ClockOf(worker));
  none.set_done(IsDone());
  none.set_wait(!IsDone());
  if (none.wait() && std::find(waiting_for_lease_.begin(), waiting_for_lease_.end(), worker) ==
                         waiting_for_lease_.end()) {
    waiting_for_lease_.push_back(worker);
  }
  return none;
}

void Arbiter::Record(uint64_t worker, const Interval& samples, uint64_t clock) {
  taken_.Add(samples);
  leases_[worker].Add(samples);
  Reached(worker, clock);
  clocks_at_lease_[worker] = ClockOf(worker);
}

bool Arbiter::Covers(uint64_t worker, const Interval& samples) const {
  const auto lease = leases_.find(worker);
  return lease != leases_.end() && lease->second.ContainsAll(samples);
}

std::vector<uint64_t> Arbiter::LeaseHolders() const {
  std::vector<uint64_t> holders;
  for (const auto& [worker, lease] : leases_) holders.push_back(worker);
  return holders;
}

void Arbiter::RequestPermit(uint64_t worker, uint64_t clock, uint64_t base_version) {
  const auto given = permits_.find(worker);
  if (given != permits_.end() && given->second.clock() == clock) {
    repeated_permits_.push_back(worker);
    return;
  }
  for (PermitRequest& request : waiting_for_permit_) {
    if (request.worker != worker) continue;
    request = {worker, clock, base_version};
    return;
  }
  waiting_for_permit_.push_back({worker, clock, base_version});
}

void Arbiter::OnApplied(uint64_t worker, uint64_t clock, const Interval& samples) {
  Reached(worker, clock);
  const auto lease = leases_.find(worker);
  if (lease != leases_.end()) {
    lease->second.Remove(samples);
    if (lease->second.empty()) leases_.erase(lease);
  }
  const auto permit = permits_.find(worker);
  if (permit != permits_.end() && permit->second.clock() <= clock) permits_.erase(permit);
}

bool Arbiter::MayPull(uint64_t worker, uint64_t clock, uint64_t max_staleness) const {
  // Every member requests a lease unless it dies; then a view without it follows.
  if (limits_.together && leases_.size() + waiting_for_lease_.size() < members_) return false;
  return std::all_of(leases_.begin(), leases_.end(), [&](const auto& lease) {
    const uint64_t reached = ClockOf(lease.first);
    return lease.first == worker || clock <= reached || clock - reached <= max_staleness;
  });
}

std::vector<Arbiter::Answer> Arbiter::TakeAnswers() {
  std::vector<Answer> answers;
  for (uint64_t worker : repeated_permits_) {
    SLUICE_DCHECK(permits_.count(worker) > 0, "a permit that is sent again is still held");
    answers.push_back({worker, std::nullopt, permits_[worker]});
  }
  repeated_permits_.clear();

  // A worker that requests a permit has pulled. Where members compute together, no update is
  // applied before all members have pulled.
  const auto has_asked = [this](uint64_t worker) {
    return permits_.count(worker) > 0 ||
           std::any_of(waiting_for_permit_.begin(), waiting_for_permit_.end(),
                       [worker](const PermitRequest& waiting) { return waiting.worker == worker; });
  };
  const auto may_apply = [&](const PermitRequest& request) {
    return !limits_.together || std::all_of(leases_.begin(), leases_.end(), [&](const auto& lease) {
      return ClockOf(lease.first) >= request.clock || has_asked(lease.first);
    });
  };

  while (permits_.size() < std::max<size_t>(1, limits_.permits)) {
    const auto next =
        std::find_if(waiting_for_permit_.begin(), waiting_for_permit_.end(), may_apply);
    if (next == waiting_for_permit_.end()) break;
    const PermitRequest request = *next;
    waiting_for_permit_.erase(next);
    v1::Permit& permit = permits_[request.worker];
    permit.set_clock(request.clock);
    permit.set_ordinal(next_ordinal_++);
    permit.set_staleness(permit.ordinal() - std::min(permit.ordinal(), request.base_version));
    answers.push_back({request.worker, std::nullopt, permit});
  }
  SLUICE_DCHECK(permits_.size() <= std::max<size_t>(1, limits_.permits),
                "permits bound the memory of staged updates");

  // Samples are returned only by a new view, so a waiting worker is done.
  if (IsDone()) {
    for (uint64_t worker : waiting_for_lease_) {
      v1::Lease done;
      done.set_done(true);
      done.set_clock(ClockOf(worker));
      answers.push_back({worker, std::move(done), std::nullopt});
    }
    waiting_for_lease_.clear();
  }
  return answers;
}

std::vector<uint64_t> Arbiter::Waiting() const {
  std::vector<uint64_t> waiting(waiting_for_lease_.begin(), waiting_for_lease_.end());
  for (const PermitRequest& request : waiting_for_permit_) waiting.push_back(request.worker);
  return waiting;
}

}  // namespace sluice::ps

#ifndef SLUICE_SERVICES_PS_CORE_TRAINING_ARBITER_H_
#define SLUICE_SERVICES_PS_CORE_TRAINING_ARBITER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/interval_set.h"
#include "services/ps/core/base/rules.h"

namespace sluice::ps {

// The sequencer of asynchronous updates, on the shard that owns partition 0 (docs/protocol.md 8,
// R8, R13). It decides which worker computes which samples and which worker may stage an update,
// and records each worker's clock.
//
// Workers are named by incarnation. The caller checks membership and passes only members.
class Arbiter {
 public:
  struct Limits {
    uint64_t total_samples = 0;  // positions of the job's sample sequence
    // Positions from here on are leased only in a later view; a worker that requests one waits for
    // that view.
    uint64_t barrier = std::numeric_limits<uint64_t>::max();
    uint64_t update_samples = 1;  // per update
    size_t permits = 1;
    // Bounded staleness with a bound of 0: all members compute an update from the same version,
    // then the next.
    bool together = false;
  };

  explicit Arbiter(const ShardRules* rules) : rules_(rules) {}

  // Starts a new view: drops the permits and waiting requests of the old one.
  void Reset(const Limits& limits, size_t members, const IntervalSet& applied,
             const std::map<uint64_t, IntervalSet>& leases, uint64_t next_ordinal);

  // ---- leases

  // Returns the rest of the worker's recorded lease; else new samples, which are recorded before
  // the answer. If there are none, the worker waits (`wait`), or is done if no worker holds a
  // lease. A waiting worker is answered by TakeAnswers, or by a new view.
  v1::Lease RequestLease(uint64_t worker, uint64_t wished, uint64_t clock);
  // A lease that the arbiter is about to give, on a shard with a copy of partition 0.
  void Record(uint64_t worker, const Interval& samples, uint64_t clock);
  bool HoldsLease(uint64_t worker) const { return leases_.count(worker) > 0; }
  // Whether an update may cover these samples, that is, whether the worker has leased them.
  bool Covers(uint64_t worker, const Interval& samples) const;
  // Ascending.
  std::vector<uint64_t> LeaseHolders() const;
  const std::map<uint64_t, IntervalSet>& leases() const { return leases_; }

  // ---- permits

  // Null if the worker has no permit.
  const v1::Permit* PermitOf(uint64_t worker) const {
    const auto found = permits_.find(worker);
    return found == permits_.end() ? nullptr : &found->second;
  }
  void RequestPermit(uint64_t worker, uint64_t clock, uint64_t base_version);

  // ---- progress

  // The worker's update was applied: the lease shrinks, the permit is free.
  void OnApplied(uint64_t worker, uint64_t clock, const Interval& samples);
  // The worker has reached a clock, by an update or by being raised.
  void Reached(uint64_t worker, uint64_t clock);
  uint64_t ClockOf(uint64_t worker) const;
  // The clock with which a lease holder got its lease, or with which it entered the view.
  uint64_t ClockAtLease(uint64_t worker) const;
  // R13: whether a pull of `clock` may be answered without waiting for another lease holder. If
  // members compute together, it must not have to wait for a member that has not requested its
  // lease yet either.
  bool MayPull(uint64_t worker, uint64_t clock, uint64_t max_staleness) const;

  // The answer to a waiting request. Each request is answered once, in order of arrival.
  struct Answer {
    uint64_t worker = 0;
    std::optional<v1::Lease> lease;
    std::optional<v1::Permit> permit;
  };
  // Staleness is the number of updates that get their permit between the pull and this permit: each
  // of them is applied before this one, or at the same time.
  std::vector<Answer> TakeAnswers();
  std::vector<uint64_t> Waiting() const;

 private:
  struct PermitRequest {
    uint64_t worker = 0;
    uint64_t clock = 0;
    uint64_t base_version = 0;
  };

  bool IsDone() const { return leases_.empty() && limits_.barrier >= limits_.total_samples; }
  std::optional<Interval> Grant(uint64_t worker, uint64_t wished);
  uint64_t RaisedClock(uint64_t worker) const;
  v1::Lease MakeLease(uint64_t worker, const Interval& samples) const;

  const ShardRules* rules_;
  Limits limits_;
  size_t members_ = 0;
  IntervalSet taken_;                       // applied or leased
  std::map<uint64_t, IntervalSet> leases_;  // none is empty
  std::map<uint64_t, uint64_t> clocks_;     // highest reached; kept across views
  std::map<uint64_t, uint64_t> clocks_at_lease_;
  std::deque<uint64_t> waiting_for_lease_;
  std::map<uint64_t, v1::Permit> permits_;
  std::vector<uint64_t> repeated_permits_;
  std::deque<PermitRequest> waiting_for_permit_;
  uint64_t next_ordinal_ = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TRAINING_ARBITER_H_

// How busy the shards are, and what a byte costs on each of them.
//
// Intuition. The placement balances bytes, as if a byte cost the same everywhere. That is not true
// of a shard whose machine is slow or shared, or whose rows are used more than others. So the time
// in which each shard is busy is compared, per byte that it holds, with the other shards'. A shard
// that has had over twice the median load for a minute gets the cost that was measured, and the
// placement gives it less to hold. When the cost is normal again, it gets its part back.
//
// A hot partition takes its load to its new shard. Each change is followed by a quiet time, twice
// as long as the one before, so that partitions do not move back and forth.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_SHARD_LOAD_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_SHARD_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/time/time.h"

namespace sluice::coordinator {

class ShardLoad {
 public:
  static constexpr uint32_t kNormalCost = 100;
  static constexpr uint32_t kMaxCost = 800;
  static constexpr absl::Duration kInterval = absl::Seconds(5);
  static constexpr absl::Duration kWindow = absl::Minutes(1);
  static constexpr absl::Duration kFirstQuiet = absl::Minutes(1);
  static constexpr absl::Duration kLastQuiet = absl::Hours(1);

  struct Change {
    uint64_t shard = 0;
    double load = 0;    // over the window, as a multiple of the median
    uint32_t cost = 0;  // of a byte from now on; kNormalCost: it is not hot any more
  };

  // The shard (an incarnation) has been busy for this long since its start.
  void OnReport(uint64_t shard, double busy_seconds) { busy_[shard] = busy_seconds; }

  // Whether Measure is due: every kInterval.
  bool Due(absl::Time now) const;
  // The bytes that each shard of the view holds. Empty: they cannot move now, or copies are under
  // way, which make shards busy. Each change of them begins the measurement again. Returns the
  // costs that have changed.
  std::vector<Change> Measure(const std::map<uint64_t, uint64_t>& bytes, absl::Time now);

  // In percent of the normal cost.
  uint32_t CostOf(uint64_t shard) const;
  // Grows with each change.
  uint64_t changes() const { return changes_; }
  // The highest load as a multiple of the median, in the newest interval; 0: not known.
  double highest() const { return highest_; }
  // The shards with more than the normal cost.
  size_t cooled() const { return cost_.size(); }

 private:
  using ByShard = std::map<uint64_t, double>;
  struct Mark {
    absl::Time at;
    ByShard busy;
  };

  ByShard Between(const Mark& from, const Mark& to) const;
  bool Hot(uint64_t shard) const;
  void Set(uint64_t shard, uint32_t cost);

  ByShard busy_;  // as reported last
  std::map<uint64_t, uint64_t> bytes_;
  std::deque<Mark> marks_;             // the newest kWindow
  std::map<uint64_t, uint32_t> cost_;  // without normal ones
  uint64_t changes_ = 0;
  double highest_ = 0;
  absl::Duration quiet_ = kFirstQuiet;
  absl::Time quiet_until_ = absl::InfinitePast();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_SHARD_LOAD_H_

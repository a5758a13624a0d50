// The current view, and how far the shards have come in it.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_TRAINING_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_TRAINING_H_

#include <cstdint>
#include <map>
#include <set>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/view_change.h"

namespace sluice::coordinator {

class Training {
 public:
  // A shard's newest report in the current view.
  struct Shard {
    uint64_t closed = 0;  // asynchronous: updates applied
    uint64_t samples = 0;
    uint64_t leaseholders = 0;
    std::set<uint32_t> copies;  // partitions of which it holds a whole copy
  };

  // `attempt` and `change`, the attempt's, must outlive it.
  Training(const Attempt& attempt, const ViewChange& change, absl::Time now)
      : attempt_(&attempt), change_(&change), view_since_(now) {}

  // The attempt has its shards, and the version of its first state.
  void Begin();
  // An earlier coordinator has begun the attempt, and this is its newest view. Requires the replies
  // of all shards.
  void TakeOver(const v1::View& view, absl::Time now);

  // ---- the view

  // The newest view that was decided; empty before the attempt's first.
  const v1::View& view() const { return view_; }
  absl::Time view_since() const { return view_since_; }
  bool has_view() const { return change_->has_install(); }
  bool IsMember(uint64_t incarnation) const;

  const ViewChange& change() const { return *change_; }
  // No change of the view is under way.
  bool idle() const { return !change_->pausing() && !change_->installing(); }

  // The view is decided. Every shard begins at its first step, with this many samples applied.
  void OnView(const v1::Install& install, uint64_t samples, absl::Time now);

  // ---- reports

  // A report in the current view. Numbers never decrease. False: not a shard of the attempt.
  bool OnProgress(uint64_t shard, const v1::ShardProgress& progress);
  void RaiseClosed(uint64_t shard, uint64_t closed);
  void RaiseCommitted(uint64_t version);

  // The newest report of a shard of the attempt in the current view; before the first one, the
  // state in which the view begins.
  const Shard& shard(uint64_t incarnation) const;
  // The highest over all shards, including those that are gone.
  uint64_t skipped() const { return skipped_; }
  uint64_t dropped() const { return dropped_; }
  // Whether the shard holds a whole copy of the partition.
  bool HoldsCopy(uint64_t shard, uint32_t partition) const;
  // Grows when a copy becomes whole, and with each view.
  uint64_t copy_changes() const { return copy_changes_; }
  // Requires an attempt with shards.
  const Shard& arbiter() const { return shard(attempt_->arbiter()); }
  // Over the shards that have blocks. Before any report: the view's first step.
  uint64_t LowestClosed() const;
  uint64_t HighestClosed() const;
  // Synchronous: the highest version that is known to be committed.
  uint64_t committed() const { return committed_; }

 private:
  const Attempt* attempt_;
  const ViewChange* change_;
  v1::View view_;
  absl::Time view_since_;
  std::map<uint64_t, Shard> reports_;  // by shard
  uint64_t skipped_ = 0;
  uint64_t dropped_ = 0;
  uint64_t copy_changes_ = 0;
  uint64_t committed_ = 0;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_TRAINING_H_

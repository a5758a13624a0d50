// When versions are saved and evaluated, and what is pinned of the one snapshot that is open at a
// time.
//
// Intuition: a snapshot pins one version on all shards. Several purposes (a checkpoint, an
// evaluation, a reader that inspects the job) may share one snapshot. Steps that are known in
// advance are announced as early as possible, so that no shard is past them; a snapshot that is due
// by time gets the next step that all shards can still reach.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_SNAPSHOT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_SNAPSHOT_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"

namespace sluice::coordinator {

// "Every N steps or seconds."
class IntervalSchedule {
 public:
  // 0: not by steps; not by time.
  IntervalSchedule(uint64_t steps, absl::Duration time) : steps_(steps), time_(time) {}

  // The scheduled work was done (or the attempt began) at this step.
  void Done(uint64_t step, absl::Time now);
  // It is due as soon as possible, of this step or a later one, unless that was done.
  void MakeDue(uint64_t step);

  // The next due step, not below `earliest`; nullopt: no due step is known yet.
  std::optional<uint64_t> NextStep(uint64_t earliest, absl::Time now) const;
  // The lowest multiple of the interval that is not done and not below `from`; 0: not by steps.
  uint64_t NextMultiple(uint64_t from) const;
  // When it becomes due by time.
  absl::Time NextTime() const;

 private:
  uint64_t steps_;
  absl::Duration time_;
  uint64_t done_step_ = 0;
  absl::Time done_time_ = absl::InfiniteFuture();
  std::optional<uint64_t> due_step_;  // of MakeDue
};

struct SnapshotPlan {
  uint64_t step = 0;
  bool checkpoint = false;
  bool evaluation = false;
  bool only_if_best = false;  // the checkpoint is made for checkpoint.keepBest alone
};

// The next snapshot to announce, if any. `earliest`: the lowest step that no shard is past. Steps
// at or past `end` are saved and evaluated at the end of the job.
std::optional<SnapshotPlan> PlanSnapshot(const IntervalSchedule& checkpoints,
                                         const IntervalSchedule& evaluations, uint64_t earliest,
                                         uint64_t end, absl::Time now);

// An open snapshot: what it pins, and where. Snapshots writes it; what it is still needed for is
// known by Checkpoints, Evaluations and Readers.
struct Snapshot {
  uint64_t id = 0;
  uint64_t step = 0;  // the version that is pinned
  v1::CheckpointRef name;
  std::string directory;
  bool write = false;  // opened as a checkpoint
  bool final = false;  // opened after training had ended: of the version that the job ends with
  // Asynchronous: what the pinned version contains.
  v1::Ledger ledger;

  std::set<uint64_t> pinned;  // shards that reported it, or files of it
  bool reached = false;       // a shard that owns blocks has pinned it; other shards pin at once
  absl::Time lingers_since = absl::InfiniteFuture();  // reached, and not being evaluated

  bool PinnedBy(const std::vector<uint64_t>& shards) const;
  v1::OpenSnapshot Message() const;
};

// (R14) Whether the snapshot stays open over a view change of a synchronous job to first step m.
// Pins of versions above m are dropped by the shards; they pin again at the snapshot's step. An
// owner does not have the pins of the owner before it.
bool SurvivesViewChange(const Snapshot& snapshot, uint64_t first_step,
                        const std::vector<uint64_t>& shards, bool owners_change);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_SNAPSHOT_H_

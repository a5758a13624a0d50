// Which shards are in the next view, and where the partitions are in it.
//
// Intuition. A view is compared with the plan (placement.h) that follows from it, from the shards
// that are alive, stay or leave, and from the copies that are whole. Where they differ, a planned
// view change is due. Every view change, whatever its reason, installs the plan that follows from
// the shards' replies, so a change that begins at one plan and ends at another one is no special
// case.
//
// A new shard joins in two steps: it is sent the attempt's PrepareState and has nothing to load, so
// it is ready at once; the next view names it, without partitions. From then on it is part of the
// plan. A shard that leaves (it asked to, or the job wants fewer) is released when a view without
// it is installed.
//
// Where shards do not copy partitions (MovesPartitions in services/protocol/samples/job_length.h),
// the shards and owners of an attempt do not change.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_VIEWS_MOVES_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_VIEWS_MOVES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/decisions/view_decision.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {

class Moves {
 public:
  // All must outlive it.
  Moves(const Facts& facts, Output* output) : facts_(facts), output_(*output) {}

  // ---- new shards

  // Phase kRunning, with a view: prepares new shards, and notes that all copies are whole.
  void Advance(absl::Time now);
  // Not empty: why the shard cannot join.
  std::string OnStateReady(const Process& shard, const v1::StateReady& ready);

  // ---- view changes

  // The shards to pause: those of the newest view, and those that it has left out and that have not
  // installed it, which are alive; and the new ones that are ready.
  std::vector<uint64_t> Asked() const;
  // A shard of the newest view is not alive, or one that it has left out and that has not installed
  // it.
  bool HasDeadShard() const;
  // Whether the attempt can continue without the shards of the newest view that are not alive,
  // judged by the view alone.
  bool CanContinue() const;
  // Requires a view. Whether the plan has differed from it for timers.join. `may_move`: owners may
  // change.
  bool Due(bool may_move, absl::Time now);
  // Sets the shards, the owners and the copies of the view that follows from the decision, with the
  // shards that have replied and are alive.
  void Fill(const Decision& decision, const std::vector<uint64_t>& replied, bool may_move,
            v1::Install* install) const;

  // The shards that lose a partition or a whole copy by the Install, by their replies.
  std::set<uint64_t> Losers(const v1::Install& install) const;

  // The bytes that each shard of the newest view holds. Empty if partitions do not move in this
  // job, or if copies are under way.
  std::map<uint64_t, uint64_t> Holdings() const;

  // The view is installed everywhere: the shards to release.
  std::vector<uint64_t> Released() const;

  // ---- state

  void CopyTo(v1::JobProgress* progress) const;
  absl::Time NextDeadline() const;

 private:
  // The inputs of Due; the first one is the view's number.
  using Inputs =
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, bool>;

  bool MayJoin(const Process& shard) const;
  void Prepare(const Process& shard);
  void NoteCopies(absl::Time now);
  Inputs CurrentInputs(bool may_move) const;
  Decision FromReports() const;
  uint64_t copies() const;

  const Facts& facts_;
  Output& output_;
  struct New {
    StreamId prepared = 0;  // the stream on which it was sent PrepareState
    bool ready = false;
  };
  std::map<uint64_t, New> new_;  // by incarnation
  Inputs inputs_;                // of `differs_`
  bool differs_ = false;
  absl::Time due_at_ = absl::InfiniteFuture();
  uint64_t noted_ = 0;     // Training::copy_changes, as of `complete_`
  bool complete_ = false;  // all partitions have a second copy
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_VIEWS_MOVES_H_

// View changes: when one begins, its members, and what it installs.
//
// Intuition. After each event this part compares the current view with the processes that are
// alive: a member that is dead or leaves, a worker that could join, a division of the work that has
// become bad. It names the first reason that it finds, and does not remember it. The core then
// begins a Pause, asks the mode for the decision once all shards have replied, and installs it.
//
// It alone writes Facts::view_change, and it writes the view in Facts::training. It never expels a
// process: it says which members are to be expelled.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_VIEWS_VIEWS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_VIEWS_VIEWS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/decisions/view_decision.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/facts/training.h"
#include "services/coordinator/core/facts/view_change.h"

namespace sluice::coordinator {

class Views {
 public:
  // All must outlive it.
  Views(const Facts& facts, ViewChange* change, Training* training, Output* output)
      : facts_(facts), change_(*change), training_(*training), output_(*output) {}

  // ---- when

  // Why other parts of the core need a view change.
  struct Needs {
    bool leases_overdue = false;  // members are to be judged by the arbiter's records
    bool snapshot = false;        // asynchronous: opens a snapshot, or moves the barrier
    bool dead_shard = false;      // a shard of the view is gone
    bool move = false;            // shards or partitions move
  };
  struct Change {
    bool wanted = false;
    bool at_once = false;  // else: after a step, and only while no other change is under way
  };
  // Requires a view, and no pending Pause. While a change is under way, only dead_shard of `needs`
  // counts.
  Change Wanted(const Needs& needs, absl::Time now);
  // Requires a pending Pause. Whether a shard that was sent it is gone.
  bool LacksShard() const;
  // (R5) Requires a pending Pause. Whether its step can no longer be closed.
  bool IsStuck() const;
  // Pauses these shards.
  void BeginPause(uint64_t number, std::vector<uint64_t> shards, bool at_once, absl::Time now);

  // ---- once all shards have replied

  // The shard's reply does not count.
  void Drop(uint64_t shard) { change_.Drop(shard); }
  // The members that are to be expelled before the decision, because they hold leases and apply
  // nothing.
  std::vector<uint64_t> TakeIdleLeaseholders();
  Decision Decide() const;
  // No decision can be made.
  void GiveUpPause() { change_.GiveUp(); }
  // Without shards, owners and copies, snapshot and barrier.
  v1::Install MakeInstall(const Decision& decision) const;
  // The view is the current one from here on.
  void Adopt(const v1::Install& install, absl::Time now);
  // `losers`: the shards that get it first.
  void Send(v1::Install install, std::set<uint64_t> losers, absl::Time now);
  // To the other shards, once the losers have it.
  void SendToOthers(absl::Time now);

  // ---- messages

  void OnPauseReply(uint64_t shard, const v1::PauseReply& reply) { change_.OnReply(shard, reply); }
  // The shard has installed this view, or says that it has.
  void OnInstalled(uint64_t shard, const v1::ViewId& view) { change_.OnInstalled(shard, view); }
  // The current view, if there is one; with table and layout once for each stream.
  void SendView(const Process& worker);
  void OnDisconnected(StreamId stream) { knows_model_.erase(stream); }
  // Sends a shard again the Pause or the Install that it has not answered. False: there is none.
  bool ResendChange(const Process& shard);
  // Sends the shards Committed for the last version once all of them have closed it.
  void SendCommitted();
  void ResendCommitted(const Process& shard);

  absl::Time NextDeadline() const;
  // The time for which the coordinator itself was frozen does not count against any answer.
  void ExtendDeadlines(absl::Duration late) { change_.ExtendDeadlines(late); }

 private:
  std::vector<const Process*> NextMembers() const;
  bool HasDeadMember() const;
  bool HasLeavingMember() const;
  bool JoinDue(absl::Time now);
  bool RebalanceDue(absl::Time now);
  v1::View MakeView(const Decision& decision) const;
  // To the shards that may have the newest Install now. The shell sends it in order, so a
  // repetition has no effect.
  void SendInstall();
  // The job's last step, if its version has to be committed; unset: asynchronous.
  std::optional<uint64_t> StepToCommit() const;
  v1::CoordinatorMessage CommittedMessage() const;

  const Facts& facts_;
  ViewChange& change_;
  Training& training_;
  Output& output_;
  absl::flat_hash_set<StreamId> knows_model_;  // streams on which table and layout were sent
  bool judge_leases_ = false;                  // in the pending change
  absl::Time join_at_ = absl::InfiniteFuture();
  absl::Time unbalanced_since_ = absl::InfiniteFuture();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_VIEWS_VIEWS_H_

// The one snapshot that may be open, what it is for, and the barrier before the next one.
//
// Intuition. A snapshot pins one version on all shards, for a checkpoint, an evaluation, or
// readers. This part decides for which version the next snapshot is opened. A synchronous snapshot
// is announced to the shards before they reach its step; an asynchronous one begins with a view
// change. In modes in which all workers train from the same version, shards also wait at a version
// that is due for evaluation, the barrier, until the snapshot before it is closed.
//
// This class opens and closes the snapshot, and writes what is pinned of it. Checkpoints,
// Evaluations and Readers, which it owns, do the work on it; each knows whether it still needs it.
// They outlive attempts: numbers of snapshots are not used twice, and a checkpoint for which a
// program has asked stays due through a restoration.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_SNAPSHOTS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_SNAPSHOTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/decisions/view_decision.h"
#include "services/coordinator/core/evaluation/evaluations.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/facts/snapshot.h"
#include "services/coordinator/core/snapshots/checkpoints.h"
#include "services/coordinator/core/snapshots/readers.h"

namespace sluice::coordinator {

class Snapshots {
 public:
  // All must outlive it.
  Snapshots(const Facts& facts, std::optional<v1::Evaluation>* last_evaluation,
            v1::EvaluationDecisions* decisions, Output* output)
      : facts_(facts),
        output_(*output),
        readers_(facts, snapshot_, output),
        evaluations_(facts, snapshot_, last_evaluation, decisions, output),
        checkpoints_(facts, snapshot_, evaluations_, output) {}

  Readers& readers() { return readers_; }
  const Readers& readers() const { return readers_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  const Checkpoints& checkpoints() const { return checkpoints_; }
  Evaluations& evaluations() { return evaluations_; }
  const Evaluations& evaluations() const { return evaluations_; }
  const std::optional<Snapshot>& current() const { return snapshot_; }

  // The attempt is over: readers learn why.
  void LeaveAttempt(const absl::Status& why);
  // The job is over.
  void GiveUp(const absl::Status& why);

  // ---- phase kRunning, after each event

  // Serves the open snapshot. True: it was closed, because it has served all its purposes.
  bool Serve(absl::Time now);
  // Synchronous: opens the snapshot that is due, and moves the barrier.
  void Plan(absl::Time now);
  // Asynchronous: a view change is needed, to open a snapshot, to move the barrier, or to change
  // the learning rate.
  bool NeedsView(absl::Time now) const;
  // The snapshot still missing before the job can end with its current version.
  SnapshotPlan Missing() const;

  // Synchronous: whether partitions may get other owners without losing pins: now, or in a view
  // with this first step.
  bool AllowsOwnerChange() const;
  bool AllowsOwnerChangeAt(uint64_t first_step) const;

  // ---- a view change, in this order

  // (R14) Puts the open snapshot into the Install, or abandons it; an asynchronous one is opened.
  void OnDecision(const Decision& decision, v1::Install* install, absl::Time now);
  // The attempt's first view is the current one: the schedules begin with it.
  void OnFirstView(absl::Time now);
  // Sets the barrier and the decisions. All shards are at the first step, so any version from here
  // on can be held exactly.
  void SetBarrier(v1::Install* install, absl::Time now);

  // ---- reports of shards

  // Whether a report is about the open snapshot. Each coordinator numbers snapshots from 1; names
  // are unique. The reports below have no effect if they are not about it.
  bool IsOpen(uint64_t snapshot, const v1::CheckpointRef& name) const;
  bool IsOutdated(const v1::ViewId& view) const;
  void OnPinned(const Process& shard, const v1::SnapshotPinned& pinned);
  void OnWritten(const Process& shard, const v1::SnapshotWritten& written, absl::Time now);
  void OnFailed(const Process& shard, const v1::SnapshotFailed& failed, absl::Time now);
  // To a shard that has the current view.
  void ResendTo(const Process& shard);

  absl::Time NextDeadline() const;

 private:
  // Whether the open snapshot is still to be saved or evaluated.
  bool InUseByJob() const { return checkpoints_.saving() || evaluations_.pending(); }
  bool InUse() const { return InUseByJob() || readers_.holding(); }
  bool ForReadersOnly() const;
  bool Lingers(absl::Time now) const;
  std::optional<SnapshotPlan> PlanNow(absl::Time now) const;
  uint64_t EarliestStep(absl::Time now) const;
  uint64_t ReaderLead(absl::Time now) const;
  bool MakesRoomFor(const SnapshotPlan& plan, absl::Time now) const;
  bool AsynchronousDue(absl::Time now) const;
  uint64_t NextBarrier(uint64_t from, absl::Time now) const;
  void MoveBarrier(absl::Time now);
  void OpenNew(const SnapshotPlan& plan, uint64_t step);
  void OpenSynchronous(absl::Time now);
  void Close();
  // Abandons the open snapshot; its purposes become due again.
  void Abandon();
  v1::CoordinatorMessage OpenMessage() const;
  v1::CoordinatorMessage BarrierMessage() const;

  const Facts& facts_;
  Output& output_;
  std::optional<Snapshot> snapshot_;
  Readers readers_;
  Evaluations evaluations_;
  Checkpoints checkpoints_;
  uint64_t last_id_ = 0;
  uint64_t lead_ = 1;            // in steps; grows while shards report that they are past the step
  uint64_t barrier_ = 0;         // last sent to shards: Barrier, or Install.barrier as a step
  double installed_factor_ = 1;  // LearningRateFactor of the newest Install
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_SNAPSHOTS_H_

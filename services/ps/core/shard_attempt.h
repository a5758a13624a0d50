#ifndef SLUICE_SERVICES_PS_CORE_SHARD_ATTEMPT_H_
#define SLUICE_SERVICES_PS_CORE_SHARD_ATTEMPT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/membership/initialization.h"
#include "services/ps/core/membership/registration.h"
#include "services/ps/core/membership/views.h"
#include "services/ps/core/progress_report.h"
#include "services/ps/core/replication/replica.h"
#include "services/ps/core/replication/sender.h"
#include "services/ps/core/serving/data_sender.h"
#include "services/ps/core/serving/snapshots.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/installed_view.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/state/shard_state.h"
#include "services/ps/core/state/training_barrier.h"
#include "services/ps/core/training/asynchronous.h"
#include "services/ps/core/training/synchronous.h"

namespace sluice::ps {

// All that a shard has of one attempt of the job; before the attempt's first view, of one request
// to initialize it. A shard leaves an attempt by destroying this object, so nothing of it can be
// left over in the next one.
//
// Implements view changes, and decides which part handles a frame of the view, and whether it may
// do so now; the parts implement training within a view. Single-threaded, like the core.
class ShardAttempt {
 public:
  // The arguments outlive attempts. `state` is attached to this object's facts.
  ShardAttempt(ShardState* state, Outbox* out, StreamTable* streams,
               const Registration* registration);
  ShardAttempt(const ShardAttempt&) = delete;
  ShardAttempt& operator=(const ShardAttempt&) = delete;

  // Null before the PrepareState.
  const v1::InitId* init_id() const {
    return initialization_.has_init_id() ? &initialization_.init_id() : nullptr;
  }

  // ---- the coordinator's messages. The caller has checked attempt and term (Authority).

  // The first one, or a repetition.
  void OnPrepareState(const v1::PrepareState& prepare);
  void OnPause(const v1::Pause& pause) { views_.OnPause(pause); }
  // True: the view is installed, so frames that waited may be ready.
  bool OnInstall(const v1::Install& install);
  void OnCommitted(const v1::Committed& committed);
  void OnBarrier(const v1::Barrier& barrier);
  // Ignored before the attempt's first view. A repeated request is answered again.
  void OnOpenSnapshot(const v1::OpenSnapshot& request);
  void OnCloseSnapshot(uint64_t snapshot) { snapshots_.Close(snapshot); }
  // The coordinator has registered the shard: repeats what the previous connection may have lost.
  void ReportAgain();

  // ---- frames, in the order of their streams.

  // An error ends the stream; the frame has then changed nothing.
  absl::StatusOr<Handled> HandleFrame(Stream& stream, const v1::Header& header,
                                      const absl::Cord& payload);
  // The stream to another shard is new: sends again what the previous one may have lost.
  void OnShardConnected(uint64_t incarnation);

  // ---- files and copies, as of the core.
  void OnPartitionLoaded(const v1::InitId& init_id, uint32_t partition,
                         absl::StatusOr<absl::Cord> file) {
    initialization_.OnLoaded(init_id, partition, std::move(file));
  }
  void OnPartitionWritten(uint64_t snapshot, const v1::CheckpointRef& checkpoint,
                          uint32_t partition, absl::StatusOr<v1::PartitionFile> written) {
    snapshots_.OnWritten(snapshot, checkpoint, partition, std::move(written));
  }
  void OnCopyRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read) {
    replica_.OnRead(transfer, std::move(read));
  }

  // ---- time
  void OnTick();
  // A heartbeat is due: reports the members that a step waits for.
  void OnHeartbeat();
  // The shard did not run for this long.
  void ExtendDeadlines(absl::Duration late) { synchronous_.ExtendDeadlines(late); }
  // The earliest time at which OnTick has something to do.
  absl::Time NextDeadline() const;
  ProgressReport& progress() { return progress_; }

  // ---- state

  // Updates that are staged and not yet applied (asynchronous).
  size_t staged() const { return asynchronous_.staged(); }
  size_t open_snapshots() const { return snapshots_.size(); }
  // Bytes that wait for the state of their copy (max_copy_queue_bytes).
  uint64_t queued_bytes() const { return replica_.queued_bytes(); }
  // The current content (asynchronous: with the shard's clocks); null if the shard does not hold
  // it.
  std::shared_ptr<const PartitionContent> Content(const PartitionMap& held,
                                                  uint32_t partition) const;

 private:
  // The facts of this attempt, for ShardState::Attach.
  ShardState::AttemptFacts Facts() const;

  // ---- views
  // Takes the loaded partitions at the attempt's first view, and then what the view gives to this
  // shard. Returns an error text if the shard does not hold that.
  std::optional<std::string> AdoptPartitions(const InstalledView& view, const v1::Install& install);
  // Makes whole copies partitions of this shard, and the other way round, as the next view says,
  // and drops what it does not give to this shard. Returns an error text, with nothing changed, if
  // the shard does not hold what the view gives to it.
  std::optional<std::string> Adopt(const InstalledView& next, const v1::Install& install);
  // Brings all partitions to the view's first step; a partition one past it returns by its undo.
  // False: one cannot, and the job has failed.
  bool RollBackTo(uint64_t first_step);
  bool RollBack(Partition& partition, uint64_t first_step);
  // Drops the references of workers that are no longer members.
  void RetainReferences();
  // Begins training in the installed view. False: the job has failed.
  bool BeginTraining(const v1::Install& install);
  // Streams whose requests waited in the view before; drops the requests.
  std::vector<StreamId> DropParked();
  // Whether a message is for training in the installed view, which is synchronous.
  bool IsOfSynchronousView(const v1::ViewId& view) const;

  // ---- frames
  // Copies of states and steps, and what the shards of the view exchange for a step.
  absl::StatusOr<Handled> OnShardFrame(const Stream& stream, const v1::Header& header,
                                       const absl::Cord& payload);
  // Frames of the view's workers. During a promise all but pulls wait.
  absl::StatusOr<Handled> OnMemberFrame(Stream& stream, const v1::Header& header,
                                        const absl::Cord& payload);
  // Readers may only pull pinned versions.
  absl::StatusOr<Handled> OnReaderFrame(Stream& stream, const v1::Header& header);

  // ---- what the parts report

  // A partition has reached its next version: snapshots, progress and a waiting Pause look at it.
  void OnClosed(Partition& partition);
  void OnVersionCommitted();
  // A copy has become whole or was dropped.
  void OnCopyChanged();

  const ShardState& state_;
  StreamTable& streams_;

  TrainingBarrier barrier_;
  JobFailure failure_;
  PartitionMap partitions_;
  PartitionMap copies_;

  DataSender sender_;
  Initialization initialization_;
  Views views_;
  Snapshots snapshots_;
  CopySender copy_sender_;
  Replica replica_;
  Synchronous synchronous_;
  Asynchronous asynchronous_;
  ProgressReport progress_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SHARD_ATTEMPT_H_

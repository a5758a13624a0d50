// The shard's protocol as a state machine: events and the time in, actions out.
//
// Intuition. A shard owns partitions of the job's state. Workers push contributions on their
// streams. When all members of a partition are complete, it closes its step: it writes the next
// version and answers the pulls that wait for it (docs/protocol.md 7). In asynchronous training an
// update is staged and applied whole (8). The coordinator changes the view by Pause and Install
// (5). The core makes all decisions; the shell around it (gRPC, threads, files) only carries them
// out.
//
//   stream ──frames──> StreamTable ──in order, of this view──> Initialization | Synchronous |
//   Asynchronous
//                                                                  │            │
//   coordinator ──> Pause/Install, init requests, snapshots ──> Partition (blocks, undo,
//   accumulators, pins)
//
// Threads: none; the core is for one thread. The shell serialises all calls. Each returns when the
// event has been handled, which for the last push of a large step includes the arithmetic of the
// close (run through the ParallelRunner). Payloads are Cords and keep their memory alive
// themselves.
//
// Actions: an event only appends actions. The shell reads them (TakeActions) after each event, and
// carries them out before the next one, in order.
//
// The core itself is a dispatcher. What it has of an attempt of the job is one object
// (ShardAttempt), which it destroys to leave the attempt; streams and registration outlive
// attempts. The parts know of each other what ShardState lets them read: each fact has one writer.
//
// Peers are not trusted: a frame that violates the protocol changes nothing and ends its stream
// with a status that says what was wrong. Every queue has a bound (ShardOptions).
#ifndef SLUICE_SERVICES_PS_CORE_SHARD_CORE_H_
#define SLUICE_SERVICES_PS_CORE_SHARD_CORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/base/options.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/base/parallel.h"
#include "services/ps/core/base/rules.h"
#include "services/ps/core/membership/authority.h"
#include "services/ps/core/membership/registration.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/shard_attempt.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// For metrics, health checks, tests and the simulator.
struct ShardStatus {
  bool has_view = false;
  v1::ViewId view;
  bool frozen = false;  // between a PauseReply and its Install
  uint64_t lowest = 0;  // lowest version over the owned partitions
  uint64_t highest = 0;
  uint64_t committed = 0;
  uint64_t steps_skipped = 0;
  uint64_t dropped_contributions = 0;  // owner of partition 0
  uint64_t updates_applied = 0;        // asynchronous
  size_t streams = 0;
  size_t waiting_frames = 0;
  uint64_t waiting_bytes = 0;
  size_t parked_pulls = 0;
  size_t staged_updates = 0;
  size_t open_snapshots = 0;
  size_t copies = 0;            // whole copies of other shards' partitions
  uint64_t copied_bytes = 0;    // received as copies, since the start
  size_t blocks_allocated = 0;  // from the system, since the start
  size_t repeated_blocks = 0;   // ignored (R9)
  BoundUses bounds;             // max_received_bytes is filled in by the shell
};

class ShardCore {
 public:
  // `rules` and `parallel` must outlive the core; null: all rules, the calling thread.
  explicit ShardCore(ShardOptions options, ParallelRunner* parallel = nullptr,
                     const ShardRules* rules = nullptr);

  ShardCore(const ShardCore&) = delete;
  ShardCore& operator=(const ShardCore&) = delete;

  // ---- the coordinator's stream. Registers on every connection; requests of the coordinator are
  // answered on the newest one.
  void OnCoordinatorConnected(absl::Time now);
  void OnCoordinatorDisconnected(absl::Time now);
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now);

  // Asks the coordinator for permission to leave, which it gives once it no longer needs the
  // shard's state: other shards have its partitions, or a checkpoint has been saved. The shard
  // exits then, or when `grace` is over. Without a connection, a shard that has a view waits some
  // seconds for a coordinator, and any other shard exits at once. Further calls have no effect.
  void OnAskedToStop(std::string reason, absl::Duration grace, absl::Time now);

  // ---- accepted data streams, of workers, readers and other shards. An id that is unknown, or was
  // closed by an action, is ignored. A Hello is answered once the coordinator has admitted its
  // process (Admitted) or, for a shard, once the view or the PrepareState names it.
  void OnConnected(StreamId stream, absl::Time now);
  void OnFrame(StreamId stream, const v1::Header& header, const absl::Cord& payload,
               absl::Time now);
  void OnDisconnected(StreamId stream, absl::Time now);

  // ---- our own streams to other shards. MakeHello returns the first frame of such a stream.
  // OnShardConnected reports that the peer has answered it (HelloReply); the core then sends the
  // messages again that may have been lost.
  v1::Header MakeHello(const v1::ProcessId& shard) const;
  void OnShardConnected(uint64_t incarnation, absl::Time now);
  // Whether the view names this shard: if not, a stream to it is not needed any more.
  bool HasShard(uint64_t incarnation) const;

  // ---- files.
  void OnPartitionLoaded(const v1::InitId& init_id, uint32_t partition,
                         absl::StatusOr<absl::Cord> file, absl::Time now);
  // `snapshot` and the checkpoint are those of the WritePartition.
  void OnPartitionWritten(uint64_t snapshot, const v1::CheckpointRef& checkpoint,
                          uint32_t partition, absl::StatusOr<v1::PartitionFile> written,
                          absl::Time now);

  // ---- copies. The result of the ReadCopy with this number.
  void OnCopyRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read,
                  absl::Time now);

  // ---- time. Call OnTick at NextDeadline() or soon after; earlier or more frequent calls are
  // harmless.
  void OnTick(absl::Time now);
  absl::Time NextDeadline() const;

  // The actions requested since the last call, in order. After Exit, which is the last one, events
  // have no effect.
  std::vector<ShardAction> TakeActions();

  ShardStatus Status() const;

  // The current content of an owned partition (asynchronous: with the shard's clocks), for tests
  // and the simulator's invariants; null if the shard does not hold the partition.
  std::shared_ptr<const PartitionContent> Content(uint32_t partition) const;
  // The same of a whole copy that the shard holds for another one.
  std::shared_ptr<const PartitionContent> CopyContent(uint32_t partition) const;

 private:
  // Begins an event, and sets its time. False: the shard has exited.
  bool Begin(absl::Time now);

  // ---- messages of the coordinator
  void Dispatch(const v1::CoordinatorMessage& message);
  void OnRegistered(const v1::Registered& message);
  void OnPrepareState(const v1::PrepareState& prepare);
  void OnPause(const v1::Pause& pause);
  void OnInstall(const v1::Install& install);
  void OnFinish(const v1::Finish& finish);

  // ---- frames
  // False: the stream's next frame is not ready.
  bool Handle(const ReadyFrame& frame);
  // Frames that waited may be ready: the view, or who is admitted, has changed.
  void HandleWaiting();

  Outbox out_;
  ShardState state_;
  StreamTable streams_;
  Registration registration_;
  Authority authority_;
  std::optional<ShardAttempt> attempt_;  // always set
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SHARD_CORE_H_

// The shard's protocol as a state machine: events and the time in, actions out.
//
// Intuition. A shard owns partitions of the job's state. Workers push contributions on their
// streams; a partition whose set of members is complete closes its step, that is, it writes the
// next version beside the present one and answers the pulls that wait for it (docs/protocol.md 7),
// or an asynchronous update is staged and applied whole (8). The coordinator changes the view by
// Pause and Install (5). Everything is decided here; the shell around it (gRPC, threads, files)
// only carries.
//
//   stream ──frames──> StreamTable ──in order, of this view──> Birth | Synchronous | Asynchronous
//                                                                  │            │
//   coordinator ──> Pause/Install, asks, cuts ──> Partition (blocks, undo, accumulators, pins)
//
// Threads: none. The shell serialises all calls; each returns when the event has been dealt with,
// which for the last push of a large step includes the arithmetic of the close (run through the
// ParallelRunner). The payloads that come and go are Cords and keep their memory alive themselves.
//
// Peers are not trusted: a frame that breaks the contract ends its stream with a status that says
// what was wrong, and changes nothing. Every queue has a bound (ShardOptions).
#ifndef SLUICE_SERVICES_PS_SHARD_CORE_H_
#define SLUICE_SERVICES_PS_SHARD_CORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/bounds.h"
#include "services/ps/parallel.h"
#include "services/ps/shard_action.h"
#include "services/ps/shard_options.h"
#include "services/ps/shard_rules.h"

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
  size_t open_cuts = 0;
  size_t blocks_allocated = 0;  // from the system, ever
  size_t repeated_blocks = 0;   // ignored (R9)
  BoundUses bounds;             // max_received_bytes is the shell's
};

class ShardCore {
 public:
  // `rules` and `parallel` must outlive the core; null: all rules, the calling thread.
  explicit ShardCore(ShardOptions options, ParallelRunner* parallel = nullptr,
                     const ShardRules* rules = nullptr);
  ~ShardCore();

  ShardCore(const ShardCore&) = delete;
  ShardCore& operator=(const ShardCore&) = delete;

  // ---- the coordinator's stream. Registers on every connection; what it asked is answered on the
  // newest one.
  void OnCoordinatorConnected(absl::Time now);
  void OnCoordinatorLost(absl::Time now);
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now);

  // Asks to be let go: the coordinator saves a checkpoint first, which the job goes on from. Ends
  // with kExitFinished then, or when `grace` is over. At once where there is no coordinator.
  // Further calls have no effect.
  void OnLeave(std::string reason, absl::Duration grace, absl::Time now);

  // ---- accepted data streams, of workers, readers and other shards. An id that is unknown, or was
  // closed by an action, is ignored. A Hello is answered once the coordinator has admitted its
  // process (Admitted), or the view or the Prepare names it, if it is a shard.
  void OnStreamOpened(StreamId stream, absl::Time now);
  void OnFrame(StreamId stream, const v1::Header& header, const absl::Cord& payload,
               absl::Time now);
  void OnStreamClosed(StreamId stream, absl::Time now);

  // ---- our own streams to other shards. The first frame for a SendToShard; and the event that the
  // peer has answered it (HelloReply), upon which what may have been lost is sent again.
  v1::Header MakeHello(const v1::ProcessId& shard) const;
  void OnShardConnected(uint64_t incarnation, absl::Time now);

  // ---- files.
  void OnPartitionLoaded(const v1::AskId& ask, uint32_t partition, absl::StatusOr<absl::Cord> file,
                         absl::Time now);
  // With the cut and the checkpoint of the WritePartition that is answered.
  void OnPartitionWritten(uint64_t cut, const v1::CheckpointRef& checkpoint, uint32_t partition,
                          absl::StatusOr<v1::PartitionFile> written, absl::Time now);

  // ---- time. To be called at NextTick() or soon after; earlier and more often does no harm.
  void OnTick(absl::Time now);
  absl::Time NextTick() const;

  // What is to be done since the last call, in order.
  std::vector<ShardAction> TakeActions();

  ShardStatus status() const;

  // The content of an owned partition as it is now (asynchronous: with the shard's clocks), for
  // tests and the simulator's invariants; null if it holds none.
  std::shared_ptr<const PartitionContent> Content(uint32_t partition) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_CORE_H_

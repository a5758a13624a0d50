#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_REPLICA_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_REPLICA_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/replication/gradients.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The copies of partitions that this shard holds for other shards (docs/protocol.md 7.13, 8.7).
//
//   the state:  nothing ──CopyState──> receiving ──(all parts, read, all queued updates)──> whole
//   an update:  CopyEntry ──(all parts)──> queue ──(whole copy: at once; else one a tick)──>
//   applied
//                  └── asynchronous: staged until the owner has applied it
//
// Whole copies are in ShardState::copies(). A whole copy is at its owner's version or one past it
// (asynchronous: it has staged the updates that its owner may have applied), so a view change can
// make this shard the owner. A copy that is not whole counts for nothing, and the next Install
// drops it.
//
// An owner's entries are carried out in order, and the ack of one acks all before it.
class Replica {
 public:
  struct Events {
    // A copy has become whole, or a step of a whole copy has closed.
    std::function<void()> changed;
    // The arbiter has recorded a lease.
    std::function<void(uint64_t worker, const v1::Lease& lease)> leased;
  };
  // All must outlive it. It alone changes `copies` between Installs.
  Replica(const ShardState* state, Outbox* out, JobFailure* failure, PartitionMap* copies,
          StreamTable* streams, Events events)
      : state_(*state),
        out_(*out),
        failure_(*failure),
        copies_(*copies),
        streams_(*streams),
        events_(std::move(events)) {}

  // Frames of another shard of the view. An error ends the stream. While this shard keeps a promise
  // (R2), it drops an entry that would change a whole copy, and all entries behind it: the next
  // view begins without them.
  absl::Status OnState(uint64_t sender, const v1::CopyState& state, const absl::Cord& payload);
  absl::Status OnEntry(uint64_t sender, const v1::CopyEntry& entry, const absl::Cord& payload);
  // The result of a ReadCopy; without effect if another view was installed since.
  void OnRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read);
  // The stream to this shard is open (again): acks may have been lost.
  void OnShardConnected(uint64_t incarnation);

  // Synchronous: closes the steps that waited for decisions (ShardState::AwaitsDecisions).
  void OnBarrierMoved();

  // Asynchronous, before the view of the Install: applies the updates that it keeps to the whole
  // copies. A copy that lacks one is dropped.
  void Settle(const v1::Install& install);
  // The view is installed: drops the copies that are not whole.
  void OnInstalled() { of_view_ = {}; }
  // Asynchronous, after OnInstalled. `clocks`: applied to everything that this shard holds.
  void OnUpdatesInstalled(const std::map<uint64_t, v1::ClockRecord>& clocks);

  // Applies one update to a copy whose state was read: the owners' updates do not wait for all of
  // them. Sends the acks that were held back, if no copy becomes whole any more before the next
  // view.
  void OnTick();
  absl::Time NextDeadline() const;

  void FillPauseReply(v1::PauseReply* reply) const;
  // Bytes of updates that wait for the state of their copy, or for decisions.
  uint64_t queued_bytes() const { return of_view_.queued_bytes; }

 private:
  // A copy that is not whole.
  struct Receiving {
    uint64_t version = 0;
    v1::PartitionFile file;
    std::vector<absl::Cord> parts;
    size_t missing = 0;
    uint64_t transfer = 0;  // of its ReadCopy
    // Once the state is read.
    std::shared_ptr<PartitionContent> content;
    std::unique_ptr<Partition> copy;
  };
  using WorkerAndPartition = std::pair<uint64_t, uint32_t>;

  // ---- entries
  bool IsOwner(uint64_t shard, uint32_t partition) const;
  bool MayDiscard(const v1::CopyEntry& entry) const;
  absl::Status CarryOut(uint64_t sender, const v1::CopyEntry& entry, const absl::Cord& payload);
  absl::Status Collect(const v1::CopyEntry& entry, const absl::Cord& payload);
  absl::Status CheckFollows(const v1::CopyEntry::Gradients& step) const;
  absl::Status OnApplied(uint64_t sender, const v1::CopyEntry& entry);

  // ---- acks
  bool QueueIsFull() const;
  bool AwaitsDecisions(uint64_t owner) const;
  bool MustAckHeldBack() const;
  void Ack(uint64_t owner);
  void AckHeldBack();
  void SendWhole(uint32_t partition);

  // ---- updates
  void Enqueue(uint32_t partition, CopiedUpdate update);
  const std::deque<CopiedUpdate>* QueueOf(uint32_t partition) const;
  // Whether the copy's next update has come, and may be applied.
  bool IsDue(const Partition& copy) const;
  void ApplyDue(Partition* copy);
  bool ApplyNext(Partition* copy);
  void Close(Partition* copy, CopiedUpdate* step);
  void Apply(Partition* copy, CopiedUpdate* update);
  void Note(const v1::ClockRecord& record);
  uint64_t AppliedClock(uint32_t partition, uint64_t worker) const;
  bool Settle(const v1::ClockRecord& winner, Partition* copy);

  // ---- states
  void Read(Receiving* receiving);
  // A partition whose state was read and may be worked on.
  std::optional<uint32_t> FindDue() const;
  absl::Status CatchUp(uint32_t partition, Receiving* receiving);
  void AdoptClocks(uint32_t partition, const PartitionContent& content);
  void BecomeWhole(uint32_t partition);
  // The owner sends the state again on its next stream.
  void Drop(uint32_t partition, absl::Status why);

  const ShardState& state_;
  Outbox& out_;
  JobFailure& failure_;
  PartitionMap& copies_;
  StreamTable& streams_;
  const Events events_;
  // What belongs to one view.
  struct OfView {
    std::map<uint64_t, uint64_t> carried_out;  // by owner: sequence of its newest entry
    std::set<uint64_t> held_back;              // owners: their newest acks
    // Updates whose parts arrive, or that are staged. Synchronous: of worker 0.
    std::map<WorkerAndPartition, CopiedUpdate> collected;
    std::map<uint32_t, std::deque<CopiedUpdate>> queued;  // by partition
    uint64_t queued_bytes = 0;
    std::map<uint32_t, Receiving> receiving;  // by partition
    // Asynchronous.
    std::map<uint64_t, uint64_t> base;  // by worker: applied when the view began
    std::map<uint32_t, std::map<uint64_t, uint64_t>> clocks;  // by copy and worker, beyond `base`
    std::map<uint64_t, v1::ClockRecord> copied;               // by worker: the newest, of any copy
  };
  OfView of_view_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_REPLICA_H_

#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_SENDER_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/replication/copy_step.h"
#include "services/ps/core/replication/log.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Sends the owner's partitions to the shards that the view names as their follower or target
// (docs/protocol.md 7.13).
//
// Each of these shards receives the states of a few partitions at a time, each at a committed
// version, at the pace that the job allows. From the beginning of its transfer on, a partition
// closes a step only when the shard has acked the step's gradients. So a copy misses no step, and a
// whole copy is never behind its owner.
//
// Asynchronous: the state is the current one, with the clocks that are applied to it, and the log
// carries what follows.
class CopySender {
 public:
  struct Events {
    // All copies of the partition hold the step that was sent last, so it may close.
    std::function<void(uint32_t partition)> held;
    // Asynchronous: a transfer begins. What this shard has staged goes to the log first. Adds the
    // clocks to the partition's state.
    std::function<void(uint64_t receiver, PartitionContent*)> begins;
  };
  // Both must outlive it.
  CopySender(const ShardState* state, Outbox* out, Events events)
      : state_(*state), out_(*out), events_(std::move(events)), log_(state, out) {}

  // Whether a step of the partition has to be sent before it closes.
  bool HasCopies(uint32_t partition) const { return !ReceiversOf(partition).empty(); }
  // The shards that are sent what happens to the partition.
  std::set<uint64_t> ReceiversOf(uint32_t partition) const;
  bool HasReceivers() const { return !receivers_.empty(); }
  CopyLog& log() { return log_; }
  // The partition's contributions are complete and settled: sends them to its copies. `held` is
  // called later, unless an Install comes before.
  void SendStep(const Partition& partition, const StepClose& close);
  // A step of the partition waits for the acks of its copies.
  bool Waits(uint32_t partition) const { return steps_.count(partition) > 0; }
  absl::Status OnAck(uint64_t sender, const v1::CopyAck& ack);
  // The stream to this shard is open (again): sends what it has not acked.
  void OnShardConnected(uint64_t incarnation);

  // The view is installed, all partitions are at its first step.
  void OnInstalled(const v1::Install& install);
  // Synchronous: a version is committed, so a transfer may begin.
  void OnCommitted();

  void OnTick() { SendParts(); }
  absl::Time NextDeadline() const;

 private:
  // The state of a partition on its way.
  struct Transfer {
    uint64_t version = 0;
    v1::PartitionFile file;
    absl::Cord bytes;
    uint32_t parts = 0;
    uint32_t next_part = 0;
  };
  // A shard that receives copies of this shard's partitions.
  struct Receiver {
    v1::View::Shard shard;
    std::set<uint32_t> missing;          // whose transfer has not begun
    std::map<uint32_t, uint64_t> acked;  // by partition: the version that it holds everything of
    std::map<uint32_t, Transfer> transfers;  // by partition: under way
  };
  struct Pending {
    uint64_t step = 0;
    std::vector<CopyStepPart> parts;
  };

  void BeginTransfers();
  void BeginTransfer(Receiver& receiver, const Partition& partition);
  void SendParts();
  void SendNextPart(const Receiver& receiver, Transfer& transfer) const;
  void Send(const Receiver& receiver, const Pending& pending) const;
  bool IsHeld(uint32_t partition, uint64_t version) const;
  double BytesPerSecond() const;
  uint64_t TransferBytes() const;

  const ShardState& state_;
  Outbox& out_;
  const Events events_;
  CopyLog log_;
  std::map<uint64_t, Receiver> receivers_;  // by incarnation
  std::map<uint32_t, Pending> steps_;       // by partition
  absl::Time next_part_at_ = absl::InfinitePast();
  // About the time between two commits, and the time of the newest one.
  absl::Duration step_time_;
  absl::Time committed_at_ = absl::InfiniteFuture();
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_SENDER_H_

#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_SENDER_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/replication/log.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Sends the owner's partitions to the shards that the view names as their follower or target
// (docs/protocol.md 7.13), and knows which of these shards must learn what happens to them.
//
// Each of these shards receives the states of a few partitions at a time, at the pace that the job
// allows. From the beginning of its transfer on, the shard is sent all that happens to the
// partition (CopyLog). So a copy misses no step or update, and a whole copy is never behind its
// owner.
//
// Synchronous: a state is that of a committed version. Asynchronous: it is the current one, with
// the clocks that are applied to it.
class CopySender {
 public:
  // Asynchronous: a transfer begins. What this shard has staged goes to the log first. Adds the
  // clocks to the partition's state.
  using Begins = std::function<void(uint64_t receiver, PartitionContent*)>;
  // Both must outlive it.
  CopySender(const ShardState* state, Outbox* out, Begins begins)
      : state_(*state), out_(*out), begins_(std::move(begins)), log_(state, out) {}

  // The shards that are sent what happens to the partition, and to any of this shard's.
  std::set<uint64_t> ReceiversOf(uint32_t partition) const;
  std::set<uint64_t> ReceiversOfAny() const;
  // Whether the view has copies of this shard's partitions.
  bool HasReceivers() const { return !receivers_.empty(); }
  CopyLog& log() { return log_; }

  // The sender's copy is whole, so a further transfer may begin.
  absl::Status OnWhole(uint64_t sender, const v1::CopyWhole& whole);
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
    std::set<uint32_t> missing;              // whose transfer has not begun
    std::set<uint32_t> begun;                // the others; their copy may be whole
    std::map<uint32_t, Transfer> transfers;  // by partition: under way
  };

  void BeginTransfers();
  void BeginTransfer(uint64_t incarnation, Receiver& receiver, const Partition& partition);
  void SendParts();
  void SendNextPart(uint64_t receiver, Transfer& transfer) const;
  double BytesPerSecond() const;
  uint64_t TransferBytes() const;

  const ShardState& state_;
  Outbox& out_;
  const Begins begins_;
  CopyLog log_;
  std::map<uint64_t, Receiver> receivers_;  // by incarnation
  absl::Time next_part_at_ = absl::InfinitePast();
  // About the time between two commits, and the time of the newest one.
  absl::Duration step_time_;
  absl::Time committed_at_ = absl::InfiniteFuture();
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_SENDER_H_

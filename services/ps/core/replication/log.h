#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_LOG_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_LOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/replication/gradients.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// What may wait for copies.
enum class CopyWait {
  kClose,    // of a partition's step
  kStaged,   // the ack of a worker's update
  kApplied,  // the answer to a worker's Apply
  kLease,    // a worker's lease
};

// The owner's log (docs/protocol.md 7.13, 8.7): for each shard that has or receives copies of the
// owner's partitions, a list of entries that this shard carries out in order, each once. What must
// not happen before the copies know of it waits for their acks.
//
// An entry is kept until the shard has acked it, and is sent again on each new stream. Each view
// has new lists, because an Install brings owner and copies to the same state.
class CopyLog {
 public:
  // At most one wait of each kind for each partition (kClose) or worker.
  using Key = std::pair<CopyWait, uint64_t>;

  // Both must outlive it.
  CopyLog(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // A view begins. What waits in the old one does so no more, and is not called.
  void Reset() {
    receivers_.clear();
    waits_.clear();
  }

  // `entry`: without its sequence number.
  void Append(const std::set<uint64_t>& receivers, const v1::CopyEntry& entry,
              const absl::Cord& payload = absl::Cord());
  // The same for each part of a partition's gradients (EncodeGradients), as entries like `entry`.
  void AppendGradients(const std::set<uint64_t>& receivers, v1::CopyEntry entry, uint32_t partition,
                       uint64_t number, const StepClose& close,
                       const std::vector<GradientSum>& sums);

  // Calls `done` once these receivers have acked all entries that they were sent so far; at once if
  // they have. Replaces a wait of the same key.
  void Await(Key key, const std::set<uint64_t>& receivers, std::function<void()> done);
  bool Awaits(Key key) const { return waits_.count(key) > 0; }

  absl::Status OnAck(uint64_t sender, const v1::CopyAck& ack);
  // The stream to this shard is open (again): sends what it has not acked.
  void OnShardConnected(uint64_t incarnation);

 private:
  struct Receiver {
    uint64_t last = 0;  // sequence of the newest entry
    std::deque<std::pair<v1::CopyEntry, absl::Cord>> unacked;
    uint64_t acked() const { return last - unacked.size(); }
  };
  struct Wait {
    std::map<uint64_t, uint64_t> sequences;  // by receiver: to be acked
    std::function<void()> done;
  };

  void Send(uint64_t receiver, const v1::CopyEntry& entry, const absl::Cord& payload);
  void CallDue();

  const ShardState& state_;
  Outbox& out_;
  std::map<uint64_t, Receiver> receivers_;  // by incarnation
  std::map<Key, Wait> waits_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_LOG_H_

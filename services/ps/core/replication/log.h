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
#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The owner's orders to its copies in asynchronous training (docs/protocol.md 8.7): for each shard
// that has copies, a list of entries that this shard carries out in order, each once.
//
// An entry is kept until the shard has acked it, and is sent again on each new stream. Each view
// has new lists, because an Install brings owner and copies to the same updates.
class CopyLog {
 public:
  // Both must outlive it.
  CopyLog(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // A view begins.
  void Reset() {
    receivers_.clear();
    waits_.clear();
  }
  void AddReceiver(const v1::View::Shard& shard);

  // `entry`: without its sequence number.
  void Append(uint64_t receiver, v1::CopyEntry entry, absl::Cord payload = absl::Cord());
  // Calls `done` once these receivers have carried out all entries that they were sent so far; at
  // once if they have.
  void Await(const std::set<uint64_t>& receivers, std::function<void()> done);

  absl::Status OnAck(uint64_t sender, uint64_t sequence);
  // The stream to this shard is open (again): sends what it has not acked.
  void OnShardConnected(uint64_t incarnation);

 private:
  struct Receiver {
    v1::View::Shard shard;
    uint64_t last = 0;  // sequence of the newest entry
    std::deque<std::pair<v1::CopyEntry, absl::Cord>> unacked;
    uint64_t acked() const { return last - unacked.size(); }
  };
  struct Wait {
    std::map<uint64_t, uint64_t> sequences;  // by receiver: to be acked
    std::function<void()> done;
  };

  void Send(const Receiver& receiver, const v1::CopyEntry& entry, const absl::Cord& payload);

  const ShardState& state_;
  Outbox& out_;
  std::map<uint64_t, Receiver> receivers_;  // by incarnation
  std::vector<Wait> waits_;                 // in the order of Await
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_LOG_H_

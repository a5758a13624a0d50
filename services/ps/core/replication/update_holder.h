#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_UPDATE_HOLDER_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_UPDATE_HOLDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/block_update.h"
#include "services/ps/core/state/gradient_sum.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The asynchronous updates of the copies that this shard holds for other shards (docs/protocol.md
// 8.7): stages what their owners have staged, and applies what they have applied.
//
// An owner is ahead of its copies by what this shard has staged of it, at most one update of each
// worker. So an Install can bring a whole copy to the updates that it keeps, and the copy can
// become the owner. The updates of a copy whose state is still being received are queued.
class UpdateHolder {
 public:
  // `leased` is called with each lease that the arbiter has recorded.
  using Leased = std::function<void(uint64_t worker, const v1::Lease& lease)>;
  // All must outlive it. It applies the updates of `copies`, and drops copies that lack one.
  UpdateHolder(const ShardState* state, Outbox* out, JobFailure* failure, PartitionMap* copies,
               Leased leased)
      : state_(*state),
        out_(*out),
        failure_(*failure),
        copies_(*copies),
        leased_(std::move(leased)) {}

  // From another shard of the view. An error ends the stream. Waits while this shard keeps a
  // promise (R2).
  absl::StatusOr<Handled> OnEntry(uint64_t sender, const v1::CopyEntry& entry,
                                  const absl::Cord& payload);
  // The stream to this shard is open (again): acks may have been lost.
  void OnShardConnected(uint64_t incarnation);
  // The state of a copy has come: applies the updates that were queued, and sends the acks that
  // were held back because of them. Without effect in a synchronous view.
  absl::Status CatchUp(const PartitionContent& content, Partition* copy);

  // Before the view of the Install: applies the updates that it keeps to the whole copies. A copy
  // that lacks one is dropped.
  void Settle(const v1::Install& install);
  // `clocks`: applied to everything that this shard holds.
  void OnInstalled(const std::map<uint64_t, v1::ClockRecord>& clocks);

  void FillPauseReply(v1::PauseReply* reply) const;
  // Bytes of applied updates that wait for the state of their copy.
  uint64_t queued_bytes() const { return of_view_.queued_bytes; }

 private:
  // The part of an update that belongs to one copy.
  struct Part {
    std::vector<bool> arrived;
    size_t missing = 0;
    uint64_t bytes = 0;         // as received
    UpdateArguments arguments;  // of its staging
    std::vector<GradientSum> sums;
  };
  struct Update {
    uint64_t clock = 0;
    std::map<uint32_t, Part> parts;  // by partition
  };
  struct Queued {
    v1::ClockRecord record;
    Part part;
  };
  using OwnerAndWorker = std::pair<uint64_t, uint64_t>;

  absl::Status CarryOut(uint64_t sender, const v1::CopyEntry& entry, const absl::Cord& payload);
  absl::Status Stage(uint64_t sender, const v1::CopyEntry& entry, const absl::Cord& payload);
  absl::Status Apply(uint64_t sender, const v1::CopyEntry& entry);
  void ApplyTo(Partition* copy, const v1::ClockRecord& record, Part* part);
  void Note(const v1::ClockRecord& record);
  bool QueueIsFull() const;
  uint64_t AppliedClock(uint32_t partition, uint64_t worker) const;
  bool Settle(const v1::ClockRecord& winner, Partition* copy);
  // Unless too many updates are queued; CatchUp acks then.
  void Ack(uint64_t owner);

  const ShardState& state_;
  Outbox& out_;
  JobFailure& failure_;
  PartitionMap& copies_;
  const Leased leased_;
  // The state of one view's updates.
  struct OfView {
    std::map<uint64_t, uint64_t> carried_out;        // by owner: sequence of its newest entry
    std::map<OwnerAndWorker, Update> staged;         // at most one update of each worker
    std::map<uint32_t, std::vector<Queued>> queued;  // of copies that are not whole
    uint64_t queued_bytes = 0;
    std::set<uint64_t> held_back;       // owners: their newest acks
    std::map<uint64_t, uint64_t> base;  // by worker: applied when the view began
    std::map<uint32_t, std::map<uint64_t, uint64_t>> clocks;  // of whole copies, beyond `base`
    std::map<uint64_t, v1::ClockRecord> copied;               // by worker: the newest, of any copy
  };
  OfView of_view_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_UPDATE_HOLDER_H_

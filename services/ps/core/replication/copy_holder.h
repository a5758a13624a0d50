#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_COPY_HOLDER_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_COPY_HOLDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "services/ps/core/replication/copy_step.h"
#include "services/ps/core/replication/update_holder.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The copies of partitions that this shard holds for other shards (docs/protocol.md 7.13).
//
//   nothing ──CopyState──> receiving ──(all parts, all steps since)──> whole ──CopyStep──> next
//                              └── CopyStep: queued                      version
//                                  (during a promise: acked, not kept)
//
// Whole copies are in ShardState::copies(). A whole copy is at its owner's version or one past it,
// so a view change can make this shard the owner. A copy that is not whole counts for nothing, and
// the next Install drops it. Asynchronous: UpdateHolder has the updates of copies.
class CopyHolder {
 public:
  // All must outlive it. It and `updates` alone change `copies` between Installs. `changed` is
  // called when a copy has become whole, or has reached another version.
  CopyHolder(const ShardState* state, Outbox* out, JobFailure* failure, PartitionMap* copies,
             StreamTable* streams, UpdateHolder* updates, std::function<void()> changed)
      : state_(*state),
        out_(*out),
        failure_(*failure),
        copies_(*copies),
        streams_(*streams),
        updates_(*updates),
        changed_(std::move(changed)) {}

  // Frames of another shard of the view. An error ends the stream. OnStep drops the step of a whole
  // copy while this shard keeps a promise (R2): the next view begins without it.
  absl::StatusOr<Handled> OnState(uint64_t sender, const v1::CopyState& state,
                                  const absl::Cord& payload);
  absl::StatusOr<Handled> OnStep(uint64_t sender, const v1::CopyStep& step,
                                 const absl::Cord& payload);
  // The result of a ReadCopy; without effect if another view was installed since.
  void OnRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read);
  // The stream to this shard is open (again): acks may have been lost.
  void OnShardConnected(uint64_t incarnation);

  // Synchronous: closes the steps that waited for decisions (ShardState::AwaitsDecisions).
  void OnBarrierMoved();

  // The view is installed: drops the copies that are not whole.
  void OnInstalled();

  // Applies one step to a copy whose state was read: the owners' steps do not wait for all of them.
  // Sends the acks that were held back, if no copy becomes whole any more before the next view.
  void OnTick();
  absl::Time NextDeadline() const;

  // Bytes of steps that wait for the state of their copy.
  uint64_t QueuedBytes() const;

 private:
  // The gradients of a step, while its parts arrive.
  struct Step {
    std::vector<bool> arrived;  // parts
    size_t missing = 0;
    uint64_t bytes = 0;
    StepClose close;
    std::vector<GradientSum> sums;
  };
  // A copy that is not whole.
  struct Receiving {
    uint64_t version = 0;
    v1::PartitionFile file;
    std::vector<absl::Cord> parts;
    size_t missing = 0;
    std::map<uint64_t, Step> steps;
    uint64_t discarded = 0;  // the steps before it; 0: none
    bool held_back = false;  // the ack of its newest step
    uint64_t transfer = 0;   // of its ReadCopy
    // Once the state is read.
    std::shared_ptr<PartitionContent> content;
    std::unique_ptr<Partition> copy;
  };

  bool QueueIsFull() const;
  bool MustAckHeldBack() const;
  // A partition whose state was read and may be worked on.
  std::optional<uint32_t> FindDue() const;
  absl::Status Take(const v1::CopyStep& part, const absl::Cord& payload, Step* step);
  void Read(Receiving* receiving);
  // True: all steps since its state are applied.
  absl::StatusOr<bool> CatchUp(Receiving* receiving);
  absl::Status BecomeWhole(uint32_t partition, Receiving* receiving);
  // The owner sends the state again on its next stream.
  void Drop(uint32_t partition, absl::Status why);
  // Closes the current step of a whole copy, if it has come whole and may close.
  absl::Status TryClose(uint32_t partition);
  absl::Status Close(Partition& partition, Step* step);
  // The version up to which this shard holds everything.
  uint64_t HeldBy(const Receiving& receiving) const;
  void Ack(uint32_t partition, uint64_t version, bool whole);

  const ShardState& state_;
  Outbox& out_;
  JobFailure& failure_;
  PartitionMap& copies_;
  StreamTable& streams_;
  UpdateHolder& updates_;
  const std::function<void()> changed_;
  std::map<uint32_t, Receiving> receiving_;  // by partition
  std::map<uint32_t, Step> arriving_;        // of whole copies: the current step
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_COPY_HOLDER_H_

#ifndef SLUICE_SERVICES_PS_CORE_TRAINING_SYNCHRONOUS_H_
#define SLUICE_SERVICES_PS_CORE_TRAINING_SYNCHRONOUS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/replication/gradients.h"
#include "services/ps/core/replication/sender.h"
#include "services/ps/core/serving/data_sender.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/shard_state.h"
#include "services/ps/core/training/norm_exchange.h"
#include "services/ps/core/training/participants.h"
#include "services/ps/core/training/step_sums.h"

namespace sluice::ps {

// Synchronous training (docs/protocol.md 7): workers push contributions, partitions close by the
// set of members, and pulls of the next version wait for the close.
//
// A partition closes by itself, unless the step requires a number that spans shards
// (norm_exchange.h): then all close together, once every partition of the job is measured. Where
// stragglers are dropped, a partition closes with the step's set (participants.h).
//
// The caller has checked view, membership and promise: the frames are of the installed view and
// from a member, and the shard's state may change.
class Synchronous {
 public:
  // `closed` is called with the partition after each close, `committed` whenever the committed
  // version has risen.
  struct Events {
    std::function<void(Partition&)> closed;
    std::function<void()> committed;
  };
  // All must outlive it. It alone changes `partitions` in a synchronous view.
  Synchronous(const ShardState* state, Outbox* out, JobFailure* failure, PartitionMap* partitions,
              StreamTable* streams, DataSender* sender, CopySender* copies, Events events);

  // An error ends the stream.
  absl::Status OnPush(Stream& stream, const v1::Push& push, const absl::Cord& payload);
  absl::Status OnPull(Stream& stream, const v1::Pull& pull, const absl::Cord& payload);
  absl::Status OnStepSum(const Stream& stream, const v1::StepSum& part, const absl::Cord& payload) {
    return sums_.OnPart(stream, part, payload);
  }
  // `sender`: the sending shard's incarnation.
  absl::Status OnNorms(uint64_t sender, const v1::Norms& norms);
  absl::Status OnStepParticipants(uint64_t sender, const v1::StepParticipants& set);

  // Incarnations of the members whose contribution to the current step is overdue
  // (timeouts.gradients). None once the job's last step is closed, and none in an asynchronous
  // view.
  std::vector<uint64_t> Awaited() const;
  // The shard did not run for this long; the members are not to blame.
  void ExtendDeadlines(absl::Duration late) { awaited_since_ += late; }

  // Another shard is reachable (again) and may have missed earlier messages.
  void OnShardConnected(uint64_t incarnation);

  const CommittedVersion& committed() const { return committed_; }

  // The attempt begins with this version.
  void BeginAt(uint64_t version) { committed_.version = version; }
  // All owned partitions are at the view's first step, which is committed; parked pulls have been
  // dropped.
  void OnInstalled(const v1::Install& install);
  void DropParked() { parked_.clear(); }
  // Streams that wait for a version, once each.
  std::vector<StreamId> ParkedStreams() const;

  // The barrier has changed.
  void OnBarrierMoved() { TryCloseAll(); }

  // Version `version` is committed on all shards, so its undo is no longer needed.
  void Commit(uint64_t version);

 private:
  struct Parked {
    StreamId stream = 0;
    uint64_t version = 0;
    uint64_t request = 0;
    SharedSelections rows;
    Charge charge;  // of the stream's parked pulls
  };

  void NoteHolder(size_t member, uint64_t step);
  Partition::Source SourceOf(size_t member, const v1::Push& push) const;
  // The blocks that are not repetitions.
  absl::StatusOr<std::vector<const ReceivedBlock*>> FreshOf(
      const Partition::Source& source, const v1::Push& push,
      const std::vector<ReceivedBlock>& blocks) const;
  absl::Status Contribute(const Partition::Source& source, const v1::Push& push,
                          const std::vector<const ReceivedBlock*>& fresh);
  absl::Status AnswerOrPark(Stream& stream, const Partition& partition, uint64_t version,
                            uint64_t request, const SharedSelections& rows);
  void TryClose(Partition& partition);
  void TryCloseAll();
  // Whether the partition's contributions are exactly those that its next version consists of.
  bool IsWhole(Partition& partition);
  void TryCloseTogether();
  UpdateArguments Arguments(const Partition& partition) const;
  bool Measure(Partition& partition);
  // Sends the step to the partition's copies first, if it has any.
  void BeginClose(Partition& partition, StepClose close);
  void Close(Partition& partition, const StepClose& close);
  void AfterClose(Partition& partition);
  void AnswerParked(const Partition& partition);

  const ShardState& state_;
  Outbox& out_;
  JobFailure& failure_;
  PartitionMap& partitions_;
  StreamTable& streams_;
  DataSender& sender_;
  CopySender& copies_;
  const Events events_;
  CommittedVersion committed_;
  std::vector<uint64_t> held_;  // by member: the newest step of this view that it has pushed
  NormExchange norms_;
  StepParticipants set_;
  StepSums sums_;
  // The step of the lowest partition, and since when the shard has waited for its contributions.
  uint64_t awaited_step_ = 0;
  absl::Time awaited_since_ = absl::InfiniteFuture();
  std::map<uint32_t, std::vector<Parked>> parked_;  // by partition
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TRAINING_SYNCHRONOUS_H_

#ifndef SLUICE_SERVICES_PS_CORE_TRAINING_ASYNCHRONOUS_H_
#define SLUICE_SERVICES_PS_CORE_TRAINING_ASYNCHRONOUS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/interval_set.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/replication/log.h"
#include "services/ps/core/replication/sender.h"
#include "services/ps/core/serving/data_sender.h"
#include "services/ps/core/session/frame_checks.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/shard_state.h"
#include "services/ps/core/training/arbiter.h"

namespace sluice::ps {

// Asynchronous and bounded-staleness training (docs/protocol.md 8): an update is staged, acked when
// all of its partitions have arrived, and applied whole at its Apply.
//
// Per incarnation the shard keeps the highest clock applied; an update at or below it is acked
// without effect. A member has at most one staged update at a time; the update outlives its stream.
//
// Where partitions have copies, an update is acked once the copies have staged it too (R6), and
// its Apply is answered once they have applied it.
//
// The caller has checked view, membership and promise, as for Synchronous, but passes pulls also
// while the shard keeps a promise.
class Asynchronous {
 public:
  // All must outlive it. It alone changes `partitions` in an asynchronous view. `applied` is called
  // after each update.
  Asynchronous(const ShardState* state, Outbox* out, JobFailure* failure, PartitionMap* partitions,
               StreamTable* streams, DataSender* sender, CopySender* copies,
               std::function<void()> applied);

  // An error ends the stream.
  absl::Status OnFrame(Stream& stream, const v1::Header& header, const absl::Cord& payload);

  // Adopts the records read from partition files.
  void AdoptRecords(const std::vector<v1::ClockRecord>& clocks);
  // Before the view of the Install: applies the winners among the staged updates, and drops the
  // rest.
  void Settle(const v1::Install& install);
  // Adopts the ledger and leases.
  void OnInstalled(const v1::Install& install);
  // Streams that wait for a pull, a lease or a permit.
  std::vector<StreamId> ParkedStreams() const;
  void DropParked() { parked_.clear(); }

  // A transfer of a partition begins: sends the shard what is staged of it, and the leases if it is
  // partition 0.
  void OnTransfer(uint64_t receiver, uint32_t partition);
  // The arbiter has recorded a lease; this shard has a copy of partition 0.
  void OnLeased(uint64_t worker, const v1::Lease& lease);
  // By incarnation.
  const std::map<uint64_t, v1::ClockRecord>& clocks() const { return clocks_; }
  const AppliedUpdates& updates() const { return updates_; }

  void FillPauseReply(v1::PauseReply* reply) const;
  void FillRecords(PartitionContent* content) const;
  void FillProgress(v1::ShardProgress* progress) const;
  // Incarnations of the lease holders that have applied nothing for timeouts.gradients although
  // nothing blocked them. Only the arbiter reports them; none with bounded staleness, where a
  // worker may wait for other workers.
  std::vector<uint64_t> Awaited() const;
  // Whether every update that may be applied before the next view is applied; false in a
  // synchronous view.
  bool IsHeld() const;
  size_t staged() const { return staged_.size(); }

 private:
  struct Staged {
    uint64_t clock = 0;
    std::map<uint32_t, std::vector<GradientSum>> sums;  // by partition
    std::set<std::pair<uint32_t, uint64_t>> received;   // (block, first microbatch)
    std::set<uint32_t> complete;                        // partitions
    uint64_t samples = 0;
    uint64_t microbatches = 0;
    double weight = 0;  // in the mean over the update
    uint64_t ordinal = 0;
    std::map<uint32_t, GradientNorm> norms;
    std::string offender;  // name of the first block that is not finite
    bool sent = false;     // to the copies
  };
  struct Parked {
    StreamId stream = 0;
    v1::Pull pull;
    SharedSelections rows;
    Charge memory;
    Charge count;  // of the stream's parked pulls
  };

  absl::Status OnPush(Stream& stream, const v1::Push& push, const absl::Cord& payload);
  absl::Status Stage(Staged& staged, const v1::Push& push,
                     const std::vector<ReceivedBlock>& blocks);
  absl::Status OnApply(Stream& stream, const v1::Apply& apply);
  // The Apply has passed its check. `combine`: this shard holds the whole update, so its own norms
  // are complete.
  void Apply(Stream& stream, const v1::Apply& apply, bool combine);
  absl::Status OnPull(Stream& stream, const v1::Pull& pull, const absl::Cord& payload);
  absl::Status OnLeaseRequest(Stream& stream, const v1::LeaseRequest& request);
  absl::Status OnPermitRequest(Stream& stream, const v1::PermitRequest& request);

  UpdateFacts FactsOf(uint64_t worker) const;
  absl::Status CheckLeased(uint64_t worker, const v1::Apply& apply) const;
  void RecordClock(uint64_t worker, uint64_t clock);
  // Changes the facts to what they will be once the push is staged.
  void AddPush(const v1::Push& push, const Staged* staged, UpdateFacts* facts) const;
  absl::Status Measure(Staged& staged);
  void DropGradients(Staged& staged) const;
  bool IsWhole(const Staged& staged) const;
  bool ApplyStaged(uint64_t worker, Staged& staged, const v1::ClockRecord& record);
  UpdateArguments Arguments(const Staged& staged) const;
  uint64_t AppliedClock(uint64_t worker) const;
  void SetVersions();
  bool MayAnswer(const Stream& stream, const v1::Pull& pull) const;
  void AnswerPull(Stream& stream, const v1::Pull& pull, const RowSelections* rows);
  void SendLive(Stream& stream, const std::vector<uint32_t>& partitions, uint64_t request,
                const RowSelections* rows);
  // The update is staged whole: acks it, once its copies hold it.
  void AckStaged(Stream& stream, Staged& staged);
  void SendStaged(Stream& stream, uint64_t clock, const Staged* staged);
  bool CopiesHold(uint64_t worker, const Staged& staged) const;
  void AnswerAfterCopies(CopyWait what, uint64_t worker, const std::set<uint64_t>& receivers,
                         std::function<void(Stream&)> answer);
  void SendToCopies(const std::set<uint64_t>& receivers, uint64_t worker, Staged& staged,
                    uint32_t partition);
  void SendApplyToCopies(uint64_t worker, const v1::Apply& apply);
  void SendApplied(Stream& stream, uint64_t clock, bool pull_next);
  // The update is applied here.
  void AnswerApply(Stream& stream, const v1::Apply& apply);
  void SendLease(Stream& stream, v1::Lease lease);
  void RecordAtCopies(uint64_t worker, const v1::Lease& lease);
  void SendLeaseToCopies(const std::set<uint64_t>& receivers, uint64_t worker,
                         const v1::Lease& lease);
  void AnswerWaiting();
  Arbiter::Limits ArbiterLimits() const;
  void KeepPulled(uint64_t worker, uint32_t partition);
  // Null if not known.
  const std::vector<BlockRef>* PulledBy(uint64_t worker, uint32_t partition) const;

  const ShardState& state_;
  Outbox& out_;
  JobFailure& failure_;
  PartitionMap& partitions_;
  StreamTable& streams_;
  DataSender& sender_;
  CopySender& copies_;
  const std::function<void()> applied_;
  AppliedUpdates updates_;
  std::map<uint64_t, v1::ClockRecord> clocks_;  // by incarnation: applied here
  std::map<uint64_t, Staged> staged_;           // by incarnation; members only
  IntervalSet ledger_;                          // samples applied here
  std::set<uint64_t> reported_;  // workers that have sent their clock in this attempt
  Arbiter arbiter_;  // leases and permits only on the arbiter; every worker's clock on all shards
  // On the arbiter, by lease holder: when it got its lease, or last applied an update under it.
  std::map<uint64_t, absl::Time> progressed_;
  std::vector<Parked> parked_;
  // For delay compensation: by incarnation and partition, the parameters last sent to the member.
  // These are references: an older version of a block stays in memory while a member computes on
  // it, at most one version per member.
  std::map<uint64_t, std::map<uint32_t, std::vector<BlockRef>>> pulled_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TRAINING_ASYNCHRONOUS_H_

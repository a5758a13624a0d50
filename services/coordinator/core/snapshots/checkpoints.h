// The checkpoints of an attempt: collects the shards' reports on the files of the open snapshot,
// writes the checkpoint index, and removes what is replaced or was never completed.
//
//   Collecting -> (all shards have written) CheckingClaim -> Writing -> Done
//   any of them -> nothing: the checkpoint has failed
//
// (R11) Before the index is written the claims are read: a later coordinator may have claimed an
// attempt. If a checkpoint fails while the job trains, training continues, and the schedule counts
// it as done. The job does not end without its last checkpoint: it is written again until that
// succeeds or the user stops the job.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_CHECKPOINTS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_CHECKPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/best_checkpoints.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/evaluation/evaluations.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/facts/snapshot.h"

namespace sluice::coordinator {

class Checkpoints {
 public:
  // All must outlive it.
  Checkpoints(const Facts& facts, const std::optional<Snapshot>& open,
              const Evaluations& evaluations, Output* output);

  // The attempt begins, or continues with this coordinator, with the storage as it was read last.
  void BeginAttempt();
  // The first view that this coordinator has made in the attempt is the current one.
  void OnFirstView(absl::Time now);
  // The attempt is over.
  void LeaveAttempt();

  // ---- the schedule

  IntervalSchedule& schedule() { return schedule_; }
  const IntervalSchedule& schedule() const { return schedule_; }
  // The attempt has a checkpoint of this version.
  bool Has(uint64_t version) const;

  // ---- the open snapshot

  // A snapshot was opened. `only_if_best`: its checkpoint is completed only if its evaluation is
  // among the best (checkpoint.keepBest).
  void OnOpened(bool only_if_best);
  // Its pins are dropped: shards pin and write it again.
  void OnPinsDropped();
  // It is about to be closed.
  void OnClose() { saving_.reset(); }
  // It is still to become a checkpoint.
  bool saving() const { return saving_.has_value() && saving_->state != Saving::State::kDone; }

  void Advance(absl::Time now);
  // False: the files do not count.
  bool OnWritten(const Process& shard, const v1::SnapshotWritten& written, absl::Time now);
  bool ChecksClaim() const;
  // Requires ChecksClaim.
  Verdict OnClaimsRead(const absl::StatusOr<std::vector<v1::Claim>>& claims, absl::Time now);
  void OnIndexWritten(const v1::CheckpointRef& checkpoint, const absl::Status& status,
                      absl::Time now);
  void Fail(const std::string& why, absl::Time now);

  // ---- the end of the job

  // The last checkpoint has failed, and was not completed since.
  bool LastFails() const { return final_failures_ > 0; }
  // It is due again only later.
  bool LastWaits(absl::Time now) const {
    return final_retry_at_ > now && final_retry_at_ != absl::InfiniteFuture();
  }
  void RetryLastNow() { final_retry_at_ = absl::InfiniteFuture(); }
  // Whether the end of the job could be recorded.
  void OnEndRecord(const absl::Status& status, absl::Time now);

  const v1::CheckpointStatus& status() const { return status_; }
  absl::Time NextDeadline() const;

 private:
  // The open snapshot as a checkpoint.
  struct Saving {
    enum class State {
      kCollecting,     // files are being written
      kCheckingClaim,  // (R11) the claims are read before the index is written
      kWriting,        // the checkpoint index
      kDone,
    };
    explicit Saving(bool only_if_best_given) : only_if_best(only_if_best_given) {}

    State state = State::kCollecting;
    const bool only_if_best;
    std::map<uint64_t, std::vector<v1::PartitionFile>> written;  // by shard
    double seconds = 0;  // of the slowest shard that has written
  };

  bool Is(Saving::State state) const { return saving_.has_value() && saving_->state == state; }
  v1::CheckpointIndex MakeIndex(absl::Time now) const;
  // checkpoint.keepBest: the best checkpoints of the storage, and of the open snapshot if it
  // counts.
  std::vector<v1::CheckpointRef> BestWith(const std::optional<ValuedCheckpoint>& another) const;
  // The open snapshot's, once it is evaluated.
  std::optional<ValuedCheckpoint> Valued() const;
  void Finish(absl::Time now);
  // `newest`: this attempt's newest checkpoint, which is complete.
  void RemoveReplaced(const v1::CheckpointRef& newest);
  bool IsOver(uint64_t step) const;
  void RemoveIncompletes();
  std::optional<size_t> MissingPartition() const;
  std::string CheckFiles(const Process& shard, const v1::SnapshotWritten& written) const;

  const Facts& facts_;
  const std::optional<Snapshot>& snapshot_;
  const Evaluations& evaluations_;
  Output& output_;
  IntervalSchedule schedule_;
  std::optional<Saving> saving_;  // nullopt: the open snapshot is no checkpoint, or no longer one
  std::vector<v1::CheckpointRef> stored_;  // complete
  std::vector<ValuedCheckpoint> values_;   // checkpoint.keepBest: of some of them
  // Steps of the checkpoints that this coordinator has begun, and whose index it has not written.
  std::set<uint64_t> incomplete_;
  uint64_t first_step_ = 0;  // of the first view that this coordinator has made in the attempt
  v1::CheckpointStatus status_;
  // The state of the last checkpoint.
  int final_failures_ = 0;                // in a row
  std::set<std::string> final_problems_;  // reported, each once
  absl::Time final_retry_at_ = absl::InfiniteFuture();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_CHECKPOINTS_H_

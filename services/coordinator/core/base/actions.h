// Actions that the coordinator's core returns to its shell. Data only.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_BASE_ACTIONS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_BASE_ACTIONS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/existing_job.h"

namespace sluice::coordinator {

// A control stream of one process. The shell numbers streams from 1 and never reuses a number.
using StreamId = uint64_t;

// The contents of the checkpoint storage that a new attempt needs (R11).
struct StorageContents {
  std::vector<v1::Claim> claims;  // all, including the end record
  // The checkpoint that the next attempt begins with: the newest good one of the highest claimed
  // attempt, else that claim's parent, and so on.
  bool has_newest = false;
  v1::CheckpointIndex newest;
  // Empty: `newest` is in the job's own storage. Otherwise the directory of another job's
  // checkpoint (checkpoint.restoreFrom), with which a job without own checkpoints begins.
  std::string foreign_directory;
  std::vector<v1::CheckpointRef> checkpoints;  // that have an index and were not skipped
  // With checkpoint.keepBest: the metrics in the indexes of those that have some.
  std::vector<std::pair<v1::CheckpointRef, std::vector<v1::Metric>>> metrics;
  // One sentence for each better checkpoint that was skipped, and for each other damaged file.
  std::vector<std::string> damaged;
  // Whether the job may use the storage. Replaced checkpoints are never `newest`.
  ExistingJob existing;
};

enum class ExitReason {
  kSucceeded,   // the job has ended, now or before
  kSuspended,   // all processes left after the last checkpoint
  kFailed,      // the job failed
  kSuperseded,  // another coordinator has taken over, or won the claim: start a new one
  kLeft,        // this process was asked to stop: a new coordinator takes over
};

// Messages of one stream are sent in the order of the actions. Sending on a closed stream has no
// effect.
struct Send {
  StreamId stream = 0;
  v1::CoordinatorMessage message;
};

// Takes effect after the messages that were sent before it. An OnDisconnected may follow, but need
// not.
struct CloseStream {
  StreamId stream = 0;
  absl::Status status;
};

// Answered by OnStorageRead. `check`: of the files of checkpoints.
struct ReadStorage {
  FileCheck check = FileCheck::kSizes;
};

// Exclusive create. Answered by OnClaimResult.
struct ClaimAttempt {
  v1::Claim claim;
};

// Answered by OnClaimsRead.
struct ReadClaims {};

// Durable before it is answered by OnCheckpointIndexWritten.
struct WriteCheckpointIndex {
  v1::CheckpointIndex checkpoint_index;
};

// Not answered; a failure is only logged. The shell calls RemoveReplaced.
struct DeleteCheckpoint {
  v1::CheckpointRef checkpoint;
  uint64_t attempt = 0;  // of the checkpoint that replaced it
};

// Removes the files of an abandoned checkpoint, unless it has an index after all. Not answered; a
// failure is only logged.
struct RemoveIncomplete {
  v1::CheckpointRef checkpoint;
};

// Answers OnOpenSnapshot. OK is sent at most once and means that the version is pinned. An error is
// the last answer and ends the call.
struct AnswerSnapshot {
  uint64_t request = 0;
  absl::StatusOr<v1::Snapshot> snapshot;
};

// Always the last action: the process exits.
struct Exit {
  ExitReason reason = ExitReason::kFailed;
  std::string message;  // one sentence
};

using Action =
    std::variant<Send, CloseStream, ReadStorage, ClaimAttempt, ReadClaims, WriteCheckpointIndex,
                 DeleteCheckpoint, RemoveIncomplete, AnswerSnapshot, Exit>;

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_BASE_ACTIONS_H_

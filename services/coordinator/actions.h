// What the coordinator's core asks its shell to do. Data only.

#ifndef SLUICE_SERVICES_COORDINATOR_ACTIONS_H_
#define SLUICE_SERVICES_COORDINATOR_ACTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/existing_job.h"

namespace sluice::coordinator {

// A control stream of one process. Numbered by the shell, from 1; a number is never used twice.
using StreamId = uint64_t;

// What a coordinator must know of the checkpoint storage to begin an attempt (R11).
struct StorageContents {
  std::vector<v1::Claim> claims;  // all; the end record too
  // With what the next attempt begins: the newest good checkpoint of the highest claimed attempt,
  // else that claim's parent, and so on.
  bool has_newest = false;
  v1::Manifest newest;
  // Empty: it lies in the job's own storage. Else it is another job's (checkpoint.restoreFrom),
  // with which a job without checkpoints of its own begins: the folder of that checkpoint.
  std::string foreign_folder;
  std::vector<v1::CheckpointRef> checkpoints;  // that have a manifest and were not passed over
  // One sentence for each better one that was passed over, and for whatever else is damaged.
  std::vector<std::string> damaged;
  // Whether the job may use what is there. Replaced checkpoints are not `newest`.
  ExistingJob existing;
};

enum class ExitReason {
  kSucceeded,   // the job has ended, now or before
  kSuspended,   // all processes left after the checkpoint
  kFailed,      // the job failed
  kSuperseded,  // another coordinator has taken over, or won the claim: start another one
};

// Messages of one stream are sent in the order of the actions. Sending on a stream that is gone is
// no error: nothing happens.
struct Send {
  StreamId stream = 0;
  v1::CoordinatorMessage message;
};

// After what was sent before it. No OnDisconnected is needed for it, nor does one harm.
struct CloseStream {
  StreamId stream = 0;
  absl::Status status;
};

// Answered by OnStorageRead.
struct ReadStorage {};

// Exclusive create. Answered by OnClaimResult.
struct ClaimAttempt {
  v1::Claim claim;
};

// Answered by OnClaimsRead.
struct ReadClaims {};

// Durable before it is answered by OnManifestWritten.
struct WriteManifest {
  v1::Manifest manifest;
};

// Not answered; a failure is only worth a log line. To be done by RemoveReplaced.
struct DeleteCheckpoint {
  v1::CheckpointRef checkpoint;
  uint64_t attempt = 0;  // of the checkpoint that replaced it
};

// Of a checkpoint that was given up, what lies there of it; nothing if it has a manifest after all.
// Answered by OnIncompleteRemoved, also if it failed, which is only worth a log line.
struct RemoveIncomplete {
  v1::CheckpointRef checkpoint;
};

// Answers OnOpenSnapshot. OK, at most once: the version is pinned. An error is the last answer: the
// call ends with it.
struct AnswerSnapshot {
  uint64_t request = 0;
  absl::StatusOr<v1::Snapshot> snapshot;
};

// The last action ever: end the process.
struct Exit {
  ExitReason reason = ExitReason::kFailed;
  std::string message;  // one sentence
};

using Action = std::variant<Send, CloseStream, ReadStorage, ClaimAttempt, ReadClaims, WriteManifest,
                            DeleteCheckpoint, RemoveIncomplete, AnswerSnapshot, Exit>;

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_ACTIONS_H_

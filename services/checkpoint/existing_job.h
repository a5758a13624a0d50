// The checkpoints that a job finds in its storage when it starts, and the effect of
// checkpoint.onExisting.
//
// Intuition: one activation of a job has one uid. On a cluster it is the object's uid; `sluice run`
// makes a new one when it starts a finished job again. Each claim names the job that made it, so
// the newest claim names the job that wrote these checkpoints. A job with the newest claim's uid
// always continues: it is a restarted pod, a replaced coordinator or a resumed job. Any other job
// of the same name does what checkpoint.onExisting says, and reports what it found.
#ifndef SLUICE_SERVICES_CHECKPOINT_EXISTING_JOB_H_
#define SLUICE_SERVICES_CHECKPOINT_EXISTING_JOB_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "services/checkpoint/storage.h"
#include "services/protocol/job_name.h"

namespace sluice {

// Reason codes of a job's outcome (JobProgress.reason_code).
inline constexpr char kCheckpointDirectoryInUse[] = "CheckpointDirectoryInUse";
inline constexpr char kNothingTrained[] = "NothingTrained";

// The settings that a checkpoint depends on, the job's length and the optimizer's rates, as
// Claim.settings holds them: JSON in the manifest's form, {"spec": {...}}.
std::string ClaimSettings(const v1::JobSpec& job);

// The optimizer of the claim's settings; none if they are not recorded.
std::optional<v1::OptimizerSpec> ClaimedOptimizer(const v1::Claim& claim);

// The relation of a job to the checkpoints that it finds.
struct ExistingJob {
  enum class Kind {
    kNone,      // nothing, or the job's own checkpoints
    kResume,    // another activation's checkpoints, from which this job continues
    kReplace,   // another activation's checkpoints; this job begins at zero
    kFinished,  // another activation has trained all that this job asks for
    kRefused,   // this job must not use the storage
  };
  Kind kind = Kind::kNone;
  std::string message;  // what was found, and what to do; empty with kNone
  // With kNone and kResume: settings that may change and have, as training will continue with them
  // ("learningRate 0.0005, was 0.001; steps 200, was 100").
  std::string changes;
};

// `claims` and `point` are the storage's contents; point.found is false if no checkpoint can be
// used.
ExistingJob JudgeExisting(const v1::JobSpec& job, const std::vector<v1::Claim>& claims,
                          const RestorePoint& point);

// The storage with which an attempt begins.
struct OpenedStorage {
  std::vector<v1::Claim> claims;
  RestorePoint point;  // not found if the job begins at zero
  ExistingJob existing;
};

// Reads the claims and the best checkpoint, and judges them. Fails if FindRestorePoint fails on
// damaged checkpoints, unless the job replaces them. If a claim is damaged, the contents of the
// checkpoint's files are checked in any case. Changes nothing.
absl::StatusOr<OpenedStorage> ReadForJob(CheckpointStorage& storage, const v1::JobSpec& job,
                                         FileCheck check);

// The checkpoints that `job` replaces: those of attempts below its first one, if that attempt began
// without a checkpoint (checkpoint.onExisting: Replace). Empty for any other job.
std::vector<v1::CheckpointRef> ReplacedCheckpoints(
    const v1::JobSpec& job, const std::vector<v1::Claim>& claims,
    const std::vector<v1::CheckpointRef>& checkpoints);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_EXISTING_JOB_H_

// What must be settled before a job's processes start.
#ifndef SLUICE_SERVICES_CLI_RUN_PREPARATION_H_
#define SLUICE_SERVICES_CLI_RUN_PREPARATION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "operator/api/training_job.h"
#include "operator/local/job_directory.h"
#include "operator/local/local_job.h"
#include "operator/local/resume.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/checkpoint/existing_job.h"
#include "services/cli/environment.h"

namespace sluice::cli {

struct RunFlags {
  std::string manifest;
  std::string state_directory = ".sluice";
  std::string program_directory;  // empty: the environment's
  std::string output = "text";
  std::string log_level;  // empty: debug where the logs are shown (`verbose`), else info
  std::optional<uint32_t> workers;
  std::optional<uint32_t> shards;
  int port = 0;
  bool fresh = false;
  bool yes = false;
  bool take_over = false;
  bool dry_run = false;
  bool quiet = false;
  bool verbose = false;
};

// The manifest with the flags' changes. INVALID_ARGUMENT with every problem.
absl::StatusOr<api::TrainingJob> LoadJob(const RunFlags& flags);

// Whether a job that has begun, as `before`, holds anything that a changed manifest would make
// worthless: a checkpoint, or the result of training to the end. What cannot be looked at counts.
bool HasTrained(const api::TrainingJob& before, const local::JobDirectory& directory,
                FileSystem* files);

// The programs of these roles; others' paths stay empty. NOT_FOUND names what is missing, and where
// it was looked for.
absl::StatusOr<local::Programs> FindPrograms(const std::vector<std::string>& directories,
                                             absl::Span<const v1::Role> roles);

// Those that a job is made of; where its layers are computed by the shards (training.execution:
// Server), their program is sluice-ps-torch.
absl::StatusOr<local::Programs> FindPrograms(const std::vector<std::string>& directories,
                                             const v1::JobSpec& job);

// The roles whose programs a job is made of: a job with a command of its own as worker does without
// sluice-worker, and so without LibTorch.
std::vector<v1::Role> RolesOf(const v1::JobSpec& job);

// ALREADY_EXISTS if something else listens there, or it may not be used.
absl::Status CheckPortIsFree(int port);

// Whether the job is to train for longer, or less long, than it was.
bool ChangeLength(const std::vector<local::ManifestChange>& changes);

// What the storage of the job's checkpoints holds for a job that is not the one that made them.
// FAILED_PRECONDITION, in the coordinator's words: the job may not use it.
absl::StatusOr<ExistingJob> JudgeStorage(const v1::JobSpec& job,
                                         const local::JobDirectory& directory, FileSystem* files);

struct PreparedRun {
  api::TrainingJob job;  // with uid and checkpoint directory
  std::unique_ptr<local::JobLock> lock;
  bool resumed = false;
  std::vector<local::ManifestChange> changes;  // taken over
  // If it is set, the job has finished before and nothing is to be done.
  std::optional<local::JobResult> finished;
};

// Whether the job, which has begun, may go on with this manifest: FAILED_PRECONDITION names each
// field that may not change.
absl::Status CheckChanges(const api::TrainingJob& job, const local::JobDirectory& directory);

// Takes the lock, removes the old state if that is asked for, compares with what the job began
// with, and records it. A job that has trained nothing yet takes any change. FAILED_PRECONDITION:
// the job runs already, or has changed (each field is named), or its checkpoint folder belongs to
// an earlier life of it, or holds checkpoints of which nobody knows the job. NOT_FOUND: something
// that it reads is not there. Nothing is changed on errors.
absl::StatusOr<PreparedRun> PrepareRun(const api::TrainingJob& job, bool fresh,
                                       local::JobDirectory* directory, FileSystem* files);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_RUN_PREPARATION_H_

// Checks and preparations before a job's processes start.
#ifndef SLUICE_CLI_RUN_PREPARATION_H_
#define SLUICE_CLI_RUN_PREPARATION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/common/environment.h"
#include "cli/common/job_result.h"
#include "cli/common/run_flags.h"
#include "cli/local/job_directory.h"
#include "cli/local/local_job.h"
#include "cli/run/start.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "services/checkpoint/existing_job.h"
#include "services/manifest/resume.h"
#include "services/manifest/training_job.h"

namespace sluice::cli {

// The manifest with the flags' changes. INVALID_ARGUMENT with every problem.
absl::StatusOr<api::TrainingJob> LoadJob(const RunFlags& flags);

// The programs of these roles in `directory` (--bin-dir) or, if it is empty, in the environment's
// directories; the other paths stay empty. NOT_FOUND names the missing program and the directories
// that were searched.
absl::StatusOr<local::Programs> FindPrograms(const Environment& environment,
                                             const std::string& directory,
                                             absl::Span<const v1::Role> roles);

// The programs of a job. If the shards compute its layers (training.execution: Server), theirs is
// sluice-ps-torch.
absl::StatusOr<local::Programs> FindPrograms(const Environment& environment,
                                             const std::string& directory, const v1::JobSpec& job);

// The roles for which a job needs Sluice's programs: a job with its own `worker.command` needs
// neither sluice-worker nor LibTorch.
std::vector<v1::Role> RolesOf(const v1::JobSpec& job);

// INVALID_ARGUMENT: --foreground for a job that has not exactly one worker with its own program.
absl::Status CheckForeground(const RunFlags& flags, const v1::JobSpec& job);

// How to run the prepared job.
local::LocalJob::Options JobOptionsOf(const RunFlags& flags, const local::Programs& programs,
                                      api::TrainingJob job);

// ALREADY_EXISTS if another process listens on the port, or this user may not use it.
absl::Status CheckPortIsFree(int port);

// The job as it was last started.
struct EarlierRun {
  StartFacts facts;
  // If facts.recorded:
  api::TrainingJob job;
  std::vector<api::ManifestChange> changes;
  std::optional<JobResult> result;  // if facts.finished
};

// FAILED_PRECONDITION: the record is damaged. `fresh` does not need it.
absl::StatusOr<EarlierRun> ReadEarlierRun(const api::TrainingJob& job, bool fresh,
                                          const local::JobDirectory& directory, FileSystem* files);

struct Beginning {
  Start start = Start::kFirst;
  // Of kFirst and kAnother: what the job finds in its checkpoint storage.
  ExistingJob::Kind existing = ExistingJob::Kind::kNone;
};

// Decides how the run begins; changes nothing. FAILED_PRECONDITION refuses it: the message names
// each field that may not change, or who has the checkpoint directory.
absl::StatusOr<Beginning> DecideBeginning(const api::TrainingJob& job, EarlierRun* earlier,
                                          const local::JobDirectory& directory, FileSystem* files);

// Whether the run continues from checkpoints, as far as it is known.
bool IsResumed(const Beginning& beginning);

struct PreparedRun {
  api::TrainingJob job;  // with uid and checkpoint directory
  std::unique_ptr<local::JobLock> lock;
  bool resumed = false;
  std::vector<api::ManifestChange> changes;  // accepted changes
  // Set if the job has already finished and nothing is to be done.
  std::optional<JobResult> finished;
};

// Whether the started job may continue with this manifest: FAILED_PRECONDITION names each field
// that may not change.
absl::Status CheckChanges(const api::TrainingJob& job, const local::JobDirectory& directory);

// Takes the lock, removes the old state if requested, compares the manifest with the one the job
// began with, and records it. A job that has trained nothing yet accepts any change.
// FAILED_PRECONDITION: the job is already running; or the manifest has changed (the message names
// each field); or the checkpoint directory belongs to an earlier job of this name, or contains
// checkpoints of an unknown job. NOT_FOUND: one of its inputs does not exist. Nothing is changed on
// errors.
absl::StatusOr<PreparedRun> PrepareRun(const api::TrainingJob& job, bool fresh,
                                       local::JobDirectory* directory, FileSystem* files);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_PREPARATION_H_

#include "cli/run/local_run.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/common/exit_codes.h"
#include "cli/local/job_directory.h"
#include "cli/local/job_paths.h"
#include "cli/local/local_job.h"
#include "cli/local/local_jobs.h"
#include "cli/run/data_download.h"
#include "cli/run/display_listener.h"
#include "cli/run/dry_run.h"
#include "cli/run/job_run.h"
#include "cli/run/preparation.h"
#include "cli/run/texts.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

int RunPrepared(const Environment& environment, const RunFlags& flags,
                const local::Programs& programs, PreparedRun prepared,
                local::JobDirectory* directory) {
  const std::string name = prepared.job.spec.name();
  JobRun run(environment, flags, programs, std::move(prepared.job), directory);
  if (prepared.resumed) {
    run.display()->Note(absl::StrCat("Resuming job ", name, " from ", directory->path()));
  }
  for (const api::ManifestChange& change : prepared.changes) {
    run.display()->Note(
        absl::StrCat("Changed: ", change.path, " ", change.before, " -> ", change.after));
  }

  DisplayListener listener(run.display(), environment.clock, run.Logs(), flags.foreground);
  run.Open(&listener);
  const JobResult& result = run.Run(JobRun::Interrupt::kSuspend);
  if (absl::Status status = directory->WriteResult(result); !status.ok()) {
    run.display()->Note(
        absl::StrCat("Warning: the result could not be recorded: ", status.message()));
  }
  return run.Finish(absl::StrCat("sluice export ", name, " -o ", name, ".safetensors"));
}

// If the job is running, has it save a checkpoint and stop, so that this process can continue it.
// Nothing is stopped if the job could not continue with this manifest.
absl::Status StopRunning(const Environment& environment, const RunFlags& flags,
                         const api::TrainingJob& job, const local::JobDirectory& directory) {
  if (!directory.LockedBy().has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckChanges(job, directory));
  RETURN_IF_ERROR(CheckPathsExist(job.spec, environment.files));
  const absl::StatusOr<std::string> stopped =
      MakeLocalJobs(environment, flags.state_directory)
          ->Stop(job.spec.name(), Jobs::StopOptions(), [&](const std::string& text) {
            if (!flags.quiet) *environment.err << text << std::endl;
          });
  return stopped.status();
}

}  // namespace

int RunOnThisMachine(const Environment& environment, const RunFlags& flags) {
  absl::StatusOr<api::TrainingJob> job = LoadJob(flags);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }
  const std::vector<std::string> found =
      FindData(flags.manifest, environment.data_directory, environment.files, &job->spec);
  if (!flags.quiet) PrintNotes(environment, *job, found);
  RETURN_IF_ERROR(CheckForeground(flags, job->spec), PrintError(environment, _));
  if (job->suspend && !flags.dry_run) return ReportSuspended(environment, flags, job->spec.name());

  const absl::StatusOr<local::Programs> programs =
      FindPrograms(environment, flags.program_directory, job->spec);
  if (flags.dry_run) {
    return programs.ok() ? DryRun(environment, flags, *job, *programs)
                         : PrintError(environment, programs.status());
  }
  if (!programs.ok()) {
    *environment.err << "sluice: " << programs.status().message() << "\n";
    return kExitFailed;
  }
  if (flags.port != 0) {
    RETURN_IF_ERROR(CheckPortIsFree(flags.port), PrintError(environment, _));
  }

  if (absl::Status status = DownloadData(environment, flags.quiet, job->spec.data());
      !status.ok()) {
    return absl::IsCancelled(status) ? +kExitInterrupted : PrintError(environment, status);
  }

  local::JobDirectory directory(environment.files, flags.state_directory, job->spec.name());
  if (flags.take_over) {
    RETURN_IF_ERROR(StopRunning(environment, flags, *job, directory), PrintError(environment, _));
  }
  if (flags.fresh && !ConfirmFresh(environment, flags, directory)) return kExitFailed;
  ASSIGN_OR_RETURN(PreparedRun run, PrepareRun(*job, flags.fresh, &directory, environment.files),
                   PrintError(environment, _));
  if (run.finished.has_value()) {
    return ReportFinished(environment, flags, *job, directory, *std::move(run.finished));
  }
  return RunPrepared(environment, flags, *programs, std::move(run), &directory);
}

}  // namespace sluice::cli

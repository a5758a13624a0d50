#include "cli/local_run.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/common/exit_codes.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"
#include "cli/data_download.h"
#include "cli/display_listener.h"
#include "cli/dry_run.h"
#include "cli/job_paths.h"
#include "cli/local/job_directory.h"
#include "cli/local/local_job.h"
#include "cli/local_jobs.h"
#include "cli/run_preparation.h"
#include "cli/run_texts.h"
#include "services/common/file_util.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

int RunPrepared(const Environment& environment, const RunFlags& flags,
                const local::Programs& programs, PreparedRun run, local::JobDirectory* directory) {
  const std::string name = run.job.spec.name();
  const std::unique_ptr<RunDisplay> display =
      MakeDisplay(environment, flags.output, DisplayOptionsOf(flags, run.job.spec));
  if (run.resumed) display->Note(absl::StrCat("Resuming job ", name, " from ", directory->path()));
  for (const api::ManifestChange& change : run.changes) {
    display->Note(absl::StrCat("Changed: ", change.path, " ", change.before, " -> ", change.after));
  }

  std::optional<LogFollower> logs;
  if (flags.verbose) logs.emplace(directory->logs(), "", 0);
  DisplayListener listener(display.get(), environment.clock, std::move(logs), flags.foreground);
  const absl::Time start = environment.clock->Now();
  local::LocalJob job(JobOptionsOf(flags, programs, std::move(run.job)), environment.files,
                      directory, &listener, environment.clock);
  environment.set_interrupt_handler([&](int count) {
    listener.Stopping();
    if (count == 1) {
      job.Suspend();
    } else {
      job.StopNow();
    }
  });
  SummaryFacts facts;
  facts.result = job.Run();
  environment.set_interrupt_handler(nullptr);

  facts.name = name;
  facts.logs = directory->logs();
  facts.export_command = absl::StrCat("sluice export ", name, " -o ", name, ".safetensors");
  facts.elapsed = facts.result.ended - start;
  listener.FillIn(&facts);
  std::vector<std::string> log_lines;
  policy::Outcome& outcome = facts.result.outcome;
  if (outcome.kind == policy::OutcomeKind::kFailed) {
    if (!outcome.blamed.has_value()) outcome.blamed = listener.Blamed(outcome.reason);
    log_lines = job.LastLogLines(*outcome.blamed, kFailureLogLines);
  }

  if (absl::Status status = directory->WriteResult(facts.result); !status.ok()) {
    display->Note(absl::StrCat("Warning: the result could not be recorded: ", status.message()));
  }
  const int code = ExitCodeOf(outcome.kind);
  display->Finish(facts, code, log_lines);
  return code;
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
  RETURN_IF_ERROR(CheckForeground(flags, job->spec), Complain(environment, _));
  if (job->suspend && !flags.dry_run) return ReportSuspended(environment, flags, job->spec.name());

  const absl::StatusOr<local::Programs> programs =
      FindPrograms(environment, flags.program_directory, job->spec);
  if (flags.dry_run) {
    return programs.ok() ? DryRun(environment, flags, *job, *programs)
                         : Complain(environment, programs.status());
  }
  if (!programs.ok()) {
    *environment.err << "sluice: " << programs.status().message() << "\n";
    return kExitFailed;
  }
  if (flags.port != 0) {
    RETURN_IF_ERROR(CheckPortIsFree(flags.port), Complain(environment, _));
  }

  if (absl::Status status = DownloadData(environment, flags.quiet, job->spec.data());
      !status.ok()) {
    return absl::IsCancelled(status) ? +kExitInterrupted : Complain(environment, status);
  }

  local::JobDirectory directory(environment.files, flags.state_directory, job->spec.name());
  if (flags.take_over) {
    RETURN_IF_ERROR(StopRunning(environment, flags, *job, directory), Complain(environment, _));
  }
  if (flags.fresh && !ConfirmFresh(environment, flags, directory)) return kExitFailed;
  ASSIGN_OR_RETURN(PreparedRun run, PrepareRun(*job, flags.fresh, &directory, environment.files),
                   Complain(environment, _));
  if (run.finished.has_value()) {
    return ReportFinished(environment, flags, *job, directory, *std::move(run.finished));
  }
  return RunPrepared(environment, flags, *programs, std::move(run), &directory);
}

}  // namespace sluice::cli

#include "cli/local_run.h"

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/common/exit_codes.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"
#include "cli/data_download.h"
#include "cli/dry_run.h"
#include "cli/job_paths.h"
#include "cli/local/job_directory.h"
#include "cli/local/local_job.h"
#include "cli/local_jobs.h"
#include "cli/local_states.h"
#include "cli/run_preparation.h"
#include "cli/run_texts.h"
#include "services/common/file_util.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

// Passes the events of a job of this machine to a display.
class Listener final : public local::JobListener {
 public:
  // `logs`: if set, its lines are shown too.
  Listener(RunDisplay* display, const Clock* clock, std::optional<LogFollower> logs)
      : display_(display), clock_(clock), logs_(std::move(logs)) {}

  void OnProcessStarted(const policy::Replica& replica, pid_t pid) override {
    display_->OnProcessStarted({replica, pid, ""});
  }
  void OnProcessEnded(const policy::Replica& replica, pid_t pid,
                      const policy::Exit& exit) override {
    display_->OnProcessEnded({replica, pid, ""}, exit);
    replicas_.insert(replica);
  }
  void OnProgress(const v1::JobProgress& progress) override {
    if (progress.phase() == v1::JobProgress::TRAINING || training_.has_value()) {
      const Mark now = {clock_->Now(), progress.samples()};
      if (!training_.has_value()) training_ = {now, now};
      if (progress.samples() > training_->second.samples) training_->second = now;
    }
    progress_ = progress;
    display_->OnProgress(progress, "");
  }
  void OnOutcome(const policy::Outcome& outcome) override { display_->OnOutcome(outcome.kind); }
  void OnTick(const std::map<policy::Replica, local::ProcessInfo>& processes) override {
    // Ctrl-C is shown by the thread that draws.
    if (stopping_) display_->Stopping();
    if (logs_.has_value()) {
      logs_->Poll([this](absl::string_view process, absl::string_view line) {
        display_->OnLogLine(process, line);
      });
    }
    display_->OnTick(LocalProcessStates(processes, progress_.has_value() ? &*progress_ : nullptr));
  }

  // Any thread.
  void Stopping() { stopping_ = true; }

  void FillIn(SummaryFacts* facts) const {
    if (!training_.has_value()) return;
    facts->training_time = training_->second.time - training_->first.time;
    facts->samples = training_->second.samples - training_->first.samples;
  }

  // The process whose log explains the failure: the one that the reason names ("worker-0: ..."),
  // else the coordinator.
  policy::Replica Blamed(absl::string_view reason) const {
    for (const policy::Replica& replica : replicas_) {
      if (absl::StartsWith(reason, absl::StrCat(policy::ReplicaName(replica), ":"))) return replica;
    }
    return {v1::COORDINATOR, 0};
  }

 private:
  struct Mark {
    absl::Time time;
    uint64_t samples = 0;
  };

  RunDisplay* const display_;
  const Clock* const clock_;
  std::optional<LogFollower> logs_;
  std::optional<v1::JobProgress> progress_;  // the last
  std::atomic<bool> stopping_{false};
  std::optional<std::pair<Mark, Mark>> training_;  // first and newest progress
  std::set<policy::Replica> replicas_;             // of processes that have ended
};

DisplayOptions DisplayOptionsOf(const RunFlags& flags, const v1::JobSpec& job) {
  DisplayOptions options;
  options.job = job.name();
  options.quiet = flags.quiet;
  if (job.training().mode() == v1::BOUNDED_STALENESS) {
    options.iteration_steps = job.worker().replicas();
  }
  options.losses = job.training().execution() == v1::TrainingSpec::SERVER;
  return options;
}

local::LocalJob::Options JobOptionsOf(const RunFlags& flags, const local::Programs& programs,
                                      api::TrainingJob job) {
  local::LocalJob::Options options;
  options.programs = programs;
  options.log_level = flags.log_level;
  if (flags.log_level.empty()) options.log_level = flags.verbose ? "debug" : "info";
  options.port = flags.port;
  options.command_directory =
      std::filesystem::absolute(DirectoryOf(flags.manifest)).lexically_normal().string();
  options.control.with_losses =
      flags.output == "plain" && job.spec.training().execution() == v1::TrainingSpec::SERVER;
  options.job = std::move(job);
  return options;
}

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
  Listener listener(display.get(), environment.clock, std::move(logs));
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
  for (const absl::Status& status :
       {CheckChanges(job, directory), CheckPathsExist(job.spec, environment.files)}) {
    if (!status.ok()) return status;
  }
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

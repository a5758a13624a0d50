// sluice run
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/cluster/cluster_run.h"
#include "cli/command.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"
#include "cli/data_download.h"
#include "cli/dry_run.h"
#include "cli/job_paths.h"
#include "cli/local/local_job.h"
#include "cli/local_jobs.h"
#include "cli/local_states.h"
#include "cli/run_preparation.h"
#include "operator/api/codec.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/storage.h"
#include "services/common/exit_code.h"
#include "services/common/file_util.h"
#include "services/common/number_range.h"

namespace sluice::cli {
namespace {

constexpr size_t kFailureLogLines = 20;

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

int ExitCodeOf(policy::OutcomeKind outcome) {
  switch (outcome) {
    case policy::OutcomeKind::kSucceeded:
      return kExitOk;
    case policy::OutcomeKind::kSuspended:
      return kExitInterrupted;
    case policy::OutcomeKind::kFailed:
      break;
  }
  return kExitFailed;
}

std::vector<std::string> ProgramDirectories(const Environment& environment, const RunFlags& flags) {
  if (!flags.program_directory.empty()) return {flags.program_directory};
  return environment.program_directories;
}

// Whether to continue. Prints in any case what is removed.
bool ConfirmFresh(const Environment& environment, const RunFlags& flags,
                  const local::JobDirectory& directory) {
  // For a running job nothing is removed: the run is refused.
  if (!directory.ReadJob().ok() || directory.LockedBy().has_value()) return true;
  *environment.err << "--fresh deletes the existing checkpoints in " << directory.path() << "\n";
  if (flags.yes || !environment.in_is_terminal) return true;
  *environment.err << "Remove it? [y/N] " << std::flush;
  std::string answer;
  std::getline(*environment.in, answer);
  answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  return answer == "y" || answer == "yes";
}

std::unique_ptr<RunDisplay> MakeDisplay(const Environment& environment, const RunFlags& flags,
                                        DisplayOptions options) {
  if (flags.output == "json") return MakeJsonDisplay(environment, std::move(options));
  if (flags.output == "plain") return MakePlainDisplay(environment, std::move(options));
  return MakeTextDisplay(environment, std::move(options));
}

// Prints one sentence and, with JSON, also the summary that readers expect last.
int SayNothingRuns(const Environment& environment, const RunFlags& flags, const std::string& name,
                   const std::string& text, policy::OutcomeKind outcome,
                   const v1::JobProgress& progress, const std::string& logs = "") {
  DisplayOptions options;
  options.job = name;
  if (flags.output == "plain") {
    *environment.out << text << "\n";
    return kExitOk;
  }
  const std::unique_ptr<RunDisplay> display = MakeDisplay(environment, flags, options);
  display->Note(text);
  if (flags.output == "json") {
    SummaryFacts facts;
    facts.name = name;
    facts.result.outcome.kind = outcome;
    facts.result.progress = progress;
    facts.logs = logs;
    display->Finish(facts, kExitOk, {});
  }
  return kExitOk;
}

int SayFinished(const Environment& environment, const RunFlags& flags, const std::string& name,
                const local::JobDirectory& directory, const PreparedRun& run) {
  std::string text = absl::StrCat("Job ", name, " has already finished, after ",
                                  CountText(run.finished->step), " steps");
  if (run.finished->has_accuracy) {
    absl::StrAppend(&text, " with an accuracy of ", PercentText(run.finished->accuracy));
  }
  if (run.finished->has_perplexity) {
    absl::StrAppend(&text, " with a perplexity of ", PerplexityText(run.finished->perplexity));
  }
  absl::StrAppend(&text, "; there is nothing to do. --fresh starts over.");

  v1::JobProgress progress;
  progress.set_phase(v1::JobProgress::SUCCEEDED);
  progress.set_step(run.finished->step);
  progress.set_total_steps(run.finished->total_steps);
  progress.set_epoch(run.finished->epoch);
  progress.set_samples(run.finished->samples);
  progress.set_total_samples(run.finished->total_samples);
  progress.set_has_loss(run.finished->has_loss);
  progress.set_loss(run.finished->loss);
  if (run.finished->evaluation.has_value()) {
    *progress.mutable_last_evaluation() = *run.finished->evaluation;
  }
  const std::string& named = run.job.spec.checkpoint().directory();
  const std::string checkpoint_directory = named.empty() ? directory.checkpoints() : named;
  const auto storage =
      MakeLocalStorage(environment.files, checkpoint_directory, absl::StrCat("cli-", getpid()));
  if (const auto point = FindRestorePoint(*storage); point.ok() && point->found) {
    *progress.mutable_checkpoint()->mutable_last() = point->checkpoint_index.checkpoint();
    progress.mutable_checkpoint()->set_directory(
        JoinPath(checkpoint_directory, CheckpointDirectory(point->checkpoint_index.checkpoint())));
  }
  return SayNothingRuns(environment, flags, name, text, policy::OutcomeKind::kSucceeded, progress,
                        directory.logs());
}

local::JobResult ResultOf(const RunResult& result, absl::Time now) {
  local::JobResult kept;
  kept.outcome = result.outcome.kind;
  kept.reason = result.outcome.reason;
  kept.time = absl::FormatTime(absl::RFC3339_sec, now, absl::UTCTimeZone());
  kept.step = result.progress.step();
  kept.total_steps = result.progress.total_steps();
  kept.samples = result.progress.samples();
  kept.total_samples = result.progress.total_samples();
  kept.epoch = result.progress.epoch();
  if (result.progress.has_last_evaluation()) kept.evaluation = result.progress.last_evaluation();
  kept.has_accuracy = result.progress.last_evaluation().has_accuracy();
  kept.accuracy = result.progress.last_evaluation().accuracy();
  kept.has_perplexity = result.progress.last_evaluation().has_perplexity();
  kept.perplexity = result.progress.last_evaluation().perplexity();
  kept.has_loss = result.progress.has_loss();
  kept.loss = result.progress.loss();
  return kept;
}

int RunPrepared(const Environment& environment, const RunFlags& flags,
                const local::Programs& programs, PreparedRun run, local::JobDirectory* directory) {
  const std::string name = run.job.spec.name();
  DisplayOptions display_options;
  display_options.job = name;
  display_options.quiet = flags.quiet;
  if (run.job.spec.training().mode() == v1::BOUNDED_STALENESS) {
    display_options.iteration_steps = run.job.spec.worker().replicas();
  }
  display_options.losses = run.job.spec.training().execution() == v1::TrainingSpec::SERVER;
  const bool losses = display_options.losses && flags.output == "plain";
  const std::unique_ptr<RunDisplay> display =
      MakeDisplay(environment, flags, std::move(display_options));
  if (run.resumed) display->Note(absl::StrCat("Resuming job ", name, " from ", directory->path()));
  for (const api::ManifestChange& change : run.changes) {
    display->Note(absl::StrCat("Changed: ", change.path, " ", change.before, " -> ", change.after));
  }

  std::optional<LogFollower> logs;
  if (flags.verbose) logs.emplace(directory->logs(), "", 0);
  Listener listener(display.get(), environment.clock, std::move(logs));
  local::LocalJob::Options options;
  options.job = std::move(run.job);
  options.programs = programs;
  options.log_level = flags.log_level;
  if (flags.log_level.empty()) options.log_level = flags.verbose ? "debug" : "info";
  options.port = flags.port;
  options.command_directory =
      std::filesystem::absolute(DirectoryOf(flags.manifest)).lexically_normal().string();
  options.control.with_losses = losses;

  const absl::Time start = environment.clock->Now();
  SummaryFacts facts;
  facts.name = name;
  facts.logs = directory->logs();
  facts.export_command = absl::StrCat("sluice export ", name, " -o ", name, ".safetensors");
  std::map<policy::Replica, uint64_t> log_begins;
  {
    local::LocalJob job(std::move(options), environment.files, directory, &listener,
                        environment.clock);
    environment.set_interrupt_handler([&](int count) {
      listener.Stopping();
      if (count == 1) {
        job.Suspend();
      } else {
        job.StopNow();
      }
    });
    local::LocalJob::Result result = job.Run();
    facts.result = {result.outcome, result.progress, result.has_progress, result.restarts};
    log_begins = std::move(result.log_begins);
    environment.set_interrupt_handler(nullptr);
  }

  const absl::Time now = environment.clock->Now();
  facts.elapsed = now - start;
  listener.FillIn(&facts);
  policy::Outcome& outcome = facts.result.outcome;
  const int code = ExitCodeOf(outcome.kind);
  std::vector<std::string> log_lines;
  if (outcome.kind == policy::OutcomeKind::kFailed) {
    if (!outcome.blamed.has_value()) outcome.blamed = listener.Blamed(outcome.reason);
    log_lines = local::LastLines(directory->LogFile(*outcome.blamed), kFailureLogLines,
                                 log_begins[*outcome.blamed]);
  }

  if (absl::Status status = directory->WriteResult(ResultOf(facts.result, now)); !status.ok()) {
    display->Note(absl::StrCat("Warning: the result could not be recorded: ", status.message()));
  }
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

// Prints a note about fields of the manifest that only apply to a cluster.
void SaySetAside(const Environment& environment, const api::TrainingJob& job) {
  std::vector<std::string> fields = api::ClusterFields(job);
  // Processes of one machine communicate without TLS anyway.
  if (job.cluster.is_object() && job.cluster.value("tls", "") == "Disabled") {
    fields.erase(std::remove(fields.begin(), fields.end(), "spec.tls"), fields.end());
  }
  if (fields.empty()) return;
  *environment.err << "Note: ignoring cluster-only fields: " << absl::StrJoin(fields, ", ") << "\n";
}

int Run(const Environment& environment, const RunFlags& flags) {
  absl::StatusOr<api::TrainingJob> job = LoadJob(flags);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }
  const std::vector<std::string> found =
      FindData(flags.manifest, environment.data_directory, environment.files, &job->spec);
  if (!flags.quiet) {
    SaySetAside(environment, *job);
    for (const std::string& taken : found) *environment.err << "Note: " << taken << "\n";
  }
  if (job->suspend && !flags.dry_run) {
    return SayNothingRuns(
        environment, flags, job->spec.name(),
        absl::StrCat("Job ", job->spec.name(), " is suspended (spec.suspend): nothing runs"),
        policy::OutcomeKind::kSuspended, v1::JobProgress());
  }

  const absl::StatusOr<local::Programs> programs =
      FindPrograms(ProgramDirectories(environment, flags), job->spec);
  if (flags.dry_run) {
    return programs.ok() ? DryRun(environment, flags, *job, *programs)
                         : Complain(environment, programs.status());
  }
  if (!programs.ok()) {
    *environment.err << "sluice: " << programs.status().message() << "\n";
    return kExitFailed;
  }
  if (flags.port != 0) {
    if (absl::Status status = CheckPortIsFree(flags.port); !status.ok()) {
      return Complain(environment, status);
    }
  }

  if (absl::Status status = DownloadData(environment, flags.quiet, job->spec.data());
      !status.ok()) {
    return absl::IsCancelled(status) ? +kExitInterrupted : Complain(environment, status);
  }

  local::JobDirectory directory(environment.files, flags.state_directory, job->spec.name());
  if (flags.take_over) {
    const absl::Status stopped = StopRunning(environment, flags, *job, directory);
    if (!stopped.ok()) return Complain(environment, stopped);
  }
  if (flags.fresh && !ConfirmFresh(environment, flags, directory)) return kExitFailed;
  absl::StatusOr<PreparedRun> run = PrepareRun(*job, flags.fresh, &directory, environment.files);
  if (!run.ok()) return Complain(environment, run.status());
  if (run->finished.has_value()) {
    return SayFinished(environment, flags, job->spec.name(), directory, *run);
  }
  return RunPrepared(environment, flags, *programs, *std::move(run), &directory);
}

int RunOnCluster(const Environment& environment, const RunFlags& flags, ClusterRunFlags* cluster) {
  const std::pair<const char*, bool> here_only[] = {
      {"--fresh", flags.fresh},
      {"--take-over", flags.take_over},
      {"--port", flags.port != 0},
      {"--bin-dir", !flags.program_directory.empty()}};
  for (const auto& [flag, given] : here_only) {
    if (!given) continue;
    return Complain(environment, absl::InvalidArgumentError(absl::StrCat(
                                     flag, " applies to jobs of this machine, not of a cluster")));
  }
  cluster->manifest = flags.manifest;
  cluster->output = flags.output;
  cluster->workers = flags.workers;
  cluster->shards = flags.shards;
  cluster->dry_run = flags.dry_run;
  cluster->quiet = flags.quiet;
  cluster->verbose = flags.verbose;
  return RunOnCluster(environment, *cluster);
}

}  // namespace

void AddRunCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<RunFlags>();
  auto cluster = std::make_shared<ClusterRunFlags>();
  CLI::App* run = app->add_subcommand(
      "run",
      "Train a job, on this machine or on a cluster, and follow its progress\n\n"
      "  sluice run job.yaml\n"
      "  sluice run job.yaml --workers 4 --shards 2\n"
      "  sluice run job.yaml --output json | tee run.jsonl\n"
      "  sluice run --cluster job.yaml\n"
      "  sluice run --context prod --namespace vision --detach job.yaml\n\n"
      "On this machine, Ctrl-C saves a checkpoint and stops; the same command resumes the job.\n"
      "On a cluster, Ctrl-C detaches, and the job keeps running; run the same command to "
      "re-attach,\n"
      "or to resume a job that `sluice stop` has suspended.\n"
      "Exit code: 0 trained, 1 failed, 2 bad manifest or arguments, 130 interrupted.\n");
  run->add_option("FILE", flags->manifest, "the manifest")->required();
  run->add_flag("--fresh", flags->fresh, "start over: delete the existing checkpoints");
  run->add_flag("--take-over", flags->take_over,
                "if the job is already running: checkpoint and stop it, then continue with this "
                "manifest (another training.mode, number of shards, ...)")
      ->excludes("--fresh");
  run->add_flag("-y,--yes", flags->yes, "do not ask before --fresh removes anything");
  run->add_flag("--dry-run", flags->dry_run, "show what would start, but change nothing");
  run->add_option("--workers", flags->workers, "number of workers instead of the manifest's")
      ->check(NumberBetween<uint32_t>(1, kMaxReplicas));
  run->add_option("--shards", flags->shards, "number of shards instead of the manifest's")
      ->check(NumberBetween<uint32_t>(1, kMaxReplicas));
  run->add_flag("-q,--quiet", flags->quiet, "print only the final metric and errors");
  run->add_flag("-v,--verbose", flags->verbose,
                "also show the processes' logs, with a line for each push, pull and step");
  run->add_option("--output", flags->output,
                  "text, json: one object on each line, or plain: evaluations, the final metric "
                  "and the time it took")
      ->check(CLI::IsMember({"text", "json", "plain"}))
      ->capture_default_str();
  run->add_option("--port", flags->port, "the coordinator's port (default: any free port)")
      ->check(CLI::Range(0, 65535));
  run->add_option("--log-level", flags->log_level,
                  "log level of the processes (default: info; with --verbose debug)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  run->add_option("--bin-dir", flags->program_directory,
                  "directory of sluice-coordinator, sluice-ps and sluice-worker (default: beside "
                  "sluice; SLUICE_BIN_DIR)");
  AddStateDirectory(run, &flags->state_directory);
  AddClusterFlags(run, &cluster->cluster);
  run->add_flag("-d,--detach", cluster->detach,
                "on a cluster: apply the manifest, and do not follow the job");
  run->add_flag("--force-conflicts", cluster->force_conflicts,
                "on a cluster: take over fields that other tools have set");
  run->callback([=, &environment] {
    *action = [=, &environment] {
      if (!cluster->cluster.wanted()) return Run(environment, *flags);
      return RunOnCluster(environment, *flags, cluster.get());
    };
  });
}

}  // namespace sluice::cli

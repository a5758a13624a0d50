#include "cli/local/local_jobs.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/common/job_result.h"
#include "cli/common/log_follower.h"
#include "cli/common/progress_text.h"
#include "cli/local/job_directory.h"
#include "cli/local/job_paths.h"
#include "cli/local/local_states.h"
#include "cli/local/running_job.h"
#include "services/common/status_macros.h"
#include "services/manifest/manifest.h"
#include "services/manifest/training_job.h"
#include "services/protocol/job_name.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kPoll{100};
// How long the process that runs a job may take to notice a request.
constexpr absl::Duration kRequestTimeout = absl::Seconds(10);

// The directory of a job's newest checkpoint; empty if there is none.
std::string NewestCheckpointOf(FileSystem* files, const local::JobDirectory& directory) {
  const absl::StatusOr<api::TrainingJob> job = directory.ReadJob();
  if (!job.ok()) return "";
  const absl::StatusOr<std::string> newest =
      NewestCheckpoint(directory.CheckpointsOf(job->spec), files);
  return newest.ok() ? *newest : "";
}

// Lines about the files of a job that is not running.
std::vector<std::string> ResultLines(FileSystem* files, const std::string& name,
                                     const local::JobDirectory& directory) {
  std::vector<std::string> lines;
  const auto result = directory.ReadResult();
  const auto job = directory.ReadJob();

  if (result.ok() && result->ended != absl::InfinitePast()) {
    lines.push_back("  ended: " +
                    absl::FormatTime(absl::RFC3339_sec, result->ended, absl::UTCTimeZone()));
  }

  if (const std::string newest = NewestCheckpointOf(files, directory); !newest.empty()) {
    lines.push_back("  newest checkpoint: " + newest);
    lines.push_back(absl::StrCat("  model: sluice export ", name, " -o ", name, ".safetensors"));
  }
  if (result.ok() || job.ok()) lines.push_back("  logs: " + directory.logs());
  return lines;
}

std::string ResultText(const local::JobDirectory& directory) {
  const auto result = directory.ReadResult();
  if (!result.ok()) {
    return absl::IsNotFound(directory.ReadJob().status()) ? "not started" : "not finished";
  }

  const v1::JobProgress& progress = result->progress;
  const v1::Evaluation& evaluation = progress.last_evaluation();
  std::string text = absl::StrCat(OutcomeName(result->outcome.kind), " at ", StepText(progress));

  if (evaluation.has_accuracy()) {
    absl::StrAppend(&text, ", accuracy ", PercentText(evaluation.accuracy()));
  }
  if (evaluation.has_perplexity()) {
    absl::StrAppend(&text, ", perplexity ", PerplexityText(evaluation.perplexity()));
  }
  for (const v1::Metric& metric : evaluation.metrics()) {
    absl::StrAppend(&text, ", ", OwnMetricText(metric));
  }

  if (!result->outcome.reason.empty()) absl::StrAppend(&text, ": ", result->outcome.reason);
  return text;
}

std::vector<api::Override> SizeOverrides(const Jobs::ScaleOptions& options) {
  std::vector<api::Override> overrides;
  const auto add = [&](const char* flag, const char* field, std::optional<uint32_t> number) {
    if (number.has_value()) overrides.push_back({absl::StrCat(flag, " ", *number), field, *number});
  };
  add("--shards", "spec.parameterServer.replicas", options.shards);
  add("--workers", "spec.worker.replicas", options.workers);
  return overrides;
}

local::Sizes SizesOf(const v1::JobSpec& job) {
  return {job.parameter_server().replicas(), job.worker().replicas()};
}

// A line about shards that will have no partition; empty if there is none, or if it is not known.
std::string IdleShardsText(const v1::JobProgress& progress, const v1::JobSpec& job) {
  uint64_t partitions = 0;
  for (const v1::ProcessStatus& status : progress.processes()) {
    if (status.state() == v1::ProcessStatus::MEMBER) partitions += status.partitions();
  }

  const uint64_t copies = std::max<uint64_t>(1, job.parameter_server().copies());
  const uint32_t shards = job.parameter_server().replicas();
  if (partitions == 0 || partitions * copies >= shards) return "";

  return absl::StrCat("\nThe model is too small to be divided further: it fills ",
                      CountedText(partitions, "partition"), ", so at least ",
                      shards - partitions * copies, " of the ", shards,
                      " shards will have no partition");
}

class LocalAccess final : public Jobs::Access {
 public:
  LocalAccess(local::JobDirectory directory, std::string identity, std::string coordinator,
              std::shared_ptr<grpc::ChannelCredentials> credentials)
      : directory_(std::move(directory)),
        identity_(std::move(identity)),
        coordinator_(std::move(coordinator)),
        credentials_(std::move(credentials)) {}

  std::string Identity() const override { return identity_; }
  SnapshotSource Source() override { return {coordinator_, nullptr, credentials_, ""}; }
  bool Running() override { return directory_.LockedBy().has_value(); }

 private:
  const local::JobDirectory directory_;
  const std::string identity_;
  const std::string coordinator_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

class LocalJobs final : public Jobs {
 public:
  LocalJobs(const Environment& environment, std::string state_directory)
      : environment_(environment),
        files_(environment.files),
        state_directory_(std::move(state_directory)) {}

  std::string Place() const override { return state_directory_; }

  absl::StatusOr<std::vector<Line>> List() override {
    std::vector<Line> lines;
    for (const std::string& name : local::ListJobs(files_, state_directory_)) {
      const local::JobDirectory directory(files_, state_directory_, name);
      std::string text = ResultText(directory);

      if (const auto pid = directory.LockedBy(); pid.has_value()) {
        const absl::StatusOr<v1::JobProgress> progress = ReadProgress(files_, directory);
        JobSummary view;
        view.has_progress = progress.ok();
        if (progress.ok()) view.progress = *progress;
        text = absl::StrCat(ProgressLine(view), " (process ", *pid, ")");
      }

      lines.push_back({name, std::move(text)});
    }
    return lines;
  }

  absl::StatusOr<Details> Describe(const std::string& name) override {
    ASSIGN_OR_RETURN(const local::JobDirectory directory, Find(name));
    Details details;
    details.logs = directory.logs();

    const auto pid = directory.LockedBy();
    details.running = pid.has_value();

    if (!pid.has_value()) {
      if (const auto result = directory.ReadResult(); result.ok()) details.result = *result;
      details.checkpoint = NewestCheckpointOf(files_, directory);
      details.lines = ResultLines(files_, name, directory);
      details.lines.insert(details.lines.begin(), absl::StrCat(name, ": ", ResultText(directory)));
      return details;
    }

    const absl::StatusOr<v1::JobProgress> progress = ReadProgress(files_, directory);
    if (!progress.ok()) {
      details.lines = {
          absl::StrCat(name, ": running (process ", *pid,
                       "); its coordinator is not responding: ", progress.status().message())};
      return details;
    }

    details.view = ViewOf(name, *progress);
    const auto add = [&details](const char* what, const std::string& text) {
      if (!text.empty()) details.lines.push_back(absl::StrCat("  ", what, ": ", text));
    };

    add("of the workers' time", TimeSplitText(*progress));
    add("pushed", PushedText(*progress));
    add("pulled", PulledText(*progress));
    add("staleness", StalenessText(*progress));

    if (progress->checkpoint().has_last()) {
      add("newest checkpoint", progress->checkpoint().directory());
    }
    return details;
  }

  absl::Status Logs(const std::string& name, const LogOptions& options,
                    const LogSink& sink) override {
    ASSIGN_OR_RETURN(const local::JobDirectory directory, Find(name));
    LogFollower follower(directory.logs(), options.process, options.tail);
    bool more = true;
    const auto pass = [&](absl::string_view process, absl::string_view line) {
      more = more && sink(process, line);
    };

    follower.Poll(pass);
    if (!follower.found() && !options.follow) {
      return absl::NotFoundError(
          absl::StrCat("no log of ", options.process.empty() ? "any process" : options.process,
                       " in ", directory.logs()));
    }

    // Follows until the job's end, and reads once more for the last lines.
    bool runs = options.follow;
    while (runs && more) {
      std::this_thread::sleep_for(kPoll);
      runs = directory.LockedBy().has_value();
      follower.Poll(pass);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Stop(const std::string& name, const StopOptions& options,
                                   const std::function<void(const std::string&)>& say) override {
    ASSIGN_OR_RETURN(const local::JobDirectory directory, Find(name));
    const auto pid = directory.LockedBy();
    if (!pid.has_value()) return absl::StrCat("Job ", name, " is not running");
    say(absl::StrCat("Stopping ", name, " (process ", *pid, ")",
                     options.now ? "" : " after saving a checkpoint"));

    if (kill(*pid, SIGTERM) != 0 && errno == EPERM) {
      return absl::PermissionDeniedError(
          absl::StrCat("process ", *pid, ", which runs job ", name,
                       ", belongs to another user; only the user who started the job may stop it"));
    }

    const absl::Time deadline = environment_.clock->Now() + options.timeout;
    while (directory.LockedBy() == pid) {
      if (environment_.clock->Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("job ", name, " is still running; --now stops it without a checkpoint"));
      }
      std::this_thread::sleep_for(kPoll);
      // Two signals in quick succession may be merged into one.
      if (options.now) kill(*pid, SIGTERM);
    }

    return absl::StrCat(name, ": ", ResultText(directory));
  }

  absl::StatusOr<std::string> Scale(const std::string& name, const ScaleOptions& options) override {
    ASSIGN_OR_RETURN(local::JobDirectory directory, Find(name));
    const auto pid = directory.LockedBy();
    if (!pid.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", name, " is not running; sluice run JOB.YAML",
                       options.shards ? absl::StrCat(" --shards ", *options.shards) : "",
                       options.workers ? absl::StrCat(" --workers ", *options.workers) : "",
                       " starts it with these numbers"));
    }
    ASSIGN_OR_RETURN(const api::TrainingJob job, directory.ReadJob());
    ASSIGN_OR_RETURN(const api::TrainingJob scaled,
                     api::ReadManifest(directory.JobFile(), SizeOverrides(options)));

    const local::Sizes before = SizesOf(job.spec);
    const local::Sizes after = SizesOf(scaled.spec);
    if (before.shards != after.shards && !MovesPartitions(job.spec)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", name, " cannot change its number of shards while it runs: with ",
          "training.execution Server, or stalenessRule DelayCompensation, no partition moves. Stop "
          "it ",
          "(sluice stop ", name, "), change parameterServer.replicas in its manifest, and run it ",
          "again: it continues from its checkpoint"));
    }
    if (before == after) return absl::StrCat(name, " has ", local::SizesText(after), " already");

    RETURN_IF_ERROR(directory.RequestSizes(after));
    const absl::Time deadline = environment_.clock->Now() + kRequestTimeout;
    while (directory.HasRequestedSizes()) {
      if (directory.LockedBy() != pid) {
        return absl::FailedPreconditionError(absl::StrCat("job ", name, " has ended meanwhile"));
      }
      if (environment_.clock->Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "process ", *pid, ", which runs job ", name, ", has not taken the request ", "within ",
            absl::FormatDuration(kRequestTimeout),
            "; if it is stopped, it takes the request when it continues"));
      }
      std::this_thread::sleep_for(kPoll);
    }

    std::string text =
        absl::StrCat(name, ": from ", local::SizesText(before), " to ", local::SizesText(after),
                     "; sluice status ", name, " shows them");

    if (const auto progress = ReadProgress(files_, directory); progress.ok()) {
      text += IdleShardsText(*progress, scaled.spec);
    }
    return text;
  }

  absl::StatusOr<std::unique_ptr<Access>> Reach(const std::string& name) override {
    ASSIGN_OR_RETURN(const local::JobDirectory directory, Find(name));
    if (!directory.LockedBy().has_value()) {
      return absl::FailedPreconditionError(absl::StrCat("job ", name, " is not running"));
    }

    ASSIGN_OR_RETURN(const api::TrainingJob job, directory.ReadJob());
    const absl::StatusOr<std::string> address = CoordinatorAddress(files_, directory);
    if (!address.ok()) return absl::UnavailableError("the job is still starting");

    ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                     RunCredentials(files_, directory));
    return std::make_unique<LocalAccess>(directory, FullJobName(job.spec), *address,
                                         std::move(credentials));
  }

 private:
  absl::StatusOr<local::JobDirectory> Find(const std::string& name) const {
    const std::vector<std::string> jobs = local::ListJobs(files_, state_directory_);
    if (std::find(jobs.begin(), jobs.end(), name) != jobs.end()) {
      return local::JobDirectory(files_, state_directory_, name);
    }
    std::string known;
    for (const std::string& job : jobs) absl::StrAppend(&known, known.empty() ? "" : ", ", job);
    return absl::NotFoundError(
        absl::StrCat("there is no job ", name, " in ", state_directory_, "; ",
                     known.empty() ? "there are no jobs" : "there are: ", known));
  }

  static JobSummary ViewOf(const std::string& name, const v1::JobProgress& progress) {
    JobSummary view;
    view.name = name;
    view.has_progress = true;
    view.progress = progress;
    view.processes = ReportedProcessStates(progress);
    return view;
  }

  const Environment& environment_;
  FileSystem* const files_;
  const std::string state_directory_;
};

}  // namespace

std::unique_ptr<Jobs> MakeLocalJobs(const Environment& environment,
                                    const std::string& state_directory) {
  return std::make_unique<LocalJobs>(environment, state_directory);
}

}  // namespace sluice::cli

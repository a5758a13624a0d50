// status, logs, stop.
#include <grpcpp/client_context.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "operator/local/job_directory.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/cli/command.h"
#include "services/cli/log_follower.h"
#include "services/cli/progress_text.h"
#include "services/cli/running_job.h"
#include "services/common/exit_code.h"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kPoll{100};

struct StateFlags {
  std::string state_directory = ".sluice";
  std::string name;
  std::string process;
  size_t tail = LogFollower::kAll;
  bool follow = false;
  bool now = false;
  double timeout_seconds = 120;
};

absl::Status UnknownJob(const Environment& environment, const StateFlags& flags) {
  std::string known;
  for (const std::string& job : local::ListJobs(environment.files, flags.state_directory)) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", job);
  }
  return absl::NotFoundError(absl::StrCat("there is no job ", flags.name, " in ",
                                          flags.state_directory, "; ",
                                          known.empty() ? "there are none" : "there are: ", known));
}

bool JobIsKnown(const Environment& environment, const StateFlags& flags) {
  const std::vector<std::string> jobs = local::ListJobs(environment.files, flags.state_directory);
  return std::find(jobs.begin(), jobs.end(), flags.name) != jobs.end();
}

std::string StateText(const local::JobDirectory& directory) {
  const auto result = directory.ReadResult();
  if (!result.ok()) return "not finished";
  std::string text(local::OutcomeName(result->outcome));
  absl::StrAppend(&text, " at step ", CountText(result->step));
  if (result->total_steps > 0) absl::StrAppend(&text, " of ", CountText(result->total_steps));
  if (result->has_accuracy) absl::StrAppend(&text, ", accuracy ", PercentText(result->accuracy));
  if (result->has_perplexity) {
    absl::StrAppend(&text, ", perplexity ", PerplexityText(result->perplexity));
  }
  if (!result->reason.empty()) absl::StrAppend(&text, ": ", result->reason);
  return text;
}

int StatusOfAll(const Environment& environment, const StateFlags& flags) {
  const std::vector<std::string> jobs = local::ListJobs(environment.files, flags.state_directory);
  if (jobs.empty()) *environment.out << "No jobs in " << flags.state_directory << "\n";
  for (const std::string& job : jobs) {
    const local::JobDirectory directory(environment.files, flags.state_directory, job);
    std::string text = StateText(directory);
    if (const auto pid = directory.LockedBy(); pid.has_value()) {
      const absl::StatusOr<v1::JobProgress> progress = ReadProgress(environment.files, directory);
      JobView view;
      view.heard = progress.ok();
      if (progress.ok()) view.progress = *progress;
      text = absl::StrCat(ProgressLine(view), " (process ", *pid, ")");
    }
    *environment.out << absl::StreamFormat("%-24s %s\n", job, text);
  }
  return kExitOk;
}

int Status(const Environment& environment, const StateFlags& flags) {
  if (flags.name.empty()) return StatusOfAll(environment, flags);
  if (!JobIsKnown(environment, flags)) return Complain(environment, UnknownJob(environment, flags));
  const local::JobDirectory directory(environment.files, flags.state_directory, flags.name);
  const auto pid = directory.LockedBy();
  if (!pid.has_value()) {
    *environment.out << flags.name << ": " << StateText(directory) << "\n";
    return kExitOk;
  }
  const absl::StatusOr<v1::JobProgress> progress = ReadProgress(environment.files, directory);
  if (!progress.ok()) {
    *environment.out << flags.name << ": runs as process " << *pid
                     << "; its coordinator does not answer: " << progress.status().message()
                     << "\n";
    return kExitOk;
  }
  JobView view;
  view.name = flags.name;
  view.heard = true;
  view.progress = *progress;
  for (const v1::ProcessStatus& status : progress->processes()) {
    local::ProcessView process;
    process.pid = static_cast<pid_t>(status.pid());
    process.running =
        status.state() != v1::ProcessStatus::LEFT && status.state() != v1::ProcessStatus::EXPELLED;
    view.processes[{status.process().role(), status.process().index()}] = process;
  }
  for (const std::string& line : LiveLines(view, environment.columns(), environment.color)) {
    *environment.out << line << "\n";
  }
  if (const std::string split = TimeSplitText(*progress); !split.empty()) {
    *environment.out << "  of the workers' time: " << split << "\n";
  }
  if (const std::string pushed = PushedText(*progress); !pushed.empty()) {
    *environment.out << "  pushed: " << pushed << "\n";
  }
  if (const std::string staleness = StalenessText(*progress); !staleness.empty()) {
    *environment.out << "  staleness: " << staleness << "\n";
  }
  if (progress->checkpoint().has_last()) {
    *environment.out << "  newest checkpoint: " << progress->checkpoint().folder() << "\n";
  }
  return kExitOk;
}

int Logs(const Environment& environment, const StateFlags& flags) {
  if (!JobIsKnown(environment, flags)) return Complain(environment, UnknownJob(environment, flags));
  const local::JobDirectory directory(environment.files, flags.state_directory, flags.name);
  LogFollower follower(directory.logs(), flags.process, flags.tail);
  const auto print = [&](absl::string_view process, absl::string_view line) {
    *environment.out << PrefixedLine(process, line, environment.color) << "\n";
  };
  follower.Poll(print);
  if (!follower.found() && !flags.follow) {
    return Complain(environment,
                    absl::NotFoundError(absl::StrCat(
                        "no log of ", flags.process.empty() ? "any process" : flags.process, " in ",
                        directory.logs())));
  }
  // Until the job's end, and once more for what was written last.
  bool runs = flags.follow;
  while (runs && environment.out->good()) {
    environment.out->flush();
    std::this_thread::sleep_for(kPoll);
    runs = directory.LockedBy().has_value();
    follower.Poll(print);
  }
  return kExitOk;
}

int Stop(const Environment& environment, const StateFlags& flags) {
  if (!JobIsKnown(environment, flags)) return Complain(environment, UnknownJob(environment, flags));
  const local::JobDirectory directory(environment.files, flags.state_directory, flags.name);
  const auto pid = directory.LockedBy();
  if (!pid.has_value()) {
    *environment.out << "Job " << flags.name << " does not run\n";
    return kExitOk;
  }
  *environment.out << "Stopping " << flags.name << " (process " << *pid << ")"
                   << (flags.now ? "" : ": it writes a checkpoint first") << std::endl;
  kill(*pid, SIGTERM);
  const absl::Time deadline = environment.clock->Now() + absl::Seconds(flags.timeout_seconds);
  while (directory.LockedBy() == pid) {
    if (environment.clock->Now() >= deadline) {
      return Complain(environment,
                      absl::DeadlineExceededError(absl::StrCat(
                          "job ", flags.name, " still runs; --now stops it without a checkpoint")));
    }
    std::this_thread::sleep_for(kPoll);
    // Two that come at once may be seen as one.
    if (flags.now) kill(*pid, SIGTERM);
  }
  *environment.out << flags.name << ": " << StateText(directory) << "\n";
  return kExitOk;
}

}  // namespace

void AddStateCommands(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<StateFlags>();
  CLI::App* status = app->add_subcommand("status",
                                         "Show the jobs of this folder, or one in detail\n\n"
                                         "  sluice status\n"
                                         "  sluice status fashion-mnist\n");
  status->add_option("NAME", flags->name, "a job's name");
  AddStateDirectory(status, &flags->state_directory);
  status->callback(
      [=, &environment] { *action = [=, &environment] { return Status(environment, *flags); }; });

  CLI::App* logs = app->add_subcommand("logs",
                                       "Show the logs of a job's processes\n\n"
                                       "  sluice logs fashion-mnist --follow\n"
                                       "  sluice logs fashion-mnist --role worker-0 --tail 50\n");
  logs->add_option("NAME", flags->name, "a job's name")->required();
  logs->add_flag("-f,--follow", flags->follow, "go on until the job ends");
  logs->add_option("--role", flags->process, "of one process only: coordinator, ps-0, worker-1");
  logs->add_option("--tail", flags->tail, "begin with the last lines of each process only");
  AddStateDirectory(logs, &flags->state_directory);
  logs->callback(
      [=, &environment] { *action = [=, &environment] { return Logs(environment, *flags); }; });

  CLI::App* stop = app->add_subcommand("stop",
                                       "Checkpoint and stop a job that runs on this machine\n\n"
                                       "  sluice stop fashion-mnist\n");
  stop->add_option("NAME", flags->name, "a job's name")->required();
  stop->add_flag("--now", flags->now, "without a checkpoint");
  stop->add_option("--timeout", flags->timeout_seconds, "seconds to wait for it")
      ->capture_default_str();
  AddStateDirectory(stop, &flags->state_directory);
  stop->callback(
      [=, &environment] { *action = [=, &environment] { return Stop(environment, *flags); }; });
}

}  // namespace sluice::cli

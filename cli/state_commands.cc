// status, logs, scale and stop, for jobs of this machine or of a cluster.
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/common/jobs.h"
#include "cli/common/json_line.h"
#include "cli/common/log_follower.h"
#include "cli/common/progress_json.h"
#include "cli/common/progress_text.h"
#include "services/common/exit_code.h"
#include "services/common/process/number_range.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

struct StateFlags {
  std::string state_directory = ".sluice";
  ClusterFlags cluster;
  std::string name;
  std::string process;
  std::string role;
  std::string output = "text";
  size_t tail = LogFollower::kAll;
  bool follow = false;
  bool now = false;
  double timeout_seconds = 120;
  Jobs::ScaleOptions sizes;
};

// The object of `status --output json`. A job that does not run has no speed and no attempt.
nlohmann::json StatusJson(const std::string& name, const Jobs::Details& details) {
  nlohmann::json json = {{"type", "status"}, {"job", name}, {"running", details.running}};
  if (details.running && details.view.has_value() && details.view->has_progress) {
    json.update(ProgressJson(details.view->progress));
    json.update(TotalsJson(details.view->progress));
  } else if (details.running && !details.lines.empty()) {
    json["message"] = details.lines.front();
  }

  if (details.result.has_value()) {
    const JobResult& result = *details.result;
    json["outcome"] = OutcomeName(result.outcome.kind);
    json["reason"] = result.outcome.reason;

    if (result.ended != absl::InfinitePast()) {
      json["ended"] = absl::FormatTime(absl::RFC3339_full, result.ended, absl::UTCTimeZone());
    }
    if (result.has_progress) {
      nlohmann::json progress = ProgressJson(result.progress);
      for (const char* const unknown : {"phase", "attempt", "samplesPerSecond"}) {
        progress.erase(unknown);
      }
      json.update(progress);
    }

    if (result.progress.has_last_evaluation()) {
      json["evaluation"] = EvaluationJson(result.progress.last_evaluation());
    }
  }

  if (details.view.has_value() && details.running) {
    if (!details.view->state.empty()) json["state"] = details.view->state;
    for (const auto& [replica, process] : details.view->processes) {
      json["processes"].push_back({{"name", policy::ReplicaName(replica)},
                                   {"state", process.text},
                                   {"restarts", process.restarts}});
    }
  }

  if (!details.checkpoint.empty()) json["checkpoint"] = details.checkpoint;
  if (!details.logs.empty()) json["logs"] = details.logs;
  return json;
}

int StatusAsJson(const Environment& environment, const StateFlags& flags, Jobs* jobs) {
  std::vector<std::string> names = {flags.name};
  if (flags.name.empty()) {
    ASSIGN_OR_RETURN(const std::vector<Jobs::Line> lines, jobs->List(), PrintError(environment, _));
    names.clear();
    for (const Jobs::Line& line : lines) names.push_back(line.name);
  }

  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const Jobs::Details details, jobs->Describe(name), PrintError(environment, _));
    WriteJsonLine(environment, StatusJson(name, details));
  }
  return kExitOk;
}

int StatusOfAll(const Environment& environment, Jobs* jobs) {
  ASSIGN_OR_RETURN(const std::vector<Jobs::Line> lines, jobs->List(), PrintError(environment, _));
  if (lines.empty()) *environment.out << "No jobs in " << jobs->Place() << "\n";
  for (const Jobs::Line& line : lines) {
    *environment.out << absl::StreamFormat("%-24s %s\n", line.name, line.state);
  }
  return kExitOk;
}

int Status(const Environment& environment, const StateFlags& flags, Jobs* jobs) {
  if (flags.output == "json") return StatusAsJson(environment, flags, jobs);
  if (flags.name.empty()) return StatusOfAll(environment, jobs);
  ASSIGN_OR_RETURN(const Jobs::Details details, jobs->Describe(flags.name),
                   PrintError(environment, _));
  if (details.view.has_value()) {
    for (const std::string& line :
         LiveLines(*details.view, environment.columns(), environment.color, environment.unicode)) {
      *environment.out << line << "\n";
    }
  }

  for (const std::string& line : details.lines) *environment.out << line << "\n";
  return kExitOk;
}

int Logs(const Environment& environment, const StateFlags& flags, Jobs* jobs) {
  if (!flags.process.empty() && !flags.role.empty()) {
    return PrintError(environment, absl::InvalidArgumentError(absl::StrCat(
                                       "PROCESS (", flags.process, ") and --role (", flags.role,
                                       ") mean the same; give only one of them")));
  }

  Jobs::LogOptions options;
  options.process = flags.process.empty() ? flags.role : flags.process;
  options.tail = flags.tail;
  options.follow = flags.follow;

  const absl::Status status =
      jobs->Logs(flags.name, options, [&](absl::string_view process, absl::string_view line) {
        *environment.out << PrefixedLine(process, line, environment.color) << "\n";
        if (flags.follow) environment.out->flush();
        return environment.out->good();
      });
  return status.ok() ? kExitOk : PrintError(environment, status);
}

int Scale(const Environment& environment, const StateFlags& flags, Jobs* jobs) {
  if (!flags.sizes.shards.has_value() && !flags.sizes.workers.has_value()) {
    *environment.err << "sluice: give --shards, --workers or both\n";
    return kExitUsage;
  }
  ASSIGN_OR_RETURN(const std::string change, jobs->Scale(flags.name, flags.sizes),
                   PrintError(environment, _));
  *environment.out << change << "\n";
  return kExitOk;
}

int Stop(const Environment& environment, const StateFlags& flags, Jobs* jobs) {
  Jobs::StopOptions options;
  options.now = flags.now;
  options.timeout = absl::Seconds(flags.timeout_seconds);
  ASSIGN_OR_RETURN(
      const std::string end,
      jobs->Stop(flags.name, options,
                 [&](const std::string& text) { *environment.out << text << std::endl; }),
      PrintError(environment, _));
  *environment.out << end << "\n";
  return kExitOk;
}

using Command = int (*)(const Environment&, const StateFlags&, Jobs*);

void AddStateCommand(CLI::App* command, const Environment& environment,
                     const std::shared_ptr<StateFlags>& flags, Command run, Action* action) {
  AddStateDirectory(command, &flags->state_directory);
  AddClusterFlags(command, &flags->cluster);
  command->callback([=, &environment] {
    *action = [=, &environment] {
      ASSIGN_OR_RETURN(const std::unique_ptr<Jobs> jobs,
                       FindJobs(environment, flags->state_directory, flags->cluster),
                       PrintError(environment, _));
      return run(environment, *flags, jobs.get());
    };
  });
}

}  // namespace

void AddStateCommands(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<StateFlags>();
  CLI::App* status = app->add_subcommand(
      "status",
      "Show the jobs of this directory or of a cluster's namespace, or one job in detail\n\n"
      "  sluice status\n"
      "  sluice status fashion-mnist\n"
      "  sluice status fashion-mnist --output json\n"
      "  sluice status --cluster --namespace vision\n");

  status->add_option("NAME", flags->name, "a job's name");
  status->add_option("--output", flags->output, "text; json: one object for each job, on a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  AddStateCommand(status, environment, flags, Status, action);

  CLI::App* logs = app->add_subcommand("logs",
                                       "Show the logs of a job's processes\n\n"
                                       "  sluice logs fashion-mnist --follow\n"
                                       "  sluice logs fashion-mnist worker-0 --tail 50\n"
                                       "  sluice logs fashion-mnist --cluster -f\n");

  logs->add_option("NAME", flags->name, "a job's name")->required();
  logs->add_option("PROCESS", flags->process, "one process only: coordinator, ps-0, worker-1");
  logs->add_option("--role", flags->role, "the same as PROCESS");

  logs->add_flag("-f,--follow", flags->follow, "follow until the job ends");
  logs->add_option("--tail", flags->tail, "only the last lines of each process")
      ->check(NumberBetween<uint64_t>(0, 1'000'000'000));
  AddStateCommand(logs, environment, flags, Logs, action);

  CLI::App* scale =
      app->add_subcommand("scale",
                          "Change the numbers of shards and workers of a job while it trains\n\n"
                          "  sluice scale fashion-mnist --shards 3 --workers 5\n"
                          "  sluice scale fashion-mnist --cluster --workers 8\n\n"
                          "New workers take their part of the next steps. New shards receive\n"
                          "partitions, and shards that are no longer wanted hand theirs over\n"
                          "before they leave. The next `sluice run` with the manifest uses the\n"
                          "manifest's numbers again.\n");

  scale->add_option("NAME", flags->name, "a job's name")->required();
  scale->add_option("--shards", flags->sizes.shards, "number of shards")
      ->check(NumberBetween<uint64_t>(1, 1024));

  scale->add_option("--workers", flags->sizes.workers, "number of workers")
      ->check(NumberBetween<uint64_t>(1, 1024));
  AddStateCommand(scale, environment, flags, Scale, action);

  CLI::App* stop = app->add_subcommand(
      "stop",
      "Save a checkpoint and stop a job; `sluice run` with its manifest resumes "
      "it\n\n"
      "  sluice stop fashion-mnist\n"
      "  sluice stop fashion-mnist --cluster\n");

  stop->add_option("NAME", flags->name, "a job's name")->required();
  stop->add_flag("--now", flags->now, "stop without saving a checkpoint (only on this machine)");

  stop->add_option("--timeout", flags->timeout_seconds, "seconds to wait until it has stopped")
      ->capture_default_str()
      ->check(NumberBetween(0.0, 7.0 * 24 * 3600));
  AddStateCommand(stop, environment, flags, Stop, action);
}

}  // namespace sluice::cli

#include "cli/run/dry_run.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/local/job_directory.h"
#include "cli/local/job_paths.h"
#include "cli/run/preparation.h"
#include "services/common/exit_code.h"
#include "services/manifest/resume.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

struct DryRunPlan {
  const char* state = "new";  // "new", "running", "finished", "resumes"
  std::optional<pid_t> pid;   // the running job's `sluice run`, if there is one
  std::vector<api::ManifestChange> changes;
  std::string missing;   // the first input that does not exist
  std::string in_use;    // why the job may not use what is in its directories
  bool changed = false;  // a field changed that may not change
  bool refused() const { return changed || !missing.empty() || !in_use.empty(); }
};

DryRunPlan PlanOf(const Environment& environment, const RunFlags& flags,
                  const api::TrainingJob& job, const local::JobDirectory& directory) {
  DryRunPlan plan;
  plan.pid = directory.LockedBy();
  if (plan.pid.has_value()) {
    plan.state = "running";
    return plan;
  }
  absl::StatusOr<EarlierRun> earlier =
      ReadEarlierRun(job, flags.fresh, directory, environment.files);
  if (!earlier.ok()) {
    plan.in_use = std::string(earlier.status().message());
    return plan;
  }
  plan.changed = !DecideStart(earlier->facts).has_value();
  const absl::StatusOr<Beginning> beginning =
      DecideBeginning(job, &*earlier, directory, environment.files);

  plan.changes = std::move(earlier->changes);
  for (api::ManifestChange& change : plan.changes) {
    if (!plan.changed) change.allowed = true;
  }
  if (!beginning.ok()) {
    plan.state = earlier->facts.recorded ? "resumes" : "new";
    if (!plan.changed) plan.in_use = std::string(beginning.status().message());
    return plan;
  }

  plan.state = beginning->start == Start::kFinished ? "finished"
               : IsResumed(*beginning)              ? "resumes"
                                                    : "new";
  // A finished job reads nothing.
  if (beginning->start != Start::kFinished) {
    plan.missing = std::string(CheckPathsExist(job.spec, environment.files).message());
  }
  return plan;
}

// "2 shards       ", "1 shard        "
std::string CountedText(uint32_t count, const char* noun) {
  return absl::StrFormat("%-15s", absl::StrCat(count, " ", noun, count == 1 ? "" : "s"));
}

std::string HeadText(const DryRunPlan& plan) {
  if (plan.pid.has_value()) return "is already running";
  if (plan.refused()) return "would be refused";
  const std::string state = plan.state;
  if (state == "finished") return "has finished";
  return state == "new" ? "would start" : "would resume";
}

std::string StateText(const DryRunPlan& plan) {
  if (plan.pid.has_value()) return absl::StrCat("already running, pid ", *plan.pid);
  const std::string state = plan.state;
  return state == "finished"  ? "has finished; nothing to do"
         : state == "resumes" ? "resumes"
                              : state;
}

Json PlanJson(const api::TrainingJob& job, const local::Programs& programs,
              const local::JobDirectory& directory, const DryRunPlan& plan) {
  Json worker = programs.worker;
  if (job.spec.worker().command_size() > 0) {
    worker = std::vector<std::string>(job.spec.worker().command().begin(),
                                      job.spec.worker().command().end());
  }
  Json json = {{"type", "dryRun"},
               {"job", job.spec.name()},
               {"processes",
                {{{"role", "coordinator"}, {"count", 1}, {"program", programs.coordinator}},
                 {{"role", "ps"},
                  {"count", job.spec.parameter_server().replicas()},
                  {"program", programs.shard}},
                 {{"role", "worker"},
                  {"count", job.spec.worker().replicas()},
                  {"program", std::move(worker)}}}},
               {"directory", directory.path()},
               {"state", plan.state},
               {"changes", Json::array()},
               {"exitCode", plan.refused() ? kExitUsage : kExitOk}};
  if (plan.pid.has_value()) json["pid"] = *plan.pid;
  if (!plan.missing.empty()) json["missing"] = plan.missing;
  if (!plan.in_use.empty()) json["inUse"] = plan.in_use;
  for (const api::ManifestChange& change : plan.changes) {
    json["changes"].push_back({{"field", change.path},
                               {"before", change.before},
                               {"after", change.after},
                               {"allowed", change.allowed}});
  }
  return json;
}

}  // namespace

int DryRun(const Environment& environment, const RunFlags& flags, const api::TrainingJob& job,
           const local::Programs& programs) {
  const local::JobDirectory directory(environment.files, flags.state_directory, job.spec.name());
  const DryRunPlan plan = PlanOf(environment, flags, job, directory);
  const int code = plan.refused() ? kExitUsage : kExitOk;
  std::ostream& out = *environment.out;
  if (flags.output == "json") {
    Json json = PlanJson(job, programs, directory, plan);
    json["time"] =
        absl::FormatTime(absl::RFC3339_full, environment.clock->Now(), absl::UTCTimeZone());
    out << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
    return code;
  }
  out << "Job " << job.spec.name() << " " << HeadText(plan) << "\n"
      << "  1 coordinator  " << programs.coordinator << "\n"
      << "  " << CountedText(job.spec.parameter_server().replicas(), "shard") << programs.shard
      << "\n"
      << "  " << CountedText(job.spec.worker().replicas(), "worker")
      << (job.spec.worker().command_size() > 0 ? absl::StrJoin(job.spec.worker().command(), " ")
                                               : programs.worker)
      << "\n"
      << "  state          " << directory.path() << " (" << StateText(plan) << ")\n";
  for (const api::ManifestChange& change : plan.changes) {
    out << "  " << (change.allowed ? "changed        " : "not allowed    ") << change.path << ": "
        << change.before << " -> " << change.after << "\n";
  }
  if (!plan.missing.empty()) out << "  missing        " << plan.missing << "\n";
  if (!plan.in_use.empty()) out << "  in use         " << plan.in_use << "\n";
  if (plan.changed) out << "  --fresh would start over\n";
  return code;
}

}  // namespace sluice::cli

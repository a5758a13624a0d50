#include "cli/cluster/cluster_run.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/cluster/job_follower.h"
#include "cli/cluster/job_text.h"
#include "cli/cluster/job_watch.h"
#include "cli/cluster/pod_logs.h"
#include "cli/common/exit_codes.h"
#include "cli/common/run_display.h"
#include "operator/kube/api_error.h"
#include "operator/reconciler/names.h"
#include "services/common/status_macros.h"
#include "services/manifest/manifest.h"

namespace sluice::cli {
namespace {

using kube::Json;

constexpr absl::Duration kTick = absl::Milliseconds(200);

// The namespace of the flag, of the manifest or of the context, in this order.
absl::StatusOr<std::string> NamespaceOf(const ClusterRunFlags& flags, const Json& written,
                                        const Connection& connection) {
  const std::string own = kube::GetString(written, {"metadata", "namespace"});
  if (!flags.cluster.ns.empty() && !own.empty() && own != flags.cluster.ns) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest's namespace is ", own,
                                                   ", but --namespace is ", flags.cluster.ns));
  }
  return own.empty() ? connection.ns : own;
}

// Adds to the server's refusal of a manifest what the user can do about it.
absl::Status ExplainApply(const absl::Status& status, const Connection& connection,
                          const kube::ObjectKey& key, bool existed) {
  const absl::Status explained = Explain(status, connection);

  std::string advice;
  if (kube::IsConflict(status)) {
    advice = ". Use --force-conflicts to take these fields over";
  } else if (absl::IsInvalidArgument(status) && existed &&
             absl::StrContains(status.message(), "fixed for the life of a job")) {
    advice = absl::StrCat(
        ". Undo the change, or give the job another name (with the same model and kind of "
        "optimizer, it can begin with "
        "this job's newest checkpoint: spec.checkpoint.restoreFrom, a path to the storage of job ",
        key.name,
        " on the nodes or in the same claim); to start over, first run kubectl delete stj ",
        key.name, " -n ", key.ns);
  }

  return absl::Status(explained.code(), absl::StrCat(explained.message(), advice));
}

// The manifest with the flags' changes, for server-side apply.
Json BodyOf(const ClusterRunFlags& flags, Json written, const std::string& ns) {
  written["metadata"]["namespace"] = ns;
  Json& spec = written["spec"];
  if (flags.workers.has_value()) spec["worker"]["replicas"] = *flags.workers;
  if (flags.shards.has_value()) spec["parameterServer"]["replicas"] = *flags.shards;
  // Not owned: `sluice stop` and queueing systems set it too.
  const auto suspend = spec.find("suspend");
  if (suspend != spec.end() && *suspend == false) spec.erase(suspend);
  return written;
}

std::string CommandText(const std::string& what, const std::string& name,
                        const ClusterRunFlags& flags, const std::string& ns) {
  ClusterFlags cluster = flags.cluster;
  cluster.ns = ns;
  return absl::StrCat("sluice ", what, " ", name, cluster.Text());
}

// Commands for a job that continues after the user detached.
std::vector<std::string> NextSteps(const ClusterRunFlags& flags, const kube::ObjectKey& key) {
  const auto command = [&](const char* what) { return CommandText(what, key.name, flags, key.ns); };
  std::string follow = absl::StrCat("sluice run ", flags.manifest, flags.cluster.Text());
  return {absl::StrCat("  re-attach       ", follow),
          absl::StrCat("  its state       ", command("status")),
          absl::StrCat("  its logs        ", command("logs"), " --follow"),
          absl::StrCat("  suspend it      ", command("stop")),
          absl::StrCat("  delete it       kubectl delete stj ", key.name, " -n ", key.ns)};
}

const char* ChangeText(AppliedJob::Change change, bool dry_run) {
  switch (change) {
    case AppliedJob::Change::kCreated:
      return dry_run ? "would be created" : "created";
    case AppliedJob::Change::kConfigured:
      return dry_run ? "would be configured" : "configured";
    case AppliedJob::Change::kUnchanged:
      break;
  }
  return "already exists, unchanged";
}

SummaryFacts FactsOf(const Json& job, const policy::Outcome& outcome, const ClusterRunFlags& flags,
                     const kube::ObjectKey& key, absl::Time now) {
  SummaryFacts facts;
  facts.name = key.name;
  facts.result.outcome = outcome;
  facts.result.progress = ProgressOf(job);
  facts.result.has_progress = HasProgress(job);
  facts.result.restarts = RestartsOf(job);
  facts.elapsed = ElapsedOf(job, now);
  facts.logs = CommandText("logs", key.name, flags, key.ns);
  return facts;
}

// Reports a job that had ended before it was applied again.
int ReportEnded(const Environment& environment, const ClusterRunFlags& flags,
                const kube::ObjectKey& key, const Json& job, const policy::Outcome& outcome,
                RunDisplay* display) {
  const bool succeeded = outcome.kind == policy::OutcomeKind::kSucceeded;

  const std::string text =
      absl::StrCat("Job ", key.name, " has already ended: ", StateLine(job),
                   "; there is nothing to do. To start over, run kubectl delete stj ", key.name,
                   " -n ", key.ns, ", then the same command");

  if (succeeded || flags.output == "json") {
    display->Note(text);
  } else {
    *environment.err << "sluice: " << text << "\n";
  }

  const int code = ExitCodeOf(outcome.kind);
  if (flags.output == "json") {
    display->Finish(FactsOf(job, outcome, flags, key, environment.clock->Now()), code, {});
  }
  return code;
}

// Follows the job until its end or until Ctrl-C.
class Following {
 public:
  Following(const Environment& environment, const ClusterRunFlags& flags,
            const Connection& connection, const AppliedJob& applied, RunDisplay* display)
      : environment_(environment),
        flags_(flags),
        connection_(connection),
        key_(kube::KeyOf(applied.job)),
        display_(display),
        follower_(OptionsOf(applied, environment.clock->Now()), display),
        watch_(connection.client.get(), key_) {
    if (flags.verbose) {
      PodLogs::Options logs;
      logs.ns = key_.ns;
      if (applied.change != AppliedJob::Change::kCreated) logs.tail = 0;
      logs_.emplace(connection.transport.get(), logs);
    }
  }

  int Run() {
    environment_.set_interrupt_handler([this](int) {
      interrupted_ = true;
      watch_.Wake();
    });

    while (!follower_.outcome().has_value() && !interrupted_) {
      follower_.Take(watch_.Wait(kTick), environment_.clock->Now());
      ShowLogs();
    }

    environment_.set_interrupt_handler(nullptr);

    if (!follower_.outcome().has_value()) {
      std::vector<std::string> lines = NextSteps(flags_, key_);
      lines.insert(lines.begin(), absl::StrCat("Detached. Job ", key_.name,
                                               " continues in namespace ", key_.ns, "."));
      display_->Detached(lines);
      return kExitInterrupted;
    }
    return Finish(*follower_.outcome());
  }

 private:
  static JobFollower::Options OptionsOf(const AppliedJob& applied, absl::Time now) {
    JobFollower::Options options;
    options.uid = kube::UidOf(applied.job);
    options.is_new = applied.change == AppliedJob::Change::kCreated;
    options.begin = now;
    return options;
  }

  void ShowLogs() {
    if (!logs_.has_value()) return;
    logs_->SetPods(follower_.pods());
    std::vector<std::string> problems;
    for (const PodLogs::LogLine& line : logs_->Take(&problems)) {
      display_->OnLogLine(line.process, line.text);
    }
    for (const std::string& problem : problems) {
      display_->Note(absl::StrCat("Warning: ", problem));
    }
  }

  int Finish(policy::Outcome outcome) {
    const int code = ExitCodeOf(outcome.kind);

    std::vector<std::string> log_lines;
    if (outcome.kind == policy::OutcomeKind::kFailed && outcome.code != "Deleted") {
      if (!outcome.blamed.has_value()) outcome.blamed = policy::Replica{v1::COORDINATOR, 0};
      const absl::StatusOr<std::vector<std::string>> tail = TailOfPod(
          connection_.transport.get(), {key_.ns, reconciler::PodName(key_.name, *outcome.blamed)},
          std::string(reconciler::RoleName(outcome.blamed->role)), kFailureLogLines);
      // The pod and its log may already be deleted.
      if (tail.ok()) log_lines = *tail;
    }

    display_->Finish(FactsOf(follower_.job(), outcome, flags_, key_, environment_.clock->Now()),
                     code, log_lines);
    return code;
  }

  const Environment& environment_;
  const ClusterRunFlags& flags_;
  const Connection& connection_;
  const kube::ObjectKey key_;
  RunDisplay* const display_;
  std::atomic<bool> interrupted_{false};
  JobFollower follower_;
  std::optional<PodLogs> logs_;
  JobWatch watch_;  // declared last: it delivers news to the members above
};

// Shows and follows the job after it was applied.
int Follow(const Environment& environment, const ClusterRunFlags& flags,
           const Connection& connection, const AppliedJob& applied, bool suspend) {
  const kube::ObjectKey key = kube::KeyOf(applied.job);
  DisplayOptions options;
  options.job = key.name;
  options.quiet = flags.quiet;
  const std::unique_ptr<RunDisplay> display = MakeDisplay(environment, flags.output, options);

  const std::optional<policy::Outcome> outcome = OutcomeOf(applied.job);
  const bool over = outcome.has_value() && outcome->kind != policy::OutcomeKind::kSuspended;
  if (over) return ReportEnded(environment, flags, key, applied.job, *outcome, display.get());

  display->Note(absl::StrCat("Job ", key.name, " in namespace ", key.ns, " of context ",
                             connection.config.context, " ",
                             ChangeText(applied.change, flags.dry_run)));
  if (flags.dry_run) return kExitOk;

  if (applied.resumed) display->Note("The job was suspended; it is resumed");
  if (suspend) {
    display->Note("It is suspended (spec.suspend): nothing runs");
    return kExitOk;
  }
  if (flags.detach) {
    if (!flags.quiet) display->Detached(NextSteps(flags, key));
    return kExitOk;
  }
  return Following(environment, flags, connection, applied, display.get()).Run();
}

}  // namespace

absl::StatusOr<AppliedJob> ApplyJob(const Connection& connection, const ClusterRunFlags& flags,
                                    const Json& written, bool suspend) {
  ASSIGN_OR_RETURN(const std::string ns, NamespaceOf(flags, written, connection));
  const kube::ObjectKey key{ns, kube::GetString(written, {"metadata", "name"})};
  const kube::ResourceType& type = reconciler::TrainingJobs();

  const absl::StatusOr<Json> before = connection.client->Get(type, key, kube::Subresource::kNone);
  const bool existed = before.ok();
  if (!existed && (!absl::IsNotFound(before.status()) || IsUnknownType(before.status()))) {
    return Explain(before.status(), connection);
  }
  if (existed && kube::IsBeingDeleted(*before)) {
    return absl::FailedPreconditionError(absl::StrCat("job ", key.name, " in namespace ", key.ns,
                                                      " is being deleted; retry once it is gone"));
  }

  kube::WriteOptions options;
  options.field_manager = kCliFieldManager;
  options.force = flags.force_conflicts;
  options.dry_run = flags.dry_run;

  absl::StatusOr<Json> job = connection.client->Patch(type, key, kube::PatchKind::kApply,
                                                      BodyOf(flags, written, ns), options);
  if (!job.ok()) return ExplainApply(job.status(), connection, key, existed);

  AppliedJob applied;
  const auto generation = [](const Json& object) {
    return kube::GetInt(object, {"metadata", "generation"});
  };
  applied.change = !existed                                  ? AppliedJob::Change::kCreated
                   : generation(*before) != generation(*job) ? AppliedJob::Change::kConfigured
                                                             : AppliedJob::Change::kUnchanged;

  const Json* suspended = kube::Find(*job, {"spec", "suspend"});
  const bool resume = !suspend && !flags.dry_run && suspended != nullptr && *suspended == true;
  if (resume) {
    const Json patch = {{"metadata", {{"uid", kube::UidOf(*job)}}}, {"spec", {{"suspend", false}}}};
    kube::WriteOptions write;
    write.field_manager = kCliFieldManager;
    job = connection.client->Patch(type, key, kube::PatchKind::kMerge, patch, write);
    if (!job.ok()) return ExplainApply(job.status(), connection, key, existed);
    applied.resumed = true;
  }
  applied.job = *std::move(job);
  return applied;
}

int RunOnCluster(const Environment& environment, const ClusterRunFlags& flags) {
  const absl::StatusOr<api::ParsedManifest> manifest = api::ReadClusterManifest(flags.manifest);
  if (!manifest.ok()) {
    *environment.err << manifest.status().message() << "\n";
    return kExitUsage;
  }

  ASSIGN_OR_RETURN(const Connection connection, Connect(environment, flags.cluster),
                   PrintError(environment, _));
  ASSIGN_OR_RETURN(const AppliedJob applied,
                   ApplyJob(connection, flags, manifest->written, manifest->job.suspend),
                   PrintError(environment, _));

  return Follow(environment, flags, connection, applied, manifest->job.suspend);
}

}  // namespace sluice::cli

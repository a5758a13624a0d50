
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/reconciler/report.h"
#include "services/checkpoint/existing_job.h"
#include "services/manifest/job_file.h"
#include "services/manifest/resume.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using policy::OutcomeKind;
using policy::ReplicaName;
using runtime::EventRecord;
using Type = EventRecord::Type;
using Progress = v1::JobProgress;

constexpr size_t kMaxNamed = 5;  // pods named in one message

std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamed);
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

// The inputs of the judgements.
struct Case {
  Case(const ReportInput& input, const Json& status_so_far);

  const ReportInput& input;
  const Json& status;

  // Names of replicas that have no ready pod. The next three list those with a known cause.
  std::vector<std::string> missing;
  std::vector<std::string> without_data;
  std::vector<std::string> refused;
  std::vector<std::string> failing;  // with the number of failures in a row
  Problem waiting;                   // of the first pod that waits

  // Suspended by the user, not for a change of size or mode.
  bool Stopped() const {
    return input.stopped && input.EndedAs(OutcomeKind::kSuspended) && !input.resizing &&
           !input.switching;
  }
  bool Suspending() const { return input.job.job.suspend && !input.Over() && !Stopped(); }
  // Whether no pod is wanted.
  bool Idle() const {
    return input.Outcome().has_value() || !input.Accepted() || input.recovery.shards == 0;
  }
  bool Was(absl::string_view condition) const { return HasCondition(status, condition); }

  // The reason of Running while it is False.
  std::string WhyNotRunning() const;
  // The newest failure with this reason, or with any reason if it is empty.
  std::string LastFailure(absl::string_view reason = "") const;

 private:
  void Look(const policy::Replica& replica);
};

Case::Case(const ReportInput& given, const Json& status_so_far)
    : input(given), status(status_so_far) {
  if (input.recovery.shards == 0) return;
  Look(policy::kCoordinator);
  for (uint32_t i = 0; i < input.plan.shards; ++i) Look({v1::SHARD, i});
  for (uint32_t i = 0; i < input.plan.workers; ++i) Look({v1::WORKER, i});
}

void Case::Look(const policy::Replica& replica) {
  const PodStatus* pod = input.PodAt(replica);
  if (pod != nullptr && pod->ready && !pod->deletion_asked.has_value()) return;
  const std::string name = ReplicaName(replica);
  missing.push_back(name);
  if (pod != nullptr && waiting.empty()) {
    const Problem& problem = WaitingAt(*pod, input.now);
    if (!problem.empty()) {
      waiting = {problem.reason, absl::StrCat(pod->name, ": ", problem.message)};
    }
  }

  const auto& replicas = input.recovery.memory.replicas;
  const auto kept = replicas.find(replica);
  if (input.Outcome().has_value() || kept == replicas.end() || kept->second.failures_in_row == 0) {
    return;
  }
  if (kept->second.data_missing) without_data.push_back(name);
  if (kept->second.refused) refused.push_back(name);
  failing.push_back(absl::StrCat(name, " (", kept->second.failures_in_row, ")"));
}

std::string Case::WhyNotRunning() const {
  if (input.Over()) return input.EndedAs(OutcomeKind::kSucceeded) ? "Succeeded" : "Failed";
  if (Stopped()) return "Suspended";
  if (Suspending()) return "Suspending";
  if (!input.Accepted()) return input.job.problem.reason;
  if (input.phase == Progress::INITIALIZING) return "Initializing";
  return input.resizing || input.switching ? "Restarting" : "Starting";
}

std::string Case::LastFailure(absl::string_view reason) const {
  for (const Json& failure : kube::GetList(status, {"lastFailures"})) {
    if (!reason.empty() && kube::GetString(failure, {"reason"}) != reason) continue;
    return absl::StrCat("; the last: ", kube::GetString(failure, {"pod"}), ": ",
                        kube::GetString(failure, {"message"}));
  }
  return "";
}

// ---- problems that degrade a job, the most important first; empty: there is none of this kind

Problem Blocked(const Case& c) {
  return c.input.world.refused.empty() ? c.waiting : c.input.world.refused;
}

Problem WithoutData(const Case& c) {
  if (c.without_data.empty()) return {};
  return {kDataMissing,
          absl::StrCat("waiting for data: ", Names(c.without_data), c.LastFailure(kDataMissing))};
}

Problem RefusedByCoordinator(const Case& c) {
  if (c.refused.empty()) return {};
  return {kRefused, absl::StrCat("refused by the coordinator, restarted after 1 s, 2 s, ... 30 s: ",
                                 Names(c.refused), c.LastFailure(kRefused))};
}

Problem Failing(const Case& c) {
  if (c.failing.empty()) return {};
  return {"ProcessesFailing",
          absl::StrCat("failing (failures in a row): ", Names(c.failing), c.LastFailure())};
}

Problem Missing(const Case& c) {
  if (c.missing.empty() || c.input.recovery.sized_workers == 0) return {};
  return {"ProcessesMissing", absl::StrCat("not ready: ", Names(c.missing))};
}

Problem CheckpointProblem(const Case& c) {
  const v1::JobProgress* progress = c.input.progress;
  if (progress == nullptr || !c.input.progress_is_new || progress->checkpoint().error().empty()) {
    return {};
  }
  return {"CheckpointFailed", progress->checkpoint().error()};
}

constexpr Problem (*kProblems[])(const Case&) = {&Blocked, &WithoutData, &RefusedByCoordinator,
                                                 &Failing, &Missing,     &CheckpointProblem};

// ---- conditions

struct Judgement {
  bool holds = false;
  std::string reason;
  std::string message;
  std::optional<EventRecord> event;  // recorded if the condition's status or reason changes
};

EventRecord Event(Type type, std::string reason, std::string action, std::string note) {
  return {type, std::move(reason), std::move(action), std::move(note), ""};
}

std::optional<Judgement> Accepted(const Case& c) {
  if (c.input.Accepted()) return Judgement{true, "Valid"};
  const Problem& problem = c.input.job.problem;
  return Judgement{false, problem.reason, problem.message,
                   Event(Type::kWarning, problem.reason, "Accept", problem.message)};
}

std::optional<Judgement> Running(const Case& c) {
  const Progress::Phase phase = c.input.phase;
  const bool active =
      phase == Progress::TRAINING || phase == Progress::EVALUATING || phase == Progress::SAVING;
  if (!active || c.input.Outcome().has_value()) {
    // A previous operator had received a report of this coordinator; this one has not yet.
    if (c.input.unsynced && !c.input.Outcome().has_value()) return std::nullopt;
    return Judgement{false, c.WhyNotRunning()};
  }

  Judgement running = {true, phase == Progress::TRAINING     ? "Training"
                             : phase == Progress::EVALUATING ? "Evaluating"
                                                             : "Saving"};
  if (!c.Was("Running")) {
    const Progress& progress = *c.input.progress;
    running.event = Event(
        Type::kNormal, "Training", "Train",
        absl::StrCat("training is at step ", progress.step(), " of attempt ", progress.attempt()));
  }
  return running;
}

std::optional<Judgement> Suspended(const Case& c) {
  if (!c.Stopped()) return Judgement{false, c.Suspending() ? "Suspending" : "NotSuspended"};
  const std::string& message = c.input.Outcome()->reason;
  return Judgement{
      true, "Suspended", message,
      Event(Type::kNormal, "Suspended", "Suspend",
            message.empty() ? "a checkpoint is saved and all pods are gone" : message)};
}

std::optional<Judgement> Scaling(const Case& c) {
  const uint32_t shards = c.input.job.job.spec.parameter_server().replicas();
  const uint32_t sized = c.input.recovery.sized_workers;
  const uint32_t workers = c.input.plan.workers;
  const bool ended = c.input.Outcome().has_value();

  Judgement scaling = {true};
  if (c.input.resizing && !c.input.Over()) {
    scaling.reason = "ScalingShards";
    scaling.message =
        absl::StrCat(c.input.recovery.shards, " -> ", shards,
                     " shards: the job saves a checkpoint and continues with the new number");
  } else if (c.input.moving && !ended) {
    scaling.reason = "ScalingShards";
    scaling.message = absl::StrCat(c.input.recovery.shards, " -> ", shards,
                                   " shards: partitions move while the job trains");
  } else if (!ended && sized != 0 && sized != workers) {
    scaling.reason = "ScalingWorkers";
    scaling.message = absl::StrCat(sized, " -> ", workers, " workers");
  } else {
    scaling = {false, "NotScaling"};
    if (c.Was("Scaling") && !ended) {
      scaling.event =
          Event(Type::kNormal, "Scaled", "Scale",
                absl::StrCat(c.input.recovery.shards, " shards and ", workers, " workers"));
    }
    return scaling;
  }
  scaling.event = Event(Type::kNormal, scaling.reason, "Scale", scaling.message);
  return scaling;
}

std::optional<Judgement> Ready(const Case& c) {
  if (c.Idle()) return Judgement{false, c.WhyNotRunning()};
  if (c.missing.empty()) return Judgement{true, "AllReady"};
  const Problem problem = Blocked(c);
  return Judgement{false, problem.empty() ? "NotAllReady" : problem.reason,
                   absl::StrCat("not ready: ", Names(c.missing))};
}

std::optional<Judgement> Degraded(const Case& c) {
  Problem problem;
  for (const auto judge : kProblems) {
    if (problem.empty() && !c.Idle()) problem = judge(c);
  }
  if (problem.empty()) return Judgement{false, "NotDegraded"};

  Judgement degraded = {true, problem.reason, problem.message};
  // Exits of pods have events of their own.
  if (problem.reason != "ProcessesFailing" && problem.reason != "ProcessesMissing") {
    degraded.event = Event(Type::kWarning, problem.reason, "Reconcile", problem.message);
  }
  return degraded;
}

// Copies the fields that take effect although the coordinator keeps running with the old spec. The
// operator sends the numbers of processes to the coordinator, starts a new activation for a change
// of the mode (or of the number of shards, if partitions cannot move), and alone reads the start
// timeout.
void CopyOperatorsFields(const v1::JobSpec& from, v1::JobSpec* to) {
  to->mutable_worker()->set_replicas(from.worker().replicas());
  to->mutable_parameter_server()->set_replicas(from.parameter_server().replicas());
  SetMode(ModeOf(from.training()), to->mutable_training());
  to->mutable_timeouts()->set_start(from.timeouts().start());
}

// Fields of the spec that changed after the coordinator had read them.
std::vector<std::string> FieldsPending(const ReportInput& input) {
  std::vector<std::string> fields;
  const PodStatus* pod = input.PodAt(policy::kCoordinator);
  if (pod == nullptr || !pod->begun || pod->ended || pod->started_with.empty()) return fields;
  const absl::StatusOr<api::JobFile> started_with = api::ParseJobFile(pod->started_with);
  if (!started_with.ok()) return fields;

  api::TrainingJob before, after;
  before.spec = started_with->job;
  after.spec = input.job.job.spec;

  CopyOperatorsFields(after.spec, &before.spec);
  for (api::ManifestChange& change : api::CompareJobs(before, after)) {
    fields.push_back(std::move(change.path));
  }
  return fields;
}

std::string Images(const PodImages& images) {
  return images.server == images.worker ? images.server
                                        : absl::StrCat(images.server, ", ", images.worker);
}

std::optional<Judgement> SpecNotInEffect(const Case& c) {
  const ReportInput& input = c.input;
  if (c.Idle()) return Judgement{false, "AllInEffect"};
  const bool other_images = input.recovery.images != input.world.images;
  const bool newer_defaults = other_images && input.job.job.image.empty();
  const bool restarting = input.resizing || input.switching;
  std::vector<std::string> fields = FieldsPending(input);

  if (other_images && !newer_defaults) fields.push_back("spec.image");
  if (fields.empty() && !newer_defaults) return Judgement{false, "AllInEffect"};

  std::string message;
  if (!fields.empty()) {
    message =
        absl::StrCat("the running coordinator keeps the old values of ",
                     absl::StrJoin(fields, ", "), "; the new values take effect when ",
                     restarting ? "the job has restarted"
                                : "it restarts: to apply them now, suspend the job and resume it");
  }
  if (newer_defaults) {
    absl::StrAppend(&message, message.empty() ? "" : "; ", "newer default images (",
                    Images(input.world.images), ") take effect when the job ",
                    restarting ? "has restarted" : "is suspended and resumed",
                    "; until then its pods run ", Images(input.recovery.images));
  }
  const std::string reason = fields.empty() ? "ImagesPending" : "FieldsPending";
  return Judgement{true, reason, message, Event(Type::kNormal, reason, "Reconcile", message)};
}

std::optional<Judgement> Succeeded(const Case& c) {
  if (!c.input.EndedAs(OutcomeKind::kSucceeded)) {
    return Judgement{false, c.input.Over() ? "Failed" : "NotFinished"};
  }
  const policy::Outcome& outcome = *c.input.Outcome();
  if (outcome.code == kNothingTrained) {
    return Judgement{true, kNothingTrained, outcome.reason,
                     Event(Type::kNormal, kNothingTrained, "Complete", outcome.reason)};
  }
  return Judgement{true, "Completed", outcome.reason,
                   Event(Type::kNormal, "Succeeded", "Complete",
                         absl::StrCat("training is complete at step ",
                                      kube::GetInt(c.status, {"training", "step"})))};
}

std::optional<Judgement> Failed(const Case& c) {
  if (!c.input.EndedAs(OutcomeKind::kFailed)) return Judgement{false, "NotFailed"};
  const policy::Outcome& outcome = *c.input.Outcome();
  const std::string reason = outcome.code.empty() ? "Ended" : outcome.code;
  return Judgement{true, reason, outcome.reason,
                   Event(Type::kWarning, reason, "Fail", outcome.reason)};
}

std::optional<Judgement> DirectoryInUse(const Case& c) {
  if (c.input.EndedAs(OutcomeKind::kFailed) &&
      c.input.Outcome()->code == kCheckpointDirectoryInUse) {
    return Judgement{true, "OtherCheckpoints", c.input.Outcome()->reason};
  }
  if (FindCondition(c.status, kCheckpointDirectoryInUse) == nullptr) return std::nullopt;
  return Judgement{false, "NotInUse"};
}

struct Condition {
  const char* type;
  // nullopt: the condition stays as it is.
  std::optional<Judgement> (*judge)(const Case&);
};
constexpr Condition kConditions[] = {
    {"Accepted", &Accepted},
    {"Running", &Running},
    {"Suspended", &Suspended},
    {"Scaling", &Scaling},
    {"Ready", &Ready},
    {"Degraded", &Degraded},
    {"SpecNotInEffect", &SpecNotInEffect},
    {"Succeeded", &Succeeded},
    {"Failed", &Failed},
    {kCheckpointDirectoryInUse, &DirectoryInUse},
};

// One word for the state of the job.
std::string Summary(const Case& c) {
  const ReportInput& input = c.input;
  if (!input.Accepted()) return "Invalid";
  if (input.Over() || c.Stopped() || c.Suspending()) return c.WhyNotRunning();

  if (input.resizing) return "Scaling";
  if (input.switching) return "SwitchingMode";

  if (c.Was("Running")) {
    return kube::GetString(*FindCondition(c.status, "Running"), {"reason"});
  }

  for (const auto judge : {&Blocked, &WithoutData, &RefusedByCoordinator, &Failing}) {
    if (Problem problem = judge(c); !problem.empty()) return problem.reason;
  }
  return kube::Find(c.status, {"training", "step"}) != nullptr ? "Recovering" : "Starting";
}

}  // namespace

void JudgeConditions(const ReportInput& input, Json* status, std::vector<EventRecord>* events) {
  const Case c(input, *status);
  for (const Condition& condition : kConditions) {
    std::optional<Judgement> judgement = condition.judge(c);
    if (!judgement.has_value()) continue;

    const bool changed = SetCondition(
        condition.type,
        {judgement->holds, judgement->reason, judgement->message, input.job.generation}, input.now,
        status);
    if (changed && judgement->event.has_value()) events->push_back(*std::move(judgement->event));
  }

  (*status)["summary"] = Summary(c);
}

}  // namespace sluice::reconciler

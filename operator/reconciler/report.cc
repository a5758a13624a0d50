#include "operator/reconciler/report.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "operator/api/resume.h"
#include "operator/reconciler/names.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/utf8.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using runtime::EventRecord;
using Type = EventRecord::Type;

constexpr size_t kMaxFailures = 8;
constexpr size_t kMaxNamed = 5;  // pods named in one message
// Reasons of exits and of the condition, as policy::ReasonOf returns them.
constexpr char kDataMissing[] = "DataMissing";
constexpr char kRefused[] = "Refused";

// Six digits are enough for charts, and few enough that equal values stay equal.
double Rounded(double value) {
  if (!std::isfinite(value)) return 0;
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

// What a user can do about the exit of a pod.
std::string Advice(const std::string& reason) {
  if (reason == "OOMKilled") return "raise resources.limits.memory in the role's template";
  if (reason == kDataMissing) {
    return "put it there, or correct the volumes of the role's template; the process is restarted "
           "automatically after 1 s, 2 s, ... 30 s";
  }
  if (reason == kRefused) {
    return "usually its release differs from that of the job's other processes: correct spec.image "
           "or the image in the role's template, then suspend the job and resume it";
  }
  if (reason == "StartError") {
    return "the image does not contain the program: correct the image or command";
  }
  return "";
}

// Whether a changed field needs no restart by the user. The operator sends the first to the
// coordinator, starts a new activation for the next three, and reads the others itself.
bool TakesEffectAtOnce(const std::string& path) {
  for (const char* known :
       {"spec.worker.replicas", "spec.parameterServer.replicas", "spec.training.mode",
        "spec.training.maxStaleness", "spec.backoffLimit", "spec.timeouts.startSeconds"}) {
    if (path == known) return true;
  }
  return false;
}

const char* RoleWord(v1::Role role) {
  switch (role) {
    case v1::COORDINATOR:
      return "Coordinator";
    case v1::SHARD:
      return "Shard";
    default:
      return "Worker";
  }
}
const char* RestartsField(v1::Role role) {
  switch (role) {
    case v1::COORDINATOR:
      return "coordinator";
    case v1::SHARD:
      return "parameterServer";
    default:
      return "worker";
  }
}

class Reporter {
 public:
  Reporter(const Findings& findings, Json* status, std::vector<EventRecord>* events)
      : findings_(findings),
        world_(*findings.world),
        job_(findings.world->job),
        recovery_(*findings.recovery),
        status_(*status),
        events_(events) {}

  void Run() {
    status_["observedGeneration"] = job_.generation;
    status_["tls"] = job_.tls ? "Enabled" : "Disabled";
    Sort();
    Sizes();
    Training();
    Checkpoint();
    Failures();
    Acceptance();
    Activity();
    Health();
    Pending();
    End();
    status_["summary"] = Summary();
    status_["recovery"] = WriteRecovery(recovery_);
  }

 private:
  bool Accepted() const { return job_.problem.empty() || recovery_.shards != 0; }
  const std::optional<policy::Outcome>& Outcome() const { return recovery_.memory.outcome; }
  bool EndedAs(policy::OutcomeKind outcome) const {
    return Outcome().has_value() && Outcome()->kind == outcome;
  }
  bool Over() const {
    return EndedAs(policy::OutcomeKind::kSucceeded) || EndedAs(policy::OutcomeKind::kFailed);
  }
  bool Stopped() const {
    return findings_.stopped && EndedAs(policy::OutcomeKind::kSuspended) && !findings_.resizing &&
           !findings_.switching;
  }
  bool Suspending() const { return job_.job.suspend && !Over() && !Stopped(); }

  bool Set(absl::string_view type, bool holds, const std::string& reason,
           const std::string& message) {
    return SetCondition(type, holds, reason, message, job_.generation, findings_.now, &status_);
  }
  void Tell(Type type, std::string reason, std::string action, std::string note,
            std::string pod = "") {
    events_->push_back(
        {type, std::move(reason), std::move(action), std::move(note), std::move(pod)});
  }

  bool Wanted(const policy::Replica& replica) const {
    if (replica.role == v1::COORDINATOR) return true;
    return replica.index < (replica.role == v1::SHARD ? recovery_.shards : findings_.workers);
  }

  // Finds the replicas without a ready pod, and the reasons.
  void Sort() {
    std::map<policy::Replica, const PodStatus*> pods;
    for (const PodStatus& pod : world_.pods) pods[pod.replica] = &pod;
    const auto look = [&](const policy::Replica& replica) {
      const auto found = pods.find(replica);
      const PodStatus* pod = found == pods.end() ? nullptr : found->second;
      if (pod != nullptr && pod->ready && !pod->deletion_asked.has_value()) return;
      missing_.push_back(policy::ReplicaName(replica));
      if (pod != nullptr && waiting_.empty()) {
        const Problem& waiting = WaitingAt(*pod, findings_.now);
        if (!waiting.empty()) {
          waiting_ = {waiting.reason, absl::StrCat(pod->name, ": ", waiting.message)};
        }
      }
      const auto kept = recovery_.memory.replicas.find(replica);
      if (kept == recovery_.memory.replicas.end() || kept->second.failures_in_row == 0) return;
      if (kept->second.data_missing) without_data_.push_back(policy::ReplicaName(replica));
      if (kept->second.refused) refused_.push_back(policy::ReplicaName(replica));
      failing_.push_back(
          absl::StrCat(policy::ReplicaName(replica), " (", kept->second.failures_in_row, ")"));
    };
    if (recovery_.shards == 0) return;
    look({v1::COORDINATOR, 0});
    for (uint32_t i = 0; i < recovery_.shards; ++i) look({v1::SHARD, i});
    for (uint32_t i = 0; i < findings_.workers; ++i) look({v1::WORKER, i});
  }

  static std::string Names(const std::vector<std::string>& names) {
    const size_t shown = std::min(names.size(), kMaxNamed);
    std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
    if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
    return text;
  }

  void Sizes() {
    int64_t shards = 0, shards_ready = 0, workers = 0, workers_ready = 0;
    Json images = Json::object();
    for (const PodStatus& pod : world_.pods) {
      if (!pod.image_id.empty()) images[std::string(RoleName(pod.replica.role))] = pod.image_id;
      if (pod.ended || pod.deletion_asked.has_value()) continue;
      if (pod.replica.role == v1::SHARD) ++shards, shards_ready += pod.ready;
      if (pod.replica.role == v1::WORKER) ++workers, workers_ready += pod.ready;
      if (pod.replica.role == v1::COORDINATOR) coordinator_ready_ = pod.ready;
    }
    status_["parameterServer"] = {
        {"replicas", shards}, {"readyReplicas", shards_ready}, {"movingPartitions", 0}};
    status_["worker"] = {{"replicas", workers},
                         {"readyReplicas", workers_ready},
                         {"selector", absl::StrCat(kJobLabel, "=", job_.key.name, ",", kRoleLabel,
                                                   "=", RoleName(v1::WORKER))}};
    status_["coordinator"] = {{"ready", coordinator_ready_}};
    if (!images.empty()) status_["images"] = std::move(images);
  }

  void Training() {
    const v1::JobProgress* progress = findings_.progress;
    if (progress == nullptr || !findings_.progress_is_new) return;
    if (progress->attempt() > 0) status_["attempt"] = progress->attempt();
    if (progress->has_view()) {
      const v1::ViewId& id = progress->view().id();
      status_["view"] = absl::StrCat(id.attempt(), ".", id.term().counter(), ".", id.number());
    }
    Json& training = status_["training"];
    if (!training.is_object()) training = Json::object();
    // Before its first view, the coordinator does not know the job's step.
    const bool knows = progress->step() > 0 || findings_.phase >= v1::JobProgress::TRAINING;
    if (!knows) return;
    const int64_t step = static_cast<int64_t>(progress->step());
    const int64_t before = training.contains("step") ? kube::GetInt(training, {"step"}) : -1;
    if (step > before) training["lastProgressTime"] = kube::EncodeTime(findings_.now);
    training["step"] = step;
    if (progress->total_steps() > 0) training["totalSteps"] = progress->total_steps();
    training["epoch"] = Rounded(progress->epoch());
    training["samples"] = progress->samples();
    if (progress->has_loss()) training["loss"] = Rounded(progress->loss());
    training["samplesPerSecond"] = Rounded(progress->samples_per_second());
    if (progress->has_last_evaluation()) Evaluation(progress->last_evaluation(), &training);
  }

  static void Evaluation(const v1::Evaluation& evaluation, Json* training) {
    Json& to = (*training)["evaluation"];
    to = {{"step", evaluation.step()},
          {"epoch", Rounded(evaluation.epoch())},
          {"loss", Rounded(evaluation.loss())},
          {"samples", evaluation.samples()}};
    (*training)["metric"] = absl::StrFormat("loss %.4f", evaluation.loss());
    if (evaluation.has_perplexity()) {
      to["perplexity"] = Rounded(evaluation.perplexity());
      (*training)["metric"] = absl::StrFormat("perplexity %.2f", evaluation.perplexity());
    }
    if (evaluation.has_accuracy()) {
      to["accuracy"] = Rounded(evaluation.accuracy());
      (*training)["metric"] = absl::StrFormat("accuracy %.2f %%", evaluation.accuracy());
    }
  }

  void Checkpoint() {
    const v1::JobProgress* progress = findings_.progress;
    if (progress == nullptr || !findings_.progress_is_new) return;
    const v1::CheckpointStatus& checkpoint = progress->checkpoint();
    if (checkpoint.has_last()) {
      Json& to = status_["checkpoint"];
      const bool is_new = !to.is_object() || to.value("location", "") != checkpoint.directory();
      if (!to.is_object()) to = Json::object();
      to["step"] = checkpoint.last().step();
      to["location"] = checkpoint.directory();
      if (checkpoint.bytes() > 0) to["bytes"] = checkpoint.bytes();
      if (is_new) to["time"] = kube::EncodeTime(findings_.now);
    }
    if (progress->restored()) {
      status_["checkpoint"]["restoredFromStep"] = progress->restored_from_step();
    }
  }

  void Failures() {
    for (const auto& [role, count] : findings_.restarts) {
      Json& restarts = status_["restarts"];
      restarts[RestartsField(role)] = kube::GetInt(restarts, {RestartsField(role)}) + count;
      restarts["total"] = kube::GetInt(restarts, {"total"}) + count;
    }
    for (const HandledEnd& end : findings_.ends) AddFailure(end);
  }

  void AddFailure(const HandledEnd& end) {
    const PodStatus& pod = *end.pod;
    const std::string reason = policy::ReasonOf(end.exit);
    std::string message;
    if (end.exit.cause == policy::Cause::kItself || pod.ended) {
      message = policy::ExitText(end.exit);
    }
    for (const std::string& part : {end.exit.message, Advice(reason)}) {
      if (!part.empty()) absl::StrAppend(&message, message.empty() ? "" : ": ", part);
    }
    if (message.empty()) message = "the pod is being deleted";
    message = TruncateUtf8(message, 1000);
    Json failure = {{"time", kube::EncodeTime(findings_.now)},
                    {"role", std::string(RoleName(pod.replica.role))},
                    {"index", pod.replica.index},
                    {"pod", pod.name},
                    {"reason", reason},
                    {"message", message},
                    {"counted", end.counted}};
    if (!pod.node.empty()) failure["node"] = pod.node;
    if (pod.ended) {
      failure["exitCode"] = end.exit.signal != 0 ? 128 + end.exit.signal : end.exit.code;
    }
    Json& failures = status_["lastFailures"];
    if (!failures.is_array()) failures = Json::array();
    failures.insert(failures.begin(), std::move(failure));
    while (failures.size() > kMaxFailures) failures.erase(failures.size() - 1);
    // The condition has an event of its own.
    if (reason == kDataMissing || reason == kRefused || Outcome().has_value()) return;
    Tell(end.exit.cause == policy::Cause::kOutside ? Type::kNormal : Type::kWarning, reason,
         absl::StrCat("Replace", RoleWord(pod.replica.role)), absl::StrCat(pod.name, ": ", message),
         pod.name);
  }

  void Acceptance() {
    if (!Accepted()) {
      if (Set("Accepted", false, job_.problem.reason, job_.problem.message)) {
        Tell(Type::kWarning, job_.problem.reason, "Accept", job_.problem.message);
      }
      return;
    }
    Set("Accepted", true, "Valid", "");
    if (!status_.contains("startTime")) status_["startTime"] = kube::EncodeTime(findings_.now);
  }

  // Sets Running, Suspended and Scaling.
  void Activity() {
    using Progress = v1::JobProgress;
    const bool active = findings_.phase == Progress::TRAINING ||
                        findings_.phase == Progress::EVALUATING ||
                        findings_.phase == Progress::SAVING;
    if (active && !Outcome().has_value()) {
      const char* reason = findings_.phase == Progress::TRAINING     ? "Training"
                           : findings_.phase == Progress::EVALUATING ? "Evaluating"
                                                                     : "Saving";
      const bool was = HasCondition(status_, "Running");
      Set("Running", true, reason, "");
      if (!was) {
        Tell(Type::kNormal, "Training", "Train",
             absl::StrCat("training continues from step ", findings_.progress->step(), ", attempt ",
                          findings_.progress->attempt()));
      }
    } else if (!findings_.unsynced || Outcome().has_value()) {
      Set("Running", false, NotRunning(), "");
    }
    if (Stopped()) {
      const std::string message = Outcome()->reason.empty() ? "" : Outcome()->reason;
      if (Set("Suspended", true, "Suspended", message)) {
        Tell(Type::kNormal, "Suspended", "Suspend",
             message.empty() ? "a checkpoint is saved and all pods are gone" : message);
      }
    } else {
      Set("Suspended", false, Suspending() ? "Suspending" : "NotSuspended", "");
    }
    Scaling();
  }

  std::string NotRunning() const {
    if (Over()) return Outcome()->kind == policy::OutcomeKind::kSucceeded ? "Succeeded" : "Failed";
    if (Stopped()) return "Suspended";
    if (Suspending()) return "Suspending";
    if (!Accepted()) return job_.problem.reason;
    if (findings_.phase == v1::JobProgress::INITIALIZING) return "Initializing";
    return findings_.resizing || findings_.switching ? "Restarting" : "Starting";
  }

  void Scaling() {
    const uint32_t shards = job_.job.spec.parameter_server().replicas();
    const uint32_t sized = recovery_.sized_workers;
    std::string reason = "NotScaling", message;
    if (findings_.resizing && !Over()) {
      reason = "ScalingShards";
      message =
          absl::StrCat(recovery_.shards, " -> ", shards,
                       " shards: the job saves a checkpoint and continues with the new number");
    } else if (!Outcome().has_value() && sized != 0 && sized != findings_.workers) {
      reason = "ScalingWorkers";
      message = absl::StrCat(sized, " -> ", findings_.workers, " workers");
    }
    const bool scaling = reason != "NotScaling";
    const bool was = HasCondition(status_, "Scaling");
    if (Set("Scaling", scaling, reason, message) && scaling) {
      Tell(Type::kNormal, reason, "Scale", message);
    } else if (was && !scaling && !Outcome().has_value()) {
      Tell(Type::kNormal, "Scaled", "Scale",
           absl::StrCat(recovery_.shards, " shards and ", findings_.workers, " workers"));
    }
  }

  void Health() {
    const bool idle = Outcome().has_value() || !Accepted() || recovery_.shards == 0;
    if (idle) {
      Set("Ready", false, NotRunning(), "");
      Set("Degraded", false, "NotDegraded", "");
      return;
    }
    Problem problem = world_.refused.empty() ? waiting_ : world_.refused;
    if (missing_.empty()) {
      Set("Ready", true, "AllReady", "");
    } else {
      Set("Ready", false, problem.empty() ? "NotAllReady" : problem.reason,
          absl::StrCat("not ready: ", Names(missing_)));
    }
    if (problem.empty() && !without_data_.empty()) {
      problem = {kDataMissing, absl::StrCat("waiting for data: ", Names(without_data_),
                                            LastFailure(kDataMissing))};
    }
    if (problem.empty() && !refused_.empty()) {
      problem = {kRefused,
                 absl::StrCat("refused by the coordinator, restarted after 1 s, 2 s, ... 30 s: ",
                              Names(refused_), LastFailure(kRefused))};
    }
    if (problem.empty() && !failing_.empty()) {
      problem = {"ProcessesFailing",
                 absl::StrCat("failing (failures in a row): ", Names(failing_), LastFailure())};
    }
    if (problem.empty() && recovery_.sized_workers > 0 && !missing_.empty()) {
      problem = {"ProcessesMissing", absl::StrCat("not ready: ", Names(missing_))};
    }
    const v1::JobProgress* progress = findings_.progress;
    if (problem.empty() && progress != nullptr && findings_.progress_is_new &&
        !progress->checkpoint().error().empty()) {
      problem = {"CheckpointFailed", progress->checkpoint().error()};
    }
    const bool degraded = !problem.empty();
    const bool changed =
        Set("Degraded", degraded, degraded ? problem.reason : "NotDegraded", problem.message);
    // Exits of pods have events of their own.
    const bool told = problem.reason == "ProcessesFailing" || problem.reason == "ProcessesMissing";
    if (changed && degraded && !told) {
      Tell(Type::kWarning, problem.reason, "Reconcile", problem.message);
    }
  }

  // Sets SpecNotInEffect: values of the spec or of the operator's defaults that the running job
  // does not use yet.
  void Pending() {
    std::vector<std::string> fields;
    std::string message;
    const bool active = Accepted() && !Outcome().has_value() && recovery_.shards != 0;
    const bool other_images = active && recovery_.images != world_.images;
    if (active) {
      fields = FieldsPending();
      if (other_images && !job_.job.image.empty()) fields.push_back("spec.image");
    }
    if (!fields.empty()) {
      message = absl::StrCat(
          "the running coordinator keeps the old values of ", absl::StrJoin(fields, ", "),
          "; the new values take effect when it restarts: to apply them now, suspend the job and "
          "resume it");
    }
    const bool newer_defaults = other_images && job_.job.image.empty();
    if (newer_defaults) {
      absl::StrAppend(&message, message.empty() ? "" : "; ", "newer default images (",
                      Images(world_.images),
                      ") take effect when the job is suspended and resumed; ",
                      "until then its pods run ", Images(recovery_.images));
    }
    const std::string reason = !fields.empty()  ? "FieldsPending"
                               : newer_defaults ? "ImagesPending"
                                                : "AllInEffect";
    const bool pending = !message.empty();
    if (Set("SpecNotInEffect", pending, reason, message) && pending) {
      Tell(Type::kNormal, reason, "Reconcile", message);
    }
  }

  static std::string Images(const PodImages& images) {
    return images.server == images.worker ? images.server
                                          : absl::StrCat(images.server, ", ", images.worker);
  }

  // Fields of the spec that changed after the coordinator had read them.
  std::vector<std::string> FieldsPending() const {
    std::vector<std::string> fields;
    for (const PodStatus& pod : world_.pods) {
      if (pod.replica.role != v1::COORDINATOR || !pod.begun || pod.ended) continue;
      v1::JobSpec running;
      google::protobuf::util::JsonParseOptions options;
      options.ignore_unknown_fields = true;
      if (pod.started_with.empty() ||
          !google::protobuf::util::JsonStringToMessage(pod.started_with, &running, options).ok()) {
        break;
      }
      api::TrainingJob before, after;
      before.spec = std::move(running);
      after.spec = job_.job.spec;
      for (api::ManifestChange& change : api::CompareJobs(before, after)) {
        if (!TakesEffectAtOnce(change.path)) fields.push_back(std::move(change.path));
      }
    }
    return fields;
  }

  // The newest failure with this reason, or with any reason if it is empty.
  std::string LastFailure(absl::string_view reason = "") const {
    const Json* failures = kube::Find(status_, {"lastFailures"});
    if (failures == nullptr || !failures->is_array()) return "";
    for (const Json& failure : *failures) {
      if (!reason.empty() && kube::GetString(failure, {"reason"}) != reason) continue;
      return absl::StrCat("; the last: ", kube::GetString(failure, {"pod"}), ": ",
                          kube::GetString(failure, {"message"}));
    }
    return "";
  }

  void End() {
    const bool succeeded = EndedAs(policy::OutcomeKind::kSucceeded);
    const bool failed = EndedAs(policy::OutcomeKind::kFailed);
    const std::string message = Outcome().has_value() ? Outcome()->reason : "";
    const std::string reason =
        Outcome().has_value() && !Outcome()->code.empty() ? Outcome()->code : "Ended";
    const bool news = !HasCondition(status_, "Succeeded") && !HasCondition(status_, "Failed");
    const bool trained = reason != kNothingTrained;
    Set("Succeeded", succeeded,
        !succeeded ? (failed ? "Failed" : "NotFinished")
        : trained  ? "Completed"
                   : kNothingTrained,
        succeeded ? message : "");
    Set("Failed", failed, failed ? reason : "NotFailed", failed ? message : "");
    const bool in_use = failed && reason == kCheckpointDirectoryInUse;
    if (in_use || FindCondition(status_, kCheckpointDirectoryInUse) != nullptr) {
      Set(kCheckpointDirectoryInUse, in_use, in_use ? "OtherCheckpoints" : "NotInUse",
          in_use ? message : "");
    }
    if (!succeeded && !failed) return;
    if (!status_.contains("completionTime")) {
      status_["completionTime"] = kube::EncodeTime(findings_.now);
    }
    if (!news) return;
    if (failed) {
      Tell(Type::kWarning, reason, "Fail", message);
    } else {
      Tell(Type::kNormal, trained ? "Succeeded" : kNothingTrained, "Complete",
           trained ? absl::StrCat("training is complete at step ",
                                  kube::GetInt(status_, {"training", "step"}))
                   : message);
    }
  }

  std::string Summary() const {
    if (!Accepted()) return "Invalid";
    if (EndedAs(policy::OutcomeKind::kSucceeded)) return "Succeeded";
    if (EndedAs(policy::OutcomeKind::kFailed)) return "Failed";
    if (Stopped()) return "Suspended";
    if (Suspending()) return "Suspending";
    if (findings_.resizing) return "Scaling";
    if (findings_.switching) return "SwitchingMode";
    const Json* running = FindCondition(status_, "Running");
    if (HasCondition(status_, "Running")) return kube::GetString(*running, {"reason"});
    if (!world_.refused.empty()) return world_.refused.reason;
    if (!waiting_.empty()) return waiting_.reason;
    if (!without_data_.empty()) return kDataMissing;
    if (!refused_.empty()) return kRefused;
    if (!failing_.empty()) return "ProcessesFailing";
    const bool trained = kube::Find(status_, {"training", "step"}) != nullptr;
    return trained ? "Recovering" : "Starting";
  }

  const Findings& findings_;
  const World& world_;
  const ObservedJob& job_;
  const Recovery& recovery_;
  Json& status_;
  std::vector<EventRecord>* const events_;
  std::vector<std::string> missing_;
  std::vector<std::string> failing_;
  std::vector<std::string> without_data_;
  std::vector<std::string> refused_;
  Problem waiting_;
  bool coordinator_ready_ = false;
};

}  // namespace

void Report(const Findings& findings, Json* status, std::vector<EventRecord>* events) {
  Reporter(findings, status, events).Run();
}

}  // namespace sluice::reconciler

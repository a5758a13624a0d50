#include "operator/reconciler/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "operator/reconciler/names.h"
#include "services/common/text/utf8.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using runtime::EventRecord;
using Type = EventRecord::Type;

constexpr size_t kMaxFailures = 8;

// Six digits are enough for charts, and few enough that equal values stay equal.
double Rounded(double value) {
  if (!std::isfinite(value)) return 0;
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

// Advice to the user about the exit of a pod.
std::string Advice(const std::string& reason) {
  if (reason == "OOMKilled") return "raise resources.limits.memory in the role's template";
  if (reason == kDataMissing) {
    return "put the data there, or correct the volumes of the role's template; the process is "
           "restarted automatically after 1 s, 2 s, ... 30 s";
  }
  if (reason == kRefused) {
    return "usually its release differs from that of the job's other processes: correct spec.image "
           "or the image in the role's template, then suspend the job and resume it";
  }
  if (reason == "Expelled") {
    return "the coordinator removed the process from the job, most often because its heartbeats or "
           "its connection had stopped; the coordinator's log has the cause";
  }
  if (reason == "StartError") {
    return "the image does not contain the program: correct the image or command";
  }
  return "";
}

// The role in actions of events, and in status.restarts.
struct RoleNames {
  const char* action;
  const char* restarts;
};
RoleNames NamesOf(v1::Role role) {
  if (role == v1::COORDINATOR) return {"Coordinator", "coordinator"};
  return role == v1::SHARD ? RoleNames{"Shard", "parameterServer"} : RoleNames{"Worker", "worker"};
}

class Reporter {
 public:
  Reporter(const ReportInput& input, Json* status, std::vector<EventRecord>* events)
      : input_(input), world_(input.world), status_(*status), events_(events) {}

  void Run() {
    status_["observedGeneration"] = input_.job.generation;
    status_["tls"] = input_.job.tls ? "Enabled" : "Disabled";
    Sizes();

    if (input_.progress != nullptr && input_.progress_is_new) {
      Training(*input_.progress);
      Checkpoint(*input_.progress);
    }

    Failures();
    JudgeConditions(input_, &status_, events_);
    NoteTime("startTime", input_.Accepted());
    NoteTime("completionTime", input_.Over());
    status_["recovery"] = WriteRecovery(input_.recovery);
  }

 private:
  // Records when `holds` is true for the first time.
  void NoteTime(const char* field, bool holds) {
    if (holds && !status_.contains(field)) status_[field] = kube::EncodeTime(input_.now);
  }

  void Sizes() {
    int64_t shards = 0, shards_ready = 0, workers = 0, workers_ready = 0;
    bool coordinator_ready = false;
    Json images = Json::object();

    for (const PodStatus& pod : world_.pods) {
      if (!pod.image_id.empty()) images[std::string(RoleName(pod.replica.role))] = pod.image_id;
      if (pod.ended || pod.deletion_asked.has_value()) continue;
      if (pod.replica.role == v1::SHARD) ++shards, shards_ready += pod.ready;
      if (pod.replica.role == v1::WORKER) ++workers, workers_ready += pod.ready;
      if (pod.replica.role == v1::COORDINATOR) coordinator_ready = pod.ready;
    }

    Json& servers = status_["parameterServer"];
    if (!servers.is_object()) servers = Json::object();
    servers["replicas"] = shards;
    servers["readyReplicas"] = shards_ready;

    if (input_.progress != nullptr && input_.progress_is_new) {
      const auto& targets = input_.progress->view().target();
      const auto moving = targets.size() - std::count(targets.begin(), targets.end(), 0u);
      servers["movingPartitions"] = moving;
    }

    status_["worker"] = {{"replicas", workers},
                         {"readyReplicas", workers_ready},
                         {"selector", absl::StrCat(kJobLabel, "=", input_.job.key.name, ",",
                                                   kRoleLabel, "=", RoleName(v1::WORKER))}};
    status_["coordinator"] = {{"ready", coordinator_ready}};

    if (!images.empty()) status_["images"] = std::move(images);
  }

  void Training(const v1::JobProgress& progress) {
    if (progress.attempt() > 0) status_["attempt"] = progress.attempt();
    if (progress.has_view()) {
      const v1::ViewId& id = progress.view().id();
      status_["view"] = absl::StrCat(id.attempt(), ".", id.term().counter(), ".", id.number());
    }

    Json& training = status_["training"];
    if (!training.is_object()) training = Json::object();
    // Before its first view, the coordinator reports step 0, whatever the job's step.
    const bool known = progress.step() > 0 || input_.phase >= v1::JobProgress::TRAINING;
    if (!known) return;

    const int64_t step = static_cast<int64_t>(progress.step());
    const int64_t before = training.contains("step") ? kube::GetInt(training, {"step"}) : -1;
    if (step > before) training["lastProgressTime"] = kube::EncodeTime(input_.now);
    training["step"] = step;

    if (progress.total_steps() > 0) training["totalSteps"] = progress.total_steps();
    training["epoch"] = Rounded(progress.epoch());
    training["samples"] = progress.samples();
    if (progress.has_loss()) training["loss"] = Rounded(progress.loss());
    training["samplesPerSecond"] = Rounded(progress.samples_per_second());

    if (progress.has_last_evaluation()) Evaluation(progress.last_evaluation(), &training);
  }

  static void Evaluation(const v1::Evaluation& evaluation, Json* training) {
    Json& to = (*training)["evaluation"];
    to = {{"step", evaluation.step()},
          {"epoch", Rounded(evaluation.epoch())},
          {"loss", Rounded(evaluation.loss())},
          {"samples", evaluation.samples()}};

    (*training)["metric"] = absl::StrFormat("loss %.4f", evaluation.loss());
    if (evaluation.metrics_size() > 0) {
      const v1::Metric& first = evaluation.metrics(0);
      (*training)["metric"] = absl::StrFormat("%s %.4g", first.name(), first.value());
    }

    if (evaluation.has_perplexity()) {
      to["perplexity"] = Rounded(evaluation.perplexity());
      (*training)["metric"] = absl::StrFormat("perplexity %.2f", evaluation.perplexity());
    }
    if (evaluation.has_accuracy()) {
      to["accuracy"] = Rounded(evaluation.accuracy());
      (*training)["metric"] = absl::StrFormat("accuracy %.2f %%", evaluation.accuracy());
    }

    // JSON has no NaN and no infinity.
    for (const v1::Metric& metric : evaluation.metrics()) {
      if (std::isfinite(metric.value())) to["metrics"][metric.name()] = Rounded(metric.value());
    }
  }

  void Checkpoint(const v1::JobProgress& progress) {
    const v1::CheckpointStatus& checkpoint = progress.checkpoint();
    if (checkpoint.has_last()) {
      Json& to = status_["checkpoint"];
      const bool is_new = !to.is_object() || to.value("location", "") != checkpoint.directory();
      if (!to.is_object()) to = Json::object();
      to["step"] = checkpoint.last().step();
      to["location"] = checkpoint.directory();
      if (checkpoint.bytes() > 0) to["bytes"] = checkpoint.bytes();
      if (is_new) to["time"] = kube::EncodeTime(input_.now);
    }

    if (progress.restored()) {
      status_["checkpoint"]["restoredFromStep"] = progress.restored_from_step();
    }
  }

  void Failures() {
    for (const policy::Replica& replica : input_.replaced) {
      Json& restarts = status_["restarts"];
      for (const char* field : {NamesOf(replica.role).restarts, "total"}) {
        restarts[field] = kube::GetInt(restarts, {field}) + 1;
      }
    }
    for (const policy::ReportExit& end : input_.exits) AddFailure(end, *input_.PodAt(end.replica));
  }

  void AddFailure(const policy::ReportExit& end, const PodStatus& pod) {
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

    Json failure = {{"time", kube::EncodeTime(input_.now)},
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
    if (reason == kDataMissing || reason == kRefused || input_.Outcome().has_value()) return;
    events_->push_back({end.exit.cause == policy::Cause::kOutside ? Type::kNormal : Type::kWarning,
                        reason, absl::StrCat("Replace", NamesOf(pod.replica.role).action),
                        absl::StrCat(pod.name, ": ", message), pod.name});
  }

  const ReportInput& input_;
  const World& world_;
  Json& status_;
  std::vector<EventRecord>* const events_;
};

}  // namespace

void Report(const ReportInput& input, Json* status, std::vector<EventRecord>* events) {
  Reporter(input, status, events).Run();
}

}  // namespace sluice::reconciler

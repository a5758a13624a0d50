#include "cli/cluster/job_text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "operator/reconciler/job_status.h"

namespace sluice::cli {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;
using Phase = v1::JobProgress;
using Tone = ProcessState::Tone;

uint64_t Count(const Json& object, std::initializer_list<absl::string_view> path) {
  return static_cast<uint64_t>(std::max<int64_t>(0, GetInt(object, path)));
}

double Number(const Json& object, std::initializer_list<absl::string_view> path) {
  const Json* found = kube::Find(object, path);
  return found != nullptr && found->is_number() ? found->get<double>() : 0;
}

bool Has(const Json& object, std::initializer_list<absl::string_view> path) {
  return kube::Find(object, path) != nullptr;
}

struct Summary {
  const char* word;
  Phase::Phase phase;
  const char* state;  // empty: the phase's own word
};

// The values of status.summary; any other value is the reason why pods wait.
constexpr Summary kSummaries[] = {
    {"Starting", Phase::STARTING, ""},
    {"Training", Phase::TRAINING, ""},
    {"Evaluating", Phase::EVALUATING, ""},
    {"Saving", Phase::SAVING, ""},
    {"Suspended", Phase::SUSPENDED, ""},
    {"Succeeded", Phase::SUCCEEDED, ""},
    {"Failed", Phase::FAILED, ""},
    {"Scaling", Phase::STARTING, "changing its number of shards"},
    {"SwitchingMode", Phase::STARTING, "switching its mode"},
    {"Recovering", Phase::STARTING, "recovering"},
    {"ProcessesFailing", Phase::STARTING, "processes fail again and again"},
    {"Suspending", Phase::STARTING, "checkpointing and suspending"},
    {"Invalid", Phase::STARTING, "refused by the operator"},
    {"", Phase::STARTING, "waiting for the operator"},
};

const Summary* FindSummary(const Json& job) {
  const std::string word = GetString(job, {"status", "summary"});
  for (const Summary& summary : kSummaries) {
    if (word == summary.word) return &summary;
  }
  return nullptr;
}

void ReadEvaluation(const Json& job, v1::JobProgress* progress) {
  const Json* found = kube::Find(job, {"status", "training", "evaluation"});
  if (found == nullptr) return;

  v1::Evaluation* evaluation = progress->mutable_last_evaluation();
  evaluation->set_step(Count(*found, {"step"}));
  evaluation->set_epoch(Number(*found, {"epoch"}));
  evaluation->set_loss(Number(*found, {"loss"}));
  evaluation->set_samples(Count(*found, {"samples"}));
  evaluation->set_has_accuracy(Has(*found, {"accuracy"}));
  evaluation->set_accuracy(Number(*found, {"accuracy"}));
  evaluation->set_has_perplexity(Has(*found, {"perplexity"}));
  evaluation->set_perplexity(Number(*found, {"perplexity"}));

  const Json* metrics = kube::Find(*found, {"metrics"});
  if (metrics == nullptr || !metrics->is_object()) return;
  for (const auto& [name, value] : metrics->items()) {
    if (!value.is_number()) continue;
    v1::Metric& metric = *evaluation->add_metrics();
    metric.set_name(name);
    metric.set_value(value.get<double>());
  }
}

bool HasCondition(const Json& job, absl::string_view type) {
  const Json* status = kube::Find(job, {"status"});
  return status != nullptr && reconciler::HasCondition(*status, type);
}

std::string MessageOf(const Json& job, absl::string_view type, absl::string_view field) {
  const Json* status = kube::Find(job, {"status"});
  const Json* condition = status == nullptr ? nullptr : reconciler::FindCondition(*status, type);
  return condition == nullptr ? "" : GetString(*condition, {field});
}

}  // namespace

PodStatuses ReadPods(const std::vector<Json>& pods, const std::string& uid) {
  PodStatuses statuses;
  for (const Json& pod : pods) {
    if (kube::ControllerUidOf(pod) != uid) continue;
    std::optional<reconciler::PodStatus> status = reconciler::ReadPod(pod);
    if (!status.has_value()) continue;
    const std::string name = status->name;
    statuses.emplace(name, *std::move(status));
  }
  return statuses;
}

bool HasProgress(const Json& job) { return Has(job, {"status", "training", "step"}); }

v1::JobProgress ProgressOf(const Json& job) {
  v1::JobProgress progress;
  const Summary* summary = FindSummary(job);
  progress.set_phase(summary == nullptr ? Phase::STARTING : summary->phase);
  progress.set_attempt(Count(job, {"status", "attempt"}));

  if (const Json* training = kube::Find(job, {"status", "training"}); training != nullptr) {
    progress.set_step(Count(*training, {"step"}));
    progress.set_total_steps(Count(*training, {"totalSteps"}));
    progress.set_epoch(Number(*training, {"epoch"}));
    progress.set_samples(Count(*training, {"samples"}));
    progress.set_samples_per_second(Number(*training, {"samplesPerSecond"}));
    progress.set_has_loss(Has(*training, {"loss"}));
    progress.set_loss(Number(*training, {"loss"}));
  }
  // Estimates the total from the samples per step so far.
  if (progress.step() > 0 && progress.total_steps() > 0) {
    const double samples = static_cast<double>(progress.samples());
    progress.set_total_samples(
        static_cast<uint64_t>(std::llround(samples * static_cast<double>(progress.total_steps()) /
                                           static_cast<double>(progress.step()))));
  }

  ReadEvaluation(job, &progress);

  if (const Json* from = kube::Find(job, {"status", "checkpoint"}); from != nullptr) {
    if (Has(*from, {"location"})) {
      v1::CheckpointStatus* checkpoint = progress.mutable_checkpoint();
      checkpoint->mutable_last()->set_step(Count(*from, {"step"}));
      checkpoint->set_directory(GetString(*from, {"location"}));
      checkpoint->set_bytes(Count(*from, {"bytes"}));
    }
    progress.set_restored(Has(*from, {"restoredFromStep"}));
    progress.set_restored_from_step(Count(*from, {"restoredFromStep"}));
  }

  progress.set_job(absl::StrCat(kube::KeyOf(job).ToString(), "/", kube::UidOf(job)));
  return progress;
}

std::string StateWordsOf(const Json& job) {
  if (kube::IsBeingDeleted(job)) return "being deleted";
  const Summary* summary = FindSummary(job);

  std::string words = summary != nullptr
                          ? summary->state
                          : absl::StrCat("waiting: ", GetString(job, {"status", "summary"}));
  if (HasCondition(job, "Succeeded") || HasCondition(job, "Failed")) return words;

  const char* why = summary == nullptr ? "Degraded" : "Accepted";
  const bool invalid = summary != nullptr && absl::string_view(summary->word) == "Invalid";
  if (summary != nullptr && !invalid) return words;

  if (const std::string message = MessageOf(job, why, "message"); !message.empty()) {
    absl::StrAppend(&words, " (", message, ")");
  }
  return words;
}

namespace {

// The first process that a message names.
std::optional<policy::Replica> FirstReplicaIn(absl::string_view message) {
  policy::Replica replica;
  for (const absl::string_view word : absl::StrSplit(message, absl::ByAnyChar(" :,;()"))) {
    if (reconciler::ParseReplicaName(word, &replica)) return replica;
  }
  return std::nullopt;
}

}  // namespace

std::optional<policy::Outcome> OutcomeOf(const Json& job) {
  policy::Outcome outcome;
  if (HasCondition(job, "Succeeded")) {
    outcome.kind = policy::OutcomeKind::kSucceeded;
    return outcome;
  }

  if (HasCondition(job, "Failed")) {
    outcome.kind = policy::OutcomeKind::kFailed;
    outcome.code = MessageOf(job, "Failed", "reason");
    outcome.reason = MessageOf(job, "Failed", "message");
    if (outcome.reason.empty()) outcome.reason = outcome.code;
    outcome.blamed = FirstReplicaIn(outcome.reason);
    return outcome;
  }

  const Json* wanted = kube::Find(job, {"spec", "suspend"});
  const bool suspended = wanted != nullptr && wanted->is_boolean() && wanted->get<bool>();
  if (!suspended || !HasCondition(job, "Suspended")) return std::nullopt;

  outcome.kind = policy::OutcomeKind::kSuspended;
  outcome.reason = MessageOf(job, "Suspended", "message");
  return outcome;
}

uint32_t RestartsOf(const Json& job) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(Count(job, {"status", "restarts", "total"}), UINT32_MAX));
}

absl::Duration ElapsedOf(const Json& job, absl::Time now) {
  const absl::Time start = kube::DecodeTime(GetString(job, {"status", "startTime"}));
  const absl::Time end = kube::DecodeTime(GetString(job, {"status", "completionTime"}));
  if (start == absl::InfinitePast()) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(), (end == absl::InfinitePast() ? now : end) - start);
}

ProcessState StateOf(const reconciler::PodStatus& pod, bool training) {
  if (pod.ended) {
    const bool fine =
        pod.exit.code == 0 && pod.exit.signal == 0 && pod.exit.cause == policy::Cause::kItself;
    if (fine) return {"finished", Tone::kDone};
    return {policy::ExitText(pod.exit), Tone::kBad};
  }

  if (pod.deletion_asked.has_value()) return {"leaving", Tone::kDone};
  if (pod.node_lost) return {absl::StrCat("node ", pod.node, " is not responding"), Tone::kBad};

  if (!pod.begun) {
    if (!pod.waiting.empty()) {
      return {absl::StrCat(pod.waiting.reason, ": ", pod.waiting.message), Tone::kBad};
    }
    return {pod.node.empty() ? "pending" : absl::StrCat("pending on ", pod.node), Tone::kWaiting};
  }

  const std::string at = pod.node.empty() ? "" : absl::StrCat(" on ", pod.node);
  if (!pod.ready) return {absl::StrCat("starting", at), Tone::kWaiting};

  const char* word = pod.replica.role == v1::SHARD                ? "serving"
                     : pod.replica.role == v1::WORKER && training ? "training"
                                                                  : "running";
  return {absl::StrCat(word, at), Tone::kGood};
}

std::map<policy::Replica, ProcessState> StatesOf(const PodStatuses& pods, const Json& job) {
  const bool training = ProgressOf(job).phase() == Phase::TRAINING;
  std::map<policy::Replica, const reconciler::PodStatus*> newest;
  for (const auto& [name, pod] : pods) {
    const reconciler::PodStatus*& there = newest[pod.replica];
    if (there == nullptr || there->created < pod.created) there = &pod;
  }
  std::map<policy::Replica, ProcessState> states;
  for (const auto& [replica, pod] : newest) states[replica] = StateOf(*pod, training);
  return states;
}

JobSummary ViewOf(const Json& job, const PodStatuses& pods) {
  JobSummary view;
  view.name = kube::KeyOf(job).name;
  view.has_progress = HasProgress(job);
  view.progress = ProgressOf(job);
  view.state = StateWordsOf(job);
  if (view.state.empty() && !view.has_progress) view.state = PhaseText(view.progress.phase());
  view.processes = StatesOf(pods, job);
  return view;
}

std::string StateLine(const Json& job) {
  const JobSummary view = ViewOf(job, {});
  const std::optional<policy::Outcome> outcome = OutcomeOf(job);
  if (!outcome.has_value()) return ProgressLine(view);
  std::string text = GetString(job, {"status", "summary"});
  if (text.empty()) text = PhaseText(view.progress.phase());
  if (view.has_progress) absl::StrAppend(&text, " at ", StepText(view.progress));
  const std::string metric = GetString(job, {"status", "training", "metric"});
  if (!metric.empty()) absl::StrAppend(&text, ", ", metric);
  if (!outcome->reason.empty()) absl::StrAppend(&text, ": ", outcome->reason);
  return text;
}

}  // namespace sluice::cli

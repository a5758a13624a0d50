#include "operator/reconciler/pod_view.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "operator/policy/last_words.h"
#include "operator/reconciler/names.h"
#include "services/common/exit_code.h"

namespace sluice::reconciler {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;

const Json* Condition(const Json& pod, absl::string_view type) {
  const Json* conditions = kube::Find(pod, {"status", "conditions"});
  if (conditions == nullptr || !conditions->is_array()) return nullptr;
  for (const Json& condition : *conditions) {
    if (GetString(condition, {"type"}) == type) return &condition;
  }
  return nullptr;
}

bool IsTrue(const Json* condition) {
  return condition != nullptr && GetString(*condition, {"status"}) == "True";
}

const Json* ContainerStatus(const Json& pod, const char* list, absl::string_view name) {
  const Json* statuses = kube::Find(pod, {"status", list});
  if (statuses == nullptr || !statuses->is_array()) return nullptr;
  for (const Json& status : *statuses) {
    if (name.empty() || GetString(status, {"name"}) == name) return &status;
  }
  return nullptr;
}

// One of the kubelet's words for "the container is not started and will not be soon".
bool IsImageTrouble(absl::string_view reason) {
  return reason == "ErrImagePull" || reason == "ImagePullBackOff" || reason == "InvalidImageName" ||
         reason == "ErrImageNeverPull" || reason == "ImageInspectError";
}
bool IsConfigTrouble(absl::string_view reason) {
  return reason == "CreateContainerConfigError" || reason == "CreateContainerError" ||
         reason == "RunContainerError" || reason == "PreStartHookError";
}

Trouble WaitingOf(const Json& pod, absl::string_view container) {
  const Json* scheduled = Condition(pod, "PodScheduled");
  if (scheduled != nullptr && GetString(*scheduled, {"status"}) == "False") {
    const std::string message = GetString(*scheduled, {"message"});
    const bool claim = absl::StrContains(absl::AsciiStrToLower(message), "persistentvolumeclaim");
    return {
        "Unschedulable",
        absl::StrCat("no node takes the pod: ", message,
                     claim ? "; make the claim, or a volume for it, or correct its name in the job"
                           : "; ask for less or for other nodes in the template, or add nodes")};
  }
  for (const Json* status : {ContainerStatus(pod, "initContainerStatuses", ""),
                             ContainerStatus(pod, "containerStatuses", container)}) {
    if (status == nullptr) continue;
    const std::string reason = GetString(*status, {"state", "waiting", "reason"});
    const std::string message = GetString(*status, {"state", "waiting", "message"});
    if (IsImageTrouble(reason)) {
      return {"ImagePullFailed",
              absl::StrCat("image ", GetString(*status, {"image"}), ": ", reason, ": ", message,
                           "; correct spec.image, or give the pods imagePullSecrets")};
    }
    if (IsConfigTrouble(reason)) {
      return {"ContainerConfigError",
              absl::StrCat(reason, ": ", message,
                           "; make what the template names, or correct the template")};
    }
  }
  return {};
}

// Who wanted the pod gone from where it was, if anybody did; in a word.
std::string OutsideReason(const Json& pod, const PodView& view) {
  if (const Json* target = Condition(pod, "DisruptionTarget"); IsTrue(target)) {
    const std::string reason = GetString(*target, {"reason"});
    if (reason == "PreemptionByScheduler") return "Preempted";
    if (reason == "DeletionByPodGC") return "NodeLost";
    if (reason == "DeletionByTaintManager") return view.node_lost ? "NodeLost" : "Evicted";
    return "Evicted";
  }
  std::string reason = GetString(pod, {"status", "reason"});
  if (reason == "Evicted" || reason == "NodeLost") return reason;
  if (reason == "NodeShutdown" || reason == "Shutdown" || reason == "Terminated") {
    return "NodeShutdown";
  }
  // The kubelet would not have it, though the scheduler had sent it there.
  if (absl::StartsWith(reason, "OutOf") || reason == "UnexpectedAdmissionError" ||
      reason == "NodeAffinity" || reason == "NodePorts" || reason == "Preempting") {
    return "NodeRefused";
  }
  if (view.node_lost) return "NodeLost";
  return view.deletion_asked.has_value() ? "Deleted" : "";
}

void ReadTermination(const Json& terminated, PodView* view) {
  view->ended = true;
  view->ended_at = kube::DecodeTime(GetString(terminated, {"finishedAt"}));
  const int code = static_cast<int>(GetInt(terminated, {"exitCode"}));
  const std::string reason = GetString(terminated, {"reason"});
  view->exit.message = GetString(terminated, {"message"});
  if (const int signal = static_cast<int>(GetInt(terminated, {"signal"})); signal > 0) {
    view->exit.signal = signal;
  } else if (code > 128 && code <= 128 + 64) {
    view->exit.signal = code - 128;
  } else {
    view->exit.code = code;
  }
  if (reason == "OOMKilled") view->exit.reason = reason;
  if (reason == "StartError" || reason == "ContainerCannotRun") view->exit.reason = "StartError";
  if (reason == "ContainerStatusUnknown" || (code == 255 && reason == "Unknown")) {
    // Its node went away under it, and has come back.
    view->exit.cause = policy::Cause::kOutside;
    view->exit.reason = "NodeLost";
  }
}

void ReadLastWord(PodView* view) {
  v1::JobProgress progress;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const std::string& message = view->exit.message;
  if (message.empty() || message[0] != '{') return;
  if (!google::protobuf::util::JsonStringToMessage(message, &progress, options).ok()) return;
  view->exit.message = progress.reason();
  view->last_word = std::move(progress);
}

void ReadContainer(const Json& pod, PodView* view) {
  const absl::string_view name = RoleName(view->slot.role);
  const Json* status = ContainerStatus(pod, "containerStatuses", name);
  view->started = view->created;
  if (status == nullptr) return;
  view->image_id = GetString(*status, {"imageID"});
  const Json* running = kube::Find(*status, {"state", "running"});
  const Json* terminated = kube::Find(*status, {"state", "terminated"});
  const Json* at = terminated != nullptr ? terminated : running;
  if (at == nullptr) return;
  view->begun = true;
  const absl::Time started = kube::DecodeTime(GetString(*at, {"startedAt"}));
  if (started != absl::InfinitePast()) view->started = started;
  if (terminated != nullptr) ReadTermination(*terminated, view);
}

}  // namespace

std::optional<PodView> ReadPod(const Json& pod) {
  const std::optional<policy::Slot> slot = SlotOf(pod);
  if (!slot.has_value()) return std::nullopt;
  PodView view;
  view.slot = *slot;
  view.name = kube::KeyOf(pod).name;
  view.uid = kube::UidOf(pod);
  view.node = GetString(pod, {"spec", "nodeName"});
  view.ip = GetString(pod, {"status", "podIP"});
  view.template_hash = GetString(pod, {"metadata", "annotations", kTemplateHash});
  view.created = kube::DecodeTime(GetString(pod, {"metadata", "creationTimestamp"}));
  if (const std::string gone = GetString(pod, {"metadata", "deletionTimestamp"}); !gone.empty()) {
    view.gone_by = kube::DecodeTime(gone);
    const int64_t grace = GetInt(pod, {"metadata", "deletionGracePeriodSeconds"});
    view.deletion_asked = view.gone_by - absl::Seconds(grace);
    view.forced = grace == 0;
  }
  const Json* ready = Condition(pod, "Ready");
  view.ready = IsTrue(ready);
  // A node's controller takes Ready away and leaves the rest as the kubelet said it last.
  view.node_lost = ready != nullptr && !view.ready && IsTrue(Condition(pod, "ContainersReady"));
  ReadContainer(pod, &view);
  const std::string phase = GetString(pod, {"status", "phase"});
  view.terminal = phase == "Failed" || phase == "Succeeded";
  if (view.terminal && !view.ended) {
    view.ended = true;
    view.begun = true;
    view.exit.code = phase == "Failed" ? kExitRetry : kExitOk;
    view.exit.message = GetString(pod, {"status", "message"});
  }
  if (!view.begun) view.waiting = WaitingOf(pod, RoleName(view.slot.role));
  if (view.ended) {
    view.ready = false;
    if (view.ended_at == absl::InfinitePast() || view.ended_at == absl::Time()) {
      view.ended_at = view.started;
    }
    if (std::string reason = OutsideReason(pod, view); !reason.empty()) {
      view.exit.cause = policy::Cause::kOutside;
      view.exit.reason = std::move(reason);
    }
    if (view.slot.role == v1::COORDINATOR) ReadLastWord(&view);
    if (!view.last_word.has_value()) {
      // The end of the log, where the process wrote nothing else.
      view.exit.message = policy::LastWords(
          absl::StrSplit(absl::StripTrailingAsciiWhitespace(view.exit.message), '\n'));
    }
  }
  // A pod that was never ready has had the condition since before its container began.
  view.was_ready =
      view.ready || (ready != nullptr && view.begun &&
                     kube::DecodeTime(GetString(*ready, {"lastTransitionTime"})) > view.started);
  return view;
}

policy::ProcessObservation Observe(const PodView& pod) {
  policy::ProcessObservation process;
  process.life = pod.uid;
  process.started = pod.started;
  process.ready = pod.was_ready;
  process.begun = pod.begun;
  process.running = !pod.ended;
  process.exit = pod.exit;
  process.ended = pod.ended_at;
  return process;
}

}  // namespace sluice::reconciler

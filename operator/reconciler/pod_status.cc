#include "operator/reconciler/pod_status.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "operator/policy/reason_from_log.h"
#include "operator/reconciler/names.h"
#include "services/common/exit_code.h"

namespace sluice::reconciler {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;

const Json* Condition(const Json& pod, absl::string_view type) {
  return kube::FindItem(pod, {"status", "conditions"}, "type", type);
}

bool IsTrue(const Json* condition) {
  return condition != nullptr && GetString(*condition, {"status"}) == "True";
}

// The kubelet's reasons for a container that has not started and will not start soon.
bool IsImageProblem(absl::string_view reason) {
  return reason == "ErrImagePull" || reason == "ImagePullBackOff" || reason == "InvalidImageName" ||
         reason == "ErrImageNeverPull" || reason == "ImageInspectError";
}
bool IsConfigProblem(absl::string_view reason) {
  return reason == "CreateContainerConfigError" || reason == "CreateContainerError" ||
         reason == "RunContainerError" || reason == "PreStartHookError";
}

// In a healthy cluster, mounting volumes and setting up the pod's network takes no longer than
// this.
constexpr absl::Duration kSlowStart = absl::Seconds(60);
// In a healthy cluster, a controller removes its finalizer from a deleted pod within this time.
constexpr absl::Duration kSlowEnd = absl::Seconds(10);

Problem SchedulingProblem(const Json& pod, const Json& scheduled) {
  const std::string message = GetString(scheduled, {"message"});
  if (GetString(scheduled, {"reason"}) == "SchedulingGated") {
    std::vector<std::string> gates;
    for (const Json& gate : kube::GetList(pod, {"spec", "schedulingGates"})) {
      gates.push_back(GetString(gate, {"name"}));
    }
    return {"SchedulingGated", absl::StrCat("the pod is held back by its scheduling gates (",
                                            absl::StrJoin(gates, ", "),
                                            ") until the controllers of these gates remove them")};
  }

  const bool claim = absl::StrContains(absl::AsciiStrToLower(message), "persistentvolumeclaim");
  return {
      "Unschedulable",
      absl::StrCat("no node takes the pod: ", message,
                   claim ? "; create the claim, or a volume for it, or correct its name in the job"
                         : "; request less or choose other nodes in the template, or add nodes")};
}

// `own`: this is Sluice's container; `begun`: Sluice's container is already running.
Problem ContainerProblem(const Json& status, bool own, bool begun) {
  const std::string reason = GetString(status, {"state", "waiting", "reason"});
  const std::string message = GetString(status, {"state", "waiting", "message"});
  const std::string where =
      own ? "" : absl::StrCat("container ", GetString(status, {"name"}), ": ");

  // A pod whose own container runs is not re-created because of another container.
  const char* then = begun ? "; then delete the pod" : "";
  if (IsImageProblem(reason)) {
    return {"ImagePullFailed",
            absl::StrCat(where, "image ", GetString(status, {"image"}), ": ", reason, ": ", message,
                         "; correct ", own ? "spec.image" : "the image in the template of the role",
                         ", or give the pods imagePullSecrets", then)};
  }

  if (IsConfigProblem(reason)) {
    return {"ContainerConfigError",
            absl::StrCat(where, reason, ": ", message,
                         "; create what the template names, or correct the template", then)};
  }
  return {};
}

Problem WaitingOf(const Json& pod, absl::string_view own, bool begun) {
  const Json* scheduled = Condition(pod, "PodScheduled");
  if (scheduled != nullptr && GetString(*scheduled, {"status"}) == "False") {
    return SchedulingProblem(pod, *scheduled);
  }

  for (const char* list : {"initContainerStatuses", "containerStatuses"}) {
    for (const Json& status : kube::GetList(pod, {"status", list})) {
      const bool is_own = list[0] == 'c' && GetString(status, {"name"}) == own;
      Problem problem = ContainerProblem(status, is_own, begun);
      if (!problem.empty()) return problem;
    }
  }
  return {};
}

// "secret a, claim b": what the pod's volumes need, and what may be missing.
std::string WhatVolumesNeed(const Json& pod) {
  struct Kind {
    const char* noun;
    const char* source;
    const char* name;
  };
  const Kind kinds[] = {{"secret", "secret", "secretName"},
                        {"config map", "configMap", "name"},
                        {"claim", "persistentVolumeClaim", "claimName"},
                        {"directory of the node", "hostPath", "path"},
                        {"CSI driver", "csi", "driver"},
                        {"NFS server", "nfs", "server"},
                        {"secret", "secret", "name"}};  // of a projected volume

  std::vector<std::string> needed;
  const auto add = [&](const Json& volume) {
    for (const Kind& kind : kinds) {
      const std::string name = GetString(volume, {kind.source, kind.name});
      if (!name.empty()) needed.push_back(absl::StrCat(kind.noun, " ", name));
    }
  };

  for (const Json& volume : kube::GetList(pod, {"spec", "volumes"})) {
    add(volume);
    for (const Json& source : kube::GetList(volume, {"projected", "sources"})) add(source);
  }

  return absl::StrJoin(needed, ", ");
}

// Whether the kubelet has seen the pod but has not finished preparing its volumes and network.
bool IsBeingPrepared(const Json& pod) {
  const Json* prepared = Condition(pod, "PodReadyToStartContainers");
  return prepared != nullptr && !IsTrue(prepared);
}

// A kubelet reports only in events why it cannot prepare a pod for its containers. It pulls images
// after the preparation, so a slow pull is not reported here.
void ReadSlowStart(const Json& pod, PodStatus* view) {
  const Json* scheduled = Condition(pod, "PodScheduled");
  if (!IsTrue(scheduled) || !IsBeingPrepared(pod)) return;

  view->slow_from = kube::DecodeTime(GetString(*scheduled, {"lastTransitionTime"})) + kSlowStart;
  const std::string needed = WhatVolumesNeed(pod);

  const std::string since =
      absl::StrCat("node ", view->node, " has been preparing the pod for more than ",
                   absl::FormatDuration(kSlowStart), ": ");
  const std::string look =
      absl::StrCat("; `kubectl describe pod ", view->name, "` shows the kubelet's messages");

  if (needed.empty()) {
    view->slow = {
        "SandboxNotReady",
        absl::StrCat(since, "check the container runtime and the network of the node", look)};
  } else {
    view->slow = {
        "VolumeNotMounted",
        absl::StrCat(since, "check that what its volumes need exists and can be mounted (", needed,
                     "), and check the network of the node", look)};
  }
}

// The API server keeps a deleted pod until its last finalizer is removed.
void ReadSlowEnd(const Json& pod, PodStatus* view) {
  const Json& finalizers = kube::GetList(pod, {"metadata", "finalizers"});
  if (!view->deletion_asked.has_value() || finalizers.empty()) return;

  std::vector<std::string> names;
  for (const Json& name : finalizers) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }

  view->slow_from = view->gone_by + kSlowEnd;
  view->slow = {
      kHeldByFinalizer,
      absl::StrCat("the pod was deleted, but the API server keeps it until its finalizers are "
                   "removed (",
                   absl::StrJoin(names, ", "),
                   "). Check the controller that sets them, or remove them: kubectl patch pod ",
                   view->name, R"( --type=merge -p '{"metadata":{"finalizers":null}}')")};
}

constexpr char kByTaint[] = "DeletionByTaintManager";

// Why the pod was removed from its node, in one word; empty if nothing outside removed it.
std::string OutsideReason(const Json& pod, const PodStatus& view) {
  if (const Json* target = Condition(pod, "DisruptionTarget"); IsTrue(target)) {
    const std::string reason = GetString(*target, {"reason"});
    if (reason == "PreemptionByScheduler") return "Preempted";
    if (reason == "DeletionByPodGC") return "NodeLost";
    if (reason == kByTaint) return view.ended && !view.node_lost ? "Evicted" : "NodeLost";
    return "Evicted";
  }

  std::string reason = GetString(pod, {"status", "reason"});
  if (reason == "Evicted" || reason == "NodeLost") return reason;
  if (reason == "NodeShutdown" || reason == "Shutdown" || reason == "Terminated") {
    return "NodeShutdown";
  }

  // The kubelet rejected the pod after the scheduler had assigned it to the node.
  if (absl::StartsWith(reason, "OutOf") || reason == "UnexpectedAdmissionError" ||
      reason == "NodeAffinity" || reason == "NodePorts" || reason == "Preempting") {
    return "NodeRefused";
  }

  if (view.node_lost) return "NodeLost";
  return view.deletion_asked.has_value() ? "Deleted" : "";
}

void ReadTermination(const Json& terminated, PodStatus* view) {
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
    // The pod's node was lost and has come back.
    view->exit.cause = policy::Cause::kOutside;
    view->exit.reason = "NodeLost";
  }
}

void ReadFinalProgress(PodStatus* view) {
  v1::JobProgress progress;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;

  const std::string& message = view->exit.message;
  if (message.empty() || message[0] != '{') return;
  if (!google::protobuf::util::JsonStringToMessage(message, &progress, options).ok()) return;

  view->exit.message = progress.reason();
  view->final_progress = std::move(progress);
}

void ReadContainer(const Json& pod, PodStatus* view) {
  const Json* status =
      kube::FindItem(pod, {"status", "containerStatuses"}, "name", RoleName(view->replica.role));
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

// Whether containers of the pod still run after Sluice's container has ended.
void ReadOthers(const Json& pod, PodStatus* view) {
  const auto ended = [](const Json& status) {
    return kube::Find(status, {"state", "terminated"}) != nullptr;
  };
  const auto runs = [](const Json& status) {
    return kube::Find(status, {"state", "running"}) != nullptr;
  };

  const Json& containers = kube::GetList(pod, {"status", "containerStatuses"});
  const Json& init = kube::GetList(pod, {"status", "initContainerStatuses"});
  view->lingers = !std::all_of(containers.begin(), containers.end(), ended);
  view->terminal = !view->lingers && std::none_of(init.begin(), init.end(), runs);
}

}  // namespace

std::optional<PodStatus> ReadPod(const Json& pod) {
  const std::optional<policy::Replica> replica = ReplicaOf(pod);
  if (!replica.has_value()) return std::nullopt;

  PodStatus view;
  view.replica = *replica;
  view.name = kube::KeyOf(pod).name;
  view.uid = kube::UidOf(pod);
  view.node = GetString(pod, {"spec", "nodeName"});
  view.ip = GetString(pod, {"status", "podIP"});
  view.template_hash = GetString(pod, {"metadata", "annotations", kTemplateHash});
  view.started_with = GetString(pod, {"metadata", "annotations", kStartedWith});
  view.created = kube::DecodeTime(GetString(pod, {"metadata", "creationTimestamp"}));

  if (const std::string gone = GetString(pod, {"metadata", "deletionTimestamp"}); !gone.empty()) {
    view.gone_by = kube::DecodeTime(gone);
    const int64_t grace = GetInt(pod, {"metadata", "deletionGracePeriodSeconds"});
    view.deletion_asked = view.gone_by - absl::Seconds(grace);
    view.forced = grace == 0;
    const Json* target = Condition(pod, "DisruptionTarget");
    view.tainted = IsTrue(target) && GetString(*target, {"reason"}) == kByTaint;
  }

  const Json* ready = Condition(pod, "Ready");
  view.ready = IsTrue(ready);
  // The node controller sets Ready to False and leaves the rest as the kubelet last reported it.
  view.node_lost = ready != nullptr && !view.ready && IsTrue(Condition(pod, "ContainersReady"));

  ReadContainer(pod, &view);
  const std::string phase = GetString(pod, {"status", "phase"});
  if (phase == "Failed" || phase == "Succeeded") {
    view.terminal = true;
    if (!view.ended) {
      view.ended = view.begun = true;
      view.exit.code = phase == "Failed" ? kExitRetry : kExitOk;
      view.exit.message = GetString(pod, {"status", "message"});
    }
  } else if (view.ended) {
    ReadOthers(pod, &view);
  }

  if (!view.ended) view.waiting = WaitingOf(pod, RoleName(view.replica.role), view.begun);
  if (!view.begun) ReadSlowStart(pod, &view);
  ReadSlowEnd(pod, &view);

  if (view.ended) {
    view.ready = false;
    if (view.ended_at == absl::InfinitePast() || view.ended_at == absl::Time()) {
      view.ended_at = view.started;
    }
    if (std::string reason = OutsideReason(pod, view); !reason.empty()) {
      view.exit.cause = policy::Cause::kOutside;
      view.exit.reason = std::move(reason);
    }
    if (view.replica.role == v1::COORDINATOR) ReadFinalProgress(&view);
    if (!view.final_progress.has_value()) {
      // If the process wrote no message, Kubernetes has put the end of the log here.
      view.exit.message = policy::ReasonFromLog(
          absl::StrSplit(absl::StripTrailingAsciiWhitespace(view.exit.message), '\n'));
    }
  } else if (view.deletion_asked.has_value()) {
    view.exit.reason = OutsideReason(pod, view);
  }

  // A pod that was never ready has had the condition since before its container began.
  view.was_ready =
      view.ready || (ready != nullptr && view.begun &&
                     kube::DecodeTime(GetString(*ready, {"lastTransitionTime"})) > view.started);
  return view;
}

void StripPod(Json* pod) {
  const auto found = pod->find("spec");
  if (found == pod->end()) return;
  Json spec = Json::object();
  const auto keep = [&](const char* field) {
    if (found->is_object() && found->contains(field)) spec[field] = std::move((*found)[field]);
  };

  keep("nodeName");
  keep("schedulingGates");
  if (IsBeingPrepared(*pod)) keep("volumes");

  *found = std::move(spec);
}

const Problem& WaitingAt(const PodStatus& pod, absl::Time now) {
  return pod.waiting.empty() && now >= pod.slow_from ? pod.slow : pod.waiting;
}

policy::ProcessObservation Observe(const PodStatus& pod) {
  policy::ProcessObservation process;
  process.instance = pod.uid;
  process.started = pod.started;
  process.ready = pod.was_ready;
  process.begun = pod.begun;
  process.running = !pod.ended;
  process.exit = pod.exit;
  process.ended = pod.ended_at;

  if (pod.deletion_asked.has_value()) {
    process.removal.emplace();
    process.removal->reason = pod.exit.reason;
    if (pod.exit.reason.empty()) process.removal->reason = pod.node_lost ? "NodeLost" : "Deleted";
    // Evicted or lost: the reason becomes known later. The successor cannot be created before the
    // name is free anyway.
    if (pod.tainted && !pod.ended && !pod.node_lost) process.removal->certain_from = pod.gone_by;
  }
  return process;
}

}  // namespace sluice::reconciler

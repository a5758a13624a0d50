// A job's pod, as DecideJob needs it.
#ifndef SLUICE_OPERATOR_RECONCILER_POD_STATUS_H_
#define SLUICE_OPERATOR_RECONCILER_POD_STATUS_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

// The reason of a pod that foreign finalizers keep after its deletion.
constexpr char kHeldByFinalizer[] = "HeldByFinalizer";

// A problem that blocks the job: a CamelCase reason and a message.
struct Problem {
  std::string reason;
  std::string message;
  bool empty() const { return reason.empty(); }
};

// A pod is one instance: its containers are never restarted.
struct PodStatus {
  policy::Replica replica;
  std::string name;
  std::string uid;
  std::string node;
  std::string ip;
  std::string image_id;
  std::string template_hash;
  std::string started_with;  // the annotation kStartedWith
  absl::Time created;

  bool begun = false;  // Sluice's container runs, or ran
  absl::Time started;  // start of the container, or of the pod if the container has not begun
  bool ready = false;
  bool was_ready = false;  // ready at some time, as far as an ended pod shows it
  Problem waiting;         // why some containers do not begin; empty if the reason is normal
  // The problem from `slow_from` on, unless `waiting` has one: the pod has not begun by then, or
  // still exists although it was deleted. See WaitingAt.
  Problem slow;
  absl::Time slow_from = absl::InfiniteFuture();

  // Sluice's container has ended (others may still run), or the whole pod has.
  bool ended = false;
  // No container of the pod runs any more. A kubelet reports this a second or two before the pod's
  // phase.
  bool terminal = false;
  // Another container of the template has not ended: the pod does not end by itself. Containers
  // that accompany the others (restartable init containers) do not count: the kubelet stops them.
  bool lingers = false;
  absl::Time ended_at;
  policy::Exit exit;
  // The coordinator's final progress, from its termination message.
  std::optional<v1::JobProgress> final_progress;

  // When its deletion was requested, and when the pod should be gone.
  std::optional<absl::Time> deletion_asked;
  absl::Time gone_by;
  bool forced = false;  // it was deleted without a grace period
  // Kubernetes deletes it for a taint of its node, and does not report which taint. A reachable
  // node stops the pod by `gone_by`; until then only `node_lost` shows that the node is lost.
  bool tainted = false;
  // Its node does not answer: the pod's status is out of date.
  bool node_lost = false;
};

// Returns nullopt for a pod without a role. Never fails, whatever the pod contains.
std::optional<PodStatus> ReadPod(const kube::Json& pod);

// Removes the fields that ReadPod does not read: most of a pod's bytes.
void StripPod(kube::Json* pod);

// Why a pod does not begin, or still exists: `waiting`, or `slow` from `slow_from` on.
const Problem& WaitingAt(const PodStatus& pod, absl::Time now);

// The pod as a process of the policy. A requested deletion is its removal.
policy::ProcessObservation Observe(const PodStatus& pod);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_POD_STATUS_H_

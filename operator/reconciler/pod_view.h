// A pod of a job as the decisions see it.
#ifndef SLUICE_OPERATOR_RECONCILER_POD_VIEW_H_
#define SLUICE_OPERATOR_RECONCILER_POD_VIEW_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

// What stands in the way, in a word and in words.
struct Trouble {
  std::string reason;
  std::string message;
  bool empty() const { return reason.empty(); }
};

// A pod is one life: its containers are never restarted.
struct PodView {
  policy::Slot slot;
  std::string name;
  std::string uid;
  std::string node;
  std::string ip;
  std::string image_id;
  std::string template_hash;
  std::string started_with;  // the annotation kStartedWith
  absl::Time created;

  bool begun = false;  // Sluice's container runs, or ran
  absl::Time started;  // of the container; of the pod where it has not begun
  bool ready = false;
  bool was_ready = false;  // once; as far as an ended pod tells
  Trouble waiting;         // why not all of its containers begin, where that is worth telling
  // The reason from `slow_from` on, unless `waiting` has one: the pod still has not begun, or has
  // not gone although it is deleted. See WaitingAt.
  Trouble slow;
  absl::Time slow_from = absl::InfiniteFuture();

  // Sluice's container has ended (others may go on), or the whole pod has.
  bool ended = false;
  // Nothing of the pod runs any more.
  bool terminal = false;
  absl::Time ended_at;
  policy::Exit exit;
  // A coordinator's last word, from its termination message.
  std::optional<v1::JobProgress> last_word;

  // Somebody has asked for its deletion: when, and when it is to be gone.
  std::optional<absl::Time> deletion_asked;
  absl::Time gone_by;
  bool forced = false;  // it was asked to be gone at once
  // Kubernetes deletes it for a taint of its node, and does not say which. A node that answers ends
  // the pod by `gone_by`; until then only `node_lost` tells that the node is lost.
  bool tainted = false;
  // Its node does not answer: what the pod says of itself is old.
  bool node_lost = false;
};

// Nothing for a pod of no role. Whatever is in it, this never fails.
std::optional<PodView> ReadPod(const kube::Json& pod);

// Takes away what ReadPod does not read, which is most of a pod's bytes.
void StripPod(kube::Json* pod);

// Why a pod does not begin, or is not gone: `waiting`, or `slow` once its time has come.
const Trouble& WaitingAt(const PodView& pod, absl::Time now);

policy::ProcessObservation Observe(const PodView& pod);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_POD_VIEW_H_

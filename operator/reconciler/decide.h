// What is to be done about a TrainingJob now. Pure: the whole world in, actions out.
//
// Intuition. Which processes a job should have, and how it ends, is operator/policy's to decide, as
// for `sluice run`. This file says what that means where processes are pods: a pod is a life; one
// that has ended is deleted before the next of its name is made; somebody else may delete or evict
// pods; nodes fall silent; a job goes on after the operator did not. And it writes the status, in
// which everything that must be remembered is kept (job_status.h).
#ifndef SLUICE_OPERATOR_RECONCILER_DECIDE_H_
#define SLUICE_OPERATOR_RECONCILER_DECIDE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/job_view.h"
#include "operator/reconciler/pod_view.h"
#include "operator/runtime/events.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

// The limits of policies on a cluster: what fails from outside may be mended from outside.
policy::Limits ClusterLimits();

struct World {
  JobView job;
  PodImages images;   // that an activation would begin with now
  kube::Json status;  // as it was last written
  std::vector<PodView> pods;
  // What the coordinator said last, and in which life (uid of its pod); null: nothing yet.
  const v1::JobProgress* progress = nullptr;
  std::string progress_of;
  absl::Time progress_at = absl::InfinitePast();  // when it said so
  // What the API server had against the last thing that was to be made; empty: nothing.
  Trouble refused;
  // Of pods as they would be made now, by slot; for pods that have not begun.
  std::map<policy::Slot, std::string> template_hashes;
};

struct PodDeletion {
  std::string name;
  std::string uid;
  std::optional<int64_t> grace_seconds;  // none: the pod's own
  policy::Slot slot;
};

struct Plan {
  // To be written before anything else is done; not at all where it equals the one of the world.
  kube::Json status;
  // Whether that may wait a while.
  StatusChange change = StatusChange::kTransition;
  // All of MakeObjects and, once pods are made, the budget are to be there.
  bool keep_objects = false;
  uint32_t shards = 0;  // of this activation
  TrainingMode mode;    // of this activation
  PodImages images;     // of this activation
  std::vector<PodDeletion> deletions;
  std::vector<policy::Slot> creations;  // where a deletion names the same slot, after it
  bool delete_job = false;
  // Recorded once the status is written.
  std::vector<runtime::EventRecord> events;

  // Of the conversation with the coordinator; nothing: there is nobody to speak with.
  struct Conversation {
    std::string life;  // uid of the coordinator's pod
    std::string ip;
    v1::SetDesiredRequest desired;  // without deaths
    std::vector<v1::SetDesiredRequest::Death> deaths;
  };
  std::optional<Conversation> conversation;

  // Decide again when something has changed, and not later than this.
  absl::Time decide_again = absl::InfiniteFuture();
};

// The images of the activation: those that it began with. Until a pod has run from an image, the
// image may still be corrected.
PodImages PinnedImages(const Recovery& recovery, const World& world);

// Times must not go backwards from call to call.
Plan DecideJob(const World& world, const policy::Limits& limits, absl::Time now);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_DECIDE_H_

// Decides the actions for a TrainingJob. Pure: the whole world in, actions out.
//
// Intuition. operator/policy decides which processes a job should have and how it ends, as for
// `sluice run`. This file translates between processes and pods: a pod is an instance, and a pod
// that has ended is deleted before the next one of its name is created. It also handles what
// happens only on a cluster: users and controllers delete or evict pods, nodes become unreachable,
// and the operator restarts while the job runs. It writes the status, which holds everything that
// must be remembered (job_status.h).
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
#include "operator/reconciler/observed_job.h"
#include "operator/reconciler/pod_status.h"
#include "operator/runtime/events.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

// The policy's limits on a cluster. They are patient: an outside cause can be fixed while the job
// waits.
policy::Limits ClusterLimits();

// Everything that a decision on a job depends on, as gathered at one moment. Some of it comes from
// caches, corrected by the operator's own writes (Expectations).
struct World {
  ObservedJob job;
  PodImages images;   // the images with which an activation would begin now
  kube::Json status;  // as last written
  std::vector<PodStatus> pods;
  // The coordinator's last report, and the instance that sent it (uid of its pod); null: none yet.
  const v1::JobProgress* progress = nullptr;
  std::string progress_of;
  absl::Time progress_at = absl::InfinitePast();  // when it was received
  // Why the API server refused the last creation; empty: it did not.
  Problem refused;
  // Hashes of the pods as they would be created now, by replica; for pods that have not begun.
  std::map<policy::Replica, std::string> template_hashes;
};

// A pod to delete; `uid` keeps the next pod of its name from being deleted in its place.
struct PodDeletion {
  std::string name;
  std::string uid;
  std::optional<int64_t> grace_seconds;  // nullopt: the pod's own grace period
  policy::Replica replica;
};

// The actions for a job, carried out in this order: status, request to the coordinator, objects,
// deletions, creations, deletion of the job.
struct ReconcilePlan {
  // Written before anything else is done; not written if it equals the world's status.
  kube::Json status;
  // Whether the write may be delayed.
  StatusChange change = StatusChange::kTransition;
  // Whether the objects of MakeObjects should exist, and the disruption budget once the pods are
  // created.
  bool ensure_objects = false;
  uint32_t shards = 0;  // of this activation
  // One more than the highest index of a shard that is wanted, or still there.
  uint32_t shard_pods = 0;
  UpdateMode mode;   // of this activation
  PodImages images;  // of this activation
  std::vector<PodDeletion> deletions;
  std::vector<policy::Replica>
      creations;  // after the deletion of the same replica, if there is one
  bool delete_job = false;
  // Recorded once the status is written.
  std::vector<runtime::EventRecord> events;

  // The request to the coordinator; nullopt: no coordinator is running.
  struct CoordinatorSync {
    std::string instance;  // uid of the coordinator's pod
    std::string ip;
    v1::SetDesiredRequest desired;  // without deaths
    std::vector<v1::SetDesiredRequest::Death> deaths;
  };
  std::optional<CoordinatorSync> sync;

  // Decide again when something has changed, and no later than this.
  absl::Time decide_again = absl::InfiniteFuture();
};

// The images of the activation: those with which it began. An image may still be corrected until a
// pod has run from it.
PodImages PinnedImages(const Recovery& recovery, const World& world);

// `now` must not decrease from call to call.
ReconcilePlan DecideJob(const World& world, const policy::Limits& limits, absl::Time now);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_DECIDE_H_

// Brings the cluster to the state that a TrainingJob describes: gather, decide, write the status,
// act.
#ifndef SLUICE_OPERATOR_RECONCILER_JOB_RECONCILER_H_
#define SLUICE_OPERATOR_RECONCILER_JOB_RECONCILER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/kube/client.h"
#include "operator/reconciler/coordinators.h"
#include "operator/reconciler/decide.h"
#include "operator/reconciler/expectations.h"
#include "operator/reconciler/objects.h"
#include "operator/reconciler/secret_keeper.h"
#include "operator/runtime/controller.h"
#include "operator/runtime/events.h"
#include "operator/runtime/informer.h"
#include "operator/runtime/task_pool.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::reconciler {

// The operator's view of the cluster, without a request. Owned objects are found by the index
// kControllerIndex.
struct Caches {
  runtime::Informer* jobs;
  runtime::Informer* pods;
  runtime::Informer* services;
  runtime::Informer* config_maps;
  runtime::Informer* secrets;
  runtime::Informer* budgets;
  runtime::Informer* policies;
};

// Each reconciliation starts from the caches and ends with its writes. The state that it keeps for
// a job between two reconciliations only saves writes that the caches do not show yet, and may be
// lost at any time. Jobs are independent of each other. Any thread, one call at a time for each
// job.
class JobReconciler final : public runtime::Reconciler {
 public:
  struct Options {
    PodDefaults pods;
    policy::Limits limits = ClusterLimits();
    // A status that differs only in training progress is written this often.
    absl::Duration progress_interval = absl::Seconds(15);
    // A status that differs only in numbers of ready pods is written this often; less and less
    // often while such changes continue.
    absl::Duration counts_interval = absl::Seconds(5);
    absl::Duration longest_counts_interval = absl::Minutes(1);
    // The shortest time until the next reconciliation of a job in which nothing has changed.
    absl::Duration shortest_rest = absl::Seconds(1);
    // A problem that may pass by itself (an API server or webhook that does not answer) is reported
    // once it has lasted this long.
    absl::Duration patience = absl::Seconds(20);
    // This many of a job's pods are created or deleted concurrently, if `pool` has enough threads.
    int writes_at_once = 8;
    // This many are created or deleted in one reconciliation: the rest follows after other jobs
    // have had their turn.
    size_t pods_in_a_turn = 16;
    runtime::TaskPool* pool = nullptr;  // outlives the reconciler; null: no concurrency
    // The address on which the coordinator with this pod IP listens.
    std::function<std::string(const std::string& ip)> control_address;
    // For metrics: each status written. May be null.
    std::function<void(const kube::ObjectKey& job, const kube::Json& before,
                       const kube::Json& after)>
        on_status;
    // For metrics: the earliest expiry of the certificates of the job's processes, each time the
    // certificates are checked. Infinite future: the job has none, or no longer needs them. May be
    // null.
    std::function<void(const kube::ObjectKey& job, absl::Time expiry)> on_certificates;
  };

  // All arguments outlive this.
  JobReconciler(Options options, kube::Client* client, const Caches& caches,
                Coordinators* coordinators, runtime::EventRecorder* events, const Clock* clock);

  // Reconciles one job. Blocks while the API server answers: first the write of the status, then
  // those of objects and pods, several at a time. The controller retries after an error.
  runtime::Result Reconcile(const runtime::Key& key) override;

 private:
  // The memory of a job from one reconciliation to the next.
  struct JobState {
    std::string uid;
    Expectations expectations;
    SecretKeeper secrets;
    absl::Time status_written = absl::InfinitePast();
    absl::Time transition = absl::InfinitePast();     // the last write of a kTransition
    Problem refused;                                  // the last one reported
    absl::Time refusal_shown = absl::InfinitePast();  // a change of reason shows at once
    // Since when every attempt has failed with an error that may pass by itself; infinite future:
    // the last attempt has not.
    absl::Time failing_since = absl::InfiniteFuture();
    // Hashes of the pods that the job's spec of this generation would produce, from these images.
    int64_t hashes_of = -1;
    PodImages hashed_images;
    std::map<policy::Replica, std::string> hashes;
  };

  // The job's state; a new one if this name and uid were not seen before.
  std::shared_ptr<JobState> StateOf(const runtime::Key& key, const std::string& uid);
  // Reads the world from the caches and the job's state; makes no request.
  World Gather(const kube::Json& job, const LastProgress& last_progress, JobState* state) const;

  // Each returns OK, or the error that prevented it.
  absl::Status WriteStatus(const kube::Json& job, const World& world, const ReconcilePlan& plan,
                           JobState* state);
  // Ensures the objects, deletes and creates pods, and deletes the job, as the plan says. Runs
  // after the status is written, or its write is delayed.
  absl::Status Act(const kube::Json& job, const World& world, const ReconcilePlan& plan,
                   JobState* state);
  // Creates or patches each object that the caches do not show as wanted, unless it was just
  // written.
  absl::Status EnsureObjects(const ObservedJob& job, std::vector<OwnedObject> objects,
                             JobState* state);
  // Deletes the NetworkPolicy of a job whose manifest disables it.
  absl::Status DropPolicy(const World& world);
  // Deletes pods by uid, several at a time. A pod that is gone, or was replaced, is no error.
  absl::Status DeletePods(const std::string& ns, const std::vector<PodDeletion>& deletions,
                          JobState* state);
  // A pod that was created, as the API server returned it.
  struct NewPod {
    kube::Json object;
    std::string template_hash;
  };
  // Creates a pod, or finds the one of an earlier attempt. ALREADY_EXISTS: a foreign pod has its
  // name, or its labels were changed.
  absl::StatusOr<NewPod> CreatePod(const World& world, const PodImages& images,
                                   const policy::Replica& replica) const;
  // An object that is missing or differs, with its live form.
  struct Missing {
    OwnedObject wanted;
    runtime::ObjectPtr live;  // null: the cache has none
  };
  absl::Status ApplyObjects(const ObservedJob& job, const std::vector<Missing>& objects,
                            JobState* state);
  absl::Status ApplyObjects(const ObservedJob& job, const OwnedObject& wanted,
                            const kube::Json* live) const;
  // Runs each task at most once, several at a time (Options::writes_at_once).
  absl::Status InParallel(size_t count, const runtime::TaskPool::Task& task) const;
  // Creates the pods role by role, several at a time, up to the role in which one is refused.
  absl::Status CreatePods(const World& world, const PodImages& images,
                          const std::vector<policy::Replica>& replicas, JobState* state);
  // The hash of the pod as it would be created now; computed once for a generation and its images.
  std::string WantedHash(const ObservedJob& job, const policy::Replica& replica,
                         JobState* state) const;
  // Passes the plan's request to the job's coordinator. Pauses the calls if there is no request, or
  // no credentials for a job with TLS.
  void SyncCoordinator(const World& world, const ReconcilePlan& plan, JobState* state);
  // Warns of pods of a deleted job that foreign finalizers keep.
  runtime::Result ReportHeldPods(const runtime::Key& key) const;
  // Notes the problem of Act's result, or that there is none, for the next status. True: the status
  // should show the change now.
  bool NoteRefusal(const absl::Status& acted, JobState* state) const;
  // The objects that must exist before pods: Services, ConfigMap, NetworkPolicy, Secrets.
  absl::Status ApplyAccessories(const World& world, const ReconcilePlan& plan, JobState* state);
  // Stops at the first refusal: the next pod would be refused for the same reason.
  absl::Status ApplyPods(const World& world, const ReconcilePlan& plan, JobState* state);

  const Options options_;
  kube::Client* const client_;
  const Caches caches_;
  Coordinators* const coordinators_;
  runtime::EventRecorder* const events_;
  const Clock* const clock_;
  Mutex mutex_;  // protects the map; a state is used only by the thread that reconciles its job
  std::map<runtime::Key, std::shared_ptr<JobState>> states_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_JOB_RECONCILER_H_

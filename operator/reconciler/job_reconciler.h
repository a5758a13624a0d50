// Makes the cluster as a TrainingJob wants it: gather, decide, write down, act.
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
#include "operator/reconciler/objects.h"
#include "operator/reconciler/secret_keeper.h"
#include "operator/runtime/controller.h"
#include "operator/runtime/events.h"
#include "operator/runtime/informer.h"
#include "operator/runtime/task_pool.h"
#include "services/common/clock.h"
#include "services/common/mutex.h"

namespace sluice::reconciler {

// What is known of the cluster without asking. Owned objects are found by the index
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

// Each reconciliation begins with the caches and ends with what it has written; what is kept
// between two of one job only saves writes that caches do not show yet, and may be lost at any
// time. Jobs do not touch each other. Any thread, one at a time for a job.
class JobReconciler final : public runtime::Reconciler {
 public:
  struct Options {
    PodDefaults pods;
    policy::Limits limits = ClusterLimits();
    // Mere progress of training is written this often.
    absl::Duration progress_interval = absl::Seconds(15);
    // And how many pods are ready, this often; more and more seldom when that goes on for long.
    absl::Duration counts_interval = absl::Seconds(5);
    absl::Duration longest_counts_interval = absl::Minutes(1);
    // A write that the caches do not show after so long was undone by another client. A write that
    // is undone again and again is repeated each time after twice as long.
    absl::Duration write_lag = absl::Seconds(10);
    absl::Duration longest_write_lag = absl::Minutes(30);
    // A job is not looked at more often than this when nothing has changed.
    absl::Duration shortest_rest = absl::Seconds(1);
    // What may pass by itself (an API server or a webhook that does not answer) is told when it
    // lasts longer.
    absl::Duration patience = absl::Seconds(20);
    // This many of a job's pods are created or deleted at a time, where `pool` has threads for it.
    int writes_at_once = 8;
    // And this many in one reconciliation: the rest follows when other jobs have had their turn.
    size_t pods_in_a_turn = 16;
    runtime::TaskPool* pool = nullptr;  // outlives the reconciler; null: one after the other
    // Where the coordinator with this pod IP listens.
    std::function<std::string(const std::string& ip)> control_address;
    // For metrics: each status written. May be null.
    std::function<void(const kube::ObjectKey& job, const kube::Json& before,
                       const kube::Json& after)>
        on_status;
    // For metrics: the time at which the first certificate of the job's processes expires, each
    // time the certificates are checked. Infinite future: the job has none, or needs none any more.
    // May be null.
    std::function<void(const kube::ObjectKey& job, absl::Time expiry)> on_certificates;
  };

  // All outlive this.
  JobReconciler(Options options, kube::Client* client, const Caches& caches,
                Coordinators* coordinators, runtime::EventRecorder* events, const Clock* clock);

  runtime::Result Reconcile(const runtime::Key& key) override;

 private:
  // What was done to a job and may not be seen in the caches yet.
  struct Trail {
    std::string uid;
    std::vector<std::string> superseded;  // resource versions older than `written`
    kube::Json written;                   // the job after the last write of its status
    absl::Time status_written = absl::InfinitePast();
    absl::Time transition = absl::InfinitePast();  // when one was written last
    struct Made {
      std::string uid;
      kube::Json object;
      absl::Time at;
    };
    std::map<std::string, Made> created;  // pods, by name
    struct Removed {
      bool forced;
      absl::Time at;
    };
    std::map<std::string, Removed> deleted;  // pods, by uid
    // Pods that are being deleted, by uid. The times are of this process's clock, from when it saw
    // the deletion: the API server's clock may differ, and no pod may be forced out early.
    struct Leaving {
      absl::Time timestamp;  // metadata.deletionTimestamp
      absl::Time asked;
      absl::Time gone_by;
    };
    std::map<std::string, Leaving> leaving;
    struct Applied {
      kube::Json object;
      absl::Time at;
      int times = 1;       // in a row that it was undone
      bool shown = false;  // by the caches, since
    };
    std::map<std::string, Applied> applied;
    SecretKeeper secrets;
    Trouble refused;                                  // what was told last
    absl::Time refusal_shown = absl::InfinitePast();  // a change of its reason, at once
    // All that was tried since then ended in what may pass by itself; infinite future: not so.
    absl::Time failing_since = absl::InfiniteFuture();
    // Of pods as they would be made by the job's spec of this generation, from these images.
    int64_t hashes_of = -1;
    PodImages hashed_images;
    std::map<policy::Slot, std::string> hashes;
  };

  std::shared_ptr<Trail> TrailOf(const runtime::Key& key, const std::string& uid);
  kube::Json NewestJob(const kube::Json& cached, Trail* trail) const;
  World Gather(const kube::Json& job, const Heard& heard, Trail* trail) const;
  std::vector<PodView> GatherPods(const std::string& uid, Trail* trail) const;
  // Replaces the times of the deletion of a pod.
  void UseOwnClock(absl::Time now, Trail* trail, PodView* pod) const;

  // Each: OK, or what stood in the way.
  absl::Status WriteStatus(const kube::Json& job, const World& world, const Plan& plan,
                           Trail* trail);
  absl::Status Act(const kube::Json& job, const World& world, const Plan& plan, Trail* trail);
  absl::Status KeepObjects(const JobView& job, std::vector<OwnedObject> objects, Trail* trail);
  absl::Status DropPolicy(const World& world);
  absl::Status DeletePods(const std::string& ns, const std::vector<PodDeletion>& deletions,
                          Trail* trail);
  struct NewPod {
    kube::Json object;
    std::string template_hash;
  };
  absl::StatusOr<NewPod> CreatePod(const World& world, const PodImages& images,
                                   const policy::Slot& slot) const;
  struct Lacking {
    OwnedObject wanted;
    runtime::ObjectPtr live;  // null: none is known
  };
  absl::Status PutRight(const JobView& job, const std::vector<Lacking>& objects, Trail* trail);
  absl::Status PutRight(const JobView& job, const OwnedObject& wanted,
                        const kube::Json* live) const;
  // Each task at most once, several at a time (Options::writes_at_once).
  absl::Status InParallel(size_t count, const runtime::TaskPool::Task& task) const;
  absl::Status CreatePods(const World& world, const PodImages& images,
                          const std::vector<policy::Slot>& slots, Trail* trail);
  std::string WantedHash(const JobView& job, const policy::Slot& slot, Trail* trail) const;
  void Converse(const World& world, const Plan& plan, Trail* trail);
  bool NoteRefusal(const absl::Status& acted, Trail* trail) const;
  // The wait after the n-th write without effect.
  absl::Duration WriteLag(int times) const;
  absl::Status ApplyAccessories(const World& world, const Plan& plan, Trail* trail);
  // Ends at the first refusal: the next pod would be refused alike.
  absl::Status ApplyPods(const World& world, const Plan& plan, Trail* trail);
  absl::Time NextLook(const Trail& trail, bool keeps_objects) const;

  const Options options_;
  kube::Client* const client_;
  const Caches caches_;
  Coordinators* const coordinators_;
  runtime::EventRecorder* const events_;
  const Clock* const clock_;
  Mutex mutex_;  // protects the map; a trail belongs to whoever reconciles its job
  std::map<runtime::Key, std::shared_ptr<Trail>> trails_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_JOB_RECONCILER_H_

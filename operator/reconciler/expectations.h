// The operator's writes for a job that its caches do not show yet.
//
// Intuition. Caches lag behind the API server. A reconciliation that trusted them alone would
// create a pod twice, delete it twice, and decide from a status older than its own. Each write is
// therefore noted here and corrects what the caches show. A write that they do not show within a
// time (the write lag) counts as undone by another client, and is repeated. An object whose writes
// are undone again and again is written with doubling delays, up to kLongestWriteLag.
//
// Pure, in memory alone. If it is lost, writes are repeated, which their preconditions make
// harmless. One call at a time.
#ifndef SLUICE_OPERATOR_RECONCILER_EXPECTATIONS_H_
#define SLUICE_OPERATOR_RECONCILER_EXPECTATIONS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/reconciler/pod_status.h"
#include "operator/runtime/informer.h"

namespace sluice::reconciler {

// The writes for one job. JobReconciler has an object of this class for each job.
class Expectations {
 public:
  static constexpr absl::Duration kWriteLag = absl::Seconds(10);
  static constexpr absl::Duration kLongestWriteLag = absl::Minutes(30);

  // `before` was replaced by `written`.
  void NoteJob(const kube::Json& before, kube::Json written);
  // The job as last written if `cached` is older, else `cached`.
  kube::Json NewestJob(const kube::Json& cached);

  // ---- the operator has written a pod
  void NoteCreated(const std::string& pod, kube::Json object, absl::Time now);
  // `forced`: without a grace period.
  void NoteDeleted(const std::string& pod, const std::string& uid, bool forced, absl::Time now);
  // The job's pods, from those in the cache. The times of a deletion are on this process's clock,
  // counted from when it saw the deletion: the API server's clock may differ, and no pod may be
  // force-deleted early.
  std::vector<PodStatus> Pods(const std::vector<runtime::ObjectPtr>& cached, absl::Time now);

  // For objects other than pods; `name` is any that is unique in the job.
  void NoteApplied(const std::string& name, const kube::Json& object, absl::Time now);
  // The cache shows the object as it should be.
  void NoteShown(const std::string& name, absl::Time now);
  // The cache does not show `wanted`: whether to write it now.
  bool MayApply(const std::string& name, const kube::Json& wanted, absl::Time now);

  // When a write that the caches do not show becomes doubtful: of pods, or also of other objects.
  absl::Time NextCheck(bool of_objects) const;

 private:
  // ---- writes that the caches do not show yet, and when they were made
  struct Created {
    kube::Json object;
    absl::Time at;
  };
  struct Deleted {
    bool forced;
    absl::Time at;
  };
  struct Leaving {
    absl::Time timestamp;  // metadata.deletionTimestamp
    absl::Time asked;      // the rest is on this process's clock
    absl::Time gone_by;
  };
  struct Applied {
    kube::Json object;
    absl::Time at;
    int times = 0;       // consecutive writes of this object
    bool shown = false;  // in the caches since the write
  };

  // Replaces the API server's times of a deletion by this process's.
  void UseOwnClock(absl::Time now, PodStatus* pod);
  // The delay after the n-th write without effect.
  absl::Duration WriteLag(int times) const;

  std::vector<std::string> superseded_;     // resource versions older than `written_`
  kube::Json written_;                      // the job after the last write
  std::map<std::string, Created> created_;  // by the pod's name
  std::map<std::string, Deleted> deleted_;  // by the pod's uid
  std::map<std::string, Leaving> leaving_;  // pods that are being deleted, by uid
  std::map<std::string, Applied> applied_;
};

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_EXPECTATIONS_H_

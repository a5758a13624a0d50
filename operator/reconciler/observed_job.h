// A TrainingJob as the reconciler reads it: the fields of every backend (api::TrainingJob), and
// those that only clusters use.
#ifndef SLUICE_OPERATOR_RECONCILER_OBSERVED_JOB_H_
#define SLUICE_OPERATOR_RECONCILER_OBSERVED_JOB_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/pod_status.h"
#include "proto/common.pb.h"
#include "services/manifest/training_job.h"

namespace sluice::reconciler {

// Which pods of a job that has ended are deleted (spec.cleanPodPolicy).
enum class CleanPodPolicy {
  kRunning,  // pods that still run when the job has ended are deleted; the others keep their logs
  kAll,
  kNone,
};

// A claim that pods mount.
struct ClaimMount {
  std::string claim;  // empty: none
  std::string sub_path;
  std::string mount_path;
};

// How updates are applied. A running job changes it by saving a checkpoint and restarting from it.
struct UpdateMode {
  v1::Mode mode = v1::MODE_UNSPECIFIED;
  uint64_t max_staleness = 0;  // BOUNDED_STALENESS

  friend bool operator==(const UpdateMode& a, const UpdateMode& b) {
    return a.mode == b.mode && a.max_staleness == b.max_staleness;
  }
  friend bool operator!=(const UpdateMode& a, const UpdateMode& b) { return !(a == b); }
};

// ---- the mode of a training spec
UpdateMode ModeOf(const v1::TrainingSpec& training);
void SetMode(const UpdateMode& mode, v1::TrainingSpec* training);
// The mode as the manifest names it ("Asynchronous"), and back; unspecified for anything else.
std::string ModeName(v1::Mode mode);
v1::Mode ParseMode(const std::string& name);

// The images of a job's pods.
struct PodImages {
  std::string server;  // of the coordinator, and of shards that do not compute layers
  std::string worker;  // of workers, and of shards that do

  friend bool operator==(const PodImages& a, const PodImages& b) {
    return a.server == b.server && a.worker == b.worker;
  }
  friend bool operator!=(const PodImages& a, const PodImages& b) { return !(a == b); }
};

// A job as an object of the API server, read once. Missing fields have their defaults.
struct ObservedJob {
  api::TrainingJob job;  // checkpoint.directory is where the pods see it
  kube::ObjectKey key;
  std::string uid;
  int64_t generation = 0;
  bool being_deleted = false;

  // spec.coordinator.template and so on: {metadata {labels, annotations}, spec}. Null: none.
  kube::Json coordinator_template;
  kube::Json shard_template;
  kube::Json worker_template;
  const kube::Json& TemplateOf(v1::Role role) const;
  // Whether pods of that role run the worker's image rather than the server's.
  bool NeedsWorkerImage(v1::Role role) const;

  ClaimMount checkpoints;  // none: the templates mount something at checkpoint.directory
  ClaimMount data;         // of workers, for reading only

  std::vector<policy::FailureRule> failure_rules;
  int64_t toleration_seconds = 10;
  absl::Duration force_delete_after = absl::Seconds(10);  // zero: never
  std::optional<absl::Duration> progress_deadline;
  std::optional<absl::Duration> ttl_after_finished;
  CleanPodPolicy clean_pod_policy = CleanPodPolicy::kRunning;
  bool network_policy = true;
  bool tls = true;  // SpeaksTls
  bool managed_by_another = false;

  // Why the job cannot run on a cluster as it is, and what to do about it.
  Problem problem;
};

// `object` is from the API server. Never fails, whatever it contains.
ObservedJob ReadJob(const kube::Json& object);

// Whether the job's processes use TLS: according to spec.tls; if it is unset, to the status; if
// there is no status yet, they do. So a job keeps the setting with which it began, even if another
// version of the operator started it.
bool SpeaksTls(const kube::Json& object);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_OBSERVED_JOB_H_

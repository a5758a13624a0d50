// The API server's objects that a TrainingJob owns. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_OBJECTS_H_
#define SLUICE_OPERATOR_RECONCILER_OBJECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/observed_job.h"

namespace sluice::reconciler {

// The operator's settings for pods.
struct PodDefaults {
  std::string server_image;  // of coordinators and shards
  std::string worker_image;  // of workers; both apply if spec.image is unset
  std::string log_format = "logfmt";
  // User and group of the pods' processes, and group of their volumes; empty: the platform chooses
  // (OpenShift gives each namespace its own range).
  std::optional<int64_t> run_as = 65532;
};

// The images of an activation that begins now.
PodImages ImagesOf(const ObservedJob& job, const PodDefaults& defaults);

// The pod of a replica, with one of `images`. It gets its address, identity and threads just as
// processes get them from `sluice run`; the template of its role is merged into it.
//
// It uses only flags that the programs of the oldest release in use accept. A new setting goes into
// the job file or into an environment variable, which older programs ignore (docs/versions.md).
kube::Json MakePod(const ObservedJob& job, const PodDefaults& defaults, const PodImages& images,
                   const policy::Replica& replica);

// Reads the annotation kTemplateHash of a pod that MakePod made.
std::string TemplateHash(const kube::Json& pod);

struct OwnedObject {
  const kube::ResourceType* type;
  kube::Json object;
};
// The objects that must exist before pods: two Services, the ConfigMap and, unless the job disables
// it, the NetworkPolicy (for the Secrets see job_tls.h). They are created in this order, several at
// a time. `shards` is the number of shards of the current activation.
std::vector<OwnedObject> MakeObjects(const ObservedJob& job, uint32_t shards,
                                     const UpdateMode& mode);
// The PodDisruptionBudget: a drain evicts one shard, or the coordinator, at a time, and waits until
// it is back.
OwnedObject MakeDisruptionBudget(const ObservedJob& job, uint32_t shards);

// Whether `live` has every field of `wanted`; it may have more, because servers fill in defaults.
bool Covers(const kube::Json& live, const kube::Json& wanted);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_OBJECTS_H_

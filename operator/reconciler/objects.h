// What a TrainingJob owns on a cluster, as the API server's objects. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_OBJECTS_H_
#define SLUICE_OPERATOR_RECONCILER_OBJECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/job_view.h"

namespace sluice::reconciler {

// The operator's part in what pods are.
struct PodDefaults {
  std::string server_image;  // of coordinators and shards,
  std::string worker_image;  // and of workers, where spec.image is unset
  std::string log_format = "logfmt";
  // User and group of the pods' processes, and group of their volumes; nothing: left to the
  // platform (OpenShift gives each namespace a range of its own).
  std::optional<int64_t> run_as = 65532;
};

// Of pods of an activation that begins now.
PodImages ImagesOf(const JobView& job, const PodDefaults& defaults);

// The pod of a slot, of one of `images`. It is given its address, identity and threads just as
// `sluice run` gives them to processes; where the role's template says more, that is merged into
// it. `shards` is the number of the job's present life.
//
// Its flags are those that a program of the oldest release that may be in `images` knows: what is
// new goes into the job file or into variables, which older programs ignore (docs/versions.md).
kube::Json MakePod(const JobView& job, const PodDefaults& defaults, const PodImages& images,
                   const policy::Slot& slot);

// The annotation kTemplateHash of MakePod's pod.
std::string TemplateHash(const kube::Json& pod);

struct OwnedObject {
  const kube::ResourceType* type;
  kube::Json object;
};
// What is there before pods: two Services, the ConfigMap and, unless the job does without, the
// NetworkPolicy (job_tls.h has the Secrets). In the order in which they are to be made.
std::vector<OwnedObject> MakeObjects(const JobView& job, uint32_t shards, const TrainingMode& mode);
// The PodDisruptionBudget: a drain takes one shard, or the coordinator, at a time, and waits for it
// to be back.
OwnedObject MakeDisruptionBudget(const JobView& job, uint32_t shards);

// Whether `live` says all that `wanted` says; it may say more, as servers fill in defaults.
bool Covers(const kube::Json& live, const kube::Json& wanted);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_OBJECTS_H_

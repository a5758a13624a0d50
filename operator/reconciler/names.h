// Names, labels, ports and paths of the objects of a TrainingJob on a cluster.
#ifndef SLUICE_OPERATOR_RECONCILER_NAMES_H_
#define SLUICE_OPERATOR_RECONCILER_NAMES_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"

namespace sluice::reconciler {

// ---- labels and annotations. Users select by the labels, so they do not change.
constexpr char kJobLabel[] = "sluice.dev/training-job";
constexpr char kRoleLabel[] = "sluice.dev/role";
constexpr char kIndexLabel[] = "sluice.dev/index";
constexpr char kTemplateHash[] = "sluice.dev/template-hash";  // annotation of pods
// Annotation of coordinators' pods: the job as JSON, as it was when the pod was created.
constexpr char kStartedWith[] = "sluice.dev/started-with";
constexpr char kFieldManager[] = "sluice-operator";
constexpr char kControllerIndex[] = "controller";     // of caches, by the owner's uid
constexpr char kJobIndex[] = "job";                   // of the cache of pods, by "namespace/job"
constexpr char kManagedBy[] = "sluice.dev/operator";  // spec.managedBy, and of events

// ---- ports of the processes, and paths in their containers
constexpr int kCoordinatorPort = 29500;
constexpr int kShardPort = 29501;
constexpr int kMetricsPort = 9090;

constexpr char kConfigDirectory[] = "/etc/sluice";
constexpr char kJobFile[] = "job.json";
constexpr char kCheckpointDirectory[] = "/var/lib/sluice/checkpoints";

// ---- the resource types that the operator reads or writes
const kube::ResourceType& TrainingJobs();
const kube::ResourceType& Pods();
const kube::ResourceType& Services();
const kube::ResourceType& ConfigMaps();
const kube::ResourceType& Secrets();
const kube::ResourceType& DisruptionBudgets();
const kube::ResourceType& NetworkPolicies();

// "coordinator", "ps", "worker": value of kRoleLabel, and name of the container.
absl::string_view RoleName(v1::Role role);
// "mnist-worker-0"; the coordinator's name has no number.
std::string PodName(const std::string& job, const policy::Replica& replica);
// Reads the labels; nullopt for a pod without a role.
std::optional<policy::Replica> ReplicaOf(const kube::Json& pod);

// "mnist" and "mnist-coordinator". No Services of two jobs have the same name: for jobs whose names
// begin with a digit (names of Services begin with a letter) or look like the name of another job's
// Service, they are "ps--7b" and "coordinator--7b".
std::string HeadlessServiceName(const std::string& job);
std::string CoordinatorServiceName(const std::string& job);
// "mnist-coordinator.team-a.svc:29500": this address stays the same when the pod behind it is
// replaced, so a cached DNS answer never hides the new coordinator.
std::string CoordinatorAddress(const kube::ObjectKey& job);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_NAMES_H_

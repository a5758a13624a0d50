#include "operator/reconciler/names.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::reconciler {

using kube::ResourceType;

const ResourceType& TrainingJobs() {
  static const auto* const type =
      new ResourceType{"sluice.dev", "v1alpha1", "trainingjobs", "TrainingJob", true};
  return *type;
}
const ResourceType& Pods() {
  static const auto* const type = new ResourceType{"", "v1", "pods", "Pod", true};
  return *type;
}
const ResourceType& Services() {
  static const auto* const type = new ResourceType{"", "v1", "services", "Service", true};
  return *type;
}
const ResourceType& ConfigMaps() {
  static const auto* const type = new ResourceType{"", "v1", "configmaps", "ConfigMap", true};
  return *type;
}
const ResourceType& Secrets() {
  static const auto* const type = new ResourceType{"", "v1", "secrets", "Secret", true};
  return *type;
}
const ResourceType& DisruptionBudgets() {
  static const auto* const type =
      new ResourceType{"policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true};
  return *type;
}
const ResourceType& NetworkPolicies() {
  static const auto* const type =
      new ResourceType{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true};
  return *type;
}

absl::string_view RoleName(v1::Role role) {
  switch (role) {
    case v1::COORDINATOR:
      return "coordinator";
    case v1::SHARD:
      return "ps";
    default:
      return "worker";
  }
}

std::string PodName(const std::string& job, const policy::Replica& replica) {
  return absl::StrCat(job, "-", policy::ReplicaName(replica));
}

std::optional<policy::Replica> ReplicaOf(const kube::Json& pod) {
  const std::string role = kube::GetString(pod, {"metadata", "labels", kRoleLabel});
  if (role == RoleName(v1::COORDINATOR)) return policy::Replica{v1::COORDINATOR, 0};
  uint32_t index = 0;
  if (!absl::SimpleAtoi(kube::GetString(pod, {"metadata", "labels", kIndexLabel}), &index)) {
    return std::nullopt;
  }
  if (role == RoleName(v1::SHARD)) return policy::Replica{v1::SHARD, index};
  if (role == RoleName(v1::WORKER)) return policy::Replica{v1::WORKER, index};
  return std::nullopt;
}

namespace {

constexpr char kShardsPrefix[] = "ps--";
constexpr char kCoordinatorPrefix[] = "coordinator--";
constexpr char kCoordinatorSuffix[] = "-coordinator";

// Whether the usual names of the job's Services could be those of another job.
bool NeedsPrefix(const std::string& job) {
  return job.empty() || !absl::ascii_isalpha(job[0]) || absl::EndsWith(job, kCoordinatorSuffix) ||
         absl::StartsWith(job, kShardsPrefix) || absl::StartsWith(job, kCoordinatorPrefix);
}

}  // namespace

std::string HeadlessServiceName(const std::string& job) {
  return NeedsPrefix(job) ? absl::StrCat(kShardsPrefix, job) : job;
}

std::string CoordinatorServiceName(const std::string& job) {
  return NeedsPrefix(job) ? absl::StrCat(kCoordinatorPrefix, job)
                          : absl::StrCat(job, kCoordinatorSuffix);
}

std::string CoordinatorAddress(const kube::ObjectKey& job) {
  return absl::StrCat(CoordinatorServiceName(job.name), ".", job.ns, ".svc:", kCoordinatorPort);
}

}  // namespace sluice::reconciler

#include "operator/reconciler/owned.h"

#include "operator/reconciler/names.h"
#include "services/manifest/training_job.h"

namespace sluice::reconciler {
namespace {

using kube::Json;

Json OwnerReference(const ObservedJob& job) {
  return {{"apiVersion", api::kApiVersion},
          {"kind", api::kKind},
          {"name", job.key.name},
          {"uid", job.uid},
          {"controller", true},
          {"blockOwnerDeletion", true}};
}

Json Labels(const ObservedJob& job) {
  return {{"app.kubernetes.io/name", "sluice"},
          {"app.kubernetes.io/instance", job.key.name},
          {"app.kubernetes.io/managed-by", kFieldManager},
          {kJobLabel, job.key.name}};
}

Json Metadata(const ObservedJob& job, const std::string& name) {
  return {{"name", name},
          {"namespace", job.key.ns},
          {"labels", Labels(job)},
          {"ownerReferences", Json::array({OwnerReference(job)})}};
}

}  // namespace

Json MakeOwned(const kube::ResourceType& type, const ObservedJob& job, const std::string& name) {
  return {
      {"apiVersion", type.ApiVersion()}, {"kind", type.kind}, {"metadata", Metadata(job, name)}};
}

}  // namespace sluice::reconciler

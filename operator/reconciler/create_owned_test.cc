#include "operator/reconciler/create_owned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "operator/reconciler/names.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using ::testing::HasSubstr;

std::string MessageFor(const Json& metadata) {
  ObservedJob job;
  job.key = {"ns", "a"};
  job.uid = "1";
  Json found = {{"metadata", {{"name", "a"}, {"namespace", "ns"}}}};
  found["metadata"].update(metadata);
  const absl::Status status = NameTaken(ConfigMaps(), found, job);
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  return std::string(status.message());
}

TEST(NameTakenTest, NamesTheObjectAndItsApparentOwner) {
  EXPECT_EQ(MessageFor(Json::object()),
            "the ConfigMap ns/a already exists and does not belong to this job");
  const Json deployment = {{"kind", "Deployment"}, {"name", "web"}, {"uid", "7"}};
  const Json set = {{"kind", "ReplicaSet"}, {"name", "web-1"}, {"uid", "8"}, {"controller", true}};
  EXPECT_THAT(MessageFor({{"ownerReferences", {deployment}}}),
              HasSubstr("belongs to Deployment web"));
  EXPECT_THAT(MessageFor({{"ownerReferences", {deployment, set}}}),
              HasSubstr("belongs to ReplicaSet web-1"));
  EXPECT_THAT(MessageFor({{"labels", {{"app.kubernetes.io/managed-by", "Helm"}}},
                          {"annotations", {{"meta.helm.sh/release-name", "web"}}}}),
              HasSubstr("is managed by Helm, release web"));
  EXPECT_THAT(MessageFor({{"managedFields", {{{"manager", "kubectl-create"}}}}}),
              HasSubstr("was created by kubectl-create"));
}

TEST(NameTakenTest, NamesAnEarlierJobWithWhichTheObjectIsDeleted) {
  const Json earlier = {{"kind", "TrainingJob"}, {"name", "a"}, {"uid", "0"}, {"controller", true}};
  EXPECT_THAT(MessageFor({{"ownerReferences", {earlier}}}),
              HasSubstr("belongs to an earlier TrainingJob a, with which it will be deleted"));
}

TEST(NameTakenTest, NamesTheFinalizersThatKeepAnObjectOfAnEarlierJob) {
  const Json earlier = {{"kind", "TrainingJob"}, {"name", "a"}, {"uid", "0"}, {"controller", true}};
  const Json metadata = {{"ownerReferences", {earlier}},
                         {"finalizers", {"kueue.x-k8s.io/managed"}},
                         {"deletionTimestamp", "2026-01-01T00:00:00Z"}};
  EXPECT_THAT(MessageFor(metadata),
              HasSubstr("will be deleted once its finalizers are removed (kueue.x-k8s.io/managed): "
                        "check the controller that sets them, or remove them from the object"));
}

}  // namespace
}  // namespace sluice::reconciler

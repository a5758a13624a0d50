#include "operator/operator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/testing/fake_cluster.h"

namespace sluice {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Progress = v1::JobProgress;

class OperatorTest : public ::testing::Test {
 protected:
  // A job "a" of one shard and two workers that trains.
  void Train(const Json& patch = Json::object()) {
    cluster_.Create(FakeCluster::Job("a", patch));
    ASSERT_TRUE(cluster_.Settle());
    cluster_.Say("a", Progress::TRAINING, 10);
    ASSERT_TRUE(cluster_.Settle());
  }
  int64_t Restarts(const std::string& role) {
    return GetInt(cluster_.Status("a"), {"restarts", role});
  }
  Json LastFailure() { return cluster_.Status("a")["lastFailures"][0]; }
  std::string Summary() { return GetString(cluster_.Status("a"), {"summary"}); }

  FakeCluster cluster_;
};

TEST_F(OperatorTest, AJobGetsAPodForEachProcessAndAllThatTheyNeed) {
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(),
              UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0", "a-worker-1"));
  EXPECT_THAT(cluster_.Writes(),
              ElementsAre("PUT /apis/sluice.dev/v1alpha1/namespaces/ns/trainingjobs/a/status",
                          "PATCH /api/v1/namespaces/ns/services/a-coordinator",
                          "PATCH /api/v1/namespaces/ns/services/a",
                          "PATCH /api/v1/namespaces/ns/configmaps/a",
                          "PATCH /apis/policy/v1/namespaces/ns/poddisruptionbudgets/a",
                          "PATCH /apis/networking.k8s.io/v1/namespaces/ns/networkpolicies/a",
                          "POST /api/v1/namespaces/ns/pods", "POST /api/v1/namespaces/ns/pods",
                          "POST /api/v1/namespaces/ns/pods", "POST /api/v1/namespaces/ns/pods",
                          "PUT /apis/sluice.dev/v1alpha1/namespaces/ns/trainingjobs/a/status"));
  EXPECT_EQ(cluster_.Condition("a", "Accepted"), "True/Valid");
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(cluster_.Condition("a", "Running"), "False/Starting");
  EXPECT_EQ(Summary(), "Starting");
}

TEST_F(OperatorTest, ProgressGoesToTheStatusAndSuccessEndsTheJob) {
  Train();
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"training", "step"}), 10);
  EXPECT_EQ(Summary(), "Training");
  cluster_.Say("a", Progress::SUCCEEDED, 100, [](Progress* progress) {
    progress->mutable_last_evaluation()->set_has_accuracy(true);
    progress->mutable_last_evaluation()->set_accuracy(98.531);
  });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Succeeded"), "True/Completed");
  EXPECT_EQ(GetString(cluster_.Status("a"), {"training", "metric"}), "accuracy 98.53 %");
  for (const std::string& pod : cluster_.PodNames()) cluster_.EndPod(pod, 0);
  cluster_.Pass(absl::Minutes(5));
  EXPECT_EQ(cluster_.PodNames().size(), 4u) << "pods that have ended keep their logs";
  EXPECT_EQ(Summary(), "Succeeded");
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("Training", "Succeeded"));
}

TEST_F(OperatorTest, TheLastWordOfACoordinatorIsReadFromItsPod) {
  Train();
  cluster_.EndPod("a-coordinator", 0, "Completed",
                  R"({"phase":"SUCCEEDED","step":"100","totalSteps":"100","attempt":"1"})");
  cluster_.Restart();  // whoever heard something else is gone
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Succeeded"), "True/Completed");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"training", "step"}), 100);
}

}  // namespace
}  // namespace sluice

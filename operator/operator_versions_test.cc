// A job outlives releases of the operator, of the images, and of its own manifest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "operator/kube/object.h"
#include "operator/reconciler/names.h"
#include "operator/testing/operator_fixture.h"

namespace sluice {
namespace {

using kube::GetString;
using kube::Json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Progress = v1::JobProgress;

class OperatorVersionsTest : public OperatorFixture {
 protected:
  // `helm upgrade`: another operator, whose default images are from the next release.
  void Upgrade() {
    cluster_.pod_defaults.server_image = "server:2";
    cluster_.pod_defaults.worker_image = "worker:2";
    cluster_.Restart();
    ASSERT_TRUE(cluster_.Settle());
    cluster_.Say("a", Progress::TRAINING, 11);
    ASSERT_TRUE(cluster_.Settle());
  }
  void Patch(const Json& spec) {
    cluster_.PatchJob("a", {{"spec", spec}});
    ASSERT_TRUE(cluster_.Settle());
  }
  void SuspendAndResume() {
    Patch({{"suspend", true}});
    cluster_.Say("a", Progress::SUSPENDED, 20);
    ASSERT_TRUE(cluster_.Settle());
    for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
    ASSERT_TRUE(cluster_.Settle());
    ASSERT_EQ(cluster_.Condition("a", "Suspended"), "True/Suspended");
    Patch({{"suspend", false}});
  }
  void EndAndReplace(const std::string& pod, int exit_code) {
    const std::string before = cluster_.UidOf(pod);
    cluster_.EndPod(pod, exit_code);
    ASSERT_TRUE(cluster_.Settle());
    ASSERT_NE(cluster_.UidOf(pod), before);
  }
  std::string ImageOf(const std::string& pod) {
    return GetString(cluster_.Pod(pod)["spec"]["containers"][0], {"image"});
  }
  std::string NotInEffect() { return cluster_.Condition("a", "SpecNotInEffect"); }
  std::string Pending() { return cluster_.ConditionMessage("a", "SpecNotInEffect"); }
};

TEST_F(OperatorVersionsTest, NewDefaultImagesApplyToTheNextActivation) {
  Train();
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
  Upgrade();
  EXPECT_EQ(NotInEffect(), "True/ImagesPending");
  EXPECT_THAT(Pending(), HasSubstr("server:2, worker:2"));
  EXPECT_THAT(cluster_.EventReasons(), Contains("ImagesPending"));
  for (const std::string role : {"worker-1", "ps-0", "coordinator"}) {
    EndAndReplace(absl::StrCat("a-", role), 137);
    EXPECT_EQ(ImageOf(absl::StrCat("a-", role)), role == "worker-1" ? "worker:1" : "server:1");
  }
  // This includes pods that the job did not have before.
  Patch({{"worker", {{"replicas", 3}}}});
  EXPECT_EQ(ImageOf("a-worker-2"), "worker:1");
  cluster_.Restart();
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(NotInEffect(), "True/ImagesPending");

  SuspendAndResume();
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
  EXPECT_EQ(ImageOf("a-coordinator"), "server:2");
  EXPECT_EQ(ImageOf("a-ps-0"), "server:2");
  EXPECT_EQ(ImageOf("a-worker-0"), "worker:2");
}

TEST_F(OperatorVersionsTest, AChangeOfModeStartsAnActivation) {
  Train();
  Upgrade();
  Patch({{"training", {{"mode", "Asynchronous"}}}});
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(ImageOf("a-worker-0"), "worker:2");
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
}

TEST_F(OperatorVersionsTest, ANewBoundOfStalenessIsNotPending) {
  Train();
  Patch(
      {{"training", {{"mode", "BoundedStaleness"}, {"boundedStaleness", {{"maxStaleness", 4}}}}}});
  EXPECT_EQ(Summary(), "SwitchingMode");
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Say("a", Progress::TRAINING, 21);
  ASSERT_TRUE(cluster_.Settle());
  ASSERT_EQ(cluster_.Condition("a", "Running"), "True/Training");

  Patch({{"training", {{"boundedStaleness", {{"maxStaleness", 8}}}}}});
  EXPECT_EQ(Summary(), "SwitchingMode");
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
}

TEST_F(OperatorVersionsTest, AChangeBesideANewModeTakesEffectWithoutTheUser) {
  Train();
  Patch({{"training", {{"mode", "Asynchronous"}, {"steps", 1000}}}});
  EXPECT_EQ(NotInEffect(), "True/FieldsPending");
  EXPECT_THAT(Pending(), HasSubstr("spec.training.steps"));
  EXPECT_THAT(Pending(), HasSubstr("when the job has restarted"));
  EXPECT_THAT(Pending(), Not(HasSubstr("suspend")));
}

TEST_F(OperatorVersionsTest, ANewLearningRateWaitsForTheNextActivation) {
  Train();
  Patch({{"optimizer", {{"learningRate", 0.5}}}});
  EXPECT_EQ(NotInEffect(), "True/FieldsPending");
  EXPECT_THAT(Pending(), HasSubstr("keeps the old values of spec.optimizer.learningRate;"));
  EXPECT_THAT(Pending(), HasSubstr("suspend the job and resume it"));
  SuspendAndResume();
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
}

TEST_F(OperatorVersionsTest, ANewNumberOfShardsIsNotPending) {
  Train();
  for (const int shards : {2, 1}) {
    Patch({{"parameterServer", {{"replicas", shards}}}});
    EXPECT_EQ(NotInEffect(), "False/AllInEffect") << shards;
  }
}

TEST_F(OperatorVersionsTest, AnImageThatNeverRanIsNotPinned) {
  cluster_.frozen = [](const std::string& pod) { return pod.find("worker") != std::string::npos; };
  Train();
  Upgrade();
  cluster_.Pass(absl::Minutes(1));
  EXPECT_EQ(ImageOf("a-worker-0"), "worker:1") << "its kubelet does not answer";
  cluster_.frozen = nullptr;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(ImageOf("a-worker-0"), "worker:2");
  EXPECT_EQ(ImageOf("a-ps-0"), "server:1");
  EXPECT_THAT(Pending(), HasSubstr("server:2"));
}

TEST_F(OperatorVersionsTest, ANewImageInTheSpecAppliesToTheNextActivation) {
  Train({{"spec", {{"image", "mine:1"}}}});
  Upgrade();
  EXPECT_EQ(NotInEffect(), "False/AllInEffect") << "the defaults are not for this job";
  Patch({{"image", "mine:2"}});
  EXPECT_EQ(NotInEffect(), "True/FieldsPending");
  EXPECT_THAT(Pending(), HasSubstr("spec.image"));
  EndAndReplace("a-worker-1", 137);
  EXPECT_EQ(ImageOf("a-worker-1"), "mine:1");
  SuspendAndResume();
  EXPECT_EQ(ImageOf("a-worker-1"), "mine:2");
}

TEST_F(OperatorVersionsTest, ARefusedWorkerDegradesTheJobUntilOneIsAccepted) {
  Train();
  cluster_.frozen = [this](const std::string& pod) {
    return pod == "a-worker-1" && GetString(cluster_.Pod(pod), {"status", "phase"}).empty();
  };
  cluster_.EndPod("a-worker-1", 11, "Error", "worker-1 asks for wire version 3");
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/Refused");
  const std::string message = cluster_.ConditionMessage("a", "Degraded");
  EXPECT_THAT(message, HasSubstr("worker-1"));
  EXPECT_THAT(message, HasSubstr("asks for wire version 3"));
  EXPECT_THAT(message, HasSubstr("correct spec.image"));
  EXPECT_THAT(cluster_.EventReasons(), Contains("Refused"));
  EXPECT_EQ(cluster_.Status("a")["lastFailures"][0]["counted"], false);
  // This is part of the state that survives a restart of the operator.
  cluster_.Restart();
  cluster_.Pass(absl::Minutes(1));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/Refused");
  cluster_.frozen = nullptr;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

TEST_F(OperatorVersionsTest, AJobFailsIfNoWorkerIsEverAccepted) {
  cluster_.frozen = [](const std::string& pod) { return pod.find("worker") != std::string::npos; };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.EndPod("a-worker-1", 11, "Error", "worker-1 asks for wire version 3");
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/ProcessFailed");
  EXPECT_THAT(cluster_.ConditionMessage("a", "Failed"), HasSubstr("wire version 3"));
}

TEST_F(OperatorVersionsTest, NamesChangedFieldsUntilTheCoordinatorRestarts) {
  Train();
  Patch({{"worker", {{"replicas", 3}}}, {"timeouts", {{"startSeconds", 90}}}});
  EXPECT_EQ(NotInEffect(), "False/AllInEffect") << "these take effect at once";
  Patch({{"training", {{"steps", 1000}}},
         {"checkpoint", {{"intervalSteps", 50}}},
         {"backoffLimit", 9},
         {"timeouts", {{"heartbeatTimeoutSeconds", 9}}}});
  EXPECT_EQ(NotInEffect(), "True/FieldsPending");
  for (const char* field : {"spec.training.steps", "spec.checkpoint.intervalSteps",
                            "spec.backoffLimit", "spec.timeouts.heartbeatTimeoutSeconds"}) {
    EXPECT_THAT(Pending(), HasSubstr(field));
  }
  EXPECT_THAT(Pending(), Not(HasSubstr("replicas")));
  EXPECT_THAT(Pending(), HasSubstr("suspend the job and resume it"));
  EXPECT_THAT(cluster_.EventReasons(), Contains("FieldsPending"));
  // The change is reverted.
  Patch({{"training", {{"steps", 100}}},
         {"checkpoint", {{"intervalSteps", nullptr}}},
         {"backoffLimit", nullptr},
         {"timeouts", {{"heartbeatTimeoutSeconds", nullptr}}}});
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
  // It takes effect with the coordinator's next pod.
  Patch({{"training", {{"steps", 1000}}}});
  EXPECT_EQ(NotInEffect(), "True/FieldsPending");
  EndAndReplace("a-coordinator", 137);
  EXPECT_EQ(NotInEffect(), "False/AllInEffect");
}

}  // namespace
}  // namespace sluice

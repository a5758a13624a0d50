// A job on a cluster from its beginning to its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "operator/testing/operator_fixture.h"

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

using OperatorTest = OperatorFixture;

TEST_F(OperatorTest, CreatesAPodForEachProcessAndTheObjectsTheyNeed) {
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(),
              UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0", "a-worker-1"));
  EXPECT_THAT(
      cluster_.Writes(),
      ElementsAre("PUT /apis/sluice.dev/v1alpha1/namespaces/ns/trainingjobs/a/status",
                  "POST /api/v1/namespaces/ns/services", "POST /api/v1/namespaces/ns/services",
                  "POST /api/v1/namespaces/ns/configmaps",
                  "POST /apis/networking.k8s.io/v1/namespaces/ns/networkpolicies",
                  "POST /api/v1/namespaces/ns/secrets",  // the authority, then one for each role
                  "POST /api/v1/namespaces/ns/secrets", "POST /api/v1/namespaces/ns/secrets",
                  "POST /api/v1/namespaces/ns/secrets", "POST /api/v1/namespaces/ns/secrets",
                  "POST /api/v1/namespaces/ns/pods", "POST /api/v1/namespaces/ns/pods",
                  "POST /api/v1/namespaces/ns/pods", "POST /api/v1/namespaces/ns/pods",
                  "PUT /apis/sluice.dev/v1alpha1/namespaces/ns/trainingjobs/a/status",
                  "POST /apis/policy/v1/namespaces/ns/poddisruptionbudgets"));
  EXPECT_EQ(cluster_.Condition("a", "Accepted"), "True/Valid");
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(cluster_.Condition("a", "Running"), "False/Starting");
  EXPECT_EQ(Summary(), "Starting");
}

TEST_F(OperatorTest, WritesProgressToTheStatusAndEndsTheJobOnSuccess) {
  Train();
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"training", "step"}), 10);
  EXPECT_EQ(Summary(), "Training");
  cluster_.Say("a", Progress::SUCCEEDED, 100, [](Progress* progress) {
    progress->mutable_last_evaluation()->set_has_accuracy(true);
    progress->mutable_last_evaluation()->set_accuracy(98.531);
    progress->mutable_last_evaluation()->set_step(90);
    progress->mutable_last_evaluation()->set_epoch(1.5);
    progress->mutable_last_evaluation()->set_loss(0.0712);
    progress->mutable_last_evaluation()->set_samples(10000);
    v1::Metric* auc = progress->mutable_last_evaluation()->add_metrics();
    auc->set_name("auc");
    auc->set_value(0.9312345678);
    v1::Metric* none = progress->mutable_last_evaluation()->add_metrics();
    none->set_name("none");
    none->set_value(std::nan(""));
  });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Succeeded"), "True/Completed");
  EXPECT_EQ(GetString(cluster_.Status("a"), {"training", "metric"}), "accuracy 98.53 %");
  EXPECT_EQ(cluster_.Status("a")["training"]["evaluation"],
            kube::Json({{"step", 90},
                        {"epoch", 1.5},
                        {"loss", 0.0712},
                        {"samples", 10000},
                        {"accuracy", 98.531},
                        {"metrics", {{"auc", 0.931235}}}}));
  for (const std::string& pod : cluster_.PodNames()) cluster_.EndPod(pod, 0);
  cluster_.Pass(absl::Minutes(5));
  EXPECT_EQ(cluster_.PodNames().size(), 4u) << "ended pods keep their logs";
  for (const char* role : {"worker", "parameterServer"}) {
    EXPECT_EQ(GetInt(cluster_.Status("a"), {role, "readyReplicas"}), 0) << role;
    EXPECT_EQ(GetInt(cluster_.Status("a"), {role, "replicas"}), 0) << role;
  }
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "False/Succeeded");
  EXPECT_EQ(Summary(), "Succeeded");
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("Training", "Succeeded"));
}

TEST_F(OperatorTest, ReadsTheCoordinatorsTerminationMessageFromItsPod) {
  Train();
  cluster_.EndPod("a-coordinator", 0, "Completed",
                  R"({"phase":"SUCCEEDED","step":"100","totalSteps":"100","attempt":"1"})");
  cluster_.Restart();  // drops the operator that received earlier reports
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Succeeded"), "True/Completed");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"training", "step"}), 100);
}

// ---- sizes

TEST_F(OperatorTest, AddsAndRemovesWorkersDuringTraining) {
  Train();
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 4}}}}}});
  cluster_.kubelets = false;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "True/ScalingWorkers");
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0",
                                                        "a-worker-1", "a-worker-2", "a-worker-3"));
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "False/NotScaling");
  EXPECT_EQ((cluster_.coordinators.peers[{"ns", "a"}].desired.workers()), 4u);
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 1}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0"));
  EXPECT_EQ(Restarts("total"), 0);
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}), 1);
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_THAT(cluster_.EventReasons(),
              ElementsAre("Training", "ScalingWorkers", "Scaled", "ScalingWorkers", "Scaled"));
  EXPECT_EQ(NotesOf("Scaled"), "1 shards and 4 workers\n1 shards and 1 workers");
}

TEST_F(OperatorTest, AddsAndRemovesShardsDuringTraining) {
  Train();
  cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 3}}}}}});
  cluster_.kubelets = false;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "True/ScalingShards");
  EXPECT_EQ((cluster_.coordinators.peers[{"ns", "a"}].desired.shards()), 3u);
  EXPECT_FALSE((cluster_.coordinators.peers[{"ns", "a"}].desired.suspend()));
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), UnorderedElementsAre("a-coordinator", "a-ps-0", "a-ps-1",
                                                        "a-ps-2", "a-worker-0", "a-worker-1"));
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "False/NotScaling");

  cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 1}}}}}});
  cluster_.Pass(absl::Minutes(10));
  EXPECT_EQ(cluster_.PodNames().size(), 6u) << "they have partitions";
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "True/ScalingShards");
  EXPECT_EQ(cluster_.Status("a")["parameterServer"]["movingPartitions"], 0);
  cluster_.Say("a", Progress::TRAINING, 12, [](Progress* progress) {
    progress->mutable_view()->mutable_id()->set_number(5);
    for (const uint32_t target : {0, 1, 1, 0}) progress->mutable_view()->add_target(target);
  });
  cluster_.Pass(absl::Minutes(1));
  EXPECT_EQ(cluster_.Status("a")["parameterServer"]["movingPartitions"], 2);
  cluster_.Restart();
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Status("a")["parameterServer"]["movingPartitions"], 2)
      << "a new operator keeps what it does not know yet";
  EXPECT_EQ((cluster_.coordinators.peers[{"ns", "a"}].desired.shards()), 1u);
  for (const char* drained : {"a-ps-1", "a-ps-2"}) cluster_.EndPod(drained, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(),
              UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0", "a-worker-1"));
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "False/NotScaling");
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_EQ(Restarts("total"), 0);
}

// Its partitions do not move.
const Json kMovesNothing = {
    {"spec",
     {{"training",
       {{"mode", "Asynchronous"}, {"stalenessRule", {{"name", "DelayCompensation"}}}}}}}};

TEST_F(OperatorTest, ScalesShardsWithACheckpoint) {
  Train(kMovesNothing);
  cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 3}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "True/ScalingShards");
  EXPECT_TRUE((cluster_.coordinators.peers[{"ns", "a"}].desired.suspend()));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), UnorderedElementsAre("a-coordinator", "a-ps-0", "a-ps-1",
                                                        "a-ps-2", "a-worker-0", "a-worker-1"));
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "False/NotScaling");
  EXPECT_EQ(cluster_.Condition("a", "Suspended"), "False/NotSuspended");
  EXPECT_EQ(Restarts("total"), 0);
  EXPECT_THAT(cluster_.EventReasons(), Not(Contains("Suspended")));
}

TEST_F(OperatorTest, ReportsStepsLostByAChangeOfSize) {
  Train(kMovesNothing);
  cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 3}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Minutes(10));
  EXPECT_EQ(cluster_.PodNames().size(), 4u)
      << "the checkpoint is slow, but no user asked for a stop";
  cluster_.Say("a", Progress::SUSPENDED, 20, [](Progress* progress) {
    progress->set_reason("suspended; no checkpoint within 1m");
  });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.EventReasons(), Contains("CheckpointFailed"));
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.PodNames().size(), 6u);
}

TEST_F(OperatorTest, SwitchesTheModeWithACheckpoint) {
  Train();
  const auto mode_of_config = [&] {
    const auto map = Admin().Get({"", "v1", "configmaps", "ConfigMap", true}, {"ns", "a"},
                                 kube::Subresource::kNone);
    return GetString(Json::parse(GetString(*map, {"data", "job.json"})),
                     {"spec", "training", "mode"});
  };
  cluster_.PatchJob("a", {{"spec", {{"training", {{"mode", "Asynchronous"}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(Summary(), "SwitchingMode");
  EXPECT_TRUE((cluster_.coordinators.peers[{"ns", "a"}].desired.suspend()));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(mode_of_config(), "Synchronous") << "for the successor of a coordinator that dies now";
  const std::string before = cluster_.UidOf("a-coordinator");
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(mode_of_config(), "Asynchronous");
  EXPECT_NE(cluster_.UidOf("a-coordinator"), before);
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_FALSE((cluster_.coordinators.peers[{"ns", "a"}].desired.suspend()));
  EXPECT_EQ(cluster_.Condition("a", "Suspended"), "False/NotSuspended");
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "False/NotScaling");
  EXPECT_EQ(Restarts("total"), 0);
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("Training", "SwitchingMode"));
}

TEST_F(OperatorTest, AModeChangeRevertedBeforeTheCheckpointHasNoEffect) {
  Train();
  const std::string before = cluster_.UidOf("a-coordinator");
  cluster_.PatchJob("a", {{"spec", {{"training", {{"mode", "Asynchronous"}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  cluster_.PatchJob("a", {{"spec", {{"training", {{"mode", "Synchronous"}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE((cluster_.coordinators.peers[{"ns", "a"}].desired.suspend()));
  EXPECT_EQ(Summary(), "Training");
  EXPECT_EQ(cluster_.UidOf("a-coordinator"), before);
}

TEST_F(OperatorTest, KeepsTheModeOfAJobStartedByAnOlderOperator) {
  Train();
  Json status = cluster_.Status("a");
  status["recovery"].erase("mode");
  kube::WriteOptions options;
  options.subresource = kube::Subresource::kStatus;
  Json job = cluster_.GetJob("a");
  job["status"] = status;
  ASSERT_TRUE(Admin()
                  .Update({"sluice.dev", "v1alpha1", "trainingjobs", "TrainingJob", true},
                          {"ns", "a"}, job, options)
                  .ok());
  const std::string before = cluster_.UidOf("a-coordinator");
  cluster_.Restart();
  cluster_.Say("a", Progress::TRAINING, 12);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.UidOf("a-coordinator"), before);
  EXPECT_EQ(GetString(cluster_.Status("a"), {"recovery", "mode"}), "Synchronous");
}

TEST_F(OperatorTest, SuspensionSavesACheckpointAndDeletesAllPodsUntilResumed) {
  Train();
  cluster_.PatchJob("a", {{"spec", {{"suspend", true}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(Summary(), "Suspending");
  EXPECT_TRUE((cluster_.coordinators.peers[{"ns", "a"}].desired.suspend()));
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_EQ(cluster_.Condition("a", "Suspended"), "True/Suspended");
  EXPECT_EQ(Summary(), "Suspended");
  cluster_.Pass(absl::Hours(5));
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  cluster_.PatchJob("a", {{"spec", {{"suspend", false}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(cluster_.Condition("a", "Suspended"), "False/NotSuspended");
  EXPECT_EQ(Restarts("total"), 0);
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("Training", "Suspended", "Resumed"));
}

TEST_F(OperatorTest, AResumedJobSaysWhereItContinuesAndWhatItHasLost) {
  Train();
  const auto suspend_and_resume = [&] {
    cluster_.PatchJob("a", {{"spec", {{"suspend", true}}}});
    ASSERT_TRUE(cluster_.Settle());
    cluster_.Say("a", Progress::SUSPENDED, 20, [](Progress* progress) {
      progress->mutable_checkpoint()->mutable_last()->set_step(20);
    });
    ASSERT_TRUE(cluster_.Settle());
    for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
    ASSERT_TRUE(cluster_.Settle());
    cluster_.PatchJob("a", {{"spec", {{"suspend", false}}}});
    ASSERT_TRUE(cluster_.Settle());
    cluster_.Say("a", Progress::STARTING, 0);
    ASSERT_TRUE(cluster_.Settle());
  };
  suspend_and_resume();
  EXPECT_EQ(NotesOf("Resumed"),
            "the job continues from its newest checkpoint, of step 20, if the checkpoint still "
            "exists");
  const auto restored = [](Progress* progress) {
    progress->set_restored(true);
    progress->set_restored_from_step(20);
  };
  cluster_.Say("a", Progress::TRAINING, 20, restored);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(NotesOf("StepsLost"), "");

  suspend_and_resume();
  // A restart of the operator does not hide it.
  cluster_.Restart();
  cluster_.Say("a", Progress::TRAINING, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(NotesOf("StepsLost"),
            "20 steps were lost: the job had trained 20 steps when it was stopped, and has started "
            "at step 0, without a checkpoint");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"recovery", "trainedSteps"}), 0) << "it is reported once";
}

TEST_F(OperatorTest, ASuspendedJobGetsACoordinatorThatSavesItsSteps) {
  Train();
  for (const bool pod_is_left : {true, false}) {
    const std::string before = cluster_.UidOf("a-coordinator");
    if (pod_is_left) {
      cluster_.EndPod("a-coordinator", 137);
    } else {
      cluster_.DeletePod("a-coordinator");
    }
    cluster_.PatchJob("a", {{"spec", {{"suspend", true}}}});
    ASSERT_TRUE(cluster_.Settle());
    EXPECT_NE(cluster_.UidOf("a-coordinator"), before);
    EXPECT_EQ(Summary(), "Suspending");
    EXPECT_EQ(cluster_.PodNames().size(), 4u);
  }
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_EQ(Summary(), "Suspended");
}

TEST_F(OperatorTest, AJobCreatedSuspendedHasNoPodUntilResumed) {
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"suspend", true}}}}));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_EQ(Summary(), "Suspended");
  cluster_.PatchJob("a", {{"spec", {{"suspend", false}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(NotesOf("Resumed"), "the job starts for the first time");
}

// ---- the end

TEST_F(OperatorTest, AJobExpiresAfterItsEnd) {
  Train({{"spec", {{"ttlSecondsAfterFinished", 60}}}});
  cluster_.Say("a", Progress::SUCCEEDED, 100);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(50));
  EXPECT_FALSE(cluster_.GetJob("a").is_null());
  cluster_.Pass(absl::Seconds(20));
  EXPECT_TRUE(cluster_.GetJob("a").is_null());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
}

TEST_F(OperatorTest, CleansUpPodsByTheJobsPolicy) {
  for (const std::string policy : {"All", "None"}) {
    FakeCluster cluster;
    cluster.Create(FakeCluster::Job("a", {{"spec", {{"cleanPodPolicy", policy}}}}));
    ASSERT_TRUE(cluster.Settle());
    cluster.Say("a", Progress::SUCCEEDED, 100);
    ASSERT_TRUE(cluster.Settle());
    if (policy == "All") {
      for (const std::string& name : cluster.PodNames()) cluster.EndPod(name, 0);
    }
    cluster.Pass(absl::Minutes(1));
    EXPECT_EQ(cluster.PodNames().size(), policy == "All" ? 0u : 4u) << policy;
  }
}

TEST_F(OperatorTest, DeletesPodsOfAnEndedJobWithRunningSidecars) {
  Train();
  cluster_.Say("a", Progress::SUCCEEDED, 100);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.EndPod("a-coordinator", 0);
  // Its own container has ended, a sidecar continues: the pod's phase is Running.
  for (const char* name : {"a-worker-0", "a-worker-1", "a-ps-0"}) {
    const std::string role = absl::StrContains(name, "worker") ? "worker" : "ps";
    cluster_.MergeStatus(name,
                         {{"phase", "Running"},
                          {"containerStatuses",
                           {{{"name", role}, {"state", {{"terminated", {{"exitCode", 0}}}}}},
                            {{"name", "sidecar"}, {"state", {{"running", Json::object()}}}}}}});
  }
  cluster_.Pass(absl::Minutes(10));
  EXPECT_THAT(cluster_.PodNames(), ElementsAre("a-coordinator")) << "ended pods keep their logs";
}

TEST_F(OperatorTest, DeadlinesFailAJob) {
  Train({{"spec", {{"activeDeadlineSeconds", 100}}}});
  cluster_.Pass(absl::Seconds(101));
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/DeadlineExceeded");
}

TEST_F(OperatorTest, AJobWithoutProgressFailsAtItsDeadline) {
  Train({{"spec", {{"progressDeadlineSeconds", 100}}}});
  cluster_.Pass(absl::Seconds(80));
  cluster_.Say("a", Progress::TRAINING, 11);
  cluster_.Pass(absl::Seconds(16));
  cluster_.Pass(absl::Seconds(80));
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
  cluster_.Pass(absl::Seconds(30));
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/ProgressDeadlineExceeded");
}

// ---- late effects

TEST_F(OperatorTest, ReportsAMissingImageUntilItIsCorrected) {
  cluster_.kubelets = false;
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"image", "wrong:1"}}}}));
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) {
    const std::string role =
        GetString(cluster_.Pod(name), {"metadata", "labels", "sluice.dev/role"});
    cluster_.MergeStatus(
        name,
        {{"phase", "Pending"},
         {"containerStatuses",
          Json::array(
              {{{"name", role},
                {"image", "wrong:1"},
                {"state", {{"waiting", {{"reason", "ImagePullBackOff"}, {"message", "no"}}}}}}})}});
  }
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/ImagePullFailed");
  EXPECT_EQ(Summary(), "ImagePullFailed");
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("ImagePullFailed"));
  cluster_.PatchJob("a", {{"spec", {{"image", "right:1"}}}});
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  EXPECT_EQ(GetString(cluster_.Pod("a-ps-0")["spec"]["containers"][0], {"image"}), "right:1");
  EXPECT_EQ(Restarts("total"), 0);
}

kube::FakeApiServer::Fault Refusal(int code, const std::string& reason,
                                   const std::string& message) {
  kube::FakeApiServer::Fault fault;
  fault.response.code = code;
  fault.response.body = Json({{"kind", "Status"},
                              {"apiVersion", "v1"},
                              {"status", "Failure"},
                              {"code", code},
                              {"reason", reason},
                              {"message", message}})
                            .dump();
  return fault;
}

TEST_F(OperatorTest, ReportsAnExceededQuotaAndContinuesWhenThereIsRoom) {
  bool full = true;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (full && request.method == "POST") {
      fault = Refusal(403, "Forbidden", "pods \"a-coordinator\" is forbidden: exceeded quota: q");
    }
    return fault;
  };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(1));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/QuotaExceeded");
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  full = false;
  cluster_.Pass(absl::Seconds(31));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("QuotaExceeded"));
}

TEST_F(OperatorTest, CreatesTheDisruptionBudgetEvenIfAQuotaRefusesWorkers) {
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (request.method == "POST" && absl::StrContains(request.body, "\"a-worker-1\"")) {
      fault = Refusal(403, "Forbidden", "pods \"a-worker-1\" is forbidden: exceeded quota: q");
    }
    return fault;
  };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(1));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/QuotaExceeded");
  EXPECT_THAT(cluster_.PodNames(), UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0"));
  EXPECT_TRUE(
      Admin().Get(reconciler::DisruptionBudgets(), {"ns", "a"}, kube::Subresource::kNone).ok());
}

TEST_F(OperatorTest, RejectsAJobUntilItHasStorage) {
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"checkpoint", {{"storage", nullptr}}}}}}));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Accepted"), "False/StorageNeeded");
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_EQ(Summary(), "Invalid");
  cluster_.PatchJob("a", {{"spec", FakeCluster::Job("a")["spec"]}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Accepted"), "True/Valid");
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
}

TEST_F(OperatorTest, IgnoresAJobOfAnotherController) {
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"managedBy", "example.com/other"}}}}));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.Writes(), IsEmpty());
}

TEST_F(OperatorTest, ServerFaultsOnlyDelayAJob) {
  // Every other write meets the fault.
  const std::vector<kube::FakeApiServer::Fault> faults = {
      Refusal(500, "InternalError", "etcd"),
      Refusal(409, "Conflict", "modified"),
      {true, absl::UnavailableError("cut"), {}},
      {false, absl::DeadlineExceededError("slow"), {}}};
  for (const kube::FakeApiServer::Fault& fault : faults) {
    FakeCluster cluster;
    std::map<std::string, int> seen;
    cluster.on_write = [&](const kube::HttpRequest& request) {
      std::optional<kube::FakeApiServer::Fault> found;
      if (++seen[request.method + request.target] % 2 == 1) found = fault;
      return found;
    };
    cluster.Create(FakeCluster::Job("a"));
    for (int i = 0; i < 40; ++i) cluster.Pass(absl::Seconds(5));
    EXPECT_EQ(cluster.PodNames().size(), 4u);
    EXPECT_EQ(cluster.Condition("a", "Ready"), "True/AllReady");
  }
}

TEST_F(OperatorTest, AJobThatCannotRunDoesNotBlockOthers) {
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (absl::StrContains(request.body, "bad-coordinator")) {
      fault = Refusal(422, "Invalid", "spec.containers[0].resources: invalid");
    }
    return fault;
  };
  cluster_.Create(FakeCluster::Job("bad"));
  for (int i = 0; i < 20; ++i) cluster_.Create(FakeCluster::Job(absl::StrCat("good-", i)));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.PodNames().size(), 80u);
}

}  // namespace
}  // namespace sluice

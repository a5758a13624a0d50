#include "operator/operator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/api/field_table.h"
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
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Progress = v1::JobProgress;

class OperatorTest : public OperatorFixture {
 protected:
  int64_t Restarts(const std::string& role) {
    return GetInt(cluster_.Status("a"), {"restarts", role});
  }
  Json LastFailure() { return cluster_.Status("a")["lastFailures"][0]; }
  std::string Summary() { return GetString(cluster_.Status("a"), {"summary"}); }
  // A user with kubectl.
  kube::HttpClient Admin() {
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    return kube::HttpClient(&cluster_.server, options);
  }
};

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
  });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Succeeded"), "True/Completed");
  EXPECT_EQ(GetString(cluster_.Status("a"), {"training", "metric"}), "accuracy 98.53 %");
  EXPECT_EQ(cluster_.Status("a")["training"]["evaluation"], kube::Json({{"step", 90},
                                                                        {"epoch", 1.5},
                                                                        {"loss", 0.0712},
                                                                        {"samples", 10000},
                                                                        {"accuracy", 98.531}}));
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

// ---- deaths

struct End {
  std::string name;
  int exit_code;
  std::string container_reason;
  Json pod_status;  // merged into the pod's status
  std::string reason;
  bool counted;
  bool outside = false;  // the process did not cause it
};

class EndOfAWorkerTest : public OperatorTest, public ::testing::WithParamInterface<End> {};

TEST_P(EndOfAWorkerTest, IsReplacedAtOnceAndReportedWithItsReason) {
  const End& end = GetParam();
  Train();
  const std::string before = cluster_.UidOf("a-worker-1");
  cluster_.clock.Advance(absl::Seconds(5));
  if (!end.pod_status.empty()) cluster_.MergeStatus("a-worker-1", end.pod_status);
  cluster_.EndPod("a-worker-1", end.exit_code, end.container_reason);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_NE(cluster_.UidOf("a-worker-1"), before);
  EXPECT_EQ(Restarts("worker"), 1);
  EXPECT_EQ(Restarts("total"), 1);
  EXPECT_EQ(LastFailure()["reason"], end.reason);
  EXPECT_EQ(LastFailure()["pod"], "a-worker-1");
  EXPECT_EQ(LastFailure()["counted"], end.counted);
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  const std::vector<Json> events = cluster_.Events();
  const auto event = std::find_if(events.begin(), events.end(), [&](const Json& one) {
    return GetString(one, {"reason"}) == end.reason;
  });
  ASSERT_NE(event, events.end());
  EXPECT_EQ(GetString(*event, {"action"}), "ReplaceWorker");
  EXPECT_THAT(GetString(*event, {"note"}), StartsWith("a-worker-1: "));
  EXPECT_EQ(GetString(*event, {"type"}), end.outside ? "Normal" : "Warning");
}

Json Disrupted(const char* reason) {
  return {{"conditions",
           Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}, {"reason", reason}}})}};
}

INSTANTIATE_TEST_SUITE_P(
    Causes, EndOfAWorkerTest,
    ::testing::Values(
        End{"Killed", 137, "Error", Json::object(), "Killed", true},
        End{"OutOfMemory", 137, "OOMKilled", Json::object(), "OOMKilled", true},
        End{"ExitCode1", 1, "Error", Json::object(), "Error", true},
        End{"TryAgain", 12, "Error", Json::object(), "TryAgain", true},
        End{"StartError", 128, "StartError", Json::object(), "StartError", true},
        End{"Expelled", 10, "Error", Json::object(), "Expelled", false},
        End{"NodeCameBack", 255, "Unknown", Json::object(), "NodeLost", false, true},
        End{"Evicted", 137, "Error", Json{{"reason", "Evicted"}}, "Evicted", false, true},
        End{"NodeShutDown", 137, "Error", Json{{"reason", "NodeShutdown"}}, "NodeShutdown", false,
            true},
        End{"RefusedByKubelet", 1, "Error", Json{{"reason", "OutOfcpu"}}, "NodeRefused", false,
            true},
        End{"Preempted", 143, "Error", Disrupted("PreemptionByScheduler"), "Preempted", false,
            true},
        End{"Drained", 143, "Error", Disrupted("EvictionByEvictionAPI"), "Evicted", false, true}),
    [](const auto& info) { return info.param.name; });

TEST_F(OperatorTest, ReportsTheDeadIncarnationToTheCoordinator) {
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Say("a", Progress::TRAINING, 1, [](Progress* progress) {
    v1::ProcessStatus* worker = progress->add_processes();
    worker->mutable_process()->set_role(v1::WORKER);
    worker->mutable_process()->set_index(1);
    worker->mutable_process()->set_incarnation(77);
  });
  ASSERT_TRUE(cluster_.Settle());
  cluster_.EndPod("a-worker-1", 137);
  ASSERT_TRUE(cluster_.Settle());
  ASSERT_EQ(cluster_.coordinators.deaths.size(), 1u);
  EXPECT_EQ(cluster_.coordinators.deaths[0].process().incarnation(), 77u);
  EXPECT_EQ(cluster_.coordinators.deaths[0].reason(), "killed by signal 9 (Killed)");
}

TEST_F(OperatorTest, ReplacesARepeatedlyDyingWorkerWithGrowingDelays) {
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  for (int i = 0; i < 3; ++i) {
    cluster_.kubelets = false;
    cluster_.EndPod("a-worker-0", 1, "Error", "sluice-worker: no such file: /data/mnist\n");
    ASSERT_TRUE(cluster_.Settle());
    cluster_.Pass(absl::Seconds(i == 0 ? 0 : 1 << (i - 1)));
    ASSERT_EQ(kube::Find(cluster_.Pod("a-worker-0"), {"status", "phase"}), nullptr)
        << "a new pod was to be there after the delay " << i;
  }
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/ProcessesFailing");
  EXPECT_EQ(LastFailure()["message"], "exit code 1: no such file: /data/mnist");
  EXPECT_EQ(Summary(), "ProcessesFailing");
  // Repaired from outside.
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Say("a", Progress::TRAINING, 1);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
}

TEST_F(OperatorTest, ReportsMissingDataAndWaitsForIt) {
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  for (int i = 0; i < 12; ++i) {
    cluster_.kubelets = false;
    cluster_.EndPod("a-worker-0", 13, "Error",
                    "time=2026-01-05T10:00:00Z level=error msg=\"/data/mnist: no such file\"\n");
    ASSERT_TRUE(cluster_.Settle());
    EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/DataMissing") << i;
    cluster_.Pass(absl::Seconds(30));
    ASSERT_EQ(kube::Find(cluster_.Pod("a-worker-0"), {"status", "phase"}), nullptr)
        << "a new pod was to be there, " << i;
    // Nor while that looks for it.
    EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/DataMissing") << i;
  }
  EXPECT_EQ(Summary(), "DataMissing");
  EXPECT_EQ(LastFailure()["reason"], "DataMissing");
  EXPECT_EQ(LastFailure()["counted"], false);
  EXPECT_THAT(LastFailure()["message"].get<std::string>(),
              HasSubstr("/data/mnist: no such file: put it there"));
  std::vector<std::string> warnings;
  for (const Json& event : cluster_.Events()) {
    if (GetString(event, {"reason"}) != "DataMissing") continue;
    EXPECT_EQ(GetString(event, {"type"}), "Warning");
    warnings.push_back(GetString(event, {"note"}));
  }
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("/data/mnist: no such file: put it there")));
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Say("a", Progress::TRAINING, 1);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
}

TEST_F(OperatorTest, ReplacesADeletedPodWithoutCountingAFailure) {
  Train({{"spec", {{"backoffLimit", 0}}}});
  for (const std::string name : {"a-worker-0", "a-ps-0", "a-coordinator"}) {
    const std::string before = cluster_.UidOf(name);
    cluster_.DeletePod(name);
    ASSERT_TRUE(cluster_.Settle());
    EXPECT_NE(cluster_.UidOf(name), before);
    EXPECT_NE(cluster_.UidOf(name), "");
    EXPECT_EQ(LastFailure()["reason"], "Deleted");
    EXPECT_EQ(LastFailure()["counted"], false);
  }
  EXPECT_EQ(Restarts("total"), 3);
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
}

TEST_F(OperatorTest, FailuresOfShardsUseUpTheBackoffLimit) {
  Train({{"spec", {{"backoffLimit", 1}}}});
  cluster_.clock.Advance(absl::Seconds(60));
  cluster_.EndPod("a-ps-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
  cluster_.clock.Advance(absl::Seconds(60));
  cluster_.EndPod("a-ps-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/BackoffLimitExceeded");
  EXPECT_EQ(Summary(), "Failed");
  cluster_.Pass(absl::Minutes(1));
  EXPECT_THAT(cluster_.PodNames(), ElementsAre("a-ps-0")) << "running pods are deleted";
  EXPECT_THAT(cluster_.EventReasons(), Contains("BackoffLimitExceeded"));
}

TEST_F(OperatorTest, AppliesTheJobsFailurePolicyToExits) {
  Train({{"spec",
          {{"backoffLimit", 0},
           {"failurePolicy",
            {{"rules",
              {{{"action", "Ignore"}, {"roles", {"ps"}}, {"reasons", {"OOMKilled"}}},
               {{"action", "FailJob"}, {"roles", {"worker"}}, {"exitCodes", {42}}}}}}}}}});
  cluster_.clock.Advance(absl::Seconds(60));
  cluster_.EndPod("a-ps-0", 137, "OOMKilled");
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(LastFailure()["reason"], "OOMKilled");
  EXPECT_EQ(LastFailure()["counted"], false);
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
  cluster_.EndPod("a-worker-1", 42);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/FailurePolicy");
}

TEST_F(OperatorTest, AJobFailsIfItsCoordinatorReportsFailure) {
  Train();
  cluster_.Say("a", Progress::FAILED, 10,
               [](Progress* progress) { progress->set_reason("fc1.weight is not finite"); });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/TrainingFailed");
  EXPECT_THAT(cluster_.Status("a").dump(), HasSubstr("fc1.weight is not finite"));
}

// A job that was deleted and created again finds the checkpoints of the previous job; the operator
// reports what its coordinator does with them.
TEST_F(OperatorTest, ARecreatedJobAppliesItsPolicyToExistingCheckpoints) {
  struct Case {
    const char* policy;  // null: unset
    Progress::Phase phase;
    const char* code;
    const char* reason;
    const char* succeeded;
    const char* failed;
    const char* in_use;
  };
  const Case cases[] = {
      {nullptr, Progress::FAILED, "CheckpointDirectoryInUse",
       "the checkpoint directory holds job ns/a/1, which finished after step 100", "False/Failed",
       "True/CheckpointDirectoryInUse", "True/OtherCheckpoints"},
      {"Fail", Progress::FAILED, "CheckpointDirectoryInUse",
       "the checkpoint directory holds job ns/a/1, which has not finished", "False/Failed",
       "True/CheckpointDirectoryInUse", "True/OtherCheckpoints"},
      {"Resume", Progress::SUCCEEDED, "NothingTrained",
       "the checkpoint directory holds job ns/a/1; nothing was trained", "True/NothingTrained",
       "False/NotFailed", ""},
      {"Replace", Progress::SUCCEEDED, "", "training is complete", "True/Completed",
       "False/NotFailed", ""},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.policy == nullptr ? "unset" : one.policy);
    FakeCluster cluster;
    ASSERT_TRUE(cluster.Train("a"));
    cluster.Say("a", Progress::SUCCEEDED, 100);
    ASSERT_TRUE(cluster.Settle());
    kube::HttpClient::Options admin;
    admin.sleep = [](absl::Duration) {};
    ASSERT_TRUE(kube::HttpClient(&cluster.server, admin)
                    .Delete(reconciler::TrainingJobs(), {"ns", "a"}, {})
                    .ok());
    ASSERT_TRUE(cluster.Settle());
    ASSERT_TRUE(cluster.PodNames().empty());

    Json patch = Json::object();
    if (one.policy != nullptr) patch["spec"]["checkpoint"]["onExisting"] = one.policy;
    ASSERT_TRUE(cluster.Train("a", patch));
    EXPECT_EQ(cluster.Condition("a", "CheckpointDirectoryInUse"), "");
    cluster.Say("a", one.phase, 0, [&](Progress* progress) {
      progress->set_reason(one.reason);
      progress->set_reason_code(one.code);
    });
    ASSERT_TRUE(cluster.Settle());
    EXPECT_EQ(cluster.Condition("a", "Succeeded"), one.succeeded);
    EXPECT_EQ(cluster.Condition("a", "Failed"), one.failed);
    EXPECT_EQ(cluster.Condition("a", "CheckpointDirectoryInUse"), one.in_use);
    if (*one.code == '\0') continue;
    const bool failed = one.phase == Progress::FAILED;
    EXPECT_EQ(cluster.ConditionMessage("a", failed ? "CheckpointDirectoryInUse" : "Succeeded"),
              one.reason);
    EXPECT_THAT(cluster.EventReasons(), ::testing::Contains(one.code));
  }
}

TEST_F(OperatorTest, ReplacesACoordinatorThatHadToLeave) {
  Train();
  // SIGTERM: it saves a checkpoint and releases all processes.
  const std::string before = cluster_.UidOf("a-coordinator");
  cluster_.DeletePod("a-coordinator");
  cluster_.Say("a", Progress::SUSPENDED, 12);
  for (const char* name : {"a-ps-0", "a-worker-0", "a-worker-1"}) cluster_.EndPod(name, 0);
  cluster_.Pass(absl::Seconds(3));
  EXPECT_NE(cluster_.UidOf("a-coordinator"), before);
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(cluster_.Condition("a", "Suspended"), "False/NotSuspended");
  EXPECT_EQ(Summary(), "Recovering");
  cluster_.Say("a", Progress::TRAINING, 13, [](Progress* progress) { progress->set_attempt(2); });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"attempt"}), 2);
}

// The taint manager's deletion may be seen before the signs that the node is lost.
TEST_F(OperatorTest, TreatsAPodDeletedForATaintAsLostUnlessItExits) {
  struct Case {
    const char* what;
    std::function<void()> then;
    const char* reason;
  };
  const Case cases[] = {
      {"the node is found lost later",
       [&] { cluster_.SetPodCondition("a-worker-0", "Ready", "False", "NodeNotReady"); },
       "NodeLost"},
      {"the node never speaks again", [&] { cluster_.Pass(absl::Minutes(2)); }, "NodeLost"},
      {"the node ends the pod", [&] { cluster_.EndPod("a-worker-0", 143); }, "Evicted"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Train();
    cluster_.frozen = [](const std::string& pod) { return pod == "a-worker-0"; };
    cluster_.SetPodCondition("a-worker-0", "DisruptionTarget", "True", "DeletionByTaintManager");
    cluster_.DeletePod("a-worker-0");
    ASSERT_TRUE(cluster_.Settle());
    c.then();
    ASSERT_TRUE(cluster_.Settle());
    EXPECT_EQ(LastFailure()["reason"], c.reason);
    EXPECT_EQ(LastFailure()["pod"], "a-worker-0");
    cluster_.Pass(absl::Minutes(2));
    EXPECT_EQ(Restarts("worker"), 1);
    cluster_.frozen = nullptr;
    ASSERT_TRUE(Admin().Delete(reconciler::TrainingJobs(), {"ns", "a"}, {}).ok());
    ASSERT_TRUE(cluster_.Settle());
  }
}

TEST_F(OperatorTest, ForceDeletesAndReplacesAPodOfALostNode) {
  Train();
  cluster_.frozen = [](const std::string& pod) { return pod == "a-worker-0"; };
  cluster_.SetPodCondition("a-worker-0", "Ready", "False", "NodeNotReady");
  cluster_.SetPodCondition("a-worker-0", "DisruptionTarget", "True", "DeletionByTaintManager");
  const std::string before = cluster_.UidOf("a-worker-0");
  cluster_.DeletePod("a-worker-0");
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.UidOf("a-worker-0"), before);
  EXPECT_EQ(LastFailure()["reason"], "NodeLost");
  cluster_.Pass(absl::Seconds(11));
  EXPECT_NE(cluster_.UidOf("a-worker-0"), before);
  EXPECT_NE(cluster_.UidOf("a-worker-0"), "");
  EXPECT_EQ(Restarts("worker"), 1);
}

TEST_F(OperatorTest, APodHasItsGracePeriodEvenIfTheOperatorsClockIsAhead) {
  cluster_.operator_ahead = absl::Minutes(5);
  Train();
  cluster_.frozen = [](const std::string& pod) { return pod == "a-worker-0"; };
  const std::string before = cluster_.UidOf("a-worker-0");
  cluster_.DeletePod("a-worker-0");
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(35));
  EXPECT_EQ(cluster_.UidOf("a-worker-0"), before)
      << "10 s after its grace period of 30 s it is due";
  cluster_.Pass(absl::Seconds(6));
  EXPECT_NE(cluster_.UidOf("a-worker-0"), before);
}

TEST_F(OperatorTest, NamesAPodKeptByAForeignFinalizer) {
  Train();
  cluster_.frozen = [](const std::string& pod) { return pod == "a-worker-0"; };
  const auto finalizers = [&](const Json& list) {
    ASSERT_TRUE(Admin()
                    .Patch(reconciler::Pods(), {"ns", "a-worker-0"}, kube::PatchKind::kMerge,
                           {{"metadata", {{"finalizers", list}}}}, {})
                    .ok());
  };
  finalizers(Json::array({"kueue.x-k8s.io/managed"}));
  cluster_.EndPod("a-worker-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(5));
  EXPECT_NE(cluster_.Condition("a", "Degraded"), "True/HeldByFinalizer")
      << "most finalizers are removed soon";
  cluster_.Pass(absl::Seconds(6));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/HeldByFinalizer");
  EXPECT_THAT(cluster_.ConditionMessage("a", "Degraded"),
              HasSubstr("a-worker-0: the pod was deleted, but the API server keeps it until its "
                        "finalizers are removed (kueue.x-k8s.io/managed)"));
  EXPECT_THAT(cluster_.EventReasons(), Contains("HeldByFinalizer"));
  cluster_.frozen = nullptr;
  finalizers(nullptr);
  cluster_.Pass(absl::Seconds(2));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
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
  EXPECT_EQ((cluster_.coordinators.partners[{"ns", "a"}].desired.workers()), 4u);
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 1}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), UnorderedElementsAre("a-coordinator", "a-ps-0", "a-worker-0"));
  EXPECT_EQ(Restarts("total"), 0);
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}), 1);
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("Training", "ScalingWorkers", "Scaled"))
      << "the second time each is a series";
}

TEST_F(OperatorTest, ScalesShardsWithACheckpoint) {
  Train();
  cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 3}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Scaling"), "True/ScalingShards");
  EXPECT_TRUE((cluster_.coordinators.partners[{"ns", "a"}].desired.suspend()));
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
  Train();
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
    return GetString(Json::parse(GetString(*map, {"data", "job.json"})), {"training", "mode"});
  };
  cluster_.PatchJob("a", {{"spec", {{"training", {{"mode", "Asynchronous"}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(Summary(), "SwitchingMode");
  EXPECT_TRUE((cluster_.coordinators.partners[{"ns", "a"}].desired.suspend()));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(mode_of_config(), "SYNCHRONOUS") << "for the successor of a coordinator that dies now";
  const std::string before = cluster_.UidOf("a-coordinator");
  cluster_.Say("a", Progress::SUSPENDED, 20);
  ASSERT_TRUE(cluster_.Settle());
  for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(mode_of_config(), "ASYNCHRONOUS");
  EXPECT_NE(cluster_.UidOf("a-coordinator"), before);
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_FALSE((cluster_.coordinators.partners[{"ns", "a"}].desired.suspend()));
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
  EXPECT_FALSE((cluster_.coordinators.partners[{"ns", "a"}].desired.suspend()));
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
  EXPECT_TRUE((cluster_.coordinators.partners[{"ns", "a"}].desired.suspend()));
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

TEST_F(OperatorTest, AJobCreatedSuspendedHasNoPodUntilResumed) {
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"suspend", true}}}}));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_EQ(Summary(), "Suspended");
  cluster_.PatchJob("a", {{"spec", {{"suspend", false}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
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

// ---- economy of writes

TEST_F(OperatorTest, WritesNothingWhenNothingChanges) {
  Train();
  cluster_.Pass(absl::Minutes(1));
  cluster_.ForgetWrites();
  for (int i = 0; i < 10; ++i) cluster_.Pass(absl::Minutes(11));
  EXPECT_THAT(cluster_.Writes(), IsEmpty());
  cluster_.Restart();
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.Writes(), IsEmpty()) << "a new operator finds nothing to change";
}

TEST_F(OperatorTest, WritesProgressEveryFifteenSeconds) {
  Train();
  cluster_.ForgetWrites();
  for (int i = 1; i <= 60; ++i) {
    cluster_.Say("a", Progress::TRAINING, 10 + i);
    cluster_.MergeStatus("a-ps-0",
                         {{"message", absl::StrCat(i)}});  // each change causes a reconciliation
    cluster_.Pass(absl::Seconds(1));
  }
  EXPECT_LE(cluster_.Writes().size(), 4u);
  EXPECT_GE(cluster_.Writes().size(), 3u);
  EXPECT_GE(GetInt(cluster_.Status("a"), {"training", "step"}), 55);
}

TEST_F(OperatorTest, DeletesANetworkPolicyThatIsNoLongerWanted) {
  Train();
  const kube::ResourceType policies{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy",
                                    true};
  const auto there = [&] {
    return Admin().Get(policies, {"ns", "a"}, kube::Subresource::kNone).ok();
  };
  ASSERT_TRUE(there());
  cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Disabled"}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE(there());
  cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Enabled"}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(there());
}

TEST_F(OperatorTest, KeepsAForeignNetworkPolicy) {
  const kube::ResourceType policies{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy",
                                    true};
  ASSERT_TRUE(Admin()
                  .Create(policies, "ns", {{"metadata", {{"name", "a"}, {"namespace", "ns"}}}}, {})
                  .ok());
  Train({{"spec", {{"networkPolicy", "Disabled"}}}});
  EXPECT_TRUE(Admin().Get(policies, {"ns", "a"}, kube::Subresource::kNone).ok());
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
}

TEST_F(OperatorTest, CombinesStatusWritesWhilePodsBecomeReady) {
  std::set<std::string> ready;
  cluster_.frozen = [&](const std::string& pod) { return ready.count(pod) == 0; };
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"worker", {{"replicas", 20}}}}}}));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.ForgetWrites();
  for (const std::string& pod : cluster_.PodNames()) {
    ready.insert(pod);
    cluster_.Pass(absl::Milliseconds(50));
  }
  EXPECT_LE(cluster_.Writes().size(), 6u);
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}), 20);
}

TEST_F(OperatorTest, WritesTheStatusOfALongStartLessAndLessOften) {
  std::set<std::string> ready;
  cluster_.frozen = [&](const std::string& pod) { return ready.count(pod) == 0; };
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"worker", {{"replicas", 120}}}}}}));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.ForgetWrites();
  size_t half = 0;
  for (const std::string& pod : cluster_.PodNames()) {
    ready.insert(pod);
    cluster_.Pass(absl::Seconds(3));
    if (ready.size() == 60) half = cluster_.Writes().size();
  }
  // After 5, 10, 20, … seconds at first, then every minute.
  EXPECT_LE(half, 8u);
  EXPECT_GE(half, 5u);
  EXPECT_LE(cluster_.Writes().size(), half + 4);
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}), 120) << "at once";
}

TEST_F(OperatorTest, EachDeletionOfAPodNamesItsUid) {
  int deletions = 0;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    if (request.method == "DELETE") {
      const std::string name = request.target.substr(request.target.rfind('/') + 1);
      const Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
      EXPECT_EQ(GetString(body, {"preconditions", "uid"}),
                cluster_.UidOf(name.substr(0, name.find('?'))));
      ++deletions;
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  Train();
  cluster_.EndPod("a-worker-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 1}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_GE(deletions, 2);
}

TEST_F(OperatorTest, RestoresDeletedAndEditedObjects) {
  Train();
  kube::HttpClient admin = Admin();
  const kube::ResourceType services{"", "v1", "services", "Service", true};
  const kube::ResourceType maps{"", "v1", "configmaps", "ConfigMap", true};
  ASSERT_TRUE(admin.Delete(services, {"ns", "a-coordinator"}, {}).ok());
  ASSERT_TRUE(
      admin.Patch(maps, {"ns", "a"}, kube::PatchKind::kMerge, {{"data", {{"job.json", "{}"}}}}, {})
          .ok());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(admin.Get(services, {"ns", "a-coordinator"}, kube::Subresource::kNone).ok());
  const auto map = admin.Get(maps, {"ns", "a"}, kube::Subresource::kNone);
  EXPECT_THAT(map->dump(), HasSubstr("mnist-net"));
}

TEST_F(OperatorTest, RecreatesObjectsDeletedBeforeTheyWereSeen) {
  kube::HttpClient admin = Admin();
  const kube::ResourceType services{"", "v1", "services", "Service", true};
  int made = 0;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    // Right after the last write of the first reconciliation.
    if (absl::StrContains(request.target, "/pods") && ++made == 4) {
      EXPECT_TRUE(admin.Delete(services, {"ns", "a"}, {}).ok());
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(11));
  EXPECT_TRUE(admin.Get(services, {"ns", "a"}, kube::Subresource::kNone).ok());
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

TEST_F(OperatorTest, AFormerLeaderThatWakesUpChangesNothing) {
  Train();
  cluster_.clock.Advance(absl::Seconds(40));
  const std::unique_ptr<Operator> frozen = cluster_.Another();
  cluster_.EndPod("a-worker-1", 137);
  frozen->SyncOnce();  // it sees the death, and freezes
  ASSERT_TRUE(cluster_.Settle());
  const std::string replacement = cluster_.UidOf("a-worker-1");
  const int64_t version = cluster_.server.version();
  while (frozen->ReconcileOne()) {
  }
  EXPECT_EQ(cluster_.server.version(), version) << "its status is refused, and it goes no further";
  EXPECT_EQ(cluster_.UidOf("a-worker-1"), replacement);
  EXPECT_EQ(Restarts("total"), 1);
}

// ---- TLS

constexpr absl::Duration kDay = absl::Hours(24);

class OperatorTlsTest : public OperatorTest {
 protected:
  Json Secret(const std::string& name) {
    return Admin()
        .Get(reconciler::Secrets(), {"ns", name}, kube::Subresource::kNone)
        .value_or(Json());
  }
  std::string Certificate(const std::string& role, const std::string& key) {
    return GetString(Secret("a-tls-" + role), {"data", key});
  }
};

TEST_F(OperatorTlsTest, CreatesSecretsAndUsesThemWithTheCoordinator) {
  Train();
  for (const char* name : {"a-tls-ca", "a-tls-coordinator", "a-tls-ps", "a-tls-worker"}) {
    EXPECT_EQ(kube::ControllerUidOf(Secret(name)), kube::UidOf(cluster_.GetJob("a"))) << name;
  }
  EXPECT_FALSE(Certificate("worker", "1.crt").empty());
  EXPECT_EQ(GetString(cluster_.Status("a"), {"tls"}), "Enabled");
  EXPECT_NE(cluster_.coordinators.partners.begin()->second.credentials, nullptr);
}

TEST_F(OperatorTlsTest, APlainTextJobHasNoSecrets) {
  Train({{"spec", {{"tls", "Disabled"}}}});
  EXPECT_TRUE(Secret("a-tls-ca").is_null());
  EXPECT_EQ(GetString(cluster_.Status("a"), {"tls"}), "Disabled");
  EXPECT_EQ(cluster_.coordinators.partners.begin()->second.credentials, nullptr);
}

TEST_F(OperatorTlsTest, AJobThatStartedInPlainTextKeepsIt) {
  // Started by an operator with that default, or by one without TLS support.
  for (const auto& [name, status] :
       {std::pair<std::string, Json>{"a", {{"observedGeneration", 1}, {"tls", "Disabled"}}},
        {"b", {{"observedGeneration", 1}}}}) {
    cluster_.Create(FakeCluster::Job(name));
    Json job = cluster_.GetJob(name);
    job["status"] = status;
    kube::WriteOptions options;
    options.subresource = kube::Subresource::kStatus;
    ASSERT_TRUE(Admin().Update(reconciler::TrainingJobs(), {"ns", name}, job, options).ok());
    ASSERT_TRUE(cluster_.Settle());
    EXPECT_TRUE(Secret(name + "-tls-ca").is_null()) << name;
    EXPECT_EQ(GetString(cluster_.Status(name), {"tls"}), "Disabled") << name;
  }
  EXPECT_EQ(cluster_.PodNames().size(), 8u);
}

TEST_F(OperatorTlsTest, RenewsCertificatesOfAnIdleJob) {
  Train();
  const std::string before = Certificate("ps", "0.crt");
  const auto credentials = cluster_.coordinators.partners.begin()->second.credentials;
  const std::string pod = cluster_.UidOf("a-ps-0");
  for (int i = 0; i < 21; ++i) cluster_.Pass(kDay);
  EXPECT_NE(Certificate("ps", "0.crt"), before);
  EXPECT_EQ(cluster_.UidOf("a-ps-0"), pod) << "no pod is re-created for it";
  EXPECT_NE(cluster_.coordinators.partners.begin()->second.credentials, credentials);
}

TEST_F(OperatorTlsTest, RecreatesDeletedSecrets) {
  Train();
  const std::string authority = Certificate("ca", "ca.crt");
  const std::string before = Certificate("worker", "0.crt");
  ASSERT_TRUE(Admin().Delete(reconciler::Secrets(), {"ns", "a-tls-worker"}, {}).ok());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE(Certificate("worker", "0.crt").empty());
  EXPECT_NE(Certificate("worker", "0.crt"), before);
  EXPECT_EQ(Certificate("ca", "ca.crt"), authority);
  ASSERT_TRUE(Admin().Delete(reconciler::Secrets(), {"ns", "a-tls-ca"}, {}).ok());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE(Certificate("ca", "ca.crt").empty());
  EXPECT_NE(Certificate("ca", "ca.crt"), authority);
}

// Certificates are renewed after 20 days, except those of a job that has ended.
TEST_F(OperatorTlsTest, AnEndedOrSuspendedJobNeedsNoReconciliations) {
  for (const bool suspended : {false, true}) {
    Train();
    if (suspended) {
      cluster_.PatchJob("a", {{"spec", {{"suspend", true}}}});
      ASSERT_TRUE(cluster_.Settle());
    }
    cluster_.Say("a", suspended ? Progress::SUSPENDED : Progress::SUCCEEDED, 100);
    ASSERT_TRUE(cluster_.Settle());
    for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
    cluster_.Pass(absl::Minutes(1));
    cluster_.ForgetWrites();
    const int64_t before = cluster_.reconciliations;
    for (int i = 0; i < 90; ++i) cluster_.Pass(kDay);
    EXPECT_THAT(cluster_.Writes(), IsEmpty());
    EXPECT_LE(cluster_.reconciliations - before, 3 * 90) << "one a resync, and little more";
    const int64_t rested = cluster_.reconciliations;
    for (int i = 0; i < 60; ++i) cluster_.Pass(absl::Seconds(1));
    EXPECT_LE(cluster_.reconciliations - rested, 1) << "not each second either";
    ASSERT_TRUE(Admin().Delete(reconciler::TrainingJobs(), {"ns", "a"}, {}).ok());
    ASSERT_TRUE(cluster_.Settle());
  }
}

TEST_F(OperatorTlsTest, WritesNothingWhileNothingChanges) {
  Train();
  cluster_.ForgetWrites();
  for (int i = 0; i < 10; ++i) cluster_.Pass(absl::Minutes(20));
  EXPECT_THAT(cluster_.Writes(), IsEmpty());
}

TEST_F(OperatorTlsTest, TheCertificateOfANewWorkerExistsBeforeItsPod) {
  Train();
  EXPECT_TRUE(Certificate("worker", "2.crt").empty());
  bool certified = false;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    if (absl::StrContains(request.body, "\"a-worker-2\"") && request.method == "POST") {
      certified = !Certificate("worker", "2.crt").empty();
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 3}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(certified);
}

TEST_F(OperatorTlsTest, ReportsAndKeepsAForeignSecret) {
  Json theirs = {{"apiVersion", "v1"}, {"kind", "Secret"}, {"metadata", {{"name", "a-tls-ps"}}}};
  ASSERT_TRUE(Admin().Create(reconciler::Secrets(), "ns", theirs, {}).ok());
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_THAT(cluster_.Condition("a", "Degraded"), HasSubstr("NameTaken"));
  EXPECT_FALSE(Secret("a-tls-ps").contains("data"));
}

std::set<std::string> VerbsOfTheList() {
  std::set<std::string> verbs;
  for (const YAML::Node& rule : YAML::LoadFile("operator/rbac.yaml")["jobs"]) {
    for (const YAML::Node& resource : rule["resources"]) {
      for (const YAML::Node& verb : rule["verbs"]) {
        verbs.insert(absl::StrCat(resource.as<std::string>(), " ", verb.as<std::string>()));
      }
    }
  }
  return verbs;
}

TEST_F(OperatorTest, TheRbacRulesMatchTheRequests) {
  std::set<std::string> lost;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    // A creation whose answer is lost is looked up.
    if (request.method == "POST" && lost.insert(request.target).second) {
      fault.emplace();
      fault->after_effect = true;
      fault->status = absl::UnavailableError("cut");
    }
    return fault;
  };
  Train({{"spec", {{"ttlSecondsAfterFinished", 10}}}});
  for (const kube::ResourceType* type :
       {&reconciler::Services(), &reconciler::ConfigMaps(), &reconciler::DisruptionBudgets(),
        &reconciler::NetworkPolicies()}) {  // edits are reverted
    const Json edit = {{"metadata", {{"labels", {{"app.kubernetes.io/instance", "x"}}}}}};
    ASSERT_TRUE(Admin().Patch(*type, {"ns", "a"}, kube::PatchKind::kMerge, edit, {}).ok());
  }
  cluster_.EndPod("a-worker-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  for (int i = 0; i < 5; ++i) {  // an event that repeats is patched
    cluster_.DeletePod("a-worker-1");
    cluster_.Pass(absl::Seconds(30));
  }
  cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Disabled"}}}});
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Hours(24 * 25));  // certificates are renewed
  cluster_.Say("a", Progress::SUCCEEDED, 100);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Minutes(1));
  std::set<std::string> listed = VerbsOfTheList();
  // The API server requires this one because of owner references that block deletion.
  EXPECT_EQ(listed.erase("trainingjobs/finalizers update"), 1u);
  // Needed for the first list on servers without streaming lists.
  for (const char* resource : {"trainingjobs", "pods", "services", "configmaps", "secrets",
                               "poddisruptionbudgets", "networkpolicies"}) {
    cluster_.verbs.insert(absl::StrCat(resource, " list"));
  }
  EXPECT_EQ(cluster_.verbs, listed);
}

// Every written field must be in the schema: API servers drop other fields.
void ExpectKnown(const api::SchemaNode& schema, const Json& value, const std::string& path) {
  if (value.is_array()) {
    ASSERT_NE(schema.item, nullptr) << path;
    for (const Json& item : value) ExpectKnown(*schema.item, item, path + "[]");
  }
  if (!value.is_object() || (schema.field != nullptr && schema.field->open)) return;
  for (auto it = value.begin(); it != value.end(); ++it) {
    const api::SchemaNode* child = schema.Child(it.key());
    if (child == nullptr) child = schema.item;
    ASSERT_NE(child, nullptr) << path << "." << it.key() << " is not in the schema";
    ExpectKnown(*child, it.value(), path + "." + it.key());
  }
}

TEST_F(OperatorTest, EveryFieldOfTheStatusIsInTheSchema) {
  Train();
  cluster_.EndPod("a-worker-0", 137);
  cluster_.Say("a", Progress::TRAINING, 20, [](Progress* progress) {
    progress->mutable_last_evaluation()->set_loss(0.5);
    progress->set_has_loss(true);
    progress->set_loss(0.25);
    progress->set_restored(true);
    progress->mutable_checkpoint()->mutable_last()->set_step(5);
    progress->mutable_checkpoint()->set_directory("/x");
    progress->mutable_checkpoint()->set_bytes(1);
    progress->mutable_view()->mutable_id()->set_attempt(1);
  });
  cluster_.Pass(absl::Seconds(16));
  cluster_.Say("a", Progress::SUCCEEDED, 100);
  ASSERT_TRUE(cluster_.Settle());
  ExpectKnown(*api::StatusSchema().Child("status"), cluster_.Status("a"), "status");
}

}  // namespace
}  // namespace sluice

// The ends of pods, and what the operator does about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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
using ::testing::StartsWith;
using Progress = v1::JobProgress;

using OperatorDeathsTest = OperatorFixture;

struct End {
  std::string name;
  int exit_code;
  std::string container_reason;
  Json pod_status;  // merged into the pod's status
  std::string reason;
  bool counted;
  bool outside = false;  // the process did not cause it
};

class EndOfAWorkerTest : public OperatorDeathsTest, public ::testing::WithParamInterface<End> {};

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

TEST_F(OperatorDeathsTest, ReportsTheDeadIncarnationToTheCoordinator) {
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

TEST_F(OperatorDeathsTest, ReplacesARepeatedlyDyingWorkerWithGrowingDelays) {
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

TEST_F(OperatorDeathsTest, ReportsMissingDataAndWaitsForIt) {
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
              HasSubstr("/data/mnist: no such file: put the data there"));
  std::vector<std::string> warnings;
  for (const Json& event : cluster_.Events()) {
    if (GetString(event, {"reason"}) != "DataMissing") continue;
    EXPECT_EQ(GetString(event, {"type"}), "Warning");
    warnings.push_back(GetString(event, {"note"}));
  }
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("/data/mnist: no such file: put the data there")));
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Say("a", Progress::TRAINING, 1);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed");
}

TEST_F(OperatorDeathsTest, ReplacesADeletedPodWithoutCountingAFailure) {
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

TEST_F(OperatorDeathsTest, FailuresOfShardsUseUpTheBackoffLimit) {
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

TEST_F(OperatorDeathsTest, AppliesTheJobsFailurePolicyToExits) {
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

TEST_F(OperatorDeathsTest, AJobFailsIfItsCoordinatorReportsFailure) {
  Train();
  cluster_.Say("a", Progress::FAILED, 10,
               [](Progress* progress) { progress->set_reason("fc1.weight is not finite"); });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/TrainingFailed");
  EXPECT_THAT(cluster_.Status("a").dump(), HasSubstr("fc1.weight is not finite"));
}

// A job that was deleted and created again finds the checkpoints of the previous job; the operator
// reports what its coordinator does with them.
TEST_F(OperatorDeathsTest, ARecreatedJobAppliesItsPolicyToExistingCheckpoints) {
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

TEST_F(OperatorDeathsTest, ReplacesACoordinatorThatHadToLeave) {
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
TEST_F(OperatorDeathsTest, TreatsAPodDeletedForATaintAsLostUnlessItExits) {
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

TEST_F(OperatorDeathsTest, ForceDeletesAndReplacesAPodOfALostNode) {
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

TEST_F(OperatorDeathsTest, APodHasItsGracePeriodEvenIfTheOperatorsClockIsAhead) {
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

TEST_F(OperatorDeathsTest, NamesAPodKeptByAForeignFinalizer) {
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

// The job has no status any more, so the pod has an event.
TEST_F(OperatorDeathsTest, NamesAPodThatAForeignFinalizerKeepsAfterItsJob) {
  Train();
  const auto finalizers = [&](const Json& list) {
    ASSERT_TRUE(Admin()
                    .Patch(reconciler::Pods(), {"ns", "a-worker-0"}, kube::PatchKind::kMerge,
                           {{"metadata", {{"finalizers", list}}}}, {})
                    .ok());
  };
  const auto held = [&] {
    std::vector<std::string> notes;
    for (const Json& event : cluster_.Events()) {
      if (GetString(event, {"reason"}) != "HeldByFinalizer") continue;
      EXPECT_EQ(GetString(event, {"regarding", "kind"}), "Pod");
      EXPECT_EQ(GetString(event, {"regarding", "name"}), "a-worker-0");
      notes.push_back(GetString(event, {"note"}));
    }
    return notes;
  };
  finalizers(Json::array({"kueue.x-k8s.io/managed"}));
  cluster_.EndPod("a-worker-0", 0);
  ASSERT_TRUE(Admin().Delete(reconciler::TrainingJobs(), {"ns", "a"}, {}).ok());
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Restart();
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), ElementsAre("a-worker-0"));
  cluster_.Pass(absl::Seconds(5));
  EXPECT_THAT(held(), IsEmpty()) << "most finalizers are removed soon";
  cluster_.Pass(absl::Seconds(40));
  EXPECT_THAT(held(),
              ElementsAre("the job is deleted; the pod was deleted, but the API server keeps it "
                          "until its finalizers are removed (kueue.x-k8s.io/managed). Check the "
                          "controller that sets them, or remove them: kubectl patch pod a-worker-0 "
                          "--type=merge -p '{\"metadata\":{\"finalizers\":null}}'"));
  finalizers(nullptr);
  cluster_.Pass(absl::Seconds(1));
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
}

TEST_F(OperatorDeathsTest, TheEventOfAnExpelledProcessSaysWhy) {
  Train();
  cluster_.EndPod("a-ps-0", 10);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(NotesOf("Expelled"),
              HasSubstr("exit code 10: the coordinator removed the process from the job, most "
                        "often because its heartbeats or its connection had stopped"));
}

}  // namespace
}  // namespace sluice

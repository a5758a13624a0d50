#include "operator/reconciler/pod_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "operator/reconciler/names.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using ::testing::HasSubstr;

Json Pod(const std::string& role, const Json& status) {
  return {{"metadata",
           {{"name", "a-" + role},
            {"uid", "1"},
            {"creationTimestamp", "2026-01-01T00:00:00Z"},
            {"labels", {{kRoleLabel, role}, {kIndexLabel, "3"}}}}},
          {"spec", {{"nodeName", "n1"}}},
          {"status", status}};
}

Json Terminated(const std::string& role, const Json& state) {
  return {
      {"phase", "Failed"},
      {"containerStatuses", Json::array({{{"name", role}, {"state", {{"terminated", state}}}}})}};
}

Json Waiting(const std::string& reason) {
  return {{"phase", "Pending"},
          {"containerStatuses",
           Json::array({{{"name", "worker"},
                         {"image", "x:1"},
                         {"state", {{"waiting", {{"reason", reason}, {"message", "m"}}}}}}})}};
}

Json Condition(const char* type, const char* status, const char* time) {
  return {{"type", type}, {"status", status}, {"lastTransitionTime", time}, {"message", "why"}};
}

TEST(PodStatusTest, IgnoresAPodWithoutARole) {
  EXPECT_FALSE(ReadPod(Pod("other", {})).has_value());
  EXPECT_FALSE(ReadPod(Json()).has_value());
  EXPECT_FALSE(ReadPod(Json::array({1})).has_value());
}

TEST(PodStatusTest, KnowsTheReasonOfADeletionWhileThePodStillRuns) {
  Json status = {{"phase", "Running"}};
  Json target = Condition("DisruptionTarget", "True", "2026-01-01T00:00:00Z");
  for (const auto& [said, problem] : std::map<std::string, std::string>{
           {"EvictionByEvictionAPI", "Evicted"}, {"PreemptionByScheduler", "Preempted"}}) {
    target["reason"] = said;
    status["conditions"] = Json::array({target});
    Json pod = Pod("worker", status);
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
    pod["metadata"]["deletionGracePeriodSeconds"] = 30;
    EXPECT_EQ(ReadPod(pod)->exit.reason, problem);
    pod["status"].erase("conditions");
    EXPECT_EQ(ReadPod(pod)->exit.reason, "Deleted");
  }
}

TEST(PodStatusTest, ReadsASignalFromTheExitCode) {
  const auto pod = ReadPod(Pod("worker", Terminated("worker", {{"exitCode", 139}})));
  ASSERT_TRUE(pod.has_value());
  EXPECT_EQ(pod->replica, (policy::Replica{v1::WORKER, 3}));
  EXPECT_TRUE(pod->ended);
  EXPECT_EQ(pod->exit.signal, 11);
  EXPECT_EQ(policy::ReasonOf(pod->exit), "Killed");
}

// A kubelet reports the phase a second or two after the last container has ended.
TEST(PodStatusTest, APodWithoutRunningContainersHasEndedBeforeItsPhaseSaysSo) {
  const Json done = {{"terminated", {{"exitCode", 0}}}};
  const Json runs = {{"running", Json::object()}};
  struct Case {
    const char* what;
    Json sidecar;
    Json init;
    bool terminal;
    bool lingers;
  };
  const Case cases[] = {
      {"no other container", Json(), Json(), true, false},
      {"a sidecar that has ended", done, Json(), true, false},
      {"a sidecar that runs", runs, Json(), false, true},
      {"a sidecar that waits", {{"waiting", Json::object()}}, Json(), false, true},
      {"an init container that has ended", Json(), done, true, false},
      {"a restartable init container", Json(), runs, false, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Json status = Terminated("worker", {{"exitCode", 0}});
    status["phase"] = "Running";
    const auto add = [&](const char* list, const Json& state) {
      if (!state.is_null()) status[list].push_back({{"name", "other"}, {"state", state}});
    };
    add("containerStatuses", c.sidecar);
    add("initContainerStatuses", c.init);
    const auto pod = ReadPod(Pod("worker", status));
    EXPECT_TRUE(pod->ended);
    EXPECT_EQ(pod->terminal, c.terminal);
    EXPECT_EQ(pod->lingers, c.lingers);
  }
}

TEST(PodStatusTest, UsesTheLastErrorOfALogAsTheReason) {
  const auto pod = ReadPod(
      Pod("worker",
          Terminated(
              "worker",
              {{"exitCode", 1},
               {"message", "time=1 level=info msg=\"a\"\ntime=2 level=error msg=\"no data\"\n"}})));
  EXPECT_EQ(pod->exit.message, "no data");
}

TEST(PodStatusTest, UsesTheLastErrorOfAJsonLogAsTheReason) {
  const auto message = [](const char* log) {
    return ReadPod(Pod("worker", Terminated("worker", {{"exitCode", 1}, {"message", log}})))
        ->exit.message;
  };
  EXPECT_EQ(message("{\"time\":\"1\",\"level\":\"error\",\"msg\":\"no \\\"data\\\"\"}\n"
                    "{\"time\":\"2\",\"level\":\"info\",\"msg\":\"the end\"}\n"),
            "no \"data\"");
  EXPECT_EQ(message("{\"time\":\"1\",\"level\":\"info\",\"msg\":\"the end\"}\n"), "");
  EXPECT_EQ(message("{\"time\":\"1\",\"level\":\"err"), "");
}

TEST(PodStatusTest, ReadsACoordinatorsTerminationMessageAsProgress) {
  const auto pod = ReadPod(Pod(
      "coordinator",
      Terminated("coordinator",
                 {{"exitCode", 1}, {"message", R"({"phase":"FAILED","reason":"NaN","x":1})"}})));
  ASSERT_TRUE(pod->final_progress.has_value());
  EXPECT_EQ(pod->final_progress->phase(), v1::JobProgress::FAILED);
  EXPECT_EQ(pod->exit.message, "NaN");
}

TEST(PodStatusTest, NamesTheReasonWhyAPodDoesNotStart) {
  EXPECT_EQ(ReadPod(Pod("worker", Waiting("ErrImagePull")))->waiting.reason, "ImagePullFailed");
  EXPECT_EQ(ReadPod(Pod("worker", Waiting("CreateContainerConfigError")))->waiting.reason,
            "ContainerConfigError");
  EXPECT_TRUE(ReadPod(Pod("worker", Waiting("ContainerCreating")))->waiting.empty());
  EXPECT_TRUE(ReadPod(Pod("worker", Waiting("PodInitializing")))->waiting.empty());
  const Json pending = {
      {"phase", "Pending"},
      {"conditions", Json::array({Condition("PodScheduled", "False", "2026-01-01T00:00:01Z")})}};
  EXPECT_EQ(ReadPod(Pod("worker", pending))->waiting.reason, "Unschedulable");
}

TEST(PodStatusTest, GivesAdviceForAPodThatDoesNotStart) {
  EXPECT_THAT(ReadPod(Pod("worker", Waiting("ErrImagePull")))->waiting.message,
              HasSubstr("correct spec.image"));
  EXPECT_THAT(ReadPod(Pod("worker", Waiting("CreateContainerConfigError")))->waiting.message,
              HasSubstr("create what the template names"));
  Json unscheduled = Condition("PodScheduled", "False", "2026-01-01T00:00:01Z");
  const auto problem = [&](const char* message) {
    unscheduled["message"] = message;
    return ReadPod(
               Pod("worker", {{"phase", "Pending"}, {"conditions", Json::array({unscheduled})}}))
        ->waiting.message;
  };
  EXPECT_THAT(problem("0/3 nodes are available: 3 Insufficient cpu."), HasSubstr("request less"));
  EXPECT_THAT(problem("persistentvolumeclaim \"data\" not found"), HasSubstr("create the claim"));
  EXPECT_THAT(problem("pod has unbound immediate PersistentVolumeClaims"),
              HasSubstr("or a volume for it"));
}

// Bound to a node at 00:00:05.
Json Creating(const char* prepared) {
  Json status = Waiting("ContainerCreating");
  status["conditions"] =
      Json::array({Condition("PodScheduled", "True", "2026-01-01T00:00:05Z"),
                   Condition("PodReadyToStartContainers", prepared, "2026-01-01T00:00:06Z")});
  return status;
}
const absl::Time kSlow =
    absl::FromCivil(absl::CivilSecond(2026, 1, 1, 0, 1, 5), absl::UTCTimeZone());

TEST(PodStatusTest, NamesWhatTheVolumesOfASlowPodNeedAfterAMinute) {
  Json pod = Pod("worker", Creating("False"));
  pod["spec"]["volumes"] = Json::parse(R"([
      {"name": "a", "emptyDir": {}},
      {"name": "b", "secret": {"secretName": "token"}},
      {"name": "c", "configMap": {"name": "settings"}},
      {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
      {"name": "e", "hostPath": {"path": "/mnt/x"}},
      {"name": "f", "projected": {"sources": [{"secret": {"name": "inner"}},
                                              {"configMap": {"name": "more"}}]}}])");
  StripPod(&pod);
  const auto view = ReadPod(pod);
  EXPECT_TRUE(WaitingAt(*view, kSlow - absl::Seconds(1)).empty());
  const Problem problem = WaitingAt(*view, kSlow);
  EXPECT_EQ(problem.reason, "VolumeNotMounted");
  EXPECT_THAT(problem.message, HasSubstr("node n1"));
  EXPECT_THAT(problem.message,
              HasSubstr("(secret token, config map settings, claim data, directory of "
                        "the node /mnt/x, secret inner, config map more)"));
  EXPECT_THAT(problem.message, HasSubstr("`kubectl describe pod a-worker`"));
}

TEST(PodStatusTest, StripsVolumesOnceThePodIsPrepared) {
  for (const char* prepared : {"True", "Unknown"}) {
    Json pod = Pod("worker", Creating(prepared));
    pod["spec"]["volumes"] = Json::array({{{"name", "a"}, {"emptyDir", Json::object()}}});
    pod["spec"]["containers"] = Json::array({{{"name", "worker"}}});
    const Json status = pod["status"];
    StripPod(&pod);
    EXPECT_EQ(pod["status"], status);
    EXPECT_EQ(pod["spec"].contains("volumes"), prepared != std::string("True"));
    EXPECT_FALSE(pod["spec"].contains("containers"));
    EXPECT_EQ(ReadPod(pod)->node, "n1");
  }
  Json none = Json::object();
  StripPod(&none);
  EXPECT_TRUE(none.empty());
}

TEST(PodStatusTest, NamesTheNodeOfASlowPodWithoutVolumes) {
  EXPECT_EQ(WaitingAt(*ReadPod(Pod("worker", Creating("False"))), kSlow).reason, "SandboxNotReady");
}

TEST(PodStatusTest, ReportsNothingForASlowImagePull) {
  Json status = Creating("True");
  EXPECT_TRUE(WaitingAt(*ReadPod(Pod("worker", status)), absl::InfiniteFuture()).empty());
  status["conditions"].erase(1);
  EXPECT_TRUE(WaitingAt(*ReadPod(Pod("worker", status)), absl::InfiniteFuture()).empty())
      << "its kubelet has not seen it";
}

TEST(PodStatusTest, AStartedPodDoesNotWaitForVolumes) {
  Json status = Creating("False");
  status["containerStatuses"][0]["state"] = {{"running", {{"startedAt", "2026-01-01T00:01:00Z"}}}};
  EXPECT_TRUE(WaitingAt(*ReadPod(Pod("worker", status)), absl::InfiniteFuture()).empty());
}

// A container that waits, in a pod with others that wait for normal reasons.
Json WithWaiting(const char* list, const char* name, const char* reason) {
  Json status = Waiting("PodInitializing");
  Json& statuses = status[list];
  if (!statuses.is_array()) statuses = Json::array();
  statuses.push_back({{"name", "fine"}, {"state", {{"running", Json::object()}}}});
  statuses.push_back({{"name", name},
                      {"image", "y:2"},
                      {"state", {{"waiting", {{"reason", reason}, {"message", "m"}}}}}});
  return status;
}

TEST(PodStatusTest, ReportsOtherContainersOfThePod) {
  for (const char* list : {"initContainerStatuses", "containerStatuses"}) {
    const auto pull = ReadPod(Pod("worker", WithWaiting(list, "other", "ImagePullBackOff")));
    EXPECT_EQ(pull->waiting.reason, "ImagePullFailed") << list;
    EXPECT_THAT(pull->waiting.message, HasSubstr("container other: image y:2"));
    EXPECT_THAT(pull->waiting.message, HasSubstr("correct the image in the template of the role"));
    const auto config =
        ReadPod(Pod("worker", WithWaiting(list, "other", "CreateContainerConfigError")));
    EXPECT_EQ(config->waiting.reason, "ContainerConfigError") << list;
    EXPECT_THAT(config->waiting.message, HasSubstr("container other: "));
  }
}

TEST(PodStatusTest, ReportsABlockedContainerBesideARunningOne) {
  Json status = WithWaiting("containerStatuses", "sidecar", "ErrImagePull");
  status["containerStatuses"][0]["state"] = {{"running", {{"startedAt", "2026-01-01T00:01:00Z"}}}};
  const auto pod = ReadPod(Pod("worker", status));
  EXPECT_TRUE(pod->begun);
  EXPECT_EQ(pod->waiting.reason, "ImagePullFailed");
  EXPECT_THAT(pod->waiting.message, HasSubstr("then delete the pod"));
}

TEST(PodStatusTest, DistinguishesAGatedPodFromAnUnschedulableOne) {
  Json held = Condition("PodScheduled", "False", "2026-01-01T00:00:01Z");
  held["reason"] = "SchedulingGated";
  Json pod = Pod("worker", {{"phase", "Pending"}, {"conditions", Json::array({held})}});
  pod["spec"]["schedulingGates"] = Json::array({{{"name", "kueue.x-k8s.io/admission"}}});
  StripPod(&pod);
  const Problem problem = ReadPod(pod)->waiting;
  EXPECT_EQ(problem.reason, "SchedulingGated");
  EXPECT_THAT(problem.message, HasSubstr("(kueue.x-k8s.io/admission)"));
}

TEST(PodStatusTest, AReadyPodOnASilentNodeIsLost) {
  const Json status = {
      {"phase", "Running"},
      {"conditions", Json::array({Condition("Ready", "False", "2026-01-01T00:01:00Z"),
                                  Condition("ContainersReady", "True", "2026-01-01T00:00:05Z")})}};
  EXPECT_TRUE(ReadPod(Pod("worker", status))->node_lost);
}

TEST(PodStatusTest, AnEndedPodWasReadyIfReadyChangedAfterItsStart) {
  Json status = Terminated("worker", {{"exitCode", 137}, {"startedAt", "2026-01-01T00:00:02Z"}});
  status["conditions"] = Json::array({Condition("Ready", "False", "2026-01-01T00:00:01Z")});
  EXPECT_FALSE(ReadPod(Pod("worker", status))->was_ready);
  status["conditions"] = Json::array({Condition("Ready", "False", "2026-01-01T00:05:00Z")});
  EXPECT_TRUE(ReadPod(Pod("worker", status))->was_ready);
}

}  // namespace
}  // namespace sluice::reconciler

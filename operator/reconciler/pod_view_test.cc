#include "operator/reconciler/pod_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(PodViewTest, APodOfNoRoleIsNone) {
  EXPECT_FALSE(ReadPod(Pod("other", {})).has_value());
  EXPECT_FALSE(ReadPod(Json()).has_value());
  EXPECT_FALSE(ReadPod(Json::array({1})).has_value());
}

TEST(PodViewTest, ASignalIsReadFromTheExitCode) {
  const auto pod = ReadPod(Pod("worker", Terminated("worker", {{"exitCode", 139}})));
  ASSERT_TRUE(pod.has_value());
  EXPECT_EQ(pod->slot, (policy::Slot{v1::WORKER, 3}));
  EXPECT_TRUE(pod->ended);
  EXPECT_EQ(pod->exit.signal, 11);
  EXPECT_EQ(policy::ReasonOf(pod->exit), "Killed");
}

TEST(PodViewTest, TheLastWordsOfALogAreTheReason) {
  const auto pod = ReadPod(
      Pod("worker",
          Terminated(
              "worker",
              {{"exitCode", 1},
               {"message", "time=1 level=info msg=\"a\"\ntime=2 level=error msg=\"no data\"\n"}})));
  EXPECT_EQ(pod->exit.message, "no data");
}

TEST(PodViewTest, TheLastWordsOfALogInJsonAreTheReason) {
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

TEST(PodViewTest, ACoordinatorsLastWordIsItsProgress) {
  const auto pod = ReadPod(Pod(
      "coordinator",
      Terminated("coordinator",
                 {{"exitCode", 1}, {"message", R"({"phase":"FAILED","reason":"NaN","x":1})"}})));
  ASSERT_TRUE(pod->last_word.has_value());
  EXPECT_EQ(pod->last_word->phase(), v1::JobProgress::FAILED);
  EXPECT_EQ(pod->exit.message, "NaN");
}

TEST(PodViewTest, WhatKeepsAPodFromBeginningIsNamed) {
  EXPECT_EQ(ReadPod(Pod("worker", Waiting("ErrImagePull")))->waiting.reason, "ImagePullFailed");
  EXPECT_EQ(ReadPod(Pod("worker", Waiting("CreateContainerConfigError")))->waiting.reason,
            "ContainerConfigError");
  EXPECT_TRUE(ReadPod(Pod("worker", Waiting("ContainerCreating")))->waiting.empty());
  const Json pending = {
      {"phase", "Pending"},
      {"conditions", Json::array({Condition("PodScheduled", "False", "2026-01-01T00:00:01Z")})}};
  EXPECT_EQ(ReadPod(Pod("worker", pending))->waiting.reason, "Unschedulable");
}

TEST(PodViewTest, WhatKeepsAPodFromBeginningIsToldWithWhatCanBeDone) {
  EXPECT_THAT(ReadPod(Pod("worker", Waiting("ErrImagePull")))->waiting.message,
              HasSubstr("correct spec.image"));
  EXPECT_THAT(ReadPod(Pod("worker", Waiting("CreateContainerConfigError")))->waiting.message,
              HasSubstr("make what the template names"));
  Json unscheduled = Condition("PodScheduled", "False", "2026-01-01T00:00:01Z");
  const auto told = [&](const char* message) {
    unscheduled["message"] = message;
    return ReadPod(
               Pod("worker", {{"phase", "Pending"}, {"conditions", Json::array({unscheduled})}}))
        ->waiting.message;
  };
  EXPECT_THAT(told("0/3 nodes are available: 3 Insufficient cpu."), HasSubstr("ask for less"));
  EXPECT_THAT(told("persistentvolumeclaim \"data\" not found"), HasSubstr("make the claim"));
  EXPECT_THAT(told("pod has unbound immediate PersistentVolumeClaims"),
              HasSubstr("or a volume for it"));
}

TEST(PodViewTest, AReadyPodWhoseNodeFellSilentIsLost) {
  const Json status = {
      {"phase", "Running"},
      {"conditions", Json::array({Condition("Ready", "False", "2026-01-01T00:01:00Z"),
                                  Condition("ContainersReady", "True", "2026-01-01T00:00:05Z")})}};
  EXPECT_TRUE(ReadPod(Pod("worker", status))->node_lost);
}

TEST(PodViewTest, AnEndedPodWasReadyIfThatChangedAfterItsStart) {
  Json status = Terminated("worker", {{"exitCode", 137}, {"startedAt", "2026-01-01T00:00:02Z"}});
  status["conditions"] = Json::array({Condition("Ready", "False", "2026-01-01T00:00:01Z")});
  EXPECT_FALSE(ReadPod(Pod("worker", status))->was_ready);
  status["conditions"] = Json::array({Condition("Ready", "False", "2026-01-01T00:05:00Z")});
  EXPECT_TRUE(ReadPod(Pod("worker", status))->was_ready);
}

}  // namespace
}  // namespace sluice::reconciler

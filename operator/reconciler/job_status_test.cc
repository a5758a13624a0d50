#include "operator/reconciler/job_status.h"

#include <gtest/gtest.h>

namespace sluice::reconciler {
namespace {

using kube::Json;

const absl::Time kNow = absl::FromUnixMicros(1700000000123456);

TEST(JobStatusTest, ReadsTheRecoveryStateAsItWasWritten) {
  Recovery recovery;
  recovery.shards = 3;
  recovery.sized_workers = 5;
  recovery.progress_instance = "uid";
  recovery.memory.active_since = kNow;
  recovery.memory.suspending_since = kNow + absl::Seconds(1);
  recovery.memory.restorations = 2;
  recovery.memory.worker_deaths = {kNow, kNow + absl::Seconds(9)};
  policy::Memory::ReplicaMemory& replica = recovery.memory.replicas[{v1::WORKER, 4}];
  replica.handled_instance = "a";
  replica.replaced_instance = "b";
  replica.failures_in_row = 3;
  replica.failed_starts = 2;
  replica.start_after = kNow + absl::Seconds(4);
  const Json written = WriteRecovery(recovery);
  EXPECT_EQ(WriteRecovery(ReadRecovery({{"recovery", written}}))["processes"],
            written["processes"]);
  const Recovery read = ReadRecovery({{"recovery", written}});
  EXPECT_EQ(read.shards, 3u);
  EXPECT_EQ(read.sized_workers, 5u);
  EXPECT_EQ(read.progress_instance, "uid");
  EXPECT_EQ(read.memory.active_since, kNow);
  EXPECT_EQ(read.memory.suspending_since, kNow + absl::Seconds(1));
  EXPECT_EQ(read.memory.restorations, 2u);
  EXPECT_EQ(read.memory.worker_deaths.size(), 2u);
  EXPECT_EQ(read.memory.replicas.at({v1::WORKER, 4}).start_after, kNow + absl::Seconds(4));
}

TEST(JobStatusTest, KeepsTheOutcomeAndThenNothingAboutProcesses) {
  Recovery recovery;
  recovery.memory.outcome = policy::Outcome{
      policy::OutcomeKind::kFailed, "Code", "why", std::nullopt, kNow, absl::Seconds(7)};
  recovery.memory.replicas[{v1::WORKER, 4}].handled_instance = "a";
  const Recovery read = ReadRecovery({{"recovery", WriteRecovery(recovery)}});
  ASSERT_TRUE(read.memory.outcome.has_value());
  EXPECT_EQ(read.memory.outcome->kind, policy::OutcomeKind::kFailed);
  EXPECT_EQ(read.memory.outcome->reason, "why");
  EXPECT_EQ(read.memory.outcome->leave_grace, absl::Seconds(7));
  EXPECT_TRUE(read.memory.replicas.empty());
}

TEST(JobStatusTest, ReadsInvalidStateAsEmpty) {
  for (const char* text : {"null", "[]", "{\"recovery\":7}",
                           "{\"recovery\":{\"shards\":-3,\"processes\":[1],\"outcome\":\"x\"}}",
                           "{\"recovery\":{\"processes\":{\"worker-x\":{},\"ps-\":3}}}"}) {
    const Recovery read = ReadRecovery(Json::parse(text));
    EXPECT_EQ(read.shards, 0u) << text;
    EXPECT_FALSE(read.memory.outcome.has_value()) << text;
    EXPECT_TRUE(read.memory.replicas.empty()) << text;
  }
}

TEST(JobStatusTest, AConditionKeepsItsTimeUntilItsStatusChanges) {
  Json status = Json::object();
  EXPECT_TRUE(SetCondition("Ready", {false, "Starting", "", 1}, kNow, &status));
  EXPECT_TRUE(SetCondition("Ready", {false, "Other", "", 2}, kNow + absl::Hours(1), &status));
  EXPECT_FALSE(SetCondition("Ready", {false, "Other", "m", 2}, kNow + absl::Hours(2), &status));
  EXPECT_EQ(status["conditions"].size(), 1u);
  EXPECT_EQ(status["conditions"][0]["lastTransitionTime"], kube::EncodeTime(kNow));
  EXPECT_TRUE(SetCondition("Ready", {true, "Ready", "", 2}, kNow + absl::Hours(3), &status));
  EXPECT_TRUE(HasCondition(status, "Ready"));
  EXPECT_EQ(status["conditions"][0]["lastTransitionTime"], kube::EncodeTime(kNow + absl::Hours(3)));
}

TEST(JobStatusTest, TrainingProgressIsNotATransition) {
  const Json before = {{"training", {{"step", 1}}}, {"attempt", 1}};
  EXPECT_EQ(CompareStatus(before, before), StatusChange::kProgress);
  EXPECT_EQ(CompareStatus(before, {{"training", {{"step", 2}}},
                                   {"checkpoint", {{"step", 2}, {"location", "x"}}},
                                   {"attempt", 1}}),
            StatusChange::kProgress);
  EXPECT_EQ(CompareStatus(before, {{"training", {{"step", 1}}}, {"attempt", 2}}),
            StatusChange::kTransition);
  EXPECT_EQ(CompareStatus(before, {{"attempt", 1}, {"checkpoint", {{"restoredFromStep", 2}}}}),
            StatusChange::kTransition);
}

TEST(JobStatusTest, AnotherReadyPodIsATransitionOnlyIfAConditionChanges) {
  const auto status = [](int ready, const char* condition, const char* message) {
    return Json{{"worker", {{"readyReplicas", ready}}},
                {"parameterServer", {{"replicas", 2}}},
                {"conditions",
                 Json::array({{{"type", "Ready"}, {"status", condition}, {"message", message}}})}};
  };
  const Json before = status(1, "False", "not ready: worker-1, worker-2");
  EXPECT_EQ(CompareStatus(before, status(2, "False", "not ready: worker-2")),
            StatusChange::kCounts);
  EXPECT_EQ(CompareStatus(before, status(3, "True", "")), StatusChange::kTransition);
  EXPECT_EQ(CompareStatus(before, before), StatusChange::kProgress);
}

TEST(JobStatusTest, ChangesWithEachStartingPodAreNotTransitions) {
  const Json before = {{"summary", "Starting"}, {"attempt", 1}};
  for (const char* name : {"coordinator", "images", "view"}) {
    Json after = before;
    after[name] = "x";
    EXPECT_EQ(CompareStatus(before, after), StatusChange::kCounts) << name;
  }
  Json restored = before;
  restored["attempt"] = 2;
  EXPECT_EQ(CompareStatus(before, restored), StatusChange::kTransition);
}

}  // namespace
}  // namespace sluice::reconciler

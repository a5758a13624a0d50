// Each cause that fails or degrades a job is reported by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "operator/testing/operator_fixture.h"

namespace sluice {
namespace {

using kube::GetString;
using kube::Json;
using ::testing::Contains;
using ::testing::HasSubstr;
using Progress = v1::JobProgress;

class OperatorCausesTest : public OperatorFixture {
 protected:
  std::string Message(const std::string& type) { return cluster_.ConditionMessage("a", type); }
};

// ---- Failed

struct End {
  std::string test;
  int exit_code;
  friend void PrintTo(const End& end, std::ostream* to) { *to << end.test; }
};

class HopelessEndTest : public OperatorCausesTest, public ::testing::WithParamInterface<End> {};

TEST_P(HopelessEndTest, FailsTheJobAtOnce) {
  Train();
  cluster_.EndPod("a-worker-1", GetParam().exit_code, "Error", "sluice-worker: --shards: no\n");
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/ProcessFailed");
  EXPECT_EQ(Message("Failed"),
            absl::StrCat("worker-1 ended with exit code ", GetParam().exit_code, ": --shards: no"));
  EXPECT_THAT(cluster_.EventReasons(), Contains("ProcessFailed"));
  cluster_.Pass(absl::Minutes(5));
  EXPECT_THAT(cluster_.PodNames(), ::testing::ElementsAre("a-worker-1")) << "nothing is restarted";
}

INSTANTIATE_TEST_SUITE_P(Codes, HopelessEndTest,
                         ::testing::Values(End{"BadArguments", 2}, End{"NotExecutable", 126},
                                           End{"NotFound", 127}),
                         [](const auto& info) { return info.param.test; });

TEST_F(OperatorCausesTest, HundredsOfWorkerDeathsFailTheJob) {
  constexpr int kWorkers = 51;
  Train({{"spec", {{"worker", {{"replicas", kWorkers}}}}}});
  int deaths = 0;
  while (deaths < 200) {
    cluster_.clock.Advance(absl::Seconds(60));
    ASSERT_TRUE(cluster_.Settle());
    for (int i = 0; i < 50; ++i, ++deaths) cluster_.EndPod(absl::StrCat("a-worker-", i), 1);
    ASSERT_TRUE(cluster_.Settle());
    ASSERT_EQ(cluster_.Condition("a", "Failed"), "False/NotFailed") << deaths;
  }
  cluster_.EndPod("a-worker-50", 1);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Failed"), "True/TooManyWorkerFailures");
  EXPECT_THAT(cluster_.EventReasons(), Contains("TooManyWorkerFailures"));
}

// ---- Degraded

TEST_F(OperatorCausesTest, ReportsFailedCheckpointsUntilOneIsWritten) {
  Train();
  cluster_.Say("a", Progress::TRAINING, 20, [](Progress* progress) {
    progress->mutable_checkpoint()->set_error("/checkpoints: No space left on device");
  });
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/CheckpointFailed");
  EXPECT_EQ(Message("Degraded"), "/checkpoints: No space left on device");
  EXPECT_THAT(cluster_.EventReasons(), Contains("CheckpointFailed"));
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
  cluster_.Say("a", Progress::TRAINING, 30);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

TEST_F(OperatorCausesTest, ReportsAProcessThatIsNotBackYetAsMissing) {
  Train();
  cluster_.kubelets = false;
  cluster_.DeletePod("a-worker-1");
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/ProcessesMissing");
  EXPECT_EQ(Message("Degraded"), "not ready: worker-1");
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "False/NotAllReady");
  cluster_.kubelets = true;
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

// ---- events

TEST_F(OperatorCausesTest, ExitsOfDifferentCausesAreSeparateEvents) {
  Train();
  cluster_.EndPod("a-worker-0", 137, "OOMKilled");
  ASSERT_TRUE(cluster_.Settle());
  cluster_.EndPod("a-worker-1", 1);
  ASSERT_TRUE(cluster_.Settle());
  std::map<std::string, Json> events;
  for (const Json& event : cluster_.Events()) events[GetString(event, {"reason"})] = event;
  ASSERT_TRUE(events.count("OOMKilled") == 1 && events.count("Error") == 1);
  EXPECT_EQ(GetString(events["OOMKilled"], {"action"}), "ReplaceWorker");
  EXPECT_THAT(GetString(events["OOMKilled"], {"note"}), HasSubstr("a-worker-0: "));
  EXPECT_THAT(GetString(events["OOMKilled"], {"note"}), HasSubstr("resources.limits.memory"));
  EXPECT_EQ(GetString(events["Error"], {"note"}), "a-worker-1: exit code 1");
}

TEST_F(OperatorCausesTest, ExternalDeletionIsNotAWarning) {
  Train();
  cluster_.DeletePod("a-ps-0");
  ASSERT_TRUE(cluster_.Settle());
  for (const Json& event : cluster_.Events()) {
    if (GetString(event, {"action"}) != "ReplaceShard") continue;
    EXPECT_EQ(GetString(event, {"reason"}), "Deleted");
    EXPECT_EQ(GetString(event, {"type"}), "Normal");
    EXPECT_EQ(GetString(event, {"note"}), "a-ps-0: the pod is being deleted");
    return;
  }
  FAIL() << "there is no event about the shard";
}

}  // namespace
}  // namespace sluice

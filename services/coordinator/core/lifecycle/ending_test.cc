#include "services/coordinator/core/lifecycle/ending.h"

#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.incarnation = 77;
  options.job.mutable_worker()->set_replicas(1);
  return options;
}

class EndingTest : public ::testing::Test {
 protected:
  EndingTest() { facts_.phase = Phase::kRunning; }

  CoordinatorRules rules_;
  Facts facts_{Options(), &rules_, kStart};
  Output output_{facts_};
  Ending ending_{facts_, &facts_.attempt.goal, &output_};
};

TEST_F(EndingTest, TrainingContinuesWithoutAReasonToEnd) {
  ending_.ChooseGoal({}, kStart);
  EXPECT_EQ(facts_.attempt.goal, Goal::kNone);
  EXPECT_EQ(ending_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(EndingTest, ASuspensionWaitsForItsCheckpointForATime) {
  facts_.suspend = true;
  ending_.ChooseGoal({}, kStart);
  ASSERT_EQ(facts_.attempt.goal, Goal::kSuspend);
  const absl::Time deadline = kStart + facts_.timers.suspend_checkpoint;
  EXPECT_EQ(ending_.NextDeadline(), deadline);

  EXPECT_EQ(ending_.Next(/*saved=*/false, kStart), Ending::Step::kWait);
  EXPECT_EQ(ending_.Next(/*saved=*/true, kStart), Ending::Step::kLeaveSuspended);
  EXPECT_EQ(ending_.SuspendedMessage(kStart), "suspended");
  EXPECT_EQ(ending_.Next(/*saved=*/false, deadline), Ending::Step::kLeaveSuspended);
  EXPECT_NE(ending_.SuspendedMessage(deadline), "suspended");
}

TEST_F(EndingTest, AReachedTargetStaysTheGoal) {
  Ending::Findings findings;
  findings.target_reached = true;
  ending_.ChooseGoal(findings, kStart);
  ASSERT_EQ(facts_.attempt.goal, Goal::kTarget);

  facts_.suspend = true;
  ending_.ChooseGoal(findings, kStart);
  EXPECT_EQ(facts_.attempt.goal, Goal::kTarget);
  EXPECT_EQ(ending_.Next(/*saved=*/true, kStart), Ending::Step::kRecordEnd);
}

TEST_F(EndingTest, ASuspensionReplacesAGoalThatWaitsForTheStorage) {
  Ending::Findings findings;
  findings.target_reached = true;
  ending_.ChooseGoal(findings, kStart);

  facts_.suspend = true;
  findings.waits_for_storage = true;
  ending_.ChooseGoal(findings, kStart);
  EXPECT_EQ(facts_.attempt.goal, Goal::kSuspend);
}

TEST_F(EndingTest, TheNextAttemptHasNoGoal) {
  facts_.suspend = true;
  ending_.ChooseGoal({}, kStart);
  ASSERT_EQ(facts_.attempt.goal, Goal::kSuspend);
  facts_.LeaveAttempt();
  const Ending next(facts_, &facts_.attempt.goal, &output_);
  EXPECT_EQ(facts_.attempt.goal, Goal::kNone);
  EXPECT_EQ(next.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(EndingTest, AJobThatSucceedsLingersForWantedWorkers) {
  facts_.phase = Phase::kLeavingWorkers;
  ending_.BeginLeaving(ExitReason::kSucceeded, "done", "", {"worker-3"}, kStart);
  EXPECT_EQ(ending_.message(), "done; refused for another model or other data: worker-3");
  EXPECT_FALSE(ending_.HaveLeft(kStart));
  EXPECT_EQ(ending_.NextDeadline(), kStart + facts_.timers.suspect);
  EXPECT_TRUE(ending_.HaveLeft(kStart + facts_.timers.suspect));
}

TEST_F(EndingTest, ASupersededCoordinatorExitsAtOnce) {
  ending_.Supersede(ExitReason::kSuperseded, "another one has taken over");
  const std::vector<Action> actions = output_.TakeActions();
  ASSERT_EQ(actions.size(), 1);
  EXPECT_EQ(std::get<Exit>(actions[0]).reason, ExitReason::kSuperseded);
}

}  // namespace
}  // namespace sluice::coordinator

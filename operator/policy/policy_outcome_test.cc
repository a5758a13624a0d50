// How and when a job ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "operator/policy/policy.h"
#include "operator/policy/testing/policy_world.h"
#include "services/common/exit_code.h"

namespace sluice::policy {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(PolicyTest, SuccessWaitsForProcessesToLeave) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  EXPECT_FALSE(world.Step().finish.has_value());
  EXPECT_THAT(world.stopped, IsEmpty());
  world.EndAll();
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.finish.has_value());
  EXPECT_EQ(decision.finish->kind, OutcomeKind::kSucceeded);
  EXPECT_THAT(world.started, IsEmpty());
}

TEST(PolicyTest, StopsThenKillsAProcessThatDoesNotLeaveAtTheEnd) {
  World world;
  world.StartAll();
  world.End(kWorker0, kExitOk);
  world.End(kWorker1, kExitOk);
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  Decision decision = world.Step();
  world.now = decision.decide_again;
  decision = world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("stop coordinator", "stop ps-0", "stop ps-1"));
  world.End(kCoordinator, kExitOk);
  world.End(kShard0, kExitOk);
  world.now = decision.decide_again;
  world.stopped.clear();
  decision = world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("kill ps-1"));
  world.EndAll();
  EXPECT_TRUE(world.Step().finish.has_value());
}

TEST(PolicyTest, StopsAProcessThatWasNeverAMemberWhenTheCoordinatorEnds) {
  for (const auto phase : {v1::JobProgress::FAILED, v1::JobProgress::SUSPENDED}) {
    World world;
    world.StartAll();
    world.observed.processes.at(kWorker0).ready = true;
    world.End(kShard0, kExitOk);
    world.End(kShard1, kExitOk);
    world.plan.suspend = phase == v1::JobProgress::SUSPENDED;
    world.observed.phase = phase;
    world.Step();
    EXPECT_THAT(world.stopped, IsEmpty());
    world.now += absl::Seconds(2);
    world.End(kCoordinator, kExitOk);
    Decision decision = world.Step();
    EXPECT_THAT(world.stopped, ElementsAre("stop worker-1"));
    EXPECT_FALSE(decision.finish.has_value());
    // It does not react to the signal.
    world.stopped.clear();
    world.End(kWorker0, kExitOk);
    world.now = world.Step().decide_again;
    world.Step();
    EXPECT_THAT(world.stopped, ElementsAre("kill worker-1"));
  }
}

TEST(PolicyTest, ProcessesMayFinishTheirWorkAfterSuccess) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  world.End(kCoordinator, kExitOk);
  const Decision decision = world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
  EXPECT_EQ(decision.decide_again, world.now + world.limits.leave_grace);
}

TEST(PolicyTest, ProgramsThatWereMembersRunOnAfterSuccessUntilTheUserStopsThem) {
  World world;
  world.plan.programs_finish = true;
  world.StartAll();
  world.observed.processes[kWorker0].ready = true;
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  world.End(kCoordinator, kExitOk);
  world.Step();
  world.now += world.limits.leave_grace;
  world.Step();
  EXPECT_THAT(world.stopped, Not(Contains("stop worker-0")));
  EXPECT_THAT(world.stopped, Contains("stop worker-1")) << "it was no member";
  world.now += absl::Hours(5);
  EXPECT_FALSE(world.Step().finish.has_value());
  EXPECT_THAT(world.stopped, Not(Contains("stop worker-0")));
  world.plan.suspend = true;
  world.Step();
  EXPECT_THAT(world.stopped, Contains("stop worker-0"));
}

TEST(PolicyTest, AnOrderlyCoordinatorExitEndsTheJobWithoutAFinalReport) {
  for (const bool suspend : {false, true}) {
    World world;
    world.StartAll();
    world.plan.suspend = suspend;
    world.EndAll();
    const Decision decision = world.Step();
    ASSERT_TRUE(decision.finish.has_value());
    EXPECT_EQ(decision.finish->kind, suspend ? OutcomeKind::kSuspended : OutcomeKind::kSucceeded);
  }
}

TEST(PolicyTest, StartsNothingAfterTheEnd) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  world.Step();
  world.End(kShard0, 0, SIGKILL);
  world.End(kWorker0, kExitExpelled);
  world.End(kCoordinator, kExitRetry);
  world.now += absl::Hours(1);
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, IsEmpty());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kSucceeded);
}

TEST(PolicyTest, TheCoordinatorsReasonIsTheJobsReason) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::FAILED;
  world.observed.phase_reason = "the loss is not a number at step 7";
  world.End(kCoordinator, kExitFailed);
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->reason, "the loss is not a number at step 7");
}

TEST(PolicyTest, SuspensionGoesToTheCoordinatorAndStartsNothing) {
  World world;
  world.StartAll();
  world.plan.suspend = true;
  world.End(kWorker0, 0, SIGKILL);
  Decision decision = world.Step();
  EXPECT_TRUE(decision.desired_suspend);
  EXPECT_THAT(world.started, IsEmpty());
  EXPECT_THAT(world.stopped, IsEmpty());
  world.observed.phase = v1::JobProgress::SUSPENDED;
  world.EndAll();
  decision = world.Step();
  ASSERT_TRUE(decision.finish.has_value());
  EXPECT_EQ(decision.finish->kind, OutcomeKind::kSuspended);
  EXPECT_EQ(decision.finish->reason, "");
}

TEST(PolicyTest, ASlowSuspensionStopsTheProcessesAndIsReported) {
  World world;
  world.StartAll();
  world.plan.suspend = true;
  world.plan.suspend_timeout = absl::Seconds(20);
  Decision decision = world.Step();
  EXPECT_EQ(decision.decide_again, world.now + absl::Seconds(20));
  world.now = decision.decide_again;
  decision = world.Step();
  EXPECT_THAT(world.stopped, Contains("stop worker-0"));
  EXPECT_THAT(decision.memory.outcome->reason, HasSubstr("20s"));
}

TEST(PolicyTest, SuspensionWithoutACoordinatorDoesNotWait) {
  World world;
  world.plan.suspend = true;
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, IsEmpty());
  ASSERT_TRUE(decision.finish.has_value());
  EXPECT_EQ(decision.finish->kind, OutcomeKind::kSuspended);
}

TEST(PolicyTest, SuspensionOfTrainedStepsWaitsForACoordinator) {
  World world;
  world.StartAll();
  for (auto& [replica, process] : world.observed.processes) process.ready = true;
  world.Step();
  world.plan.suspend = true;
  world.plan.suspend_timeout = absl::Seconds(20);
  world.End(kCoordinator, 0, SIGKILL);
  world.End(kWorker0, 0, SIGKILL);
  Decision decision = world.Step();
  EXPECT_FALSE(decision.memory.outcome.has_value());
  EXPECT_THAT(world.started, ElementsAre("coordinator")) << "no worker";
  EXPECT_TRUE(world.Step().desired_suspend);

  // It may die again, and is started after a delay.
  world.End(kCoordinator, 0, SIGKILL);
  decision = world.Step();
  EXPECT_FALSE(decision.memory.outcome.has_value());
  EXPECT_THAT(world.started, SizeIs(1));
  EXPECT_EQ(decision.decide_again, world.now + world.limits.first_delay);
  world.now += absl::Seconds(20);
  decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->reason, "there was no coordinator to write a checkpoint");
}

TEST(PolicyTest, AChangeOfSizeDoesNotWaitForACoordinatorThatCannotStart) {
  World world;
  world.StartAll();
  for (auto& [replica, process] : world.observed.processes) process.ready = true;
  world.Step();
  world.plan.suspend = true;
  world.plan.suspend_timeout = absl::InfiniteDuration();
  world.plan.start_timeout = absl::Seconds(60);
  world.End(kCoordinator, 0, SIGKILL);
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  world.End(kCoordinator, 0, SIGKILL);
  world.now += world.plan.start_timeout;
  EXPECT_TRUE(world.Step().memory.outcome.has_value());
}

TEST(PolicyTest, SuspensionNeedsNoCoordinatorIfNoShardIsLeft) {
  World world;
  world.StartAll();
  for (auto& [replica, process] : world.observed.processes) process.ready = true;
  world.Step();
  world.plan.suspend = true;
  world.EndAll();
  for (auto& [replica, process] : world.observed.processes) process.exit.signal = SIGKILL;
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, IsEmpty());
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kSuspended);
}

TEST(PolicyTest, TheActiveDeadlineFailsTheJob) {
  World world;
  world.plan.active_deadline = absl::Seconds(100);
  world.StartAll();
  Decision decision = world.Step();
  EXPECT_EQ(decision.decide_again, absl::UnixEpoch() + absl::Seconds(100));
  world.now = decision.decide_again;
  decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kFailed);
  EXPECT_THAT(decision.memory.outcome->reason, HasSubstr("activeDeadlineSeconds"));
}

TEST(PolicyTest, OnlyTheCoordinatorsReportFailsTheJobWithPatience) {
  World world;
  world.limits.patient = true;
  world.StartAll();
  world.End(kCoordinator, kExitFailed, 0, "the storage is gone");
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  world.observed.phase = v1::JobProgress::FAILED;
  world.observed.phase_reason = "NaN";
  world.End(kCoordinator, kExitFailed);
  EXPECT_EQ(world.Step().memory.outcome->code, "TrainingFailed");
}

TEST(PolicyTest, AJobContinuesAfterASuspensionThatOnlyItsCoordinatorWasAskedFor) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::SUSPENDED;
  world.End(kCoordinator, kExitOk);
  const Decision decision = world.Step();
  EXPECT_FALSE(decision.memory.outcome.has_value());
  EXPECT_THAT(world.started, ElementsAre("coordinator"));
}

TEST(PolicyTest, SuspensionDoesNotWaitForACoordinatorThatHasNotStarted) {
  World world;
  world.StartAll();
  world.observed.processes.at(kCoordinator).begun = false;
  world.plan.suspend = true;
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kSuspended);
}

TEST(PolicyTest, TheProgressDeadlineFailsTheJob) {
  World world;
  world.plan.progress_deadline = absl::Seconds(100);
  world.StartAll();
  world.now += absl::Seconds(60);
  world.observed.last_step_at = world.now;
  EXPECT_EQ(world.Step().decide_again, world.now + absl::Seconds(100));
  world.now += absl::Seconds(99);
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  world.now += absl::Seconds(1);

  World suspending = world;
  suspending.plan.suspend = true;
  EXPECT_FALSE(suspending.Step().memory.outcome.has_value());

  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->code, "ProgressDeadlineExceeded");
  EXPECT_EQ(decision.memory.outcome->reason,
            "the job completed no step for 1m40s (progressDeadlineSeconds)");
}

TEST(PolicyTest, TheProgressDeadlineCountsFromTheStartBeforeTheFirstStep) {
  World world;
  world.plan.progress_deadline = absl::Seconds(100);
  world.StartAll();
  EXPECT_EQ(world.Step().decide_again, world.now + absl::Seconds(100));
}

TEST(PolicyTest, AResumedJobRemembersItsRestorationsAndWhichRolesHaveWorked) {
  World world;
  world.StartAll();
  world.observed.processes.at(kShard0).ready = true;
  world.End(kShard0, 0, SIGKILL);
  world.Step();
  world.plan.suspend = true;
  world.observed.phase = v1::JobProgress::SUSPENDED;
  const Memory suspended = world.Step().memory;
  ASSERT_TRUE(suspended.outcome.has_value());
  const Memory resumed = Resumed(suspended);
  EXPECT_FALSE(resumed.outcome.has_value());
  EXPECT_EQ(resumed.active_since, absl::InfiniteFuture());
  EXPECT_EQ(resumed.suspending_since, absl::InfiniteFuture());
  EXPECT_TRUE(resumed.replicas.empty());
  EXPECT_EQ(resumed.restorations, 1u);
  EXPECT_THAT(resumed.worked, ElementsAre(v1::SHARD));
}

}  // namespace
}  // namespace sluice::policy

// Frozen processes, and the timeouts by which they are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "operator/policy/policy.h"
#include "operator/policy/testing/policy_world.h"

namespace sluice::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PolicyTest, TimersHaveDefaultsAndCustomProgramsMayStartMoreSlowly) {
  v1::JobSpec job;
  JobPlan plan = PlanOf(job);
  EXPECT_EQ(plan.heartbeat_timeout, absl::Seconds(7));
  EXPECT_EQ(plan.start_timeout, absl::Seconds(60));
  EXPECT_EQ(plan.worker_start_timeout, absl::Seconds(60));
  job.mutable_worker()->add_command("train");
  plan = PlanOf(job);
  EXPECT_EQ(plan.start_timeout, absl::Seconds(60));
  EXPECT_EQ(plan.worker_start_timeout, absl::Minutes(10));
  job.mutable_timeouts()->set_start(7);
  job.mutable_timeouts()->set_heartbeat_timeout(1);
  plan = PlanOf(job);
  EXPECT_EQ(plan.start_timeout, absl::Seconds(7));
  EXPECT_EQ(plan.worker_start_timeout, absl::Seconds(7));
  EXPECT_EQ(plan.heartbeat_timeout, absl::Seconds(3));
}

TEST(PolicyTest, KillsASilentCoordinatorAndCountsItsReplacement) {
  World world = WatchedWorld();
  world.StartAll();
  world.Answer(kEverybody);
  EXPECT_EQ(world.Step().decide_again, world.now + world.plan.heartbeat_timeout);
  world.now += world.plan.heartbeat_timeout - absl::Milliseconds(1);
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
  world.now += absl::Milliseconds(1);
  world.Step();
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("kill coordinator"));
  world.observed.processes.at(kCoordinator).ready = true;
  world.End(kCoordinator, 0, SIGKILL);
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, ElementsAre("coordinator"));
  EXPECT_EQ(decision.memory.restorations, 1u);
}

TEST(PolicyTest, KillsACoordinatorThatDoesNotAnswerWithinTheStartTimeout) {
  World world = WatchedWorld();
  world.Step();
  world.now += world.plan.heartbeat_timeout + absl::Seconds(1);
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty()) << "it may still start";
  world.now += world.plan.start_timeout;
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("kill coordinator"));
}

TEST(PolicyTest, DoesNotKillASilentCoordinatorThatProbesWatch) {
  World world = WatchedWorld();
  world.plan.watch_coordinator = false;
  world.StartAll();
  world.Answer(kEverybody);
  world.now += absl::Hours(1);
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
}

TEST(PolicyTest, KillsAndRestartsAProcessThatDoesNotRegister) {
  for (const Replica& replica : {kWorker1, kShard0}) {
    World world = WatchedWorld();
    world.StartAll();
    std::vector<Replica> others = kEverybody;
    others.erase(std::find(others.begin(), others.end(), replica));
    const absl::Time start = world.now;
    for (; world.now < start + world.plan.start_timeout; world.now += absl::Seconds(1)) {
      world.Answer(others);
      world.Step();
    }
    EXPECT_THAT(world.stopped, IsEmpty());
    world.Answer(others);
    world.Step();
    world.Step();
    EXPECT_THAT(world.stopped, ElementsAre("kill " + ReplicaName(replica)));
    world.End(replica, 0, SIGKILL);
    const Decision decision = world.Step();
    EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
    EXPECT_EQ(decision.memory.replicas.at(replica).failed_starts, 1);
  }
}

TEST(PolicyTest, AProcessThatNeverRegistersFailsTheJobWithAReason) {
  World world = WatchedWorld();
  world.plan.start_timeout = world.plan.worker_start_timeout = absl::Minutes(2);
  world.StartAll();
  std::optional<Outcome> outcome;
  for (int i = 0; i < 100 && !outcome.has_value(); ++i) {
    world.Answer({kShard0, kShard1, kWorker0});
    outcome = world.Step().memory.outcome;
    if (outcome.has_value()) break;
    for (const std::string& stopped : std::exchange(world.stopped, {})) {
      ASSERT_EQ(stopped, "kill worker-1");
      world.End(kWorker1, 0, SIGKILL);
    }
    world.now += absl::Seconds(30);
  }
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->code, "NeverReady");
  EXPECT_THAT(outcome->reason, HasSubstr("did not register within 2m"));
}

TEST(PolicyTest, KillsAProcessUnknownToANewCoordinatorWithoutCountingIt) {
  for (const Replica& replica : {kWorker1, kShard0}) {
    World world = WatchedWorld();
    world.plan.backoff_limit = 0;
    world.StartAll();
    world.Answer(kEverybody);
    world.Step();
    std::vector<Replica> others = kEverybody;
    others.erase(std::find(others.begin(), others.end(), replica));
    // Another instance of the coordinator: until it has answered, no process is missing.
    world.Start(kCoordinator);
    world.started.clear();
    world.observed.last_progress_at = absl::InfinitePast();
    for (auto& [other, process] : world.observed.processes) {
      process.registration = Registration::kUnknown;
    }
    world.now += absl::Seconds(10);
    world.Step();
    EXPECT_THAT(world.stopped, IsEmpty());
    world.Answer(others);
    world.Step();
    world.now += world.plan.heartbeat_timeout - absl::Milliseconds(1);
    world.Answer(others);
    world.Step();
    EXPECT_THAT(world.stopped, IsEmpty());
    world.now += absl::Milliseconds(1);
    world.Step();
    EXPECT_THAT(world.stopped, IsEmpty()) << "the coordinator has to say so";
    world.Answer(others);
    world.Step();
    EXPECT_THAT(world.stopped, ElementsAre("kill " + ReplicaName(replica)));
    world.End(replica, 0, SIGKILL);
    const Decision decision = world.Step();
    EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
    EXPECT_FALSE(decision.memory.outcome.has_value());
    EXPECT_EQ(decision.memory.restorations, 0u);
  }
}

TEST(PolicyTest, ANewCoordinatorThatIsCutOffFromAllProcessesKillsNone) {
  for (int tenths = 0; tenths <= 30; ++tenths) {
    SCOPED_TRACE(tenths);
    World world = WatchedWorld();
    world.StartAll();
    world.Answer(kEverybody);
    world.Step();
    world.Start(kCoordinator);
    const absl::Time healed = world.now + world.plan.heartbeat_timeout * tenths / 10;
    while (world.now < healed) {
      world.Answer({});
      world.Step();
      world.now += absl::Milliseconds(500);
    }
    // The processes return one after the other.
    for (size_t registered = 1; registered <= kEverybody.size(); ++registered) {
      world.Answer({kEverybody.begin(), kEverybody.begin() + static_cast<ptrdiff_t>(registered)});
      world.Step();
      world.now += absl::Milliseconds(500);
    }
    EXPECT_THAT(world.stopped, IsEmpty());
  }
}

TEST(PolicyTest, KillsProcessesOfWhichNoneReturnsToANewCoordinator) {
  World world = WatchedWorld();
  world.StartAll();
  world.Answer(kEverybody);
  world.Step();
  world.Start(kCoordinator);
  world.now += absl::Seconds(1);
  world.Answer({});
  world.Step();
  world.now += 5 * world.plan.heartbeat_timeout - absl::Milliseconds(1);
  world.Answer({});
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
  world.now += absl::Milliseconds(1);
  world.Answer({});
  world.Step();
  EXPECT_EQ(world.stopped.size(), kEverybody.size());
}

TEST(PolicyTest, KeepsAProcessThatReturnsToTheCoordinatorInTime) {
  World world = WatchedWorld();
  world.StartAll();
  world.Answer(kEverybody);
  world.Step();
  for (int i = 0; i < 10; ++i) {
    world.Answer(i % 2 == 0 ? std::vector<Replica>{kShard0} : kEverybody);
    world.Step();
    world.now += absl::Seconds(3);
  }
  EXPECT_THAT(world.stopped, IsEmpty());
}

TEST(PolicyTest, AProcessThatHasLeftMayContinueButNotFreeze) {
  World world = WatchedWorld();
  world.StartAll();
  world.Answer(kEverybody);
  world.Step();
  const auto left = [&] {
    world.Answer(kEverybody);
    world.observed.processes.at(kWorker0).registration = Registration::kLeft;
    world.Step();
  };
  left();
  world.now += world.plan.heartbeat_timeout;
  left();
  EXPECT_THAT(world.stopped, IsEmpty());
  world.now += world.plan.start_timeout;
  left();
  EXPECT_THAT(world.stopped, ElementsAre("kill worker-0"));
}

TEST(PolicyTest, DoesNotCountTheBackendsOwnPauseAsSilence) {
  World world = WatchedWorld();
  world.StartAll();
  world.Answer({kShard0, kShard1, kWorker0});
  world.observed.processes.at(kWorker0).expelled_after = world.now;
  world.Step();
  world.PauseBackend(absl::Hours(8));
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
  world.Answer({kShard0, kShard1, kWorker0});
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
}

TEST(PolicyTest, SuspensionEndsEvenIfTheCoordinatorFreezes) {
  World world = WatchedWorld();
  world.StartAll();
  world.Answer(kEverybody);
  world.plan.suspend = true;
  world.Step();
  world.now += world.plan.heartbeat_timeout;
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("kill coordinator"));
  world.End(kCoordinator, 0, SIGKILL);
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kSuspended);
}

TEST(PolicyTest, DoesNotWaitForAnExpelledProcessAtTheEnd) {
  World world = WatchedWorld();
  world.StartAll();
  world.observed.processes.at(kWorker0).expelled_after = world.now;
  world.now += world.limits.expelled_grace;
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("kill worker-0"));
}

}  // namespace
}  // namespace sluice::policy

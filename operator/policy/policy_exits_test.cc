// How exits count: the job's own rules, requested exits, removals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operator/policy/policy.h"
#include "operator/policy/testing/policy_world.h"
#include "services/common/exit_code.h"

namespace sluice::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---- the job's own policy

FailureRule Rule(FailureRule::Action action, std::set<v1::Role> roles, std::set<int> codes,
                 std::set<std::string> reasons = {}) {
  return {action, std::move(roles), std::move(codes), std::move(reasons)};
}

TEST(PolicyTest, AFailJobRuleFailsTheJob) {
  World world;
  world.plan.failure_rules = {Rule(FailureRule::Action::kFailJob, {v1::WORKER}, {42})};
  world.StartAll();
  world.End(kShard0, 42);
  EXPECT_FALSE(world.Step().memory.outcome.has_value()) << "that rule is for workers";
  world.End(kWorker1, 42, 0, "no licence");
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->code, "FailurePolicy");
  EXPECT_EQ(decision.memory.outcome->reason,
            "worker-1 ended with exit code 42, which fails the job by its failurePolicy: no "
            "licence");
  EXPECT_EQ(decision.memory.outcome->blamed, kWorker1);
}

TEST(PolicyTest, AnIgnoreRuleCountsNothing) {
  World world;
  world.plan.backoff_limit = 0;
  world.plan.failure_rules = {Rule(FailureRule::Action::kIgnore, {}, {128 + SIGKILL})};
  world.StartAll();
  for (int i = 0; i < 5; ++i) {
    world.observed.processes.at(kShard0).ready = true;
    world.End(kShard0, 0, SIGKILL);
    EXPECT_FALSE(IsFailure(world.plan, kShard0, world.observed.processes.at(kShard0).exit));
    EXPECT_EQ(world.Step().memory.restorations, 0u);
    EXPECT_TRUE(world.observed.processes.at(kShard0).running);
  }
  world.observed.processes.at(kShard0).ready = true;
  world.End(kShard0, 0, SIGSEGV);
  EXPECT_EQ(world.Step().memory.outcome->code, "BackoffLimitExceeded");
}

TEST(PolicyTest, ARestartRuleRestartsAfterAPermanentFailure) {
  World world;
  world.plan.failure_rules = {Rule(FailureRule::Action::kRestart, {v1::WORKER}, {kExitUsage})};
  world.StartAll();
  world.End(kWorker0, kExitUsage);
  EXPECT_TRUE(IsFailure(world.plan, kWorker0, world.observed.processes.at(kWorker0).exit));
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  EXPECT_THAT(world.started, ElementsAre("worker-0"));
}

TEST(PolicyTest, TheFirstMatchingRuleDecides) {
  World world;
  world.plan.failure_rules = {Rule(FailureRule::Action::kIgnore, {v1::WORKER}, {5}),
                              Rule(FailureRule::Action::kFailJob, {}, {5})};
  world.StartAll();
  world.End(kWorker0, 5);
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  world.End(kShard0, 5);
  EXPECT_TRUE(world.Step().memory.outcome.has_value());
}

TEST(PolicyTest, RulesMatchReasonsAndIgnoreCodesOfEvictions) {
  World world;
  world.plan.failure_rules = {Rule(FailureRule::Action::kFailJob, {}, {137}, {"OOMKilled"})};
  world.StartAll();
  // Evicted: its exit code does not describe the process.
  world.End(kWorker0, 137);
  world.observed.processes.at(kWorker0).exit.cause = Cause::kOutside;
  world.observed.processes.at(kWorker0).exit.reason = "Evicted";
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  world.End(kWorker0, 1);
  world.observed.processes.at(kWorker0).exit.reason = "OOMKilled";
  EXPECT_TRUE(world.Step().memory.outcome.has_value());
}

TEST(PolicyTest, NoRuleAppliesToAnOrderlyExit) {
  World world;
  world.plan.failure_rules = {Rule(FailureRule::Action::kFailJob, {}, {0}, {"Completed"})};
  world.StartAll();
  world.End(kWorker0, 0);
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
}

TEST(PolicyTest, AnExitsReasonTakesPrecedenceOverItsCode) {
  Exit exit;
  exit.signal = SIGKILL;
  exit.reason = "OOMKilled";
  EXPECT_EQ(ExitText(exit), "OOMKilled, killed by signal 9 (Killed)");
}

// ---- requested exits

TEST(PolicyTest, ReplacesAProcessKilledBySigtermWithoutCountingIt) {
  for (const Exit& exit : {Exit{0, SIGTERM, ""}, Exit{128 + SIGTERM, 0, ""}}) {
    World world;
    world.plan.backoff_limit = 0;
    world.limits.max_failed_starts = 1;
    world.limits.max_worker_deaths = 0;
    world.StartAll();
    for (const Replica& replica : {kWorker0, kShard0, kCoordinator}) {
      world.started.clear();
      world.End(replica, exit.code, exit.signal);
      const Decision decision = world.Step();
      EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
      EXPECT_FALSE(decision.memory.outcome.has_value()) << ReplicaName(replica);
    }
  }
}

TEST(PolicyTest, ReplacesAMemberThatLeftAtOnceIfTheCoordinatorReportsThatTheJobContinues) {
  World world = WatchedWorld();
  world.StartAll();
  world.observed.phase = v1::JobProgress::TRAINING;
  for (auto& [replica, process] : world.observed.processes) process.ready = true;
  world.Answer(kEverybody);
  world.now += absl::Milliseconds(10);
  world.End(kWorker0, kExitOk);
  world.End(kShard0, kExitOk);
  world.Step();
  EXPECT_THAT(world.started, IsEmpty()) << "it may be the job's end";
  world.now += absl::Milliseconds(100);
  world.Answer(kEverybody);
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("ps-0", "worker-0"));
}

TEST(PolicyTest, StartsWorkersForTheLastEvaluationIfAllHaveLeft) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::EVALUATING;
  world.End(kWorker0, kExitOk);
  world.now += absl::Minutes(1);
  world.Step();
  EXPECT_THAT(world.started, IsEmpty()) << "the other one evaluates";
  world.End(kWorker1, kExitOk);
  world.Step();
  world.now += absl::Minutes(1);
  world.Step();
  EXPECT_THAT(world.started, ::testing::IsSupersetOf({"worker-0"}));
}

TEST(PolicyTest, NeedsNoWorkersWhileSaving) {
  World world;
  world.StartAll();
  world.observed.phase = v1::JobProgress::SAVING;
  world.End(kWorker0, kExitOk);
  world.End(kWorker1, kExitOk);
  world.Step();
  world.now += absl::Minutes(1);
  world.Step();
  EXPECT_THAT(world.started, IsEmpty());
}

// ---- what only some backends observe

ProcessObservation& Remove(World* world, const Replica& replica, const std::string& reason) {
  ProcessObservation& process = world->observed.processes.at(replica);
  process.removal.emplace();
  process.removal->reason = reason;
  return process;
}

TEST(PolicyTest, ReplacesARemovedProcessOnceAndWithoutBlame) {
  World world;
  world.StartAll();
  Remove(&world, kShard0, "Evicted");
  Decision decision = world.Step();
  EXPECT_THAT(decision.replaced, ElementsAre(kShard0));
  ASSERT_EQ(decision.exits.size(), 1u);
  EXPECT_EQ(decision.exits[0].replica, kShard0);
  EXPECT_EQ(decision.exits[0].exit.cause, Cause::kOutside);
  EXPECT_EQ(decision.exits[0].exit.reason, "Evicted");
  EXPECT_FALSE(decision.exits[0].counted);
  EXPECT_THAT(world.started, IsEmpty()) << "it still runs";

  world.End(kShard0, 0, SIGKILL);
  decision = world.Step();
  EXPECT_THAT(decision.replaced, IsEmpty());
  EXPECT_THAT(decision.exits, IsEmpty());
  EXPECT_THAT(world.started, ElementsAre("ps-0"));
  EXPECT_EQ(decision.memory.restorations, 0u);
  EXPECT_EQ(decision.memory.replicas.at(kShard0).restarts, 1u);
}

TEST(PolicyTest, WaitsForTheReasonOfARemoval) {
  World world;
  world.StartAll();
  const absl::Time certain = world.now + absl::Seconds(15);
  Remove(&world, kWorker0, "NodeLost").removal->certain_from = certain;
  Decision decision = world.Step();
  EXPECT_THAT(decision.exits, IsEmpty());
  EXPECT_THAT(decision.replaced, IsEmpty());
  EXPECT_EQ(decision.decide_again, certain);
  world.now = certain;
  decision = world.Step();
  EXPECT_EQ(decision.exits.size(), 1u);
  EXPECT_THAT(decision.replaced, ElementsAre(kWorker0));
}

TEST(PolicyTest, ARemovalThatTheJobDoesNotMissIsNoRestart) {
  for (const bool suspend : {false, true}) {
    World world;
    world.StartAll();
    world.plan.suspend = suspend;
    if (!suspend) world.plan.workers = 1;
    Remove(&world, kWorker1, "Deleted");
    const Decision decision = world.Step();
    EXPECT_THAT(decision.exits, IsEmpty());
    EXPECT_THAT(decision.replaced, IsEmpty());
    EXPECT_THAT(world.stopped, IsEmpty()) << "it was asked to exit already";
  }
}

TEST(PolicyTest, KillsARemovedProcessThatDoesNotLeaveAtTheEnd) {
  World world;
  world.StartAll();
  world.EndAll();
  world.Start(kWorker0);
  Remove(&world, kWorker0, "Deleted");
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  world.Step();
  world.now += world.limits.leave_grace;
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
  world.now += world.limits.stop_grace;
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("kill worker-0"));
}

TEST(PolicyTest, ReplacesAnOutdatedProcessWithoutCountingIt) {
  World world;
  world.StartAll();
  world.observed.processes.at(kWorker0).begun = false;
  world.observed.processes.at(kWorker0).outdated_from = world.now + absl::Seconds(30);
  EXPECT_EQ(world.Step().decide_again, world.now + absl::Seconds(30));
  EXPECT_THAT(world.stopped, IsEmpty());

  world.now += absl::Seconds(30);
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("stop worker-0"));
  world.End(kWorker0, 0, SIGTERM);
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, ElementsAre("worker-0"));
  EXPECT_THAT(decision.exits, IsEmpty());
  EXPECT_THAT(decision.replaced, IsEmpty());
}

TEST(PolicyTest, LeavesAnOutdatedSurplusProcessToItsDeletion) {
  World world;
  world.StartAll();
  world.plan.workers = 1;
  world.observed.processes.at(kWorker1).outdated_from = world.now;
  world.Step();
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("stop worker-1"));
}

TEST(PolicyTest, ReportsExitsThatUsersShouldKnowOf) {
  World world;
  world.StartAll();
  world.plan.workers = 1;
  world.observed.processes.at(kShard0).ready = true;
  world.End(kShard0, 0, SIGKILL);   // counts
  world.End(kShard1, 0, SIGKILL);   // was never ready
  world.End(kWorker0, kExitOk);     // has left
  world.End(kWorker1, 0, SIGKILL);  // is surplus
  const Decision decision = world.Step();
  ASSERT_EQ(decision.exits.size(), 2u);
  EXPECT_EQ(decision.exits[0].replica, kShard0);
  EXPECT_TRUE(decision.exits[0].counted);
  EXPECT_EQ(decision.exits[1].replica, kShard1);
  EXPECT_FALSE(decision.exits[1].counted);
  EXPECT_THAT(world.Step().exits, IsEmpty());
}

TEST(PolicyTest, ReportsOnlyTheExitThatEndsTheJob) {
  World world;
  world.plan.backoff_limit = 0;
  world.StartAll();
  world.observed.processes.at(kShard0).ready = true;
  world.End(kShard0, 0, SIGKILL);
  world.End(kWorker0, 0, SIGKILL);
  Decision decision = world.Step();
  ASSERT_EQ(decision.memory.outcome->code, "BackoffLimitExceeded");
  ASSERT_EQ(decision.exits.size(), 1u);
  EXPECT_EQ(decision.exits[0].replica, kShard0);
  world.End(kWorker1, 0, SIGKILL);
  EXPECT_THAT(world.Step().exits, IsEmpty());
}

// ---- deaths of shards, and the backoff limit

World TrainingWithCopies() {
  World world;
  world.plan.second_copies = true;
  world.StartAll();
  world.observed.phase = v1::JobProgress::TRAINING;
  for (auto& [replica, process] : world.observed.processes) process.ready = true;
  return world;
}

TEST(PolicyTest, DeathsOfShardsWhosePartitionsHaveCopiesDoNotCount) {
  World world = TrainingWithCopies();
  for (int i = 0; i < 10; ++i) {
    world.End(i % 2 == 0 ? kShard0 : kShard1, 0, SIGKILL);
    EXPECT_EQ(world.Step().memory.restorations, 0u);
    world.now += absl::Minutes(1);
    world.Step();
    for (auto& [replica, process] : world.observed.processes) process.ready = true;
  }
}

TEST(PolicyTest, DeathsOfShardsCountWithoutCopiesOnAnotherReadyShard) {
  const std::vector<std::pair<std::string, std::function<void(World*)>>> cases = {
      {"no copies", [](World* world) { world->plan.second_copies = false; }},
      {"one shard", [](World* world) { world->plan.shards = 1; }},
      {"not trained yet",
       [](World* world) { world->observed.phase = v1::JobProgress::INITIALIZING; }},
      {"the other shard is not ready",
       [](World* world) { world->observed.processes.at(kShard1).ready = false; }},
  };
  for (const auto& [name, change] : cases) {
    SCOPED_TRACE(name);
    World world = TrainingWithCopies();
    change(&world);
    world.End(kShard0, 0, SIGKILL);
    EXPECT_EQ(world.Step().memory.restorations, 1u);
  }
}

TEST(PolicyTest, ShardsThatDieTogetherCount) {
  World world = TrainingWithCopies();
  world.End(kShard0, 0, SIGKILL);
  world.End(kShard1, 0, SIGKILL);
  EXPECT_EQ(world.Step().memory.restorations, 2u);
}

}  // namespace
}  // namespace sluice::policy

// Which processes are started, restarted and stopped while the job runs.
#include "operator/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operator/policy/testing/policy_world.h"
#include "services/common/exit_code.h"

namespace sluice::policy {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PolicyTest, StartsTheCoordinatorFirstAndOthersWhenItsAddressIsKnown) {
  World world;
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("coordinator"));
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("coordinator"));
  world.observed.coordinator_address = "127.0.0.1:1";
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("coordinator", "ps-0", "ps-1", "worker-0", "worker-1"));
}

TEST(PolicyTest, DoesNothingIfAllProcessesAreReady) {
  World world;
  world.StartAll();
  const Decision decision = world.Step();
  EXPECT_THAT(decision.starts, IsEmpty());
  EXPECT_THAT(decision.stops, IsEmpty());
  EXPECT_THAT(decision.deaths, IsEmpty());
  EXPECT_EQ(decision.desired_workers, 2u);
  EXPECT_EQ(decision.desired_shards, 2u);
  EXPECT_FALSE(decision.desired_suspend);
  EXPECT_EQ(decision.decide_again, absl::InfiniteFuture());
}

TEST(PolicyTest, ReportsAKilledWorkerOnceAndReplacesItAtOnce) {
  World world;
  world.StartAll();
  const uint64_t pid = world.observed.processes.at(kWorker1).pid;
  world.End(kWorker1, 0, SIGKILL);
  world.Step();
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("worker-1"));
  ASSERT_EQ(world.reported.size(), 1u);
  EXPECT_EQ(world.reported[0].pid, pid);
  EXPECT_THAT(world.reported[0].reason, HasSubstr("signal 9"));
}

TEST(PolicyTest, CountsOnlyReplacedInstancesAsRestarts) {
  World world;
  world.StartAll();
  world.End(kWorker0, 0, SIGKILL);
  world.Step();
  // This process leaves just before the backend receives the end of the job.
  world.End(kWorker1, kExitOk);
  world.Step();
  world.observed.phase = v1::JobProgress::SUCCEEDED;
  const Decision decision = world.Step();
  EXPECT_EQ(decision.memory.replicas.at(kWorker0).restarts, 1u);
  EXPECT_EQ(decision.memory.replicas.at(kWorker1).restarts, 0u);
}

TEST(PolicyTest, CountsARepeatedStartAsOneRestart) {
  World world;
  world.StartAll();
  world.End(kWorker0, 0, SIGKILL);
  Memory memory = Decide(world.plan, world.limits, world.observed, {}, world.now).memory;
  const Decision again = Decide(world.plan, world.limits, world.observed, memory, world.now);
  ASSERT_EQ(again.starts.size(), 1u);
  EXPECT_EQ(again.memory.replicas.at(kWorker0).restarts, 1u);
}

TEST(PolicyTest, RestartsAProcessThatDisappeared) {
  World world;
  world.StartAll();
  world.observed.processes.erase(kShard0);
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("ps-0"));
}

TEST(PolicyTest, DelaysGrowWithDeathsInARow) {
  World world;
  world.limits.max_failed_starts = 100;
  world.StartAll();
  const std::vector<absl::Duration> delays = {absl::ZeroDuration(), absl::Seconds(1),
                                              absl::Seconds(2), absl::Seconds(4)};
  for (const absl::Duration delay : delays) {
    SCOPED_TRACE(delay);
    world.started.clear();
    world.End(kWorker0, kExitRetry);
    Decision decision = world.Step();
    if (delay > absl::ZeroDuration()) {
      EXPECT_THAT(world.started, IsEmpty());
      EXPECT_EQ(decision.decide_again, world.now + delay);
      world.now += delay - absl::Milliseconds(1);
      world.Step();
      EXPECT_THAT(world.started, IsEmpty());
      world.now += absl::Milliseconds(1);
      world.Step();
    }
    EXPECT_THAT(world.started, ElementsAre("worker-0"));
  }
}

TEST(PolicyTest, ReportsADeadShardAtOnceAndRestartsItAfterItsDelay) {
  World world;
  world.limits.shard_delay = absl::Milliseconds(250);
  world.StartAll();
  world.End(kShard0, 0, SIGKILL);
  const Decision decision = world.Step();
  EXPECT_EQ(world.reported.size(), 1u);
  EXPECT_THAT(world.started, IsEmpty());
  EXPECT_EQ(decision.decide_again, world.now + world.limits.shard_delay);
  world.now = decision.decide_again;
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("ps-0"));
}

TEST(PolicyTest, DelaysAreBounded) {
  World world;
  world.limits.max_failed_starts = 100;
  world.StartAll();
  for (int i = 0; i < 40; ++i) {
    world.End(kWorker0, kExitRetry);
    world.Step();
    world.now += world.limits.max_delay;
    world.Step();
    ASSERT_TRUE(world.observed.processes.at(kWorker0).running) << i;
  }
}

TEST(PolicyTest, AReadyInstanceResetsTheDelay) {
  World world;
  world.StartAll();
  for (int i = 0; i < 20; ++i) {
    world.started.clear();
    world.observed.processes.at(kWorker0).ready = true;
    world.End(kWorker0, 0, SIGKILL);
    world.Step();
    EXPECT_THAT(world.started, ElementsAre("worker-0")) << i;
  }
}

TEST(PolicyTest, RestartsAnExpelledProcessAtOnceWithoutCountingIt) {
  World world;
  world.plan.backoff_limit = 0;
  world.StartAll();
  for (const Replica& replica : {kWorker0, kShard0}) {
    world.started.clear();
    world.End(replica, kExitExpelled);
    const Decision decision = world.Step();
    EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
    EXPECT_FALSE(decision.memory.outcome.has_value());
    EXPECT_EQ(decision.memory.restorations, 0u);
  }
}

TEST(PolicyTest, KillsAndReplacesAnExpelledProcessThatDoesNotExit) {
  World world;
  world.plan.backoff_limit = 0;
  world.StartAll();
  for (const Replica& replica : {kWorker0, kShard0}) {
    world.started.clear();
    world.stopped.clear();
    world.observed.processes.at(replica).expelled_after = world.now;
    EXPECT_EQ(world.Step().decide_again, world.now + world.limits.expelled_grace);
    EXPECT_THAT(world.stopped, IsEmpty());
    world.now += world.limits.expelled_grace;
    world.Step();
    world.Step();
    EXPECT_THAT(world.stopped, ElementsAre(absl::StrCat("kill ", ReplicaName(replica))));
    EXPECT_THAT(world.started, IsEmpty());
    world.End(replica, 0, SIGKILL);
    const Decision decision = world.Step();
    EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
    EXPECT_FALSE(decision.memory.outcome.has_value());
    EXPECT_EQ(decision.memory.restorations, 0u);
  }
}

TEST(PolicyTest, ReplacesAWorkerThatLeftAfterAMoment) {
  World world;
  world.StartAll();
  world.End(kWorker0, kExitOk);
  world.Step();
  EXPECT_THAT(world.started, IsEmpty());
  world.now += world.limits.left_delay;
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("worker-0"));
}

TEST(PolicyTest, DoesNotReplaceAWorkerThatLeavesDuringTheLastCheckpoint) {
  for (const auto phase : {v1::JobProgress::EVALUATING, v1::JobProgress::SAVING}) {
    World world;
    world.StartAll();
    world.End(kWorker0, kExitOk);
    world.observed.phase = phase;
    world.now += absl::Minutes(1);
    world.Step();
    EXPECT_THAT(world.started, IsEmpty());
  }
}

TEST(PolicyTest, PermanentExitCodesFailTheJob) {
  for (const Replica& replica : {kCoordinator, kShard0, kWorker0}) {
    for (const int code : {+kExitFailed, +kExitRefused, +kExitUsage, 126, 127}) {
      SCOPED_TRACE(absl::StrCat(ReplicaName(replica), " ", code));
      World world;
      world.StartAll();
      world.End(replica, code, 0, "no such model");
      Decision decision = world.Step();
      EXPECT_THAT(world.started, IsEmpty());
      if (code == kExitFailed && !(replica == kCoordinator)) {
        // The coordinator may report more until then.
        EXPECT_FALSE(decision.memory.outcome.has_value());
        EXPECT_EQ(decision.decide_again, world.now + world.limits.failed_grace);
        world.now = decision.decide_again;
        decision = world.Step();
        EXPECT_THAT(world.started, IsEmpty());
      }
      ASSERT_TRUE(decision.memory.outcome.has_value());
      EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kFailed);
      EXPECT_THAT(decision.memory.outcome->reason, HasSubstr(ReplicaName(replica)));
      EXPECT_THAT(decision.memory.outcome->reason, HasSubstr("no such model"));
      EXPECT_EQ(decision.memory.outcome->blamed, replica);
      EXPECT_THAT(world.stopped, Contains(replica == kWorker0 ? "stop ps-0" : "stop worker-0"));
      EXPECT_FALSE(decision.finish.has_value());
      world.EndAll();
      decision = world.Step();
      ASSERT_TRUE(decision.finish.has_value());
      EXPECT_EQ(decision.finish->kind, OutcomeKind::kFailed);
    }
  }
}

TEST(PolicyTest, RestartsARefusedProcessIfItsRoleHasWorkedBefore) {
  for (const bool patient : {false, true}) {
    World world;
    world.limits.patient = patient;
    world.StartAll();
    for (auto& [replica, process] : world.observed.processes) process.ready = true;
    world.Step();
    for (const Replica& replica : {kCoordinator, kShard0, kWorker0}) {
      SCOPED_TRACE(ReplicaName(replica));
      for (int i = 0; i < 8; ++i) {
        world.End(replica, kExitRefused, 0, "asks for wire version 3");
        const Decision decision = world.Step();
        EXPECT_FALSE(decision.memory.outcome.has_value());
        EXPECT_TRUE(decision.memory.replicas.at(replica).refused);
        EXPECT_EQ(decision.memory.restorations, 0u);
        EXPECT_TRUE(decision.memory.worker_deaths.empty());
        if (i > 0) {
          EXPECT_THAT(world.started, IsEmpty()) << "with growing delays";
          EXPECT_GE(decision.decide_again - world.now, world.limits.first_delay);
          world.now = decision.decide_again;
          world.Step();
        }
        EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
        world.started.clear();
      }
    }
    // Other exits are judged as usual.
    world.End(kWorker1, kExitUsage);
    EXPECT_TRUE(world.Step().memory.outcome.has_value());
  }
}

TEST(PolicyTest, ARefusedProcessFailsTheJobIfItsRoleNeverWorked) {
  World world;
  world.StartAll();
  for (auto& [replica, process] : world.observed.processes)
    process.ready = replica.role != v1::WORKER;
  world.End(kWorker0, kExitRefused, 0, "asks for wire version 3");
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_THAT(decision.memory.outcome->reason, HasSubstr("asks for wire version 3"));
}

TEST(PolicyTest, UsesTheCoordinatorsReasonForAFailedWorkerOrShard) {
  for (const Replica& replica : {kShard0, kWorker0}) {
    World world;
    world.StartAll();
    world.End(replica, kExitFailed, 0, "something");
    EXPECT_FALSE(world.Step().memory.outcome.has_value());
    world.now += world.limits.failed_grace / 2;
    world.observed.phase = v1::JobProgress::FAILED;
    world.observed.phase_reason = "worker-0: the label 5 is none of 2 classes";
    const Decision decision = world.Step();
    ASSERT_TRUE(decision.memory.outcome.has_value());
    EXPECT_EQ(decision.memory.outcome->code, "TrainingFailed");
    EXPECT_EQ(decision.memory.outcome->reason, "worker-0: the label 5 is none of 2 classes");
    EXPECT_THAT(world.started, IsEmpty());
  }
}

TEST(PolicyTest, AnUnexplainedFailureFailsTheJobWhenTheCoordinatorEnds) {
  World world;
  world.StartAll();
  world.End(kWorker0, kExitFailed, 0, "no such model");
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
  world.now += absl::Seconds(1);
  world.End(kCoordinator, kExitOk);
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kFailed);
  EXPECT_EQ(decision.memory.outcome->reason, "worker-0 ended with exit code 1: no such model");
  EXPECT_EQ(decision.memory.outcome->since, world.now);
  EXPECT_EQ(decision.memory.outcome->blamed, kWorker0);
}

TEST(PolicyTest, FailureOfAProcessThatNeverRegisteredDoesNotWaitForTheCoordinatorsReason) {
  for (const bool registered : {false, true}) {
    World world;
    world.StartAll();
    if (registered) {
      world.Answer(kEverybody);
      world.Step();
    }
    world.End(kWorker0, kExitFailed, 0, "No module named 'x'");
    world.Step();
    world.now += absl::Milliseconds(900);
    world.Answer({kShard0, kShard1, kWorker1});
    EXPECT_FALSE(world.Step().memory.outcome.has_value()) << "its last message may be under way";
    world.now += absl::Milliseconds(100);
    world.Answer({kShard0, kShard1, kWorker1});
    const Decision decision = world.Step();
    EXPECT_EQ(decision.memory.outcome.has_value(), !registered);
    if (registered) continue;
    EXPECT_EQ(decision.memory.outcome->reason,
              "worker-0 ended with exit code 1: No module named 'x'");
  }
}

TEST(PolicyTest, MissingDataFailsTheJobAtOnceWithoutPatience) {
  World world;
  world.StartAll();
  world.End(kWorker1, kExitMissing, 0, "/data/mnist: no such file or directory");
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, IsEmpty());
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->code, "DataMissing");
  EXPECT_EQ(decision.memory.outcome->reason, "worker-1: /data/mnist: no such file or directory");
  EXPECT_EQ(decision.memory.outcome->blamed, kWorker1);
}

TEST(PolicyTest, WaitsForMissingDataWithoutCountingWithPatience) {
  World world;
  world.limits.patient = true;
  world.limits.max_failed_starts = 2;
  world.limits.max_worker_deaths = 2;
  world.plan.backoff_limit = 0;
  world.StartAll();
  for (int i = 0; i < 20; ++i) {
    // Long enough for a worker that reads much before it finds that something is missing.
    if (i % 2 == 1) world.now += world.limits.healthy_after;
    world.End(kWorker0, kExitMissing);
    Decision decision = world.Step();
    EXPECT_FALSE(decision.memory.outcome.has_value()) << i;
    EXPECT_TRUE(decision.memory.replicas.at(kWorker0).data_missing);
    EXPECT_THAT(decision.memory.worker_deaths, IsEmpty());
    world.now += world.limits.max_delay;
    decision = world.Step();
    ASSERT_TRUE(world.observed.processes.at(kWorker0).running) << i;
  }
  EXPECT_FALSE(IsFailure(world.plan, kWorker0, {kExitMissing, 0, "", Cause::kItself, ""}));
  world.End(kWorker0, 0, SIGSEGV);
  EXPECT_FALSE(world.Step().memory.replicas.at(kWorker0).data_missing);
}

TEST(PolicyTest, RetriesMissingDataWithGrowingDelays) {
  World world;
  world.limits.patient = true;
  world.StartAll();
  for (const int delay : {0, 1, 2, 4, 8, 16, 30, 30}) {
    world.End(kWorker0, kExitMissing);
    const Decision decision = world.Step();
    if (delay > 0) {
      EXPECT_EQ(decision.decide_again, world.now + absl::Seconds(delay));
      world.now = decision.decide_again;
      world.Step();
    }
    ASSERT_TRUE(world.observed.processes.at(kWorker0).running) << delay;
  }
}

TEST(PolicyTest, AFailureRuleMayFailTheJobForMissingData) {
  World world;
  world.limits.patient = true;
  world.plan.failure_rules = {{FailureRule::Action::kFailJob, {}, {}, {"DataMissing"}}};
  world.StartAll();
  world.End(kWorker0, kExitMissing);
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->code, "FailurePolicy");
}

TEST(PolicyTest, DeathsOfACoordinatorCountOnlyIfTheJobDoesNotTrain) {
  World world;
  world.plan.backoff_limit = 1;
  world.StartAll();
  for (const v1::JobProgress::Phase phase :
       {v1::JobProgress::TRAINING, v1::JobProgress::EVALUATING, v1::JobProgress::SAVING}) {
    world.observed.phase = phase;
    world.observed.processes.at(kCoordinator).ready = true;
    world.End(kCoordinator, 0, SIGKILL);
    EXPECT_EQ(world.Step().memory.restorations, 0u);
    world.now += absl::Minutes(1);
    world.Step();
  }
  world.observed.phase = v1::JobProgress::INITIALIZING;
  world.observed.processes.at(kCoordinator).ready = true;
  world.End(kCoordinator, 0, SIGKILL);
  EXPECT_EQ(world.Step().memory.restorations, 1u);
}

TEST(PolicyTest, DeathsOfShardsAndCoordinatorsCountAgainstTheBackoffLimit) {
  World world;
  world.plan.backoff_limit = 2;
  world.StartAll();
  for (const Replica& replica : {kShard0, kCoordinator}) {
    world.observed.processes.at(replica).ready = true;
    world.End(replica, 0, SIGKILL);
    world.started.clear();
    world.Step();
    EXPECT_THAT(world.started, ElementsAre(ReplicaName(replica)));
  }
  world.End(kShard0, 0, SIGSEGV);
  const Decision decision = world.Step();
  ASSERT_TRUE(decision.memory.outcome.has_value());
  EXPECT_EQ(decision.memory.outcome->kind, OutcomeKind::kFailed);
  EXPECT_THAT(decision.memory.outcome->reason, HasSubstr("backoffLimit of 2"));
  EXPECT_THAT(decision.memory.outcome->reason, HasSubstr("ps-0"));
}

TEST(PolicyTest, DeathsOfWorkersDoNotCountAgainstTheBackoffLimit) {
  World world;
  world.plan.backoff_limit = 0;
  world.StartAll();
  world.End(kWorker0, 0, SIGKILL);
  EXPECT_FALSE(world.Step().memory.outcome.has_value());
}

TEST(PolicyTest, AWorkerThatNeverBecomesReadyEventuallyFailsTheJob) {
  World world;
  world.StartAll();
  for (int i = 1; i <= world.limits.max_failed_starts; ++i) {
    world.End(kWorker0, 0, SIGSEGV);
    const Decision decision = world.Step();
    EXPECT_EQ(decision.memory.outcome.has_value(), i == world.limits.max_failed_starts);
    world.now += absl::Seconds(10);
    if (!decision.memory.outcome.has_value()) world.Step();
  }
}

TEST(PolicyTest, TooManyWorkerDeathsWithinTheWindowFailTheJob) {
  struct Case {
    absl::Duration apart;
    bool fails;
  };
  for (const Case& c : {Case{absl::Seconds(1), true}, Case{absl::Seconds(40), false}}) {
    World world;
    world.limits.max_worker_deaths = 5;
    world.limits.worker_window = absl::Minutes(3);
    world.StartAll();
    bool failed = false;
    for (int i = 0; i < 12 && !failed; ++i) {
      world.observed.processes.at(kWorker0).ready = true;
      world.End(kWorker0, 0, SIGKILL);
      failed = world.Step().memory.outcome.has_value();
      world.now += c.apart;
    }
    EXPECT_EQ(failed, c.fails);
  }
}

TEST(PolicyTest, StopsSurplusWorkersOnce) {
  World world;
  world.StartAll();
  world.plan.workers = 1;
  Decision decision = world.Step();
  EXPECT_EQ(decision.desired_workers, 1u);
  world.Step();
  EXPECT_THAT(world.stopped, ElementsAre("stop worker-1"));
  world.End(kWorker1, 0, SIGKILL);
  world.now += absl::Minutes(1);
  decision = world.Step();
  EXPECT_THAT(world.started, IsEmpty());
  EXPECT_EQ(decision.memory.worker_deaths.size(), 0u);
}

TEST(PolicyTest, StartsMoreWorkersAtOnce) {
  World world;
  world.StartAll();
  world.plan.workers = 4;
  const Decision decision = world.Step();
  EXPECT_THAT(world.started, ElementsAre("worker-2", "worker-3"));
  EXPECT_EQ(decision.desired_workers, 4u);
}

TEST(PolicyTest, ReplacesAnExternallyStoppedProcessWithoutCountingIt) {
  World world;
  world.plan.backoff_limit = 0;
  world.StartAll();
  for (const Replica& replica : {kShard0, kWorker0, kCoordinator}) {
    world.observed.processes.at(replica).ready = true;
    world.End(replica, kExitFailed);
    world.observed.processes.at(replica).exit.cause = Cause::kOutside;
    EXPECT_FALSE(IsFailure(world.plan, replica, world.observed.processes.at(replica).exit));
  }
  world.Step();
  EXPECT_THAT(world.started, ElementsAre("coordinator", "ps-0", "worker-0"));
  EXPECT_FALSE(world.finished);
}

TEST(PolicyTest, RetriesAFailedStartWithoutCountingWithPatience) {
  World world;
  world.limits.patient = true;
  world.plan.backoff_limit = 0;
  world.StartAll();
  for (int i = 0; i < 20; ++i) {
    world.End(kShard0, kExitFailed, 0, "no such directory");
    world.observed.processes.at(kShard0).ended = world.observed.processes.at(kShard0).started;
    world.Step();
    world.now += absl::Minutes(1);
    world.Step();
    ASSERT_TRUE(world.observed.processes.at(kShard0).running);
  }
  EXPECT_FALSE(world.finished);
  // A process that was ready counts as usual.
  world.observed.processes.at(kShard0).ready = true;
  world.End(kShard0, kExitFailed);
  EXPECT_EQ(world.Step().memory.outcome->code, "BackoffLimitExceeded");
}

// ---- memory

TEST(PolicyTest, AReadyProcessEndsTheRowOfFailures) {
  World world;
  world.limits.patient = true;
  world.StartAll();
  world.End(kWorker0, kExitMissing);
  EXPECT_EQ(world.Step().memory.replicas.at(kWorker0).failures_in_row, 1);
  EXPECT_EQ(world.Step().memory.replicas.at(kWorker0).failures_in_row, 1);
  world.observed.processes.at(kWorker0).ready = true;
  const Memory memory = world.Step().memory;
  EXPECT_EQ(memory.replicas.at(kWorker0).failures_in_row, 0);
  EXPECT_FALSE(memory.replicas.at(kWorker0).data_missing);
}

TEST(PolicyTest, ForgetsASurplusWorkerThatIsGone) {
  World world;
  world.StartAll();
  world.End(kWorker1, 0, SIGKILL);
  world.Step();
  EXPECT_EQ(world.Step().memory.replicas.at(kWorker1).failures_in_row, 1);
  world.plan.workers = 1;
  world.observed.processes.erase(kWorker1);
  EXPECT_EQ(world.Step().memory.replicas.at(kWorker1).failures_in_row, 0);
}

TEST(PolicyTest, ForgetsWorkerDeathsOutsideTheWindow) {
  World world;
  world.StartAll();
  world.End(kWorker0, 0, SIGKILL);
  EXPECT_EQ(world.Step().memory.worker_deaths.size(), 1u);
  world.now += world.limits.worker_window + absl::Seconds(1);
  EXPECT_THAT(world.Step().memory.worker_deaths, IsEmpty());
}

}  // namespace
}  // namespace sluice::policy

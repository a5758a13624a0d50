#include "operator/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/exit_code.h"

namespace sluice::policy {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Replica kCoordinator = {v1::COORDINATOR, 0};
constexpr Replica kShard0 = {v1::SHARD, 0};
constexpr Replica kWorker0 = {v1::WORKER, 0};
constexpr Replica kWorker1 = {v1::WORKER, 1};

// A backend that carries out decisions immediately.
class World {
 public:
  World() {
    plan.shards = 2;
    plan.workers = 2;
    plan.backoff_limit = 2;
  }

  // Decides, carries out the decision, and returns it.
  Decision Step() {
    Decision decision = Decide(plan, limits, observed, memory_, now);
    memory_ = decision.memory;
    for (const StartProcess& start : decision.starts) {
      EXPECT_FALSE(finished) << "started after the end: " << ReplicaName(start.replica);
      Start(start.replica);
    }
    for (const ReportDeath& death : decision.deaths) reported.push_back(death);
    for (const StopProcess& stop : decision.stops) {
      stopped.push_back(absl::StrCat(stop.kill ? "kill " : "stop ", ReplicaName(stop.replica)));
    }
    if (decision.finish.has_value()) finished = true;
    return decision;
  }

  // The coordinator answers, and knows these processes.
  void Answer(const std::vector<Replica>& registered) {
    observed.last_progress_at = now;
    for (auto& [replica, process] : observed.processes) {
      if (replica.role == v1::COORDINATOR) continue;
      const bool known = std::count(registered.begin(), registered.end(), replica) > 0;
      process.registration = known ? Registration::kRegistered : Registration::kMissing;
    }
  }

  // The backend itself was paused, and possibly all processes with it.
  void StandStill(absl::Duration time) {
    now += time;
    Forgive(time, &observed, &memory_);
  }

  void Start(const Replica& replica) {
    started.push_back(ReplicaName(replica));
    ProcessObservation process;
    process.pid = ++pids_;
    process.instance = absl::StrCat("instance-", pids_);
    process.started = now;
    observed.processes[replica] = process;
  }

  void StartAll() {
    Step();
    observed.coordinator_address = "127.0.0.1:1";
    Step();
    started.clear();
  }

  void End(const Replica& replica, int code, int signal = 0, std::string message = "") {
    ProcessObservation& process = observed.processes.at(replica);
    process.running = false;
    process.ended = now;
    process.exit = {code, signal, std::move(message)};
  }

  void EndAll() {
    for (auto& [replica, process] : observed.processes) {
      if (process.running) End(replica, kExitOk);
    }
  }

  JobPlan plan;
  Limits limits;
  Observation observed;
  absl::Time now = absl::UnixEpoch();
  std::vector<std::string> started;
  std::vector<std::string> stopped;
  std::vector<ReportDeath> reported;
  bool finished = false;

 private:
  Memory memory_;
  uint64_t pids_ = 0;
};

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
    world.End({v1::SHARD, 1}, kExitOk);
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

// ---- cluster features

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

TEST(PolicyTest, AJobThatOutlivesItsCoordinatorContinuesAfterAnUnrequestedSuspension) {
  for (const bool outlives : {false, true}) {
    World world;
    world.plan.outlives_coordinator = outlives;
    world.StartAll();
    world.observed.phase = v1::JobProgress::SUSPENDED;
    world.End(kCoordinator, kExitOk);
    const Decision decision = world.Step();
    EXPECT_EQ(decision.memory.outcome.has_value(), !outlives);
    EXPECT_EQ(world.started.size(), outlives ? 1u : 0u);
  }
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

// ---- frozen processes

const std::vector<Replica> kEverybody = {kShard0, {v1::SHARD, 1}, kWorker0, kWorker1};

World WatchedWorld() {
  World world;
  v1::JobSpec job;
  job.mutable_timeouts()->set_heartbeat_timeout(3);
  job.mutable_timeouts()->set_start(20);
  SetTimers(job, &world.plan);
  world.plan.watch_coordinator = true;
  return world;
}

TEST(PolicyTest, TimersHaveDefaultsAndCustomProgramsMayStartMoreSlowly) {
  JobPlan plan;
  v1::JobSpec job;
  SetTimers(job, &plan);
  EXPECT_EQ(plan.heartbeat_timeout, absl::Seconds(7));
  EXPECT_EQ(plan.start_timeout, absl::Seconds(60));
  EXPECT_EQ(plan.worker_start_timeout, absl::Seconds(60));
  job.mutable_worker()->add_command("train");
  SetTimers(job, &plan);
  EXPECT_EQ(plan.start_timeout, absl::Seconds(60));
  EXPECT_EQ(plan.worker_start_timeout, absl::Minutes(10));
  job.mutable_timeouts()->set_start(7);
  job.mutable_timeouts()->set_heartbeat_timeout(1);
  SetTimers(job, &plan);
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
    world.Answer({kShard0, {v1::SHARD, 1}, kWorker0});
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
  world.Answer({kShard0, {v1::SHARD, 1}, kWorker0});
  world.observed.processes.at(kWorker0).expelled_after = world.now;
  world.Step();
  world.StandStill(absl::Hours(8));
  world.Step();
  EXPECT_THAT(world.stopped, IsEmpty());
  world.Answer({kShard0, {v1::SHARD, 1}, kWorker0});
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

}  // namespace
}  // namespace sluice::policy

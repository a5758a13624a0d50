#include "cli/chaos/disturber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace sluice::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr policy::Replica kShard = {v1::SHARD, 0};
constexpr policy::Replica kWorker0 = {v1::WORKER, 0};
constexpr policy::Replica kWorker1 = {v1::WORKER, 1};

// A job with one shard and two workers that completes a step of 10 samples every 0.1 s, except
// while it is `stalled`.
class DisturberTest : public ::testing::Test {
 protected:
  Disturber& Make(const std::string& faults) {
    Disturber::Options options;
    options.schedule.kinds = *ParseFaults(faults);
    options.schedule.workers = 2;
    options.schedule.every = absl::Seconds(2);
    options.schedule.lasting = absl::Seconds(1);
    options.stall = absl::Seconds(30);
    options.backoff_limit = 2;
    options.max_faults = max_faults_;
    disturber_.emplace(std::move(options), now_);
    pids_ = {{policy::kCoordinator, 1}, {kShard, 2}, {kWorker0, 3}, {kWorker1, 4}};
    for (const auto& [replica, pid] : pids_) Start(replica, pid);
    NewView(1);
    return *disturber_;
  }

  void Start(const policy::Replica& replica, pid_t pid) {
    pids_[replica] = pid;
    processes_[replica] = {pid, true, 0, {}};
    members_[replica] = true;
  }
  void End(const policy::Replica& replica, int signal, int code = 0) {
    processes_[replica].running = false;
    members_[replica] = false;
    policy::Exit exit;
    exit.signal = signal;
    exit.code = code;
    disturber_->OnProcessEnded(replica, processes_[replica].pid, exit);
  }
  // A new attempt begins with the newest checkpoint, of step `from`.
  void NewAttempt(uint64_t from) {
    restored_ = true;
    restored_from_ = step_ = from;
    NewView(attempt_ + 1);
  }
  void NewView(uint64_t attempt) {
    attempt_ = attempt;
    ++view_;
  }

  v1::JobProgress Progress() const {
    v1::JobProgress progress;
    progress.set_phase(phase_);
    progress.set_attempt(attempt_);
    progress.mutable_view()->mutable_id()->set_attempt(attempt_);
    progress.mutable_view()->mutable_id()->set_number(view_);
    progress.set_step(step_);
    progress.set_total_steps(1000);
    progress.set_samples(step_ * 10);
    progress.set_recomputed_samples(recomputed_);
    progress.set_restored(restored_);
    progress.set_restored_from_step(restored_from_);
    for (const auto& [replica, pid] : pids_) {
      if (replica.role == v1::COORDINATOR || !members_.at(replica)) continue;
      v1::ProcessStatus& status = *progress.add_processes();
      status.mutable_process()->set_role(replica.role);
      status.mutable_process()->set_index(replica.index);
      status.set_pid(static_cast<uint64_t>(pid));
      status.set_state(v1::ProcessStatus::MEMBER);
    }
    return progress;
  }

  // Lets time pass until something is decided, at most for `limit`.
  Disturber::Decision Pass(absl::Duration limit) {
    const absl::Time until = now_ + limit;
    Disturber::Decision decision;
    while (now_ < until) {
      now_ += absl::Milliseconds(100);
      if (!stalled_) ++step_;
      if (reports_) disturber_->OnProgress(Progress(), now_);
      decision = disturber_->Decide(processes_, now_);
      if (!decision.signals.empty() || !decision.links.empty() || !decision.disks.empty() ||
          decision.recovered != nullptr || decision.problem.has_value()) {
        break;
      }
    }
    return decision;
  }

  uint64_t max_faults_ = UINT64_MAX;
  std::optional<Disturber> disturber_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<policy::Replica, pid_t> pids_;
  std::map<policy::Replica, bool> members_;
  Disturber::Processes processes_;
  v1::JobProgress::Phase phase_ = v1::JobProgress::TRAINING;
  uint64_t attempt_ = 0;
  uint64_t view_ = 0;
  uint64_t step_ = 0;
  uint64_t recomputed_ = 0;
  bool restored_ = false;
  uint64_t restored_from_ = 0;
  bool stalled_ = false;  // the job completes no steps
  bool reports_ = true;   // the coordinator answers
};

TEST_F(DisturberTest, KilledShardIsMeasuredFromItsSignal) {
  Disturber& disturber = Make("kill:shard");
  const Disturber::Decision injected = Pass(absl::Seconds(10));
  ASSERT_EQ(injected.signals.size(), 1u);
  EXPECT_EQ(injected.signals[0].pid, 2);
  EXPECT_EQ(injected.signals[0].signal, SIGKILL);
  ASSERT_NE(injected.injected, nullptr);
  const uint64_t step = injected.injected->step;

  // The coordinator still reports a step that was completed before the shard died.
  Pass(absl::Milliseconds(100));
  EXPECT_FALSE(disturber.faults()[0].recovered.has_value());
  const uint64_t newest = step_;
  stalled_ = true;
  End(kShard, SIGKILL);
  Pass(absl::Seconds(3));
  EXPECT_FALSE(disturber.faults()[0].recovered.has_value());
  NewAttempt(5);
  Start(kShard, 12);
  Pass(absl::Milliseconds(100));
  EXPECT_FALSE(disturber.faults()[0].recovered.has_value());
  stalled_ = false;
  const Disturber::Decision recovered = Pass(absl::Seconds(60));
  ASSERT_NE(recovered.recovered, nullptr);

  const FaultRecord fault = *recovered.recovered;
  EXPECT_EQ(fault.recovered, absl::Milliseconds(3300));
  // Steps 6 up to the one after `step`.
  EXPECT_EQ(fault.caught_up, absl::Milliseconds(3200) + (step - 4) * absl::Milliseconds(100));
  EXPECT_EQ(fault.all_back, absl::Milliseconds(3300));
  EXPECT_EQ(fault.attempts, 1u);
  EXPECT_EQ(fault.recomputed_samples, (newest - 5) * 10);
  EXPECT_EQ(fault.longest_stall, absl::Milliseconds(3200));
  EXPECT_EQ(disturber.pace().attempts, 2u);
}

TEST_F(DisturberTest, KilledMemberNeedsNewViewAndItsReplacement) {
  Disturber& disturber = Make("kill:worker");
  const Disturber::Decision injected = Pass(absl::Seconds(10));
  ASSERT_EQ(injected.signals.size(), 1u);
  const policy::Replica victim = injected.signals[0].replica;
  End(victim, SIGKILL);
  Pass(absl::Seconds(1));
  EXPECT_FALSE(disturber.faults()[0].recovered.has_value());
  NewView(1);
  recomputed_ = 20;
  EXPECT_EQ(Pass(absl::Seconds(10)).recovered, nullptr);  // the other worker trains alone
  EXPECT_EQ(disturber.faults()[0].recovered, absl::Milliseconds(1200));
  Start(victim, 14);
  const Disturber::Decision recovered = Pass(absl::Seconds(10));
  ASSERT_NE(recovered.recovered, nullptr);
  EXPECT_EQ(recovered.recovered->all_back, absl::Milliseconds(11100));
  EXPECT_EQ(recovered.recovered->recomputed_samples, 20u);
}

TEST_F(DisturberTest, NextCoordinatorMayContinueTheAttempt) {
  Disturber& disturber = Make("kill:coordinator");
  ASSERT_EQ(Pass(absl::Seconds(10)).signals.size(), 1u);
  End(policy::kCoordinator, SIGKILL);
  reports_ = false;
  stalled_ = true;
  Pass(absl::Seconds(1));
  EXPECT_FALSE(disturber.faults()[0].recovered.has_value());
  Start(policy::kCoordinator, 11);
  NewView(1);
  reports_ = true;
  stalled_ = false;
  Pass(absl::Milliseconds(100));
  const Disturber::Decision recovered = Pass(absl::Seconds(10));
  ASSERT_NE(recovered.recovered, nullptr);
  EXPECT_EQ(recovered.recovered->recovered, absl::Milliseconds(1200));
  EXPECT_EQ(recovered.recovered->attempts, 0u);
  EXPECT_EQ(recovered.recovered->recomputed_samples, 0u);
}

TEST_F(DisturberTest, FrozenProcessContinuesAfterItsTime) {
  Disturber& disturber = Make("freeze:worker");
  const Disturber::Decision injected = Pass(absl::Seconds(10));
  ASSERT_EQ(injected.signals.size(), 1u);
  EXPECT_EQ(injected.signals[0].signal, SIGSTOP);
  const absl::Time frozen = now_;
  stalled_ = true;
  const Disturber::Decision thawed = Pass(absl::Seconds(10));
  ASSERT_EQ(thawed.signals.size(), 1u);
  EXPECT_EQ(thawed.signals[0].signal, SIGCONT);
  EXPECT_EQ(thawed.signals[0].pid, injected.signals[0].pid);
  EXPECT_EQ(now_ - frozen, absl::Seconds(1));
  stalled_ = false;
  const Disturber::Decision recovered = Pass(absl::Seconds(10));
  ASSERT_NE(recovered.recovered, nullptr);
  EXPECT_EQ(disturber.faults()[0].attempts, 0u);
  EXPECT_LE(*recovered.recovered->recovered, absl::Milliseconds(1200));
}

TEST_F(DisturberTest, ReplacedProcessGetsNoSignalOfItsPredecessor) {
  Make("freeze:worker");
  const Disturber::Decision injected = Pass(absl::Seconds(10));
  ASSERT_EQ(injected.signals.size(), 1u);
  End(injected.signals[0].replica, SIGKILL);  // it was expelled
  NewView(1);
  Start(injected.signals[0].replica, 14);
  const Disturber::Decision recovered = Pass(absl::Seconds(10));
  ASSERT_NE(recovered.recovered, nullptr);
  EXPECT_THAT(recovered.signals, IsEmpty());
  EXPECT_LT(*recovered.recovered->recovered, absl::Seconds(1));
}

TEST_F(DisturberTest, ScaledJobHasRecoveredWhenNewProcessesTakePartAndOthersHaveLeft) {
  max_faults_ = 2;
  Disturber& disturber = Make("scale:worker");
  Disturber::Decision decision;
  while (!decision.sizes.has_value()) decision = Pass(absl::Milliseconds(100));
  EXPECT_THAT(decision.signals, IsEmpty());
  uint32_t workers = decision.sizes->workers;
  EXPECT_EQ(decision.sizes->shards, 1u);
  EXPECT_NE(workers, 2u);
  EXPECT_EQ(Pass(absl::Seconds(5)).recovered, nullptr);
  EXPECT_TRUE(disturber.faults().back().recovered.has_value()) << "it trains meanwhile";
  const auto carry_out = [&] {
    for (uint32_t i = 0; i < 5; ++i) {
      const policy::Replica worker = {v1::WORKER, i};
      const bool runs = processes_.count(worker) > 0 && processes_[worker].running;
      if (i < workers && !runs) Start(worker, static_cast<pid_t>(100 + i));
      if (i >= workers && runs) End(worker, 0);
    }
  };
  carry_out();
  decision = Pass(absl::Seconds(1));
  ASSERT_NE(decision.recovered, nullptr);
  EXPECT_EQ(decision.recovered->attempts, 0u);

  while (!decision.sizes.has_value()) decision = Pass(absl::Milliseconds(100));
  workers = decision.sizes->workers;
  EXPECT_THAT(*Pass(absl::Seconds(60)).problem, HasSubstr("worker-"));
  carry_out();
  EXPECT_NE(Pass(absl::Seconds(1)).recovered, nullptr);
  EXPECT_THAT(disturber.unexplained(), IsEmpty());
}

TEST_F(DisturberTest, NextFaultWaitsForRecovery) {
  Disturber& disturber = Make("kill:worker+shard,freeze:coordinator");
  for (int i = 0; i < 100 && disturber.faults().empty(); ++i) Pass(absl::Seconds(1));
  ASSERT_EQ(disturber.faults().size(), 1u);
  // Nothing recovers.
  Pass(absl::Seconds(5));
  EXPECT_EQ(disturber.faults().size(), 1u);
}

TEST_F(DisturberTest, InjectsAtMostTheWantedNumberOfFaults) {
  max_faults_ = 2;
  Disturber& disturber = Make("freeze:worker");
  for (int i = 0; i < 200; ++i) Pass(absl::Seconds(1));
  EXPECT_EQ(disturber.faults().size(), 2u);
  EXPECT_TRUE(disturber.faults()[1].all_back.has_value());
}

TEST_F(DisturberTest, CutProcessIsConnectedAgainAfterItsTime) {
  Disturber& disturber = Make("cut:shard");
  const Disturber::Decision cut = Pass(absl::Seconds(10));
  EXPECT_THAT(cut.signals, IsEmpty());
  ASSERT_EQ(cut.links.size(), 1u);
  EXPECT_EQ(cut.links[0].pid, 2);
  ASSERT_TRUE(cut.links[0].fault.has_value());
  EXPECT_TRUE(cut.links[0].fault->cut);

  // Steps that end meanwhile were under way.
  const absl::Time begin = now_;
  const Disturber::Decision connected = Pass(absl::Seconds(10));
  EXPECT_EQ(now_ - begin, absl::Seconds(1));
  ASSERT_EQ(connected.links.size(), 1u);
  EXPECT_EQ(connected.links[0].pid, 2);
  EXPECT_FALSE(connected.links[0].fault.has_value());
  EXPECT_FALSE(disturber.faults()[0].recovered.has_value());

  const Disturber::Decision recovered = Pass(absl::Seconds(10));
  ASSERT_NE(recovered.recovered, nullptr);
  EXPECT_GT(*recovered.recovered->recovered, absl::Seconds(1));
}

TEST_F(DisturberTest, CutProcessThatIsReplacedEndsTheFault) {
  Make("cut:shard");
  ASSERT_EQ(Pass(absl::Seconds(10)).links.size(), 1u);
  stalled_ = true;
  Pass(absl::Milliseconds(300));
  End(kShard, SIGKILL);
  NewAttempt(1);
  Start(kShard, 12);
  stalled_ = false;
  Disturber::Decision decision;
  while (decision.recovered == nullptr) decision = Pass(absl::Seconds(60));
  EXPECT_EQ(decision.recovered->attempts, 1u);
  EXPECT_THAT(disturber_->unexplained(), IsEmpty());
}

TEST_F(DisturberTest, SlowProcessTakesPartAllTheTime) {
  Disturber& disturber = Make("slow:worker");
  const Disturber::Decision slowed = Pass(absl::Seconds(10));
  ASSERT_EQ(slowed.links.size(), 1u);
  EXPECT_FALSE(slowed.links[0].fault->cut);
  EXPECT_GT(slowed.links[0].fault->delay, absl::ZeroDuration());
  const Disturber::Decision restored = Pass(absl::Seconds(10));
  ASSERT_EQ(restored.links.size(), 1u);
  EXPECT_FALSE(restored.links[0].fault.has_value());
  EXPECT_EQ(disturber.faults()[0].recovered, absl::Milliseconds(200));
  // Only now the fault is over.
  EXPECT_TRUE(restored.recovered != nullptr || Pass(absl::Seconds(1)).recovered != nullptr);
  EXPECT_GE(*disturber.faults()[0].all_back, absl::Seconds(1));
}

TEST_F(DisturberTest, FullDiskHitsCoordinatorAndShards) {
  Disturber& disturber = Make("fill:disk");
  const Disturber::Decision full = Pass(absl::Seconds(10));
  ASSERT_EQ(full.disks.size(), 2u);
  for (const Disturber::DiskChange& change : full.disks) {
    EXPECT_TRUE(change.full);
    EXPECT_THAT(change.pid, ::testing::AnyOf(1, 2));
  }
  // No process may end because of it.
  Pass(absl::Milliseconds(200));
  End(kShard, 0, 1);
  EXPECT_THAT(disturber.unexplained(), ElementsAre(HasSubstr("ps-0")));
  Start(kShard, 12);

  const Disturber::Decision emptied = Pass(absl::Seconds(10));
  ASSERT_EQ(emptied.disks.size(), 1u) << "the shard that ended has another pid";
  EXPECT_EQ(emptied.disks[0].pid, 1);
  EXPECT_FALSE(emptied.disks[0].full);
}

TEST_F(DisturberTest, StoppedJobGetsItsLinksAndDiskBack) {
  for (const char* faults : {"cut:worker", "fill:disk"}) {
    Disturber& disturber = Make(faults);
    const Disturber::Decision injected = Pass(absl::Seconds(10));
    EXPECT_GT(injected.links.size() + injected.disks.size(), 0u);
    disturber.Stop();
    const Disturber::Decision decision = disturber.Decide(processes_, now_);
    EXPECT_EQ(decision.links.size(), injected.links.size());
    EXPECT_EQ(decision.disks.size(), injected.disks.size());
  }
}

TEST_F(DisturberTest, StoppedJobIsThawedAndLeftAlone) {
  Disturber& disturber = Make("freeze:shard");
  ASSERT_EQ(Pass(absl::Seconds(10)).signals.size(), 1u);
  disturber.Stop();
  const Disturber::Decision decision = Pass(absl::Milliseconds(100));
  ASSERT_EQ(decision.signals.size(), 1u);
  EXPECT_EQ(decision.signals[0].signal, SIGCONT);
  stalled_ = true;
  for (int i = 0; i < 100; ++i) {
    const Disturber::Decision later = Pass(absl::Seconds(1));
    EXPECT_THAT(later.signals, IsEmpty());
    EXPECT_FALSE(later.problem.has_value());
  }
}

TEST_F(DisturberTest, NoStepForTooLongIsAHang) {
  Make("kill:shard");
  ASSERT_EQ(Pass(absl::Seconds(10)).signals.size(), 1u);
  End(kShard, SIGKILL);
  stalled_ = true;
  const absl::Time stood = now_;
  const Disturber::Decision decision = Pass(absl::Minutes(5));
  ASSERT_TRUE(decision.problem.has_value());
  EXPECT_THAT(*decision.problem,
              HasSubstr("the job hangs: no step for 30 s in the phase training"));
  EXPECT_THAT(*decision.problem,
              HasSubstr(", without ps-0; the last fault: kill ps-0, 30.1 s ago"));
  EXPECT_EQ(now_ - stood, absl::Milliseconds(30100));
  EXPECT_FALSE(Pass(absl::Seconds(1)).problem.has_value());  // reported once
}

TEST_F(DisturberTest, SilentCoordinatorIsAHang) {
  Make("kill:coordinator");
  ASSERT_EQ(Pass(absl::Seconds(10)).signals.size(), 1u);
  reports_ = false;
  EXPECT_TRUE(Pass(absl::Minutes(5)).problem.has_value());
}

TEST_F(DisturberTest, JobThatNeverStartsHangs) {
  Make("kill:shard");
  pids_.clear();
  stalled_ = true;
  phase_ = v1::JobProgress::STARTING;
  attempt_ = 0;
  const Disturber::Decision decision = Pass(absl::Minutes(5));
  ASSERT_TRUE(decision.problem.has_value());
  EXPECT_THAT(*decision.problem, HasSubstr("no step for 30 s in the phase starting"));
}

TEST_F(DisturberTest, ProcessThatNeverComesBackIsAProblemWhileTheOthersTrain) {
  Make("kill:worker");
  const Disturber::Decision injected = Pass(absl::Seconds(10));
  ASSERT_EQ(injected.signals.size(), 1u);
  const policy::Replica victim = injected.signals[0].replica;
  End(victim, SIGKILL);
  NewView(1);
  const Disturber::Decision decision = Pass(absl::Minutes(5));
  ASSERT_TRUE(decision.problem.has_value());
  EXPECT_THAT(*decision.problem,
              HasSubstr(policy::ReplicaName(victim) + " has not taken part in the job for 30 s"));
}

TEST_F(DisturberTest, RestorationsWithoutEndAreAProblem) {
  Make("kill:shard");
  ASSERT_EQ(Pass(absl::Seconds(10)).signals.size(), 1u);
  End(kShard, SIGKILL);
  // The fault ends one attempt, and the job's backoffLimit is 2.
  for (int i = 1; i <= 4; ++i) {
    NewAttempt(1);
    const Disturber::Decision decision = Pass(absl::Milliseconds(100));
    EXPECT_EQ(decision.problem.has_value(), i == 4) << i;
    if (i < 4) continue;
    EXPECT_THAT(*decision.problem, HasSubstr("the job was restored 4 times"));
  }
}

TEST_F(DisturberTest, PauseOfThisProcessIsNoHang) {
  Make("kill:shard");
  Pass(absl::Seconds(1));
  now_ += absl::Hours(1);
  EXPECT_FALSE(disturber_->Decide(processes_, now_).problem.has_value());
}

TEST_F(DisturberTest, LongFinalEvaluationIsNoStallOfTheFault) {
  Disturber& disturber = Make("freeze:worker");
  ASSERT_EQ(Pass(absl::Seconds(10)).signals.size(), 1u);
  phase_ = v1::JobProgress::EVALUATING;
  stalled_ = true;
  Pass(absl::Seconds(20));
  Pass(absl::Seconds(9));
  EXPECT_TRUE(disturber.faults()[0].recovered.has_value());
  EXPECT_LT(disturber.faults()[0].longest_stall, absl::Seconds(1));
}

TEST_F(DisturberTest, FailureThatNoFaultExplainsIsListed) {
  Disturber& disturber = Make("kill:worker");
  const Disturber::Decision injected = Pass(absl::Seconds(10));
  ASSERT_EQ(injected.signals.size(), 1u);
  End(injected.signals[0].replica, SIGKILL);
  End(kShard, 0, 10);  // expelled: an orderly end
  Start(kShard, 12);
  End(kShard, SIGSEGV);
  EXPECT_THAT(disturber.unexplained(), ElementsAre(HasSubstr("ps-0: killed by signal 11")));
}

TEST_F(DisturberTest, PaceCountsStepsAndLongestStall) {
  max_faults_ = 0;
  Disturber& disturber = Make("kill:worker");
  Pass(absl::Seconds(5));
  stalled_ = true;
  Pass(absl::Seconds(2));
  stalled_ = false;
  Pass(absl::Seconds(3));
  const Pace pace = disturber.pace();
  EXPECT_EQ(pace.steps, 80u);
  EXPECT_EQ(pace.longest_stall, absl::Milliseconds(2100));
  EXPECT_NEAR(pace.StepsPerSecond(), 80 / 9.9, 1e-6);
  EXPECT_EQ(pace.recomputed_samples, 0u);
}

}  // namespace
}  // namespace sluice::chaos

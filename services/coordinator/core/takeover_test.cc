// A coordinator that takes over the attempt of an earlier one.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/snapshot_schedule.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

void ExpectSuccess(FakeJob& job) {
  job.Train(40);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
}

TEST(CoordinatorTakeover, ContinuesTheAttemptAtTheVersionThatTheShardsHave) {
  TrainedJob job(8, CheckpointEvery(5));
  const v1::View before = job.view();
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_GT(job.view().id().term().counter(), before.id().term().counter());
  EXPECT_EQ(job.view().first_step(), 8u);
  EXPECT_EQ(job.view().previous().number(), before.id().number());
  EXPECT_EQ(job.view().workers_size(), 2);
  EXPECT_EQ(job.view().layout_hash(), before.layout_hash());
  EXPECT_TRUE(job.HasEvent("attempt 1 continues with another coordinator"));
  EXPECT_EQ(job.claims.size(), 1u);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);

  ExpectSuccess(job);
  EXPECT_EQ(job.claims.size(), 2u) << "the attempt, and the end";
}

TEST(CoordinatorTakeover, ChangedRatesTakeEffectInAnotherAttempt) {
  v1::JobSpec spec = CheckpointEvery(5);
  spec.mutable_optimizer()->set_learning_rate(0.1);
  TrainedJob job(8, spec);
  job.spec.mutable_optimizer()->set_learning_rate(0.05);
  job.options.job = job.spec;
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.view().id().attempt(), 2u);
  EXPECT_EQ(job.view().first_step(), 5u);
  EXPECT_TRUE(job.HasEvent("training continues at step 5 with learningRate 0.05, was 0.1"));
  ASSERT_EQ(job.claims.size(), 2u);
  EXPECT_THAT(job.claims.back().settings(), HasSubstr("\"learningRate\":0.05"));

  // From then on the new rate is the attempt's.
  job.Train(12);
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 2u);
  EXPECT_EQ(job.view().first_step(), 17u);
  ExpectSuccess(job);
}

TEST(CoordinatorTakeover, WaitsForTheWorkersThatTheJobWants) {
  TrainedJob job(8);
  FakeWorker& late = *job.workers[1];
  job.Break(late);
  job.RestartAlone();
  for (FakeShard* shard : job.Shards()) job.Connect(*shard);
  job.Connect(*job.workers[0]);
  job.Pass(absl::Seconds(1));
  EXPECT_FALSE(job.view().has_id());
  for (FakeShard* shard : job.Shards()) EXPECT_FALSE(shard->paused) << "training continues";

  job.Connect(late);
  EXPECT_EQ(job.view().first_step(), 8u);
  EXPECT_EQ(job.view().workers_size(), 2);
}

TEST(CoordinatorTakeover, NeverAdmitsMemberThatCameTooLate) {
  TrainedJob job(8);
  FakeWorker& late = *job.workers[1];
  job.Break(late);
  late.running = false;  // as if frozen: RestartCoordinator does not connect it
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ASSERT_EQ(job.view().workers_size(), 1);

  late.running = true;
  job.Connect(late);
  ASSERT_TRUE(late.refusal.has_value());
  EXPECT_EQ(late.refusal->code(), v1::Refusal::EXPELLED);
  ExpectSuccess(job);
}

TEST(CoordinatorTakeover, WorkersBeyondTheMicrobatchesRemainStandbys) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_microbatch_size(16);  // 2 of a step
  spec.mutable_worker()->set_replicas(4);
  TrainedJob job(4, spec);
  ASSERT_EQ(job.view().workers_size(), 2);
  ASSERT_EQ(job.Workers().size(), 4u);

  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.Workers().size(), 4u);
  for (FakeWorker* worker : job.Workers()) EXPECT_FALSE(worker->refusal.has_value());
  EXPECT_FALSE(job.HasEvent("was not in the view"));

  // One of them replaces a member.
  job.Kill(*job.workers[job.view().workers(0).process().index()]);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.view().workers_size(), 2);
  ExpectSuccess(job);
}

TEST(CoordinatorTakeover, ExpelsWorkerThatKnowsTheAttemptAndIsNoMember) {
  TrainedJob job(4);
  FakeWorker& member = *job.workers[0];
  FakeWorker& expelled = *job.workers[1];
  const v1::View old = job.view();
  job.Break(expelled);
  job.Pass(absl::Seconds(2));
  ASSERT_EQ(job.view().workers_size(), 1);
  job.Train(2);
  ASSERT_EQ(expelled.view->id().number(), old.id().number()) << "it knows nothing of its expulsion";

  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ASSERT_EQ(job.view().workers_size(), 1);
  EXPECT_EQ(job.view().workers(0).process().incarnation(), member.id.incarnation());
  job.Break(expelled);
  job.Connect(expelled);
  ASSERT_TRUE(expelled.refusal.has_value());
  EXPECT_EQ(expelled.refusal->code(), v1::Refusal::EXPELLED);
}

TEST(CoordinatorTakeover, FollowsCoordinatorThatDiedBeforeItsFirstView) {
  TrainedJob job(8);
  const uint64_t counter = job.view().id().term().counter();
  job.shards[1]->frozen = true;
  job.RestartCoordinator();  // pauses the first shard, and dies
  ASSERT_TRUE(job.shards[0]->paused);
  ASSERT_FALSE(job.view().has_id());

  job.shards[1]->frozen = false;
  job.shards[1]->waiting.clear();
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().id().term().counter(), counter + 2);
  ExpectSuccess(job);
}

TEST(CoordinatorTakeover, ExitsIfShardObeysAnotherCoordinatorOfItsTerm) {
  TrainedJob job(8);
  const std::unique_ptr<CoordinatorCore> before = std::move(job.core);
  job.RestartCoordinator();
  // A shard connects to the coordinator that was replaced.
  constexpr StreamId kStream = 1000;
  before->OnConnected(kStream, job.now);
  v1::MemberMessage message;
  *message.mutable_register_() = job.shards[0]->Registration();
  before->OnMessage(kStream, message, job.now);
  std::optional<Exit> exit;
  for (Action& action : before->TakeActions()) {
    if (auto* end = std::get_if<Exit>(&action)) exit = *end;
  }
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->reason, ExitReason::kSuperseded);
  EXPECT_THAT(exit->message, HasSubstr("newer coordinator"));
}

TEST(CoordinatorTakeover, BeginsTheNextAttemptIfShardDiesMeanwhile) {
  TrainedJob job(8, CheckpointEvery(5));
  job.shards[1]->frozen = true;
  job.RestartCoordinator();
  ASSERT_TRUE(job.shards[0]->paused);
  job.Kill(*job.shards[1]);
  EXPECT_TRUE(job.HasEvent("attempt 1 cannot be continued: ps-1 is gone"));
  job.AddShard(1);
  EXPECT_EQ(job.view().id().attempt(), 2u);
  EXPECT_EQ(job.view().first_step(), 5u);
  ExpectSuccess(job);
}

TEST(CoordinatorTakeover, BeginsTheNextAttemptIfShardDoesNotAnswer) {
  TrainedJob job(8, CheckpointEvery(5));
  job.shards[1]->frozen = true;
  job.RestartCoordinator();
  job.heartbeats = true;
  job.Pass(absl::Seconds(6));
  EXPECT_TRUE(job.HasEvent("attempt 1 cannot be continued"));
  job.Kill(*job.shards[1]);
  job.AddShard(1);
  EXPECT_EQ(job.view().id().attempt(), 2u);
}

TEST(CoordinatorTakeover, ContinuesWhenTheJobWantsMoreShards) {
  TrainedJob job(8, CheckpointEvery(5));
  job.options.job.mutable_parameter_server()->set_replicas(3);
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::STARTING);
  job.AddShard(2);
  job.Train(2);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().shards_size(), 3) << "the new one joins";
}

v1::JobSpec MovesNothing() {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  spec.mutable_training()->mutable_staleness()->set_rule(
      v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
  return spec;
}

TEST(CoordinatorTakeover, ShardThatAsksToLeaveMeanwhileIsReleasedOnceItsStateIsSaved) {
  TrainedJob job(0, MovesNothing());
  job.Train(5);
  job.RestartAlone();
  FakeShard& leaving = *job.shards[1];
  job.Connect(leaving);
  job.AskToLeave(leaving);
  EXPECT_TRUE(job.HasEvent("ps-1 asks to leave: its attempt is taken over first"));
  job.Connect(*job.shards[0]);
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  EXPECT_TRUE(job.HasEvent("attempt 1 continues with another coordinator"));
  EXPECT_TRUE(leaving.finished);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_EQ(job.checkpoint_indexes.begin()->first.first, 1u) << "the attempt";
}

TEST(CoordinatorTakeover, BeginsTheNextAttemptIfAJobThatMovesNothingWantsAnotherNumberOfShards) {
  TrainedJob job(0, MovesNothing());
  job.options.job.mutable_parameter_server()->set_replicas(3);
  job.RestartCoordinator();
  job.AddShard(2);
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.view().id().attempt(), 2u);
  EXPECT_EQ(job.view().shards_size(), 3);
}

TEST(CoordinatorTakeover, BeginsTheNextAttemptIfTheWorkersHaveAnotherModel) {
  TrainedJob job(8);
  for (FakeWorker* worker : job.Workers()) {
    worker->ready.mutable_table()->mutable_tensors(0)->set_shape(0, 7);
  }
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_TRUE(job.HasEvent("attempt 1 cannot be continued: the shards hold another model"));
}

TEST(CoordinatorTakeover, SavesTheCheckpointThatWasMissedAtOnce) {
  TrainedJob job(4, CheckpointEvery(5));
  for (FakeShard* shard : job.Shards()) shard->silent_snapshots = true;
  job.Train(3);
  ASSERT_TRUE(job.checkpoint_indexes.empty());
  for (FakeShard* shard : job.Shards()) shard->silent_snapshots = false;
  job.RestartCoordinator();
  job.Train(2);
  EXPECT_EQ(job.checkpoint_indexes.size(), 0u)
      << "the attempt has no checkpoint: the next is at 10";
  job.Train(3);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 10}), 1u);

  for (FakeShard* shard : job.Shards()) shard->silent_snapshots = true;
  job.Train(4);
  for (FakeShard* shard : job.Shards()) shard->silent_snapshots = false;
  ASSERT_EQ(job.Version(), 16u);
  job.RestartCoordinator();
  job.Train(3);
  EXPECT_EQ(job.checkpoint_indexes.size(), 2u);
  EXPECT_LE(job.checkpoint_indexes.rbegin()->first.second, 18u) << "15 was missed";
}

TEST(CoordinatorTakeover, RemovesTheCheckpointsThatTheEarlierCoordinatorReplaced) {
  v1::JobSpec spec = CheckpointEvery(5);
  spec.mutable_checkpoint()->set_max_to_keep(1);
  TrainedJob job(12, spec);
  ASSERT_EQ(job.deleted.count({1, 5}), 1u);
  job.deleted.clear();  // it died before it removed them
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.deleted.count({1, 5}), 1u);
  EXPECT_EQ(job.deleted.count({1, 10}), 0u);
}

TEST(CoordinatorTakeover, KeepsTheEarlierListOfWorkersUntilItsFirstView) {
  TrainedJob job(4);
  for (FakeShard* shard : job.Shards()) shard->admitted.reset();
  job.workers[1]->running = false;
  job.RestartCoordinator();
  for (FakeShard* shard : job.Shards()) {
    EXPECT_FALSE(shard->admitted.has_value()) << "worker-1 may still open a stream";
  }
  job.Pass(absl::Seconds(3));
  for (FakeShard* shard : job.Shards()) {
    ASSERT_TRUE(shard->admitted.has_value());
    EXPECT_EQ(shard->admitted->processes_size(), 1);
  }
}

TEST(CoordinatorTakeover, EndsJobWhoseTrainingIsComplete) {
  v1::JobSpec spec = FakeJob::Spec();
  TrainedJob job(19, spec);
  job.shards[0]->silent_snapshots = true;
  job.Train(1);
  ASSERT_FALSE(job.exit.has_value());
  job.shards[0]->silent_snapshots = false;
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 20}), 1u);
  EXPECT_EQ(job.claims.size(), 2u);
}

TEST(CoordinatorTakeover, DoesNotSaveTheLastVersionAgain) {
  TrainedJob job(19);
  job.claim_error = absl::UnavailableError("the end cannot be recorded");
  job.Train(1);
  job.Pass(absl::Seconds(1));
  ASSERT_EQ(job.checkpoint_indexes.count({1, 20}), 1u);
  ASSERT_FALSE(job.exit.has_value());
  job.checkpoint_indexes.at({1, 20}).set_build("the earlier coordinator");

  job.claim_error = absl::OkStatus();
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.checkpoint_indexes.at({1, 20}).build(), "the earlier coordinator");
}

// ---- a coordinator that is asked to stop

TEST(CoordinatorTakeover, FollowsCoordinatorThatIsAskedToStop) {
  TrainedJob job(4);
  job.core->OnAskedToStop(job.now);
  job.Train(3);
  EXPECT_FALSE(job.exit.has_value()) << "other processes may be asked to stop too";
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kLeft);
  for (FakeShard* shard : job.Shards()) EXPECT_FALSE(shard->finished);
  for (FakeWorker* worker : job.Workers()) EXPECT_FALSE(worker->finished);

  job.exit.reset();
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 7u);
  ExpectSuccess(job);
}

TEST(CoordinatorTakeover, CoordinatorAndAllShardsThatAreAskedToStopSuspendTheJob) {
  TrainedJob job(4);
  job.core->OnAskedToStop(job.now);
  job.AskToLeave(*job.shards[0]);
  job.AskToLeave(*job.shards[1]);
  job.Train(6);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_GE(job.checkpoint_indexes.begin()->first.second, 4u);
}

TEST(CoordinatorTakeover, CoordinatorThatIsAskedToStopAtTheEndFinishesTheJob) {
  TrainedJob job(19);
  job.core->OnAskedToStop(job.now);
  job.Train(1);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

// An event that has no effect may be the first one after a deadline.
TEST(CoordinatorTakeover, CoordinatorThatIsAskedToStopExitsInTheFirstEventAfterItsTime) {
  const v1::SetDesiredRequest nothing;
  const std::vector<std::function<void(CoordinatorCore&, absl::Time)>> events = {
      [&](CoordinatorCore& core, absl::Time now) { core.OnSetDesired(nothing, now); },
      [](CoordinatorCore& core, absl::Time now) {
        core.OnClaimResult(/*attempt=*/99, absl::OkStatus(), now);
      },
      [](CoordinatorCore& core, absl::Time now) { core.OnSnapshotCallEnded(99, now); },
  };
  for (const auto& event : events) {
    TrainedJob job(4);
    job.core->OnAskedToStop(job.now);
    job.Pass(absl::Seconds(1.95));
    ASSERT_FALSE(job.exit.has_value());
    job.now += absl::Milliseconds(50);
    event(*job.core, job.now);
    job.Pump();
    ASSERT_TRUE(job.exit.has_value());
    EXPECT_EQ(job.exit->reason, ExitReason::kLeft);
  }
}

// ---- a job that is suspended while it has no coordinator

void Suspend(TrainedJob& job) {
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Pump();
}

TEST(CoordinatorTakeover, SuspensionSavesTheStepsOfTheAttempt) {
  TrainedJob job(7);
  job.RestartAlone();
  Suspend(job);
  job.Pass(absl::Seconds(9));
  EXPECT_FALSE(job.exit.has_value());
  for (FakeShard* shard : job.Shards()) job.Connect(*shard);
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  job.Train(4);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->message, "suspended");
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_GE(job.checkpoint_indexes.begin()->first.second, 7u);
}

TEST(CoordinatorTakeover, SuspensionWaitsForNoProcessThatDoesNotCome) {
  for (const bool shards_come : {false, true}) {
    TrainedJob job(7);
    job.RestartAlone();
    Suspend(job);
    for (FakeShard* shard : job.Shards()) {
      if (shards_come) job.Connect(*shard);
    }
    job.Pass(absl::Seconds(9));
    EXPECT_FALSE(job.exit.has_value());
    job.Pass(absl::Seconds(8));
    ASSERT_TRUE(job.exit.has_value());
    EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  }
}

TEST(CoordinatorTakeover, SuspensionWaitsForAShardAsLongAsForItsCheckpoint) {
  TrainedJob job(7);
  job.RestartAlone();
  Suspend(job);
  job.Connect(*job.shards[0]);
  job.Connect(*job.workers[0]);
  job.Pass(absl::Seconds(59));
  EXPECT_FALSE(job.exit.has_value()) << "the other shard may come";
  job.Pass(absl::Seconds(7));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
}

TEST(CoordinatorTakeover, SuspensionBeginsNoAttemptForNewProcesses) {
  TrainedJob job(7);
  for (FakeShard* shard : job.Shards()) job.Kill(*shard, /*reported=*/false);
  job.RestartAlone();
  Suspend(job);
  for (const uint32_t index : {0, 1}) job.AddShard(index);
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_EQ(job.claims.size(), 1u);
}

// ---- asynchronous

v1::JobSpec Asynchronous() {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  return spec;
}

TEST(CoordinatorTakeover, AsynchronousAttemptContinuesWithWhatWasApplied) {
  TrainedJob job(0, Asynchronous());
  job.Update(*job.workers[0], 32);
  job.Update(*job.workers[1], 32);
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 2u);
  EXPECT_EQ(job.Progress().samples(), 64u);
  EXPECT_EQ(job.claims.size(), 1u);
  job.Update(*job.workers[0], 32);
  EXPECT_EQ(job.Progress().samples(), 96u);
}

TEST(CoordinatorTakeover, AsynchronousUpdateThatOneShardHasStagedIsAppliedThere) {
  TrainedJob job(0, Asynchronous());
  job.Update(*job.workers[0], 32, {job.shards[1].get()});
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  for (FakeShard* shard : job.Shards()) EXPECT_EQ(shard->ledger.Count(), 32u);
}

TEST(CoordinatorTakeover, AttemptContinuesIfTheArbiterLacksTheNewestView) {
  TrainedJob job(0, Asynchronous());
  job.Update(*job.workers[0], 32);
  FakeShard& arbiter = *job.shards[job.view().owner(0)];
  arbiter.drop_installs = true;
  job.Kill(*job.workers[1]);
  arbiter.drop_installs = false;
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 1u);
}

}  // namespace
}  // namespace sluice::coordinator

// Shards that ask to leave, where no shard can take their partitions.
#include <cstdint>
#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

v1::JobSpec SpecOf(uint32_t shards) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_parameter_server()->set_replicas(shards);
  spec.set_backoff_limit(0);
  spec.mutable_timeouts()->set_suspend_checkpoint(4);
  return spec;
}

v1::JobSpec SavedEveryFiveSteps(uint32_t shards) {
  v1::JobSpec spec = SpecOf(shards);
  spec.mutable_checkpoint()->set_interval_steps(5);
  return spec;
}

// A released process exits.
void End(FakeJob& job, FakeProcess& process) {
  EXPECT_EQ(process.stream, 0) << "its stream is closed";
  EXPECT_TRUE(process.closed.ok()) << process.closed;
  job.Kill(process);
}

TEST(CoordinatorHandOver, ReleasesLeavingShardOnceItsStateIsSaved) {
  TrainedJob job(7, SpecOf(1));
  FakeShard& leaving = *job.shards[0];
  job.AskToLeave(leaving);
  EXPECT_FALSE(leaving.finished);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);

  job.Train(4);
  ASSERT_TRUE(leaving.finished);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  const uint64_t step = job.checkpoint_indexes.begin()->first.second;
  EXPECT_EQ(step, job.Version()) << "all trained steps are saved";
  EXPECT_GE(step, 8);

  End(job, leaving);
  job.Pass(absl::Seconds(1));
  job.AddShard(0);
  EXPECT_EQ(job.core->view().id().attempt(), 2);
  EXPECT_EQ(job.core->view().first_step(), step);
  EXPECT_EQ(job.core->view().workers_size(), 2);

  job.Train(20 - static_cast<int>(step));
  ASSERT_TRUE(job.exit.has_value()) << "backoffLimit is 0, and nothing was restored";
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorHandOver, AllShardsMayLeaveAtOnce) {
  TrainedJob job(7, SpecOf(2));
  for (FakeShard* shard : job.Shards()) job.AskToLeave(*shard);
  job.Train(4);
  for (FakeShard* shard : job.Shards()) {
    ASSERT_TRUE(shard->finished);
    End(job, *shard);
  }
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  const uint64_t step = job.checkpoint_indexes.begin()->first.second;
  job.AddShard(0);
  job.AddShard(1);
  EXPECT_EQ(job.core->view().first_step(), step);
  job.Train(20 - static_cast<int>(step));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorHandOver, ShardThatExitsUnsavedCostsStepsButNoRestoration) {
  TrainedJob job(8, SavedEveryFiveSteps(1));
  job.shards[0]->silent_snapshots = true;
  job.AskToLeave(*job.shards[0]);
  job.Kill(*job.shards[0]);
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::STARTING);
  job.AddShard(0);
  EXPECT_EQ(job.core->view().id().attempt(), 2);
  EXPECT_EQ(job.core->view().first_step(), 5);
}

TEST(CoordinatorHandOver, ReleasesShardIfCheckpointTakesTooLong) {
  TrainedJob job(8, SavedEveryFiveSteps(1));
  job.shards[0]->silent_snapshots = true;
  job.AskToLeave(*job.shards[0]);
  job.Train(3);
  EXPECT_FALSE(job.shards[0]->finished);
  job.Pass(absl::Seconds(5));
  ASSERT_TRUE(job.shards[0]->finished);
  EXPECT_TRUE(job.HasEvent("for a shard that leaves"));
  End(job, *job.shards[0]);
  job.AddShard(0);
  EXPECT_EQ(job.core->view().first_step(), 5);
}

TEST(CoordinatorHandOver, FullDiskDoesNotFailJobOfLeavingShard) {
  v1::JobSpec spec = SpecOf(1);
  spec.mutable_timeouts()->set_suspend_checkpoint(30);
  TrainedJob job(7, spec);
  job.shards[0]->disk_full = true;
  job.AskToLeave(*job.shards[0]);
  job.Train(4);
  job.Pass(absl::Seconds(5));
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_FALSE(job.shards[0]->finished);
  job.shards[0]->disk_full = false;
  job.Pass(absl::Seconds(10));  // with growing delays between retries
  EXPECT_TRUE(job.shards[0]->finished);
  EXPECT_EQ(job.checkpoint_indexes.size(), 1u);
}

TEST(CoordinatorHandOver, ShardMayLeaveBeforeTrainingBegins) {
  FakeJob job(SpecOf(2));
  job.Pump();
  job.AddShard(0);
  FakeShard& second = job.AddShard(1);
  job.AskToLeave(second);
  End(job, second);

  // ... and while the model is created.
  FakeWorker& worker = job.AddWorker(0, /*initializes=*/false);
  FakeShard& third = job.AddShard(1);
  job.Pass(absl::Seconds(3));
  ASSERT_EQ(worker.asked, 1);

  job.AskToLeave(third);
  End(job, third);
  EXPECT_FALSE(job.exit.has_value());
  worker.initializes = true;
  job.AddShard(1);
  job.Pass(absl::Seconds(3));
  job.AddWorker(1);
  job.Train(20);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorHandOver, SuspensionDuringHandOverSuspendsJob) {
  TrainedJob job(7, SpecOf(1));
  job.AskToLeave(*job.shards[0]);
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Train(4);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_EQ(job.checkpoint_indexes.size(), 1u);
}

TEST(CoordinatorHandOver, AtEndOfJobLeavingShardEndsWithOthers) {
  TrainedJob job(19, SpecOf(2));
  job.hold_checkpoint_index = true;
  job.Train(1);
  job.AskToLeave(*job.shards[0]);
  EXPECT_FALSE(job.shards[0]->finished);
  job.hold_checkpoint_index = false;
  v1::CheckpointRef last;
  last.set_attempt(1);
  last.set_step(20);
  job.core->OnCheckpointIndexWritten(last, absl::OkStatus(), job.now);
  job.Pump();
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorHandOver, ReleasesLeavingShardWhenDeathOfAnotherEndsAttempt) {
  v1::JobSpec spec = SavedEveryFiveSteps(2);
  spec.set_backoff_limit(1);
  TrainedJob job(8, spec);
  job.AskToLeave(*job.shards[0]);
  job.Kill(*job.shards[1]);
  EXPECT_TRUE(job.shards[0]->finished) << "its attempt has ended";
  End(job, *job.shards[0]);
  job.AddShard(0);
  job.AddShard(1);
  EXPECT_EQ(job.core->view().first_step(), 5);
}

TEST(CoordinatorHandOver, NewWorkersFinishLastEvaluationIfAllLeave) {
  v1::JobSpec spec = SpecOf(1);
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(50);
  FakeJob job(spec);
  job.Start();
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(20);
  ASSERT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);

  for (int i : {0, 1}) job.AskToLeave(*job.workers[i]);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 0);
  for (int i : {0, 1}) job.Kill(*job.workers[i]);
  EXPECT_FALSE(job.exit.has_value());

  job.AddWorker(0);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

}  // namespace
}  // namespace sluice::coordinator

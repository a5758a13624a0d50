// Checkpoints, evaluation and snapshots of a whole coordinator.

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

v1::JobSpec CheckpointEvery(uint64_t steps) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(steps);
  return spec;
}

v1::JobSpec EvaluateEvery(uint64_t steps) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(steps);
  return spec;
}

std::vector<uint64_t> SavedSteps(const FakeJob& job) {
  std::vector<uint64_t> steps;
  for (const auto& [key, checkpoint_index] : job.checkpoint_indexes) steps.push_back(key.second);
  return steps;
}

// ---- checkpoints

TEST(CoordinatorCheckpoints, SuspensionDoesNotWaitForSnapshotOfVersionThatDoesNotCome) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  job.Train(5);
  for (FakeWorker* worker : job.Workers()) job.Kill(*worker);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 5}), 1u);
  ASSERT_EQ(job.Version(), 5u);
  ASSERT_EQ(job.shards[0]->snapshot->step(), 10u);

  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Pump();
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_EQ(job.exit->message, "suspended");
}

TEST(CoordinatorCheckpoints, AreMadeEveryNStepsAndNewestAreKept) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.Train(20);
  EXPECT_THAT(SavedSteps(job), ElementsAre(5, 10, 15, 20));
  EXPECT_THAT(job.deleted, ElementsAre(std::make_pair(1, 5), std::make_pair(1, 10)));
  const v1::CheckpointIndex& checkpoint_index = job.checkpoint_indexes.at({1, 10});
  EXPECT_EQ(checkpoint_index.job(), "default/digits/u1");
  EXPECT_EQ(checkpoint_index.samples(), 320);
  EXPECT_FALSE(checkpoint_index.has_parent());
  EXPECT_EQ(checkpoint_index.layout().partitions(), 4);
  EXPECT_EQ(checkpoint_index.files_size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(checkpoint_index.files(i).partition(), i);
  EXPECT_NEAR(checkpoint_index.loss(), 0.25, 1e-9);
  EXPECT_EQ(job.Progress().checkpoint().last().step(), 20);
  EXPECT_EQ(job.Progress().checkpoint().bytes(), 4000);
}

TEST(CoordinatorCheckpoints, AreMadeEveryNSeconds) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_seconds(0.6);
  FakeJob job(spec);
  job.Start();
  job.Train(19);
  EXPECT_GE(job.checkpoint_indexes.size(), 2u);
  EXPECT_LE(job.checkpoint_indexes.size(), 3u);
}

TEST(CoordinatorCheckpoints, ParentIsKeptUntilAttemptHasItsOwn) {
  v1::JobSpec spec = CheckpointEvery(5);
  spec.mutable_checkpoint()->set_max_to_keep(1);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  EXPECT_EQ(job.core->view().first_step(), 5);
  job.Train(3);
  EXPECT_TRUE(job.deleted.empty());
  job.Train(3);
  EXPECT_THAT(job.deleted, ElementsAre(std::make_pair(1, 5)));
  EXPECT_EQ(job.checkpoint_indexes.at({2, 10}).parent().step(), 5);
}

TEST(CoordinatorCheckpoints, RollBackDropsPinButKeepsCut) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.Train(4);
  job.CloseOn({job.shards[0].get()});  // pins 5, not committed
  ASSERT_TRUE(job.shards[0]->pinned);
  job.Kill(*job.workers[0]);
  EXPECT_EQ(job.core->view().first_step(), 4);
  EXPECT_EQ(job.shards[0]->installs.back().snapshot().step(), 5);
  EXPECT_FALSE(job.shards[0]->pinned);
  job.Train(2);
  EXPECT_THAT(SavedSteps(job), ElementsAre(5));
}

TEST(CoordinatorCheckpoints, CutWithMissingPinIsReplacedByLaterStep) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.shards[1]->silent_snapshots = true;
  job.Train(7);
  job.shards[1]->silent_snapshots = false;
  job.Kill(*job.workers[0]);
  EXPECT_EQ(job.core->view().first_step(), 7);
  EXPECT_FALSE(job.shards[0]->installs.back().has_snapshot());
  job.Train(5);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_GT(SavedSteps(job)[0], 7);
}

TEST(CoordinatorCheckpoints, ShardPastTheStepGetsLaterStep) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_seconds(1);
  FakeJob job(spec);
  job.Start();
  job.shards[0]->frozen = job.shards[1]->frozen = true;  // messages to them are delayed
  for (int i = 0; i < 12; ++i) job.Pass(absl::Milliseconds(100));
  // They have closed steps meanwhile, without a report.
  for (FakeShard* shard : job.Shards()) shard->version = 9, shard->committed = 9;
  job.shards[0]->frozen = job.shards[1]->frozen = false;
  job.Pump();
  job.Train(3);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_GE(SavedSteps(job)[0], 10);
}

TEST(CoordinatorCheckpoints, ReportsFullDiskAndContinuesTraining) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.shards[1]->disk_full = true;
  job.Train(7);
  EXPECT_EQ(job.Version(), 7);
  EXPECT_TRUE(job.checkpoint_indexes.empty());
  EXPECT_THAT(job.Progress().checkpoint().error(), HasSubstr("no space left on device"));
  EXPECT_TRUE(job.HasEvent("no checkpoint at step 5: ps-1: no space left on device"));
  job.shards[1]->disk_full = false;
  job.Train(4);
  EXPECT_THAT(SavedSteps(job), ElementsAre(10));
  EXPECT_THAT(job.Progress().checkpoint().error(), "");
}

TEST(CoordinatorCheckpoints, LastCheckpointWaitsForDiskAndReportsItOnce) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.shards[1]->disk_full = true;
  job.Train(20);
  job.Pass(absl::Minutes(10));
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_THAT(job.Progress().checkpoint().error(), HasSubstr("no space left on device"));

  const std::vector<std::string> events = job.Events();
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const std::string& event) {
                            return event.find("no space left") != std::string::npos;
                          }),
            1)
      << "ten minutes of retries are one event";
  EXPECT_TRUE(job.HasEvent("the job waits until its last checkpoint can be saved"));
  EXPECT_LT(job.removed.size(), 40u) << "it waits longer before each retry";

  job.shards[1]->disk_full = false;
  job.Pass(absl::Seconds(40));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_THAT(SavedSteps(job), ElementsAre(20));
  EXPECT_EQ(job.Progress().checkpoint().error(), "");
}

TEST(CoordinatorCheckpoints, JobThatWaitsForDiskAtItsEndCanBeStopped) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.shards[1]->disk_full = true;
  job.Train(20);
  job.Pass(absl::Seconds(20));
  ASSERT_FALSE(job.exit.has_value());
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Pump();
  job.Pass(absl::Seconds(90));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_EQ(job.claims.size(), 1u) << "the job can run again";
}

TEST(CoordinatorCheckpoints, EndRecordWaitsForDisk) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.claim_error = absl::ResourceExhaustedError("no space left on device");
  job.Train(20);
  job.Pass(absl::Minutes(5));
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_THAT(SavedSteps(job), ElementsAre(20));
  EXPECT_TRUE(job.HasEvent("the end cannot be recorded: no space left on device"));
  job.claim_error = absl::OkStatus();
  job.Pass(absl::Seconds(40));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

// A shard's reports on the open snapshot, with the name of another attempt or step.
v1::MemberMessage WrittenReport(const FakeShard& shard, uint64_t attempt, uint64_t step) {
  v1::MemberMessage message;
  v1::SnapshotWritten& written = *message.mutable_snapshot_written();
  written.set_snapshot_id(shard.snapshot->snapshot_id());
  *written.mutable_view() = shard.view.id();
  written.mutable_name()->set_attempt(attempt);
  written.mutable_name()->set_step(step);
  for (uint32_t p : shard.Owned()) {
    written.add_files()->set_partition(p);
    written.mutable_files(written.files_size() - 1)->set_bytes(1000);
  }
  return message;
}

TEST(CoordinatorCheckpoints, IgnoresReportOfAnotherAttemptOrStep) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.Train(4);
  job.Kill(*job.shards[1], /*told=*/false);
  job.RestartCoordinator();  // numbers its snapshots from 1 again
  job.AddShard(1);
  for (FakeShard* shard : job.Shards()) shard->silent_snapshots = true;
  job.Train(6);
  ASSERT_TRUE(job.shards[0]->snapshot.has_value());

  const v1::CheckpointRef name = job.shards[0]->snapshot->name();
  ASSERT_EQ(name.attempt(), 2);
  for (FakeShard* shard : job.Shards()) {
    for (auto [attempt, step] : {std::make_pair(name.attempt() - 1, name.step()),
                                 std::make_pair(name.attempt(), name.step() + 1),
                                 std::make_pair(uint64_t{0}, uint64_t{0})}) {
      shard->Say(WrittenReport(*shard, attempt, step));
      v1::MemberMessage failed;
      failed.mutable_snapshot_failed()->set_snapshot_id(shard->snapshot->snapshot_id());
      *failed.mutable_snapshot_failed()->mutable_view() = shard->view.id();
      failed.mutable_snapshot_failed()->mutable_name()->set_attempt(attempt);
      failed.mutable_snapshot_failed()->mutable_name()->set_step(step);
      failed.mutable_snapshot_failed()->set_reason("of long ago");
      shard->Say(failed);
    }
  }
  job.Pump();
  EXPECT_THAT(SavedSteps(job), IsEmpty());
  EXPECT_EQ(job.Progress().checkpoint().error(), "");

  for (FakeShard* shard : job.Shards()) {
    shard->Say(WrittenReport(*shard, name.attempt(), name.step()));
  }
  job.Pump();
  EXPECT_THAT(SavedSteps(job), ElementsAre(name.step()));
}

TEST(CoordinatorCheckpoints, FileOfForeignPartitionFailsCheckpoint) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  for (FakeShard* shard : job.Shards()) shard->silent_snapshots = true;
  job.Train(6);
  FakeShard& liar = *job.shards[0];
  ASSERT_TRUE(liar.snapshot.has_value());
  v1::MemberMessage report = WrittenReport(liar, 1, liar.snapshot->step());
  report.mutable_snapshot_written()->mutable_files(0)->set_partition(job.shards[1]->Owned()[0]);
  liar.Say(report);
  job.Pump();
  EXPECT_TRUE(job.HasEvent("does not own"));
  EXPECT_THAT(SavedSteps(job), IsEmpty());
}

TEST(CoordinatorCheckpoints, LastCheckpointIsSavedOnceDiskHasRoom) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.shards[1]->disk_full = true;
  job.Train(20);
  job.shards[1]->disk_full = false;
  job.Pass(absl::Seconds(1.5));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_THAT(SavedSteps(job), ElementsAre(20));
}

TEST(CoordinatorCheckpoints, FilesOfFailedCheckpointAreRemovedOnceItsVersionIsPassed) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.shards[1]->disk_full = true;
  job.Train(6);
  EXPECT_NE(job.Progress().checkpoint().error(), "");
  EXPECT_THAT(job.removed, IsEmpty()) << "another coordinator may save this version";
  job.Train(1);
  EXPECT_THAT(job.removed, ElementsAre(std::make_pair(1, 5)));
  job.shards[1]->disk_full = false;
  job.Train(13);
  EXPECT_THAT(SavedSteps(job), ElementsAre(10, 15, 20));
  EXPECT_THAT(job.removed, ElementsAre(std::make_pair(1, 5))) << "complete checkpoints stay";
}

TEST(CoordinatorCheckpoints, FilesOfAbandonedCheckpointAreRemovedWithTheNext) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.shards[1]->silent_snapshots = true;
  job.Train(7);
  job.shards[1]->silent_snapshots = false;
  job.Kill(*job.workers[0]);
  EXPECT_THAT(job.removed, IsEmpty());
  job.Train(5);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_THAT(job.removed, Contains(std::make_pair(1, 5)));
  EXPECT_THAT(job.removed, Not(Contains(std::make_pair(1, SavedSteps(job)[0]))));
}

// A coordinator that takes over may save the same version.
TEST(CoordinatorCheckpoints, FilesOfTheNewestVersionAreNotRemoved) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.shards[1]->disk_full = true;
  job.Train(20);
  job.shards[1]->disk_full = false;
  job.Pass(absl::Seconds(10));
  EXPECT_THAT(SavedSteps(job), ElementsAre(20));
  EXPECT_THAT(job.removed, IsEmpty());
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorCheckpoints, FailedWriteOfManifestIsNotACheckpoint) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.checkpoint_index_error = absl::ResourceExhaustedError("disk full");
  job.Train(7);
  EXPECT_TRUE(job.checkpoint_indexes.empty());
  EXPECT_FALSE(job.Progress().checkpoint().has_last());
  job.checkpoint_index_error = absl::OkStatus();
  job.Train(4);
  EXPECT_THAT(SavedSteps(job), ElementsAre(10));
}

TEST(CoordinatorCheckpoints, WorkerDeathDuringWriteKeepsCheckpoint) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.hold_checkpoint_index = true;
  job.Train(6);
  job.Kill(*job.workers[0]);
  job.Train(1);
  job.hold_checkpoint_index = false;
  v1::CheckpointRef ref;
  ref.set_attempt(1);
  ref.set_step(5);
  job.core->OnCheckpointIndexWritten(ref, absl::OkStatus(), job.now);
  job.Pump();
  EXPECT_EQ(job.Progress().checkpoint().last().step(), 5);
}

// ---- evaluation

TEST(CoordinatorEvaluation, MembersShareHeldOutSamplesAtOneVersion) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  job.Train(6);
  ASSERT_EQ(job.workers[0]->evaluations.size(), 1u);
  ASSERT_EQ(job.workers[1]->evaluations.size(), 1u);

  const v1::Evaluate& first = job.workers[0]->evaluations[0];
  const v1::Evaluate& second = job.workers[1]->evaluations[0];
  EXPECT_EQ(first.version(), 5);
  EXPECT_EQ(first.samples().begin(), 0);
  EXPECT_EQ(first.samples().end(), second.samples().begin());
  EXPECT_EQ(second.samples().end(), 1000);

  const v1::Evaluation result = job.Progress().last_evaluation();
  EXPECT_EQ(result.step(), 5);
  EXPECT_EQ(result.samples(), 1000);
  EXPECT_DOUBLE_EQ(result.loss(), 0.5);
  EXPECT_TRUE(result.has_accuracy());
  EXPECT_DOUBLE_EQ(result.accuracy(), 5);
  EXPECT_DOUBLE_EQ(result.epoch(), 0.05);
  EXPECT_TRUE(job.HasEvent("evaluation at step 5: loss 0.5000, accuracy 5.00 %"));
  EXPECT_FALSE(job.shards[0]->snapshot.has_value() && job.shards[0]->snapshot->step() == 5)
      << "the pin is released";
}

TEST(CoordinatorEvaluation, WarnsOnceIfWorkersHaveNoEvaluationData) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_data()->mutable_evaluation()->set_max_samples(10);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  const v1::JobProgress progress = job.Progress();
  int warnings = 0;
  for (const v1::Event& event : progress.events()) {
    if (event.kind() != v1::Event::WARNING) continue;
    EXPECT_THAT(event.message(), HasSubstr("nothing is evaluated"));
    ++warnings;
  }
  EXPECT_EQ(warnings, 1);
}

// The steps at which the job was evaluated, in order.
std::vector<uint64_t> EvaluatedSteps(FakeJob& job) {
  std::vector<uint64_t> steps;
  const v1::JobProgress progress = job.Progress();
  for (const v1::Event& event : progress.events()) {
    if (event.has_evaluation()) steps.push_back(event.evaluation().step());
  }
  return steps;
}

// Trains as far as possible while no worker answers the current evaluation.
void TrainWithoutEvaluating(FakeJob& job) {
  for (FakeWorker* worker : job.Workers()) worker->evaluates = false;
  job.Train(20);
}

void LetEvaluate(FakeJob& job) {
  for (FakeWorker* worker : job.Workers()) {
    worker->evaluates = true;
    job.Break(*worker);  // the coordinator repeats open requests
    job.Connect(*worker);
  }
}

TEST(CoordinatorEvaluation, EvaluatesExactlyTheDueVersionsAtAnySpeed) {
  FakeJob job(EvaluateEvery(1));
  job.Start();
  for (int step = 0; step < 7; ++step) {  // a version is committed by the step after it
    job.CloseOn(job.Shards());            // before the coordinator learns of the previous step
    job.Pass(absl::Milliseconds(100));
  }
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(CoordinatorEvaluation, TrainingStopsAtDueVersionWhileAnotherIsEvaluated) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  EXPECT_FALSE(job.Progress().has_evaluating_step());
  TrainWithoutEvaluating(job);
  EXPECT_EQ(job.Version(), 6);
  EXPECT_THAT(EvaluatedSteps(job), IsEmpty());
  EXPECT_EQ(job.Progress().evaluating_step(), 3);
  LetEvaluate(job);
  job.Train(10);
  EXPECT_FALSE(job.Progress().has_evaluating_step());
  EXPECT_EQ(job.Version(), 16);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(3, 6, 9, 12, 15));
}

TEST(CoordinatorEvaluation, JoinDuringHoldSkipsNoDueVersion) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  TrainWithoutEvaluating(job);
  job.AddWorker(2);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 3);
  EXPECT_EQ(job.core->view().first_step(), 6);
  job.Train(3);
  EXPECT_EQ(job.Version(), 6);
  LetEvaluate(job);
  job.Train(2);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(3, 6));
}

TEST(CoordinatorEvaluation, ReturningShardGetsHoldAgain) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  job.Train(4);
  FakeShard& shard = *job.shards[0];
  EXPECT_EQ(shard.barrier, 9) << "the snapshot of 6 is open";
  job.Break(shard);
  shard.barrier = 0;
  job.Connect(shard);
  job.Pass(absl::Milliseconds(100));
  EXPECT_EQ(shard.barrier, 9);
}

TEST(CoordinatorEvaluation, TrainingDoesNotWaitLongForSlowStorage) {
  v1::JobSpec spec = EvaluateEvery(4);
  spec.mutable_checkpoint()->set_interval_steps(4);
  FakeJob job(spec);
  job.Start();
  job.hold_checkpoint_index = true;
  job.Train(20);
  EXPECT_EQ(job.Version(), 8) << "4 is being saved, and 8 is due for evaluation";
  job.Train(100);  // 10 s
  EXPECT_EQ(job.Version(), 20);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(4, 20)) << "and the final version";
}

TEST(CoordinatorEvaluation, ShardThatMissedMovedHoldDoesNotBlockViewChange) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  TrainWithoutEvaluating(job);
  FakeShard& informed = *job.shards[0];
  FakeShard& deaf = *job.shards[1];
  job.Break(deaf);
  LetEvaluate(job);
  EXPECT_EQ(informed.barrier, 9);
  EXPECT_EQ(deaf.barrier, 6);

  job.CloseOn({&informed});
  EXPECT_EQ(informed.version, 7);
  job.AddWorker(2);
  job.Pass(absl::Milliseconds(200));
  job.Connect(deaf);  // it learns of the view change first
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 3);
  job.Train(10);
  EXPECT_EQ(job.Version(), 16);
}

TEST(CoordinatorEvaluation, ShardThatLearnsOfHoldTooLateStopsNoShard) {
  v1::JobSpec spec = EvaluateEvery(4);
  spec.mutable_training()->set_steps(60);
  spec.mutable_checkpoint()->set_interval_steps(3);
  FakeJob job(spec);
  job.Start();
  job.hold_checkpoint_index = true;
  for (int i = 0; job.Version() < 6 && i < 200; ++i) job.Train();
  ASSERT_EQ(job.Version(), 6) << "the storage has held training for the maximum time";

  FakeShard& late = *job.shards[0];
  FakeShard& other = *job.shards[1];
  late.frozen = true;
  job.hold_checkpoint_index = false;
  v1::CheckpointRef saved;
  saved.set_attempt(1);
  saved.set_step(3);
  job.core->OnCheckpointIndexWritten(saved, absl::OkStatus(), job.now);
  job.Pump();
  ASSERT_GT(other.barrier, 6);
  ASSERT_EQ(late.barrier, 0);

  while (other.version < other.barrier) job.CloseOn(job.Shards());
  const uint64_t missed = other.barrier;
  ASSERT_TRUE(other.snapshot.has_value());
  // One partition of the shard has closed the step. The others have received the barrier, and stop.
  v1::MemberMessage past;
  past.mutable_snapshot_failed()->set_snapshot_id(other.snapshot->snapshot_id());
  *past.mutable_snapshot_failed()->mutable_view() = late.view.id();
  past.mutable_snapshot_failed()->set_past(missed + 1);
  *past.mutable_snapshot_failed()->mutable_name() = other.snapshot->name();
  late.waiting.clear();
  late.barrier = missed;
  late.frozen = false;
  late.Say(past);
  job.Pump();
  EXPECT_NE(late.barrier, missed);
  EXPECT_NE(other.barrier, missed);

  job.Train(10);
  EXPECT_GT(job.Version(), missed + 5);
  EXPECT_THAT(EvaluatedSteps(job), Contains(missed + 4));
}

TEST(CoordinatorEvaluation, EvaluatesDueVersionThatAttemptBeginsWith) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->evaluates = false;
  job.Train(6);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 5}), 1u);
  EXPECT_THAT(EvaluatedSteps(job), IsEmpty());

  for (FakeWorker* worker : job.Workers()) worker->evaluates = true;
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  ASSERT_EQ(job.core->view().first_step(), 5);

  job.Train(6);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(5, 10));
  job.Kill(*job.shards[1]);
  job.AddShard(1);
  ASSERT_EQ(job.core->view().first_step(), 10);
  job.Train(6);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(5, 10, 15)) << "10 is evaluated";
}

TEST(CoordinatorEvaluation, TrainingContinuesAfterAbandonedEvaluation) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->evaluation_error = "no memory";
  job.Train(7);
  EXPECT_EQ(job.Version(), 7);
}

// Regression of the fake shard, which repeated no reports on a new stream.
TEST(CoordinatorEvaluation, EndsAfterPinWasReportedOnBrokenStream) {
  FakeJob job(EvaluateEvery(7));
  job.Start();
  job.Train(19);
  FakeShard& shard = *job.shards[1];
  shard.frozen = true;
  job.Train();
  job.Break(shard);
  shard.frozen = false;
  job.Pump();  // it reads OpenSnapshot from the broken stream
  ASSERT_TRUE(shard.reported);
  ASSERT_FALSE(job.Progress().last_evaluation().final());

  // The shard returns during a view change, so the coordinator does not repeat OpenSnapshot.
  job.Kill(*job.workers[0]);
  job.Connect(shard);
  EXPECT_EQ(job.core->view().workers_size(), 1);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

// Regression of the fake shard, which kept pins of versions above a view's first step.
TEST(CoordinatorEvaluation, ShardThatReceivesPartitionsPinsAgain) {
  v1::JobSpec spec = EvaluateEvery(7);
  spec.mutable_parameter_server()->set_replicas(1);
  spec.mutable_parameter_server()->set_copies(2);
  FakeJob job(spec);
  job.elements = 10'000'000;  // all partitions have blocks
  job.Start();
  job.Train(1);
  job.ScaleShards(2);
  FakeShard& joined = job.AddShard(1);
  job.Train(2);
  ASSERT_TRUE(joined.has_view);
  ASSERT_TRUE(joined.Owned().empty());
  ASSERT_TRUE(joined.reported);  // it has nothing to pin
  job.Pass(absl::Seconds(1));    // its copies become whole
  job.Train(2);
  ASSERT_FALSE(joined.Owned().empty());
  ASSERT_LT(job.Version(), 7);
  EXPECT_FALSE(joined.reported);

  job.Train(5);
  EXPECT_TRUE(job.HasEvent("evaluation at step 7"));
}

TEST(CoordinatorEvaluation, ReportsPerplexityOfLanguageModel) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->set_format(v1::DataSpec::TEXT);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  EXPECT_TRUE(job.Progress().last_evaluation().has_perplexity());
  EXPECT_DOUBLE_EQ(job.Progress().last_evaluation().perplexity(), std::exp(0.5));
  FakeJob other(EvaluateEvery(5));
  other.Start();
  other.Train(6);
  EXPECT_FALSE(other.Progress().last_evaluation().has_perplexity());
}

TEST(CoordinatorEvaluation, LowPerplexityEndsTraining) {
  for (const bool reached : {true, false}) {
    v1::JobSpec spec = EvaluateEvery(5);
    spec.mutable_data()->set_format(v1::DataSpec::TEXT);
    spec.mutable_training()->mutable_target()->set_metric("perplexity");
    spec.mutable_training()->mutable_target()->set_goal("AtMost");
    spec.mutable_training()->mutable_target()->set_value(reached ? 1.65 : 1.64);
    FakeJob job(spec);
    job.Start();
    job.Train(12);
    EXPECT_EQ(job.exit.has_value(), reached);
  }
}

TEST(CoordinatorEvaluation, RangeOfDeadEvaluatorGoesToAnother) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  job.workers[0]->evaluates = false;
  job.Train(6);
  EXPECT_FALSE(job.Progress().has_last_evaluation());
  job.Kill(*job.workers[0]);
  EXPECT_EQ(job.workers[1]->evaluations.size(), 2u);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, ReturningEvaluatorIsAskedAgain) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  FakeWorker& worker = *job.workers[0];
  worker.evaluates = false;
  job.Train(6);
  job.Break(worker);
  worker.evaluates = true;
  job.Connect(worker);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, SharesCutWithCheckpointAtSameStep) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_checkpoint()->set_interval_steps(10);
  FakeJob job(spec);
  job.Start();
  job.Train(12);
  EXPECT_THAT(SavedSteps(job), ElementsAre(10));
  EXPECT_EQ(job.Progress().last_evaluation().step(), 10);
}

TEST(CoordinatorEvaluation, GivesUpAfterRepeatedFailures) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  job.workers[0]->evaluation_error = "pinned version is gone";
  job.workers[1]->evaluation_error = "pinned version is gone";
  job.Train(7);
  EXPECT_TRUE(job.HasEvent("no evaluation at step 5: pinned version is gone"));
  job.workers[0]->evaluation_error = job.workers[1]->evaluation_error = "";
  job.Train(4);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 10);
}

TEST(CoordinatorEvaluation, CompleteJobIsEvaluatedBeforeItEnds) {
  FakeJob job(EvaluateEvery(50));
  job.Start();
  job.workers[0]->evaluates = false;
  job.Train(20);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);
  EXPECT_FALSE(job.exit.has_value());
  job.Kill(*job.workers[0]);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

TEST(CoordinatorEvaluation, EvaluatesFirstSamplesDuringTrainingAndAllAtTheEnd) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->mutable_evaluation()->set_max_samples(300);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 300);
  EXPECT_FALSE(job.Progress().last_evaluation().final());

  job.Train(14);
  ASSERT_TRUE(job.exit.has_value());
  std::vector<std::pair<uint64_t, uint64_t>> told;  // step, samples of reported evaluations
  const v1::JobProgress progress = job.Progress();
  for (const v1::Event& event : progress.events()) {
    if (!event.has_evaluation()) continue;
    told.emplace_back(event.evaluation().step(), event.evaluation().samples());
    EXPECT_EQ(event.evaluation().final(), event.evaluation().samples() == 1000);
  }
  using Told = std::pair<uint64_t, uint64_t>;
  EXPECT_THAT(
      told, ElementsAre(Told{5, 300}, Told{10, 300}, Told{15, 300}, Told{20, 300}, Told{20, 1000}));
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, NewWorkerRepeatsLastEvaluationIfAllWorkersDie) {
  FakeJob job(EvaluateEvery(50));
  job.Start();
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(20);
  job.Kill(*job.workers[0]);
  job.Kill(*job.workers[1]);
  EXPECT_FALSE(job.exit.has_value());
  job.AddWorker(0);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

v1::JobSpec UpToAccuracy(double accuracy) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->mutable_evaluation()->set_max_samples(300);
  spec.mutable_training()->mutable_target()->set_metric("accuracy");
  spec.mutable_training()->mutable_target()->set_goal("AtLeast");
  spec.mutable_training()->mutable_target()->set_value(accuracy);
  return spec;
}

TEST(CoordinatorEvaluation, EvaluatesSavedVersionOnAllSamplesAtTarget) {
  FakeJob job(UpToAccuracy(9.5));
  job.Start();
  job.Train(17);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  const v1::JobProgress progress = job.Progress();
  EXPECT_EQ(progress.last_evaluation().samples(), 1000);
  EXPECT_TRUE(progress.last_evaluation().final());
  EXPECT_EQ(progress.last_evaluation().step(), SavedSteps(job).back());
}

// Answers the open requests, and no later ones.
void AnswerNow(FakeJob& job, FakeWorker& worker) {
  job.Break(worker);
  worker.evaluates = true;
  job.Connect(worker);
  worker.evaluates = false;
}

TEST(CoordinatorEvaluation, NewWorkerEvaluatesForDeadWorkersAtTarget) {
  FakeJob job(UpToAccuracy(9.5));
  job.Start();
  job.Train(9);
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(2);
  AnswerNow(job, *job.workers[0]);
  AnswerNow(job, *job.workers[1]);
  job.Train(6);  // to the step at which training should stop
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_EQ(job.core->view().workers_size(), 0);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);

  job.Kill(*job.workers[0]);
  job.Kill(*job.workers[1]);
  EXPECT_FALSE(job.exit.has_value());
  job.AddWorker(0);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, FormerMembersEvaluateLayersOfShardsAtTarget) {
  v1::JobSpec spec = UpToAccuracy(9.5);
  spec.mutable_training()->set_execution(v1::TrainingSpec::SERVER);
  FakeJob job(spec);
  job.Start();
  job.Train(9);
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(2);
  AnswerNow(job, *job.workers[0]);
  AnswerNow(job, *job.workers[1]);
  job.Train(6);  // to the step at which training should stop
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);

  FakeWorker& newcomer = job.AddWorker(2);
  job.Kill(*job.workers[0]);  // its range goes to other members
  FakeWorker& member = *job.workers[1];
  member.evaluates = true;
  for (const v1::Evaluate& asked : std::exchange(member.evaluations, {})) {
    v1::CoordinatorMessage again;
    *again.mutable_evaluate() = asked;
    member.OnMessage(again);
  }
  job.Pump();
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_THAT(newcomer.evaluations, IsEmpty());
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, JobEndsWhenTargetIsReached) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_training()->mutable_target()->set_metric("accuracy");
  spec.mutable_training()->mutable_target()->set_goal("AtLeast");
  spec.mutable_training()->mutable_target()->set_value(9.5);
  FakeJob job(spec);
  job.Start();
  job.Train(9);
  EXPECT_FALSE(job.exit.has_value());

  job.Train(8);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_THAT(job.exit->message, HasSubstr("target"));
  EXPECT_EQ(job.Progress().last_evaluation().step(), job.Version());
  EXPECT_TRUE(job.Progress().last_evaluation().final());
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_EQ(SavedSteps(job)[0], job.Version());
  EXPECT_LT(job.Version(), 20);
  EXPECT_TRUE(job.claims.back().end());
}

// ---- snapshots

TEST(CoordinatorSnapshots, PinCommittedVersionUntilReaderEndsItsCall) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  job.OpenSnapshot(41, 30);
  job.Train(4);
  ASSERT_EQ(job.snapshots.size(), 1u);
  EXPECT_EQ(job.snapshots[0].request, 41);
  ASSERT_TRUE(job.snapshots[0].snapshot.ok());
  EXPECT_GE(job.snapshots[0].snapshot->version(), 3);
  EXPECT_EQ(job.snapshots[0].snapshot->table().tensors_size(), 1);
  ASSERT_TRUE(job.shards[0]->snapshot.has_value());
  job.EndSnapshot(41);
  EXPECT_FALSE(job.shards[0]->snapshot.has_value());
}

TEST(CoordinatorSnapshots, EndWhenTheirTimeIsOver) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  job.OpenSnapshot(41, 2);
  job.Train(4);
  ASSERT_EQ(job.snapshots.size(), 1u);
  job.Pass(absl::Seconds(2));
  EXPECT_FALSE(job.shards[0]->snapshot.has_value());
  ASSERT_EQ(job.snapshots.size(), 2u);
  EXPECT_EQ(job.snapshots[1].snapshot.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(CoordinatorSnapshots, LastTenMinutesAtMost) {
  for (const double wanted : {0.0, 1e9, -1.0, std::nan("")}) {
    FakeJob job(FakeJob::Spec());
    job.Start();
    job.Train(3);
    job.OpenSnapshot(41, wanted);
    job.Train(4);
    ASSERT_EQ(job.snapshots.size(), 1u);
    job.Pass(absl::Seconds(595));
    EXPECT_EQ(job.snapshots.size(), 1u) << wanted;
    job.Pass(absl::Seconds(6));
    EXPECT_EQ(job.snapshots.size(), 2u) << wanted;
  }
}

TEST(CoordinatorSnapshots, AreRefusedWithoutCommittedVersion) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.OpenSnapshot(41);
  ASSERT_EQ(job.snapshots.size(), 1u);
  EXPECT_EQ(job.snapshots[0].snapshot.status().code(), absl::StatusCode::kUnavailable);
}

TEST(CoordinatorSnapshots, DoNotDelayEndOfJob) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  job.OpenSnapshot(41, 500);
  job.Train(17);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  ASSERT_EQ(job.snapshots.size(), 2u);
  EXPECT_EQ(job.snapshots[1].snapshot.status().code(), absl::StatusCode::kUnavailable);
}

// A reader that dies, or that never ends its call, prevents no checkpoint.
TEST(CoordinatorSnapshots, MakesCheckpointsOnScheduleWhileReaderHoldsSnapshot) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.Train(2);
  job.OpenSnapshot(41);
  job.Train(14);
  EXPECT_THAT(SavedSteps(job), ElementsAre(5, 10, 15));
  EXPECT_EQ(job.Version(), 16);
  ASSERT_EQ(job.snapshots.size(), 2u);
  EXPECT_EQ(job.snapshots[1].snapshot.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(job.snapshots[1].snapshot.status().message(), HasSubstr("open another one"));
}

TEST(CoordinatorSnapshots, MakesCheckpointsWhileReaderOpensSnapshotsInARow) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  uint64_t call = 1;
  size_t pinned = 0;
  job.OpenSnapshot(call);
  for (int step = 0; step < 17; ++step) {
    job.Train();
    if (job.snapshots.empty()) continue;
    pinned += job.snapshots.back().snapshot.ok();
    if (!job.snapshots.back().snapshot.ok()) job.OpenSnapshot(++call);
  }
  EXPECT_THAT(SavedSteps(job), ElementsAre(5, 10, 15));
  EXPECT_EQ(job.Version(), 17);
  EXPECT_GT(call, 2u);
  EXPECT_GE(pinned, 2u) << "the reader also reads";
}

TEST(CoordinatorSnapshots, EvaluatesOnScheduleWhileReaderHoldsSnapshot) {
  FakeJob job(EvaluateEvery(4));
  job.Start();
  uint64_t call = 1;
  job.OpenSnapshot(call);
  for (int step = 0; step < 14; ++step) {
    job.Train();
    if (!job.snapshots.empty() && !job.snapshots.back().snapshot.ok()) job.OpenSnapshot(++call);
  }
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(4, 8, 12));
  EXPECT_EQ(job.Version(), 14) << "no step waited for the reader";
}

TEST(CoordinatorSnapshots, CheckpointDueByTimeDoesNotWaitForReader) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_steps(100);
  spec.mutable_checkpoint()->set_interval_seconds(3);
  FakeJob job(spec);
  job.Start();
  job.OpenSnapshot(41);
  job.Train(35);
  EXPECT_EQ(job.checkpoint_indexes.size(), 1u);
}

TEST(CoordinatorSnapshots, ShareCutOfNearCheckpoint) {
  FakeJob job(CheckpointEvery(5));
  job.Start();
  job.Train(4);
  job.OpenSnapshot(41);
  job.Train(2);
  EXPECT_THAT(SavedSteps(job), ElementsAre(5));
  ASSERT_GE(job.snapshots.size(), 1u);
  EXPECT_EQ(job.snapshots[0].snapshot->version(), 5);
}

// Such a shard pins every version at once, at any progress of training.
TEST(CoordinatorSnapshots, DoNotWaitForCheckpointPinnedOnlyByShardWithoutBlocks) {
  FakeJob job(CheckpointEvery(15));
  job.elements = 8;
  job.Start();
  job.Train(3);
  FakeShard* without_data = nullptr;
  const v1::JobProgress progress = job.Progress();
  for (const v1::ProcessStatus& status : progress.processes()) {
    if (status.process().role() != v1::SHARD) continue;
    FakeShard* const shard = job.shards[status.process().index()].get();
    if (status.partitions() == 0) without_data = shard;
    EXPECT_LE(status.partitions(), 1) << "three of the job's four partitions are empty";
  }
  ASSERT_NE(without_data, nullptr);
  ASSERT_TRUE(without_data->snapshot.has_value());

  v1::MemberMessage message;
  v1::SnapshotPinned& pinned = *message.mutable_snapshot_pinned();
  pinned.set_snapshot_id(without_data->snapshot->snapshot_id());
  *pinned.mutable_view() = job.core->view().id();
  *pinned.mutable_name() = without_data->snapshot->name();
  pinned.set_version(15);
  without_data->Say(message);
  job.Pump();
  job.OpenSnapshot(41);
  job.Train(4);
  ASSERT_FALSE(job.snapshots.empty());
  ASSERT_TRUE(job.snapshots[0].snapshot.ok()) << job.snapshots[0].snapshot.status();
  EXPECT_LT(job.snapshots[0].snapshot->version(), 10);

  job.EndSnapshot(41);
  job.Train(13);
  EXPECT_THAT(SavedSteps(job), ElementsAre(15, 20));
}

TEST(CoordinatorSnapshots, EndWhenTheirReaderOpensAnother) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.OpenSnapshot(1);
  job.Train(2);
  ASSERT_EQ(job.snapshots.size(), 1u);
  v1::OpenSnapshotRequest again;
  again.mutable_reader()->set_role(v1::READER);
  again.mutable_reader()->set_incarnation(1'000'001);
  job.core->OnOpenSnapshot(2, again, job.now);
  job.Pump();
  ASSERT_EQ(job.snapshots.size(), 3u);
  EXPECT_EQ(job.snapshots[1].request, 1);
  EXPECT_EQ(job.snapshots[1].snapshot.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job.snapshots[2].request, 2);
  EXPECT_TRUE(job.snapshots[2].snapshot.ok());
}

TEST(CoordinatorSnapshots, AreBoundedInNumber) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  for (uint64_t call = 1; call <= 16; ++call) job.OpenSnapshot(call);
  job.Train(3);
  ASSERT_EQ(job.snapshots.size(), 16u);
  job.OpenSnapshot(17);
  ASSERT_EQ(job.snapshots.size(), 17u);
  EXPECT_EQ(job.snapshots[16].snapshot.status().code(), absl::StatusCode::kResourceExhausted);
  job.EndSnapshot(3);
  job.OpenSnapshot(18);
  EXPECT_TRUE(job.snapshots.back().snapshot.ok()) << job.snapshots.back().snapshot.status();
}

TEST(CoordinatorSnapshots, AreRefusedToOtherProcessesThanReaders) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  v1::OpenSnapshotRequest none;
  v1::OpenSnapshotRequest worker;
  *worker.mutable_reader() = job.workers[0]->id;
  v1::OpenSnapshotRequest disguised = worker;
  disguised.mutable_reader()->set_role(v1::READER);
  uint64_t call = 0;
  for (const v1::OpenSnapshotRequest& request : {none, worker, disguised}) {
    job.core->OnOpenSnapshot(++call, request, job.now);
    job.Pump();
    ASSERT_EQ(job.snapshots.size(), call);
    EXPECT_EQ(job.snapshots.back().snapshot.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CoordinatorSnapshots, ShardsAdmitReadersWhileTheirSnapshotsLast) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  const auto readers = [&] {
    std::vector<uint64_t> incarnations;
    for (const v1::ProcessId& process : job.shards[1]->admitted->processes()) {
      if (process.role() == v1::READER) incarnations.push_back(process.incarnation());
    }
    return incarnations;
  };
  EXPECT_THAT(readers(), IsEmpty());

  job.OpenSnapshot(1);
  EXPECT_THAT(readers(), ElementsAre(1'000'001));
  job.Train(2);
  EXPECT_THAT(readers(), ElementsAre(1'000'001));
  job.EndSnapshot(1);
  EXPECT_THAT(readers(), IsEmpty());
}

TEST(CoordinatorSnapshots, EndWhenTheJobIsRestored) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.OpenSnapshot(1);  // waits
  job.shards[0]->silent_snapshots = true;
  job.Train(1);
  job.Kill(*job.shards[1]);
  ASSERT_EQ(job.snapshots.size(), 1u);
  EXPECT_EQ(job.snapshots[0].snapshot.status().code(), absl::StatusCode::kUnavailable);
}

TEST(CoordinatorSnapshots, ReaderDoesNotWaitForNextCheckpointBecauseOfShardWithoutBlocks) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_parameter_server()->set_partitions(2);
  spec.mutable_training()->set_steps(60);
  spec.mutable_checkpoint()->set_interval_steps(50);
  FakeJob job(spec);
  job.elements = 3;
  job.Start();
  job.Train(2);

  // The shard without blocks reports at once that it has pinned the snapshot of step 50.
  ASSERT_TRUE(job.shards[1]->snapshot.has_value());
  v1::MemberMessage pinned;
  pinned.mutable_snapshot_pinned()->set_snapshot_id(job.shards[1]->snapshot->snapshot_id());
  *pinned.mutable_snapshot_pinned()->mutable_view() = job.core->view().id();
  pinned.mutable_snapshot_pinned()->set_version(50);
  *pinned.mutable_snapshot_pinned()->mutable_name() = job.shards[1]->snapshot->name();
  job.shards[1]->Say(pinned);
  job.Pump();
  job.OpenSnapshot(1);
  job.Train(6);
  ASSERT_EQ(job.snapshots.size(), 1u) << "the reader need not wait for step 50";
  EXPECT_LT(job.snapshots[0].snapshot->version(), 10);
}

}  // namespace
}  // namespace sluice::coordinator

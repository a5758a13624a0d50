// Checkpoints of a whole coordinator.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/snapshot_schedule.h"

namespace sluice::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

TEST(CoordinatorCheckpoints, NameTheOptimizersOfAllGroups) {
  v1::JobSpec spec = CheckpointEvery(5);
  spec.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM_W);
  for (const auto name : {v1::OptimizerSpec::ADAGRAD, v1::OptimizerSpec::ADAM_W}) {
    spec.mutable_optimizer()->add_groups()->set_name(name);
  }
  spec.mutable_optimizer()->add_groups();
  FakeJob job(spec);
  job.Start();
  job.Train(10);
  EXPECT_EQ(job.checkpoint_indexes.at({1, 5}).optimizer(), "ADAM_W, ADAGRAD");
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

TEST(CoordinatorCheckpoints, RollBackDropsPinButKeepsSnapshot) {
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

TEST(CoordinatorCheckpoints, SnapshotWithMissingPinIsReplacedByLaterStep) {
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
  job.Kill(*job.shards[1], /*reported=*/false);
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

TEST(CoordinatorCheckpoints, FailedWriteOfIndexIsNotACheckpoint) {
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

TEST(CoordinatorCheckpoints, JobDoesNotContinueWithAnotherNumberOfTrainingSamples) {
  FakeJob first(FakeJob::Spec());
  first.Start();
  first.Train(20);
  ASSERT_EQ(first.checkpoint_indexes.count({1, 20}), 1u);
  EXPECT_EQ(first.checkpoint_indexes.at({1, 20}).training_samples(), 3200u);

  for (const uint64_t samples : {3200, 1500}) {
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_training()->set_steps(40);
    FakeJob second(spec);
    second.claims = {first.claims.front()};
    second.checkpoint_indexes = first.checkpoint_indexes;
    second.training_samples = samples;
    second.Pump();
    second.AddShard(0);
    second.AddShard(1);
    second.AddWorker(0);
    second.Pass(absl::Seconds(3));
    ASSERT_EQ(second.exit.has_value(), samples != 3200) << samples;
    if (samples == 3200) continue;
    EXPECT_EQ(second.exit->reason, ExitReason::kFailed);
    EXPECT_THAT(second.exit->message,
                HasSubstr("the training data have 1500 samples, and had 3200 when"));
  }
}

TEST(CoordinatorCheckpoints, JobDoesNotContinueWithAnotherDigest) {
  v1::Ready traits;
  for (const char* name : {"the encoding of the columns", "the content of the samples"}) {
    v1::DataDigest& digest = *traits.add_digests();
    digest.set_name(name);
    digest.set_hash(7);
  }
  FakeJob first(FakeJob::Spec());
  first.traits = traits;
  first.Start();
  first.Train(20);
  const v1::CheckpointIndex index = first.checkpoint_indexes.at({1, 20});
  ASSERT_EQ(index.digests_size(), 2);

  struct Case {
    int changed;       // the digest; -1: none
    bool recorded;     // the checkpoint has digests
    bool foreign;      // of another job
    std::string says;  // empty: the job continues
  };
  const Case cases[] = {
      {-1, true, false, ""},
      {0, false, false, ""},
      {0, true, false, "the workers do not see the encoding.csv that was written beside"},
      {0, true, true, "the encoding of the columns differs from when the checkpoint of attempt 1"},
      {1, true, false, "the content of the samples differs from when the checkpoint of attempt 1"},
      {1, true, true, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.changed << c.recorded << c.foreign);
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_training()->set_steps(40);
    FakeJob second(spec);
    second.traits = traits;
    if (c.changed >= 0) second.traits.mutable_digests(c.changed)->set_hash(8);
    v1::CheckpointIndex found = index;
    if (!c.recorded) found.clear_digests();
    if (c.foreign) {
      second.read_storage = [&found] {
        StorageContents contents;
        contents.has_newest = true;
        contents.newest = found;
        contents.foreign_directory = "/another/job";
        return contents;
      };
    } else {
      second.claims = {first.claims.front()};
      second.checkpoint_indexes = first.checkpoint_indexes;
      second.checkpoint_indexes.at({1, 20}) = found;
    }
    second.Pump();
    second.AddShard(0);
    second.AddShard(1);
    second.AddWorker(0);
    second.Pass(absl::Seconds(3));
    ASSERT_EQ(second.exit.has_value(), !c.says.empty());
    if (c.says.empty()) continue;
    EXPECT_EQ(second.exit->reason, ExitReason::kFailed);
    EXPECT_THAT(second.exit->message, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace sluice::coordinator

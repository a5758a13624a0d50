// Snapshots that readers open at a whole coordinator.

#include <cmath>
#include <cstddef>
#include <cstdint>
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  EXPECT_THAT(job.snapshots[1].snapshot.status().message(), HasSubstr("hold_seconds"));
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

// A shard repeats its reports on a new stream, perhaps before it has the newest Install.
TEST(CoordinatorSnapshots, ReportsOfTheViewBeforeDoNotCountForALaterVersion) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  const v1::ViewId before = job.core->view().id();
  job.OpenSnapshot(41);
  ASSERT_TRUE(job.snapshots.empty());
  job.Kill(*job.workers[0]);
  ASSERT_GT(job.ViewNumber(), before.number());
  for (FakeShard* shard : job.Shards()) {
    ASSERT_TRUE(shard->snapshot.has_value());
    ASSERT_GT(shard->snapshot->step(), job.core->view().first_step());
    v1::MemberMessage late;
    v1::SnapshotPinned& pinned = *late.mutable_snapshot_pinned();
    pinned.set_snapshot_id(shard->snapshot->snapshot_id());
    *pinned.mutable_name() = shard->snapshot->name();
    pinned.set_version(shard->snapshot->step());
    *pinned.mutable_view() = before;
    shard->Say(late);
  }
  job.Pump();
  EXPECT_TRUE(job.snapshots.empty()) << "no shard has pinned the version in this view";
  job.Train(10);
  ASSERT_GE(job.snapshots.size(), 1u);
  EXPECT_TRUE(job.snapshots[0].snapshot.ok()) << job.snapshots[0].snapshot.status();
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

TEST(CoordinatorSnapshots, ShareSnapshotOfNearCheckpoint) {
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

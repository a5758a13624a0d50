// Snapshots through ShardCore (R14): pins, files of a checkpoint, and their restoration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/testing/two_members_test.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Values = std::vector<float>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

class SnapshotsTest : public TwoMembersTest {
 protected:
  v1::OpenSnapshot Snapshot(uint64_t snapshot, uint64_t step, bool write = false) {
    v1::OpenSnapshot open;
    open.set_snapshot_id(snapshot);
    open.set_step(step);
    open.set_write(write);
    open.set_directory("somewhere");
    open.mutable_name()->set_attempt(1);
    open.mutable_name()->set_step(step);
    return open;
  }
  void Open(const v1::OpenSnapshot& snapshot) {
    v1::CoordinatorMessage message;
    *message.mutable_open_snapshot() = snapshot;
    shard.Deliver(message);
  }
  void Written(const WritePartition& write, absl::StatusOr<v1::PartitionFile> file) {
    shard.core().OnPartitionWritten(write.snapshot, write.checkpoint, write.partition,
                                    std::move(file), shard.now);
  }
  std::vector<v1::SnapshotWritten> TakeWritten() {
    return shard.TakeMessages(&v1::MemberMessage::has_snapshot_written,
                              &v1::MemberMessage::snapshot_written);
  }
  // A new coordinator restores the files of these writes. It numbers its snapshots from 1 again.
  void RestoreAsAttempt(uint64_t attempt, const std::vector<WritePartition>& writes) {
    v1::CoordinatorMessage message;
    *message.mutable_prepare_state() = shard.MakePrepareState(1, attempt);
    v1::CheckpointIndex& checkpoint_index = *message.mutable_prepare_state()->mutable_checkpoint();
    *checkpoint_index.mutable_checkpoint() = writes[0].checkpoint;
    *checkpoint_index.mutable_table() = shard.table;
    *checkpoint_index.mutable_layout() = shard.layout();

    std::map<uint32_t, absl::Cord> files;
    for (const WritePartition& write : writes) {
      const EncodedPartition encoded = EncodePartition(*write.content);
      files[write.partition] = encoded.bytes;
      *checkpoint_index.add_files() = encoded.file;
    }

    message.mutable_prepare_state()->set_version(checkpoint_index.checkpoint().step());
    shard.Deliver(message);
    for (const LoadPartition& load : shard.TakeActions<LoadPartition>()) {
      shard.core().OnPartitionLoaded(load.init_id, load.file.partition(),
                                     files[load.file.partition()], shard.now);
    }

    shard.Pause(1, 1, attempt);
    shard.Install(shard.MakeView(1, checkpoint_index.checkpoint().step(), {7, 8}, attempt));
  }
  std::vector<uint64_t> TakePinned() {
    std::vector<uint64_t> versions;
    for (const auto& pinned : shard.TakeMessages(&v1::MemberMessage::has_snapshot_pinned,
                                                 &v1::MemberMessage::snapshot_pinned)) {
      versions.push_back(pinned.version());
    }
    return versions;
  }
  void ChangeView(uint64_t number, uint64_t first_step, const v1::OpenSnapshot* snapshot,
                  const std::vector<uint64_t>& members = {7, 8}) {
    shard.Pause(number);
    v1::CoordinatorMessage message;
    *message.mutable_install() = shard.MakeInstall(shard.MakeView(number, first_step, members));
    if (snapshot != nullptr) *message.mutable_install()->mutable_snapshot() = *snapshot;
    shard.Deliver(message);
  }
};

TEST_F(SnapshotsTest, PinsSnapshotAtItsStepAndReportsItWhenCommitted) {
  Begin();
  Open(Snapshot(1, 1));
  Step(0);
  EXPECT_THAT(TakePinned(), IsEmpty()) << "step 1 may still be rolled back";

  PushOne(1, 0);
  EXPECT_THAT(TakePinned(), IsEmpty()) << "one member's push is not enough";
  PushTwo(1, 0);
  EXPECT_THAT(TakePinned(), ElementsAre(1));

  Close(1, 1);
  Step(2);
  shard.TakeFrames(two);
  v1::Header pull = shard.HeaderOf(1);
  pull.mutable_pull()->set_snapshot_id(1);
  shard.Send(two, pull);
  EXPECT_THAT(shard.TakeData(two),
              UnorderedElementsAre(Pair(Pair(0, 1), Values(4, 1)), Pair(Pair(1, 1), Values(2, 1))));

  const StreamId reader = shard.Open(60, v1::READER);
  pull.clear_view();
  shard.Send(reader, pull);
  EXPECT_THAT(shard.TakeData(reader), SizeIs(2)) << "readers know no view";
}

TEST_F(SnapshotsTest, InAViewWithoutMembersWorkersMayPullOnlySnapshots) {
  Begin();
  Step(0);
  const v1::OpenSnapshot snapshot = Snapshot(1, 1);
  ChangeView(2, 1, &snapshot, {});
  EXPECT_THAT(TakePinned(), ElementsAre(1));
  shard.TakeFrames(one);
  v1::Header pull = shard.HeaderOf(2);
  pull.mutable_pull()->set_snapshot_id(1);
  shard.Send(one, pull);
  EXPECT_THAT(shard.TakeData(one), SizeIs(2));
  pull.mutable_pull()->clear_snapshot_id();
  pull.mutable_pull()->set_version(1);
  shard.Send(one, pull);
  EXPECT_THAT(shard.TakeData(one), IsEmpty());
}

TEST_F(SnapshotsTest, RefusesSnapshotPullOfNonMember) {
  Begin();
  Step(0);
  const v1::OpenSnapshot snapshot = Snapshot(1, 1);
  ChangeView(2, 1, &snapshot, {8});
  shard.TakeFrames(one);
  v1::Header pull = shard.HeaderOf(2);
  pull.mutable_pull()->set_snapshot_id(1);
  shard.Send(one, pull);
  EXPECT_THAT(shard.TakeData(one), IsEmpty());
}

TEST_F(SnapshotsTest, ReportsThatItIsPastTheSnapshotsStep) {
  Begin();
  Step(0);
  Step(1);
  PushOne(2, 0);
  PushTwo(2, 1);
  Open(Snapshot(1, 1));
  const auto failed = shard.TakeMessages(&v1::MemberMessage::has_snapshot_failed,
                                         &v1::MemberMessage::snapshot_failed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].past(), 2);
}

TEST_F(SnapshotsTest, SnapshotMayPinThePreviousVersion) {
  Begin();
  Step(0);
  Close(1, 0);
  Open(Snapshot(1, 1));
  EXPECT_THAT(TakePinned(), ElementsAre(1));
}

TEST_F(SnapshotsTest, RollbackDropsPinAndKeepsSnapshotNamedByInstall) {
  Begin();
  const v1::OpenSnapshot snapshot = Snapshot(1, 1);
  Open(snapshot);
  Step(0);
  ChangeView(2, 0, &snapshot);
  EXPECT_THAT(TakePinned(), IsEmpty());

  shard.Push(one, 0, 0, Values(4, 5), kMicrobatches(0, 2));
  shard.Push(two, 0, 0, Values(4, 5), kMicrobatches(2, 4));
  Close(0, 1);
  Step(1);
  EXPECT_THAT(TakePinned(), ElementsAre(1));

  shard.TakeFrames(one);
  v1::Header pull = shard.HeaderOf(2);
  pull.mutable_pull()->set_snapshot_id(1);
  shard.Send(one, pull);
  EXPECT_THAT(shard.TakeData(one),
              UnorderedElementsAre(Pair(Pair(0, 1), Values(4, 5)), Pair(Pair(1, 1), Values(2, 1))));
}

TEST_F(SnapshotsTest, RollbackReleasesPinnedVersion) {
  Begin();
  const v1::OpenSnapshot snapshot = Snapshot(1, 1);
  Open(snapshot);
  Step(0);
  const std::weak_ptr<const Block> pinned = shard.core().Content(0)->blocks.front().parameters;
  ASSERT_FALSE(pinned.expired());
  ChangeView(2, 0, &snapshot);
  shard.TakeFrames(one);
  shard.TakeFrames(two);
  EXPECT_TRUE(pinned.expired());
}

TEST_F(SnapshotsTest, InstallWithoutSnapshotDropsAllSnapshots) {
  Begin();
  Open(Snapshot(1, 1));
  ChangeView(2, 0, nullptr);
  Step(0);
  Step(1);
  EXPECT_THAT(TakePinned(), IsEmpty());
  EXPECT_EQ(shard.core().Status().open_snapshots, 0);
  v1::Header pull = shard.HeaderOf(2);
  pull.mutable_pull()->set_snapshot_id(1);
  shard.TakeFrames(one);
  shard.Send(one, pull);
  EXPECT_THAT(shard.TakeFrames(one).at(0).refused().reason(),
              HasSubstr("snapshot 1 is not pinned"));
}

TEST_F(SnapshotsTest, InstallAtTheSnapshotsStepPinsIt) {
  Begin();
  const v1::OpenSnapshot snapshot = Snapshot(1, 1);
  Open(snapshot);
  Step(0);
  ChangeView(2, 1, &snapshot);
  EXPECT_THAT(TakePinned(), ElementsAre(1)) << "a view's first step is committed";
}

TEST_F(SnapshotsTest, WritesCheckpointByPartitionAndLoadsIt) {
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(1);
  shard.job.mutable_optimizer()->set_momentum(1);
  Begin();

  Open(Snapshot(1, 1, /*write=*/true));
  Step(0);
  EXPECT_THAT(shard.TakeActions<WritePartition>(), IsEmpty());
  Step(1);
  const std::vector<WritePartition> writes = shard.TakeActions<WritePartition>();
  ASSERT_THAT(writes, SizeIs(2));
  shard.TakeMessages();

  v1::CheckpointIndex checkpoint_index;
  checkpoint_index.mutable_checkpoint()->set_attempt(1);
  checkpoint_index.mutable_checkpoint()->set_step(1);
  *checkpoint_index.mutable_table() = shard.table;
  *checkpoint_index.mutable_layout() = shard.layout();

  std::map<uint32_t, absl::Cord> files;
  for (const WritePartition& write : writes) {
    EXPECT_EQ(write.directory, "somewhere");
    const EncodedPartition encoded = EncodePartition(*write.content);
    files[write.partition] = encoded.bytes;
    *checkpoint_index.add_files() = encoded.file;
    Written(write, encoded.file);
  }

  const auto written = shard.TakeMessages(&v1::MemberMessage::has_snapshot_written,
                                          &v1::MemberMessage::snapshot_written);
  ASSERT_THAT(written, SizeIs(1));
  EXPECT_THAT(written[0].files(), SizeIs(2));
  EXPECT_EQ(written[0].name().attempt(), 1);
  EXPECT_EQ(written[0].name().step(), 1);

  v1::CoordinatorMessage message;
  *message.mutable_prepare_state() = shard.MakePrepareState(1, /*attempt=*/2);
  *message.mutable_prepare_state()->mutable_checkpoint() = checkpoint_index;
  message.mutable_prepare_state()->set_version(checkpoint_index.checkpoint().step());
  shard.Deliver(message);

  const std::vector<LoadPartition> loads = shard.TakeActions<LoadPartition>();
  ASSERT_THAT(loads, SizeIs(2));
  for (const LoadPartition& load : loads) {
    shard.core().OnPartitionLoaded(load.init_id, load.file.partition(),
                                   files[load.file.partition()], shard.now);
  }

  const auto ready =
      shard.TakeMessages(&v1::MemberMessage::has_state_ready, &v1::MemberMessage::state_ready);
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].error(), "");

  v1::View view = shard.MakeView(1, 1, {7, 8}, /*attempt=*/2);
  shard.Pause(1, 1, /*attempt=*/2);
  shard.Install(view);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Values(0), (Values{-1, -1, -1, -1}));
  Close(1, 0);
  EXPECT_EQ(shard.Values(0), (Values{-3, -3, -3, -3})) << "the momentum was restored too";
}

TEST_F(SnapshotsTest, FilesHaveStateHashesOfTheAttemptsSteps) {
  shard.job.mutable_checkpoint()->set_hash_interval_steps(1);
  Begin();
  Open(Snapshot(1, 2, /*write=*/true));
  Step(0);
  Step(1);
  PushOne(2, 0);
  PushTwo(2, 0);
  const std::vector<WritePartition> writes = shard.TakeActions<WritePartition>();
  ASSERT_THAT(writes, SizeIs(2));
  for (const WritePartition& write : writes) {
    ASSERT_THAT(write.content->step_hashes, SizeIs(2));
    EXPECT_EQ(write.content->step_hashes[0].step, 1);
    EXPECT_EQ(write.content->step_hashes[1].step, 2);
    EXPECT_EQ(write.content->step_hashes[1].hash, StateHash(*write.content));
  }

  RestoreAsAttempt(2, writes);
  v1::OpenSnapshot next = Snapshot(1, 3, /*write=*/true);
  next.mutable_name()->set_attempt(2);
  Open(next);
  Step(2);
  PushOne(3, 0);
  PushTwo(3, 0);
  const std::vector<WritePartition> later = shard.TakeActions<WritePartition>();
  ASSERT_THAT(later, SizeIs(2));
  ASSERT_THAT(later[0].content->step_hashes, SizeIs(1));
  EXPECT_EQ(later[0].content->step_hashes[0].step, 3);
}

TEST_F(SnapshotsTest, IgnoresLateWriteOfEarlierAttempt) {
  Begin();
  Open(Snapshot(1, 0, /*write=*/true));
  const std::vector<WritePartition> slow = shard.TakeActions<WritePartition>();
  ASSERT_THAT(slow, SizeIs(2));
  RestoreAsAttempt(2, slow);

  v1::OpenSnapshot again = Snapshot(1, 0, /*write=*/true);
  again.mutable_name()->set_attempt(2);
  Open(again);

  const std::vector<WritePartition> writes = shard.TakeActions<WritePartition>();
  ASSERT_THAT(writes, SizeIs(2));
  shard.TakeMessages();

  for (const WritePartition& write : slow) Written(write, EncodePartition(*write.content).file);
  EXPECT_THAT(TakeWritten(), IsEmpty()) << "the files of attempt 2 are not written";
  for (const WritePartition& write : slow) Written(write, absl::UnavailableError("it failed"));
  for (const WritePartition& write : writes) Written(write, EncodePartition(*write.content).file);

  const std::vector<v1::SnapshotWritten> written = TakeWritten();
  ASSERT_THAT(written, SizeIs(1));
  EXPECT_EQ(written[0].name().attempt(), 2);
  EXPECT_EQ(written[0].name().step(), 0);
}

TEST_F(SnapshotsTest, ReportsFailedFileWriteAndTrainingContinues) {
  Begin();
  Open(Snapshot(1, 0, /*write=*/true));
  const std::vector<WritePartition> writes = shard.TakeActions<WritePartition>();
  ASSERT_THAT(writes, SizeIs(2));
  for (const WritePartition& write : writes) {
    Written(write, absl::ResourceExhaustedError("disk full"));
  }

  const auto failed = shard.TakeMessages(&v1::MemberMessage::has_snapshot_failed,
                                         &v1::MemberMessage::snapshot_failed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].reason(), "disk full");
  EXPECT_EQ(failed[0].past(), 0);

  Step(0);
  EXPECT_EQ(shard.Version(0), 1);

  // The snapshot can still be evaluated.
  const StreamId reader = shard.Open(60, v1::READER);
  v1::Header pull = shard.HeaderOf(1);
  pull.mutable_pull()->set_snapshot_id(1);
  shard.Send(reader, pull);
  EXPECT_THAT(shard.TakeData(reader), UnorderedElementsAre(Pair(Pair(0, 0), Values{0, 0, 0, 0}),
                                                           Pair(Pair(1, 0), Values{0, 0})));
}

TEST_F(SnapshotsTest, NamesDamagedFile) {
  shard.Connect();
  v1::CoordinatorMessage message;
  *message.mutable_prepare_state() = shard.MakePrepareState(1);
  v1::CheckpointIndex& checkpoint_index = *message.mutable_prepare_state()->mutable_checkpoint();
  *checkpoint_index.mutable_table() = shard.table;
  *checkpoint_index.mutable_layout() = message.prepare_state().layout();

  for (uint32_t p : {0, 1}) {
    v1::PartitionFile& file = *checkpoint_index.add_files();
    file.set_partition(p);
    file.set_name(PartitionFileName(p));
    file.set_bytes(100);
  }

  shard.Deliver(message);
  const std::vector<LoadPartition> loads = shard.TakeActions<LoadPartition>();
  ASSERT_THAT(loads, SizeIs(2));
  shard.core().OnPartitionLoaded(loads[0].init_id, 0, absl::Cord("garbage"), shard.now);

  const auto ready =
      shard.TakeMessages(&v1::MemberMessage::has_state_ready, &v1::MemberMessage::state_ready);
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(
      ready[0].error(),
      "partition-00000.safetensors is damaged: it has 7 bytes, the checkpoint index says 100");
}

}  // namespace
}  // namespace sluice::ps

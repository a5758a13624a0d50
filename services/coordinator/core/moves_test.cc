// Partitions that move while the job trains: shards that join, are drained, or are hot.
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/testing/copied_job.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---- joins, drains and balance

TEST(MovingShards, NewShardTakesItsPartAndTheOldOnesKeepTraining) {
  for (const uint32_t copies : {1, 2}) {
    CopiedJob job(4, Spec(2, copies));
    job.ScaleShards(3);
    FakeShard& added = job.AddShard(2);
    EXPECT_TRUE(added.ready) << "it has nothing to load";
    EXPECT_EQ(added.prepare.shards_size(), 3) << "the view's, and itself";
    EXPECT_EQ(added.prepare.owner_size(), 6);
    job.Train(20);
    EXPECT_EQ(job.view().id().attempt(), 1u);
    EXPECT_EQ(job.OwnedBy(added.id.incarnation()), 2) << copies;
    EXPECT_TRUE(job.view().target().empty());
    EXPECT_EQ(job.view().follower_size(), copies == 2 ? 6 : 0);
    EXPECT_EQ(job.Progress().missing_copies(), 0u);
    EXPECT_GT(job.Version(), 20u);
    EXPECT_TRUE(job.HasEvent("ps-2 joined"));
    EXPECT_THAT(job.loss_records, IsEmpty());
    const uint64_t number = job.ViewNumber();
    job.Train(10);
    EXPECT_EQ(job.ViewNumber(), number) << "the plan is stable";
    ExpectSuccess(job);
  }
}

TEST(MovingShards, UnwantedShardsAreDrainedAndReleased) {
  for (const uint32_t copies : {1, 2}) {
    CopiedJob job(4, Spec(4, copies));
    job.ScaleShards(2);
    job.Train(20);
    EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
    for (const int i : {2, 3}) {
      EXPECT_TRUE(job.shards[i]->finished) << i;
      EXPECT_TRUE(job.HasEvent(absl::StrCat("ps-", i, " was drained")));
      job.Kill(*job.shards[i]);
    }
    EXPECT_FALSE(job.shards[0]->finished);
    EXPECT_EQ(job.view().id().attempt(), 1u);
    EXPECT_GT(job.Version(), 20u);
    EXPECT_THAT(job.loss_records, IsEmpty()) << "it replied to the Pause";
    ExpectSuccess(job);
  }
}

TEST(MovingShards, OlderRequestOfTheParentDoesNotUndoANewerOne) {
  CopiedJob job(4, Spec(4, 1));
  const auto request = [&](uint64_t number, uint32_t shards) {
    v1::SetDesiredRequest desired;
    desired.set_number(number);
    desired.set_shards(shards);
    job.core->OnSetDesired(desired, job.now);
    job.Train(15);
  };
  request(7, 4);
  request(6, 2);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2, 3));
  request(7, 2);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2, 3)) << "a repeated request";
  EXPECT_EQ(job.core->desired_number(), 7u);
  request(8, 2);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  request(0, 3);
  job.AddShard(2);
  job.Train(15);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2)) << "a request without a number";
}

TEST(MovingShards, SuspensionInAnOlderRequestCounts) {
  CopiedJob job(4, Spec(2, 1));
  v1::SetDesiredRequest desired;
  desired.set_number(7);
  job.core->OnSetDesired(desired, job.now);
  desired.set_number(6);
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Train(5);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
}

TEST(MovingShards, ShardThatAsksToLeaveIsDrained) {
  CopiedJob job(4, Spec(2));
  job.AskToLeave(*job.shards[0]);
  EXPECT_TRUE(job.HasEvent("ps-0 asks to leave: other shards take its partitions"));
  job.Train(10);
  EXPECT_TRUE(job.shards[0]->finished);
  EXPECT_THAT(job.Indexes(), ElementsAre(1));
  EXPECT_TRUE(job.checkpoint_indexes.empty());
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  job.Train(10);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ExpectSuccess(job);
}

TEST(MovingShards, DrainedShardInstallsTheViewWithoutItFirst) {
  CopiedJob job(4, Spec(2));
  FakeShard& drained = *job.shards[1];
  FakeShard& other = *job.shards[0];
  drained.drop_installs = true;
  job.ScaleShards(1);
  job.Train(6);
  ASSERT_THAT(job.Indexes(), ElementsAre(0));
  EXPECT_TRUE(other.paused) << "it has not got the Install";
  EXPECT_FALSE(drained.finished);

  // The shard gets it again on another stream; then the other shard does, and training continues.
  const uint64_t version = job.view().first_step();
  drained.drop_installs = false;
  job.Break(drained);
  job.Connect(drained);
  EXPECT_FALSE(other.paused);
  EXPECT_TRUE(drained.finished);
  job.Train(2);
  EXPECT_EQ(other.version, version + 2);
  EXPECT_THAT(job.loss_records, IsEmpty());
}

TEST(MovingShards, DeathOfDrainedShardThatHasNotInstalledIsALoss) {
  CopiedJob job(4, Spec(2));
  job.shards[0]->drop_installs = true;
  job.AskToLeave(*job.shards[0]);
  job.Train(6);
  ASSERT_TRUE(job.shards[1]->paused);
  job.Kill(*job.shards[0]);
  EXPECT_FALSE(job.shards[1]->paused);
  EXPECT_EQ(job.view().loss_record(), 1u);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ExpectSuccess(job);
}

TEST(MovingShards, ShardThatDiesWhileItIsDrainedIsALossLikeAnyOther) {
  CopiedJob job(4, Spec(3));
  job.AskToLeave(*job.shards[0]);
  job.Kill(*job.shards[0]);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(1, 2));
  EXPECT_EQ(job.view().loss_record(), 1u);
}

TEST(MovingShards, NewShardThatDiesChangesNothing) {
  CopiedJob job(4, Spec(2));
  job.ScaleShards(3);
  job.makes_copies = false;
  FakeShard& added = job.AddShard(2);
  job.Train(5);
  ASSERT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  job.Kill(added);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  job.makes_copies = true;
  ExpectSuccess(job);
}

TEST(MovingShards, NewShardThatCannotLoadIsExpelled) {
  CopiedJob job(4, Spec(2));
  job.ScaleShards(3);
  FakeShard added(&job, v1::SHARD, 2, 900);
  added.load_error = "out of memory";
  job.strangers.push_back(&added);
  job.Connect(added);
  EXPECT_TRUE(job.HasEvent("ps-2: cannot join: out of memory"));
  job.Train(3);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
}

TEST(MovingShards, OwnersStayWhileASnapshotIsOpen) {
  v1::JobSpec spec = Spec(2);
  spec.mutable_checkpoint()->set_interval_steps(6);
  CopiedJob job(4, spec);
  job.hold_checkpoint_index = true;
  job.Train(4);  // past step 6
  job.AskToLeave(*job.shards[0]);
  const int owned = job.OwnedBy(job.shards[0]->id.incarnation());
  job.Train(10);
  EXPECT_EQ(job.OwnedBy(job.shards[0]->id.incarnation()), owned) << "it has pins";
  EXPECT_FALSE(job.shards[0]->finished);
  const uint64_t number = job.ViewNumber();
  job.Train(5);
  EXPECT_EQ(job.ViewNumber(), number) << "no view change that moves nothing";

  job.hold_checkpoint_index = false;
  v1::CheckpointRef saved;
  saved.set_attempt(1);
  saved.set_step(6);
  job.core->OnCheckpointIndexWritten(saved, absl::OkStatus(), job.now);
  job.Train(10);
  EXPECT_TRUE(job.shards[0]->finished);
}

TEST(MovingShards, NewShardTakesItsPartWhileCheckpointsFollowEachOther) {
  v1::JobSpec spec = Spec(2);
  spec.mutable_checkpoint()->set_interval_steps(3);
  CopiedJob job(4, spec);
  job.ScaleShards(3);
  FakeShard& added = job.AddShard(2);
  job.Train(20);
  EXPECT_EQ(job.OwnedBy(added.id.incarnation()), 2);
  EXPECT_TRUE(job.view().target().empty());
  ExpectSuccess(job);
}

TEST(MovingShards, ShardThatKnowsAnOldViewIsNotAdmitted) {
  CopiedJob job(4, Spec(2));
  FakeShard& old = *job.shards[1];
  job.Kill(old);
  ASSERT_THAT(job.Indexes(), ElementsAre(0));
  job.RestartCoordinator();  // it does not know who was expelled
  job.AddShard(1);
  job.Pass(absl::Seconds(1));
  job.Kill(*job.shards.back());
  old.running = true;
  job.Connect(old);
  EXPECT_EQ(old.stream, 0);
  EXPECT_TRUE(job.HasEvent("ps-1: is not in the view with which its attempt continues"));
  EXPECT_EQ(job.view().id().attempt(), 1u);
}

// ---- hot shards

// Trains for this long. Each shard is busy for 20 ms of a step, the one with index 1 three times as
// long for as many bytes.
void TrainWithHotShard(CopiedJob& job, int seconds) {
  for (int step = 0; step < 10 * seconds; ++step) {
    std::map<uint64_t, int> held;
    for (int p = 0; p < job.view().owner_size(); ++p) {
      ++held[job.Incarnation(static_cast<int>(job.view().owner(p)))];
      if (job.view().follower().empty() || job.view().follower(p) == 0) continue;
      ++held[job.Incarnation(static_cast<int>(job.view().follower(p)) - 1)];
    }
    for (FakeShard* shard : job.Shards()) {
      const double cost = shard->id.index() == 1 ? 0.015 : 0.005;
      shard->busy_seconds += cost * held[shard->id.incarnation()];
    }
    job.Train(1);
  }
}

TEST(HotShard, HandsPartitionsToOthersAfterAMinute) {
  for (const uint32_t copies : {1u, 2u}) {
    SCOPED_TRACE(copies);
    v1::JobSpec spec = Spec(3, copies);
    spec.mutable_parameter_server()->set_partitions(24);
    spec.mutable_training()->set_steps(4000);
    CopiedJob job(8, spec);
    const auto hot = [&] { return job.Holder(job.view(), 1)->id.incarnation(); };
    ASSERT_EQ(job.OwnedBy(hot()), 8);
    TrainWithHotShard(job, 50);
    EXPECT_EQ(job.OwnedBy(hot()), 8) << "less than a minute";
    TrainWithHotShard(job, 40);
    EXPECT_TRUE(
        job.HasEvent("times as busy as the median shard for a minute: other shards take "
                     "over partitions"))
        << ::testing::PrintToString(job.Events());
    job.Pass(absl::Seconds(3));
    EXPECT_LE(job.OwnedBy(hot()), 5);
    EXPECT_GE(job.OwnedBy(hot()), 2);
    EXPECT_EQ(job.core->load().cooled(), 1u);

    // No more moves follow.
    const uint64_t number = job.ViewNumber();
    TrainWithHotShard(job, 200);
    EXPECT_EQ(job.ViewNumber(), number);
    EXPECT_EQ(job.view().id().attempt(), 1u);
  }
}

TEST(HotShard, IsLeftAloneWherePartitionsDoNotMove) {
  v1::JobSpec spec = Spec(3, 0);
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  spec.mutable_training()->set_epochs(1000);
  spec.mutable_training()->mutable_staleness()->set_rule(
      v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
  CopiedJob job(1, spec);
  const uint64_t number = job.ViewNumber();
  for (int i = 0; i < 200; ++i) {
    job.shards[1]->busy_seconds += 0.9;
    for (FakeShard* shard : job.Shards()) {
      shard->busy_seconds += 0.1;
      shard->SayProgress();
    }
    job.Pass(absl::Seconds(1));
  }
  EXPECT_EQ(job.ViewNumber(), number);
  EXPECT_FALSE(job.HasEvent("as busy as the median shard"));
}

}  // namespace
}  // namespace sluice::coordinator

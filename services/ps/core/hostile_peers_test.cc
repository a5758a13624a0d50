// Hostile peers: a frame or message that contradicts the shard's state closes its stream, or fails
// the job, and changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/hostile_test.h"

namespace sluice::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// ---------------------------------------------------------------- synchronous training

// Regression: an empty push of a step far ahead ended a job as trained.
TEST_F(HostileTest, PushWithoutBlocksCommitsOnlyClosedSteps) {
  Begin();
  Step(0, 1);
  Step(1, 1);
  v1::Header push = NewHeader();
  push.mutable_push();

  const std::vector<Hostile> table = {
      {"one ahead", [](auto& h) { h.mutable_push()->set_step(3); }, "step 3 is pushed"},
      {"far ahead", [](auto& h) { h.mutable_push()->set_step(1000000); }, "is at version 2"},
      {"the largest step", [](auto& h) { h.mutable_push()->set_step(kHuge); }, "is at version"},
  };
  ExpectRefused(table, 7, push);
  EXPECT_EQ(shard.core().Status().committed, 1);

  push.mutable_push()->set_step(2);
  shard.Send(one = shard.Open(7), push);
  EXPECT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
  EXPECT_EQ(shard.core().Status().committed, 1) << "the other member has not pushed step 2";

  shard.Send(two, push);
  EXPECT_EQ(shard.core().Status().committed, 2);
}

// Another shard may not have closed step 1. Then the next view begins with step 1, and this shard
// must roll back.
TEST_F(HostileTest, OneMemberCannotPreventRollback) {
  shard.owner = {0, 1};
  Begin();
  for (uint64_t step : {0, 1}) {
    shard.Push(one, step, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
    shard.Push(two, step, 0, {1, 1, 1, 1}, kRange(2, 4), 2);
  }
  ASSERT_EQ(shard.Version(0), 2);
  v1::Header push = NewHeader();
  push.mutable_push()->set_step(2);
  shard.Send(one, push);
  shard.ChangeView(2, 1, {8});
  EXPECT_THAT(shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure),
              IsEmpty());
  EXPECT_EQ(shard.Version(0), 1);
}

// The shard would have to keep each leaf without a sibling: one copy of the model for every second
// microbatch.
TEST_F(HostileTest, AcceptsOnlyWholeNodesOfTheTree) {
  shard.job.mutable_training()->set_bit_exact(true);
  Begin();
  const std::vector<Hostile> table = {
      {"the left half", [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(0, 1); },
       "[0, 1) are half of node [0, 2)"},
      {"the right half", [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(1, 2); },
       "[1, 2) are half of node [0, 2)"},
  };
  v1::Header push = shard.MakePush(0, 0, kRange(0, 2), 2);
  ExpectRefused(table, 7, push, CordOf({1, 1, 1, 1}));
  shard.Send(one = shard.Open(7), push, CordOf({1, 1, 1, 1}));
  EXPECT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
}

TEST_F(HostileTest, PushCommitsNothingWhileAnotherPartitionIsBehind) {
  Begin();
  shard.Push(one, 0, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kRange(2, 4), 2);
  ASSERT_EQ(shard.Version(0), 1);
  shard.Push(one, 1, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  EXPECT_EQ(shard.StatusOf(one).code(), kInvalid);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("is at version 0"));
  EXPECT_EQ(shard.core().Status().committed, 0);
}

TEST_F(HostileTest, RefusesPushAfterTheLastStep) {
  shard.job.mutable_training()->set_steps(2);
  Begin();
  Step(0, 1);
  Step(1, 1);
  shard.Push(one, 2, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("in a job of 2 steps"));
  EXPECT_EQ(shard.Version(0), 2);
}

TEST_F(HostileTest, RefusesPushesThatContradictTheAssignment) {
  Begin();
  const std::vector<Hostile> table = {
      {"more samples than assigned", [](auto& h) { h.mutable_push()->set_samples(3); },
       "is complete with 3 samples"},
      {"the largest number of samples", [](auto& h) { h.mutable_push()->set_samples(kHuge); },
       "samples"},
      {"no samples", [](auto& h) { h.mutable_push()->set_samples(0); }, "the sender has 2 in 2"},
      {"other microbatches", [](auto& h) { h.mutable_push()->set_microbatch_count(1); },
       "in 1 microbatches"},
      {"a negative weight", [](auto& h) { h.mutable_push()->set_weight(-1); }, "a weight of -1"},
      {"a weight that is not a number", [](auto& h) { h.mutable_push()->set_weight(std::nan("")); },
       "a weight of nan"},
      {"a huge weight", [](auto& h) { h.mutable_push()->set_weight(1e31); }, "a weight of 1e+31"},
      {"a partition twice", [](auto& h) { h.mutable_push()->add_complete(0); }, "named twice"},
      {"a clock", [](auto& h) { h.mutable_push()->set_clock(1); }, "clock 1"},
      {"an ordinal", [](auto& h) { h.mutable_push()->set_ordinal(1); }, "synchronous"},
      {"an Apply", [](auto& h) { h.mutable_push()->mutable_apply(); }, "synchronous"},
      {"a range that ends before it begins",
       [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(2, 1); }, "not assigned"},
      {"a huge range",
       [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(0, kHuge); },
       "not assigned"},
      {"a frame of asynchronous training", [](auto& h) { h.mutable_lease_request(); },
       "not for a shard"},
      {"a frame that only shards send", [](auto& h) { h.mutable_data(); }, "not for a shard"},
  };
  ExpectRefused(table, 7, shard.MakePush(0, 0, kRange(0, 2), 2), CordOf({1, 1, 1, 1}));
}

TEST_F(HostileTest, RefusesPullsThatContradictTheVersions) {
  Begin();
  v1::Header pull = NewHeader();
  pull.mutable_pull()->set_version(1);
  const std::vector<Hostile> table = {
      {"two ahead", [](auto& h) { h.mutable_pull()->set_version(2); }, "version 2"},
      {"the largest version", [](auto& h) { h.mutable_pull()->set_version(kHuge); },
       "is requested"},
      {"a partition twice",
       [](auto& h) {
         for (uint32_t p : {0, 1, 0}) h.mutable_pull()->add_partitions(p);
       },
       "named twice"},
      {"a partition thousands of times",
       [](auto& h) {
         for (int i = 0; i < 10000; ++i) h.mutable_pull()->add_partitions(i % 2);
       },
       "named twice"},
      {"an unknown partition", [](auto& h) { h.mutable_pull()->add_partitions(2); }, "partition 2"},
      {"a clock", [](auto& h) { h.mutable_pull()->set_clock(1); }, "clock 1"},
      {"counted workers", [](auto& h) { h.mutable_pull()->add_counted(7); }, "synchronous"},
      {"rows of a snapshot",
       [](auto& h) {
         h.mutable_pull()->set_snapshot_id(1);
         h.mutable_pull()->add_rows();
       },
       "snapshots are whole"},
      {"more rows than the payload",
       [](auto& h) { h.mutable_pull()->add_rows()->set_count(kHuge); }, "rows of"},
  };
  ExpectRefused(table, 7, pull);
}

TEST_F(HostileTest, AcceptsNormsOnlyFromTheOwnerOfThePartition) {
  shard.owner = {0, 1};
  shard.job.mutable_optimizer()->set_clip_norm(1);
  Begin();
  v1::Header norms = NewHeader();
  norms.mutable_norms()->add_partitions()->set_partition(1);
  const auto norm = [](v1::Header& h) { return h.mutable_norms()->mutable_partitions(0); };
  const std::vector<Hostile> table = {
      {"the receiver's partition", [&](auto& h) { norm(h)->set_partition(0); }, "partition 0"},
      {"an unknown partition", [&](auto& h) { norm(h)->set_partition(77); }, "partition 77"},
      {"twice", [](auto& h) { *h.mutable_norms()->add_partitions() = h.norms().partitions(0); },
       "two norms"},
      {"negative", [&](auto& h) { norm(h)->set_square_sum(-1); }, "sum of squares of -1"},
      {"not a number", [&](auto& h) { norm(h)->set_square_sum(std::nan("")); }, "nan"},
      {"infinite", [&](auto& h) { norm(h)->set_square_sum(INFINITY); }, "inf"},
      {"a step ahead", [](auto& h) { h.mutable_norms()->set_step(1); }, "norms of step 1"},
      {"a push", [](auto& h) { h.mutable_push(); }, "is not for a shard"},
      {"a pull", [](auto& h) { h.mutable_pull()->set_snapshot_id(1); }, "is not for a shard"},
  };
  ExpectRefused(table, kOtherShardIncarnation, norms, absl::Cord(), v1::SHARD);
}

TEST_F(HostileTest, AcceptsParticipantsOnlyFromTheOwnerOfPartition0) {
  v1::TrainingSpec& training = *shard.job.mutable_training();
  training.mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
  training.mutable_stragglers()->set_backup(1);
  Begin();
  v1::Header set = NewHeader();
  set.mutable_step_participants()->add_members(7);
  ExpectRefused({{"from another shard", [](auto&) {}, "does not own partition 0", kDenied}},
                kOtherShardIncarnation, set, absl::Cord(), v1::SHARD);
}

// Regression: norms in the shard's own name would close a step without all contributions.
TEST_F(HostileTest, RefusesStreamThatNamesThisShardAsItsSender) {
  Begin();
  const StreamId stream = shard.Open(kShardIncarnation, v1::SHARD);
  EXPECT_EQ(shard.StatusOf(stream).code(), kDenied);
  EXPECT_THAT(std::string(shard.StatusOf(stream).message()), HasSubstr("is this shard itself"));
}

// ---------------------------------------------------------------- version 0

TEST_F(HostileTest, AcceptsVersion0FromOneWorkerOnly) {
  shard.Connect();
  shard.Prepare(1);
  v1::Header header;
  *header.mutable_init_push()->mutable_init_id() = ShardHarness::FirstInitId(1);
  header.mutable_init_push()->add_blocks()->set_payload_bytes(16);
  shard.Send(shard.Open(7), header, CordOf({1, 1, 1, 1}));
  const StreamId other = shard.Open(8);
  shard.Send(other, header, CordOf({9, 9, 9, 9}));
  EXPECT_EQ(shard.StatusOf(other).code(), kInvalid);
  EXPECT_THAT(std::string(shard.StatusOf(other).message()), HasSubstr("by a second worker"));
}

// ---------------------------------------------------------------- messages of the coordinator

TEST_F(HostileTest, InstallThatContradictsTheJobFailsTheJob) {
  struct Wrong {
    const char* name;
    std::function<void(v1::Install&)> spoil;
    const char* says;
  };
  const std::vector<Wrong> table = {
      {"a first step after the job's last",
       [](auto& i) { i.mutable_view()->set_first_step(1000000); },
       "begins at 1000000 of 100 steps"},
      {"another mode", [](auto& i) { i.mutable_view()->set_mode(v1::ASYNCHRONOUS); }, "mode"},
      {"a follower that is the owner",
       [](auto& i) {
         i.mutable_view()->add_follower(1);
         i.mutable_view()->add_follower(0);
       },
       "its follower of partition 0 is the owner"},
      {"a target that is no shard",
       [](auto& i) {
         i.mutable_view()->add_target(0);
         i.mutable_view()->add_target(3);
       },
       "its target of partition 1 is shard 2 of 2"},
      {"a whole copy that it gives to no shard", [](auto& i) { i.add_whole_targets(0); },
       "it says that the target of partition 0 holds a whole copy, and names none"},
      {"a shard twice", [](auto& i) { *i.mutable_view()->add_shards() = i.view().shards(0); },
       "a shard twice"},
      {"owners of fewer partitions",
       [](auto& i) { i.mutable_view()->mutable_owner()->RemoveLast(); }, "the layout has 2"},
      {"an unknown owner", [](auto& i) { i.mutable_view()->set_owner(0, 5); }, "to shard 5 of 2"},
      {"a member twice", [](auto& i) { *i.mutable_view()->add_workers() = i.view().workers(0); },
       "a member twice"},
      {"microbatches twice",
       [](auto& i) {
         *i.mutable_view()->mutable_workers(0)->mutable_microbatches(0) = kRange(0, 3);
       },
       "twice"},
      {"unknown microbatches",
       [](auto& i) {
         *i.mutable_view()->mutable_workers(1)->mutable_microbatches(0) = kRange(2, 5);
       },
       "[2, 5) of 4"},
      {"a committed version that is not closed", [](auto& i) { i.set_committed(1); },
       "version 1 is committed"},
  };
  for (const Wrong& wrong : table) {
    SCOPED_TRACE(wrong.name);
    ShardHarness world;
    world.job.mutable_training()->set_microbatch_size(1);
    world.Begin({7, 8});
    world.Pause(2);
    world.TakeMessages();
    v1::CoordinatorMessage message;
    *message.mutable_install() = world.MakeInstall(world.MakeView(2, 0, {7, 8}));
    wrong.spoil(*message.mutable_install());
    world.Deliver(message);
    const auto failures =
        world.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
    ASSERT_THAT(failures, SizeIs(1));
    EXPECT_THAT(failures[0].reason(), HasSubstr(wrong.says));
    EXPECT_EQ(world.core().Status().view.number(), 1);
  }
}

// Regression: a push to such a partition was counted for a member that the partition did not know.
TEST_F(HostileTest, PartitionThatAViewAssignsToAnotherShardIsDropped) {
  Begin();
  shard.owner = {0, 1};
  shard.ChangeView(2, 0, {7, 8});
  EXPECT_EQ(shard.core().Content(1), nullptr);
  shard.Push(one, 0, 1, {1, 1}, kRange(0, 2), 2);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()),
              HasSubstr("partition 1 is not owned by this shard"));
  EXPECT_EQ(shard.Version(0), 0);
}

TEST_F(HostileTest, CommitOfUnclosedVersionFailsTheJob) {
  Begin();
  v1::CoordinatorMessage message;
  *message.mutable_committed()->mutable_view() = shard.core().Status().view;
  message.mutable_committed()->set_version(5);
  shard.Deliver(message);
  const auto failures =
      shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0].reason(), HasSubstr("version 5 is committed; this shard has closed 0"));
  EXPECT_EQ(shard.core().Status().committed, 0);
}

TEST_F(HostileTest, SnapshotAfterTheLastStepFailsImmediately) {
  Begin();
  v1::CoordinatorMessage message;
  message.mutable_open_snapshot()->set_snapshot_id(1);
  message.mutable_open_snapshot()->set_step(101);
  message.mutable_open_snapshot()->mutable_name()->set_attempt(1);
  message.mutable_open_snapshot()->mutable_name()->set_step(101);
  shard.Deliver(message);
  const auto failed = shard.TakeMessages(&v1::MemberMessage::has_snapshot_failed,
                                         &v1::MemberMessage::snapshot_failed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].reason(), HasSubstr("of step 101 of 100"));
  EXPECT_EQ(failed[0].name().step(), 101) << "the report names the checkpoint";
}

}  // namespace
}  // namespace sluice::ps

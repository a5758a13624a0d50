// Copies of partitions through ShardCore (docs/protocol.md 7.13): two shards, `a` owns both
// partitions, `b` has their copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_pair_test.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Values = std::vector<float>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

class CopiesTest : public ShardPairTest {
 protected:
  // Then view 2, with copies.
  void Begin() {
    BeginWithoutCopies();
    BeginCopies(2, 0, {});
  }
  // `whole`: the partitions whose copy is whole.
  void BeginCopies(uint64_t number, uint64_t step, const std::vector<uint32_t>& whole) {
    Install(MakeInstallWithCopies(number, step, whole));
  }
  void Push(uint64_t step, uint32_t partition) {
    const float value = 1 + static_cast<float>(step);
    const Values values(partition == 0 ? 4 : 2, value);
    a.Push(one, step, partition, values, kMicrobatches(0, 2));
    a.Push(two, step, partition, values, kMicrobatches(2, 4));
  }
  void Step(uint64_t step) {
    Push(step, 0);
    Push(step, 1);
    Pump();
  }

  static std::vector<uint64_t> VersionsOf(ShardHarness& shard) {
    shard.TakeMessages();
    std::vector<uint64_t> versions;
    for (uint32_t p : {0, 1}) {
      if (const auto copy = shard.core().CopyContent(p); copy != nullptr) {
        versions.push_back(copy->version);
      }
    }
    return versions;
  }
};

// ---- making copies

TEST_F(CopiesTest, FollowerReceivesTheStateAndBecomesWhole) {
  Begin();
  EXPECT_THAT(VersionsOf(b), IsEmpty());
  Pump();
  EXPECT_THAT(VersionsOf(b), ElementsAre(0, 0));
  ExpectEqualCopies();
  EXPECT_EQ(b.core().Status().copies, 2);
}

TEST_F(CopiesTest, CopyHasTheMemoryForItsNextParametersWhenItIsWhole) {
  Begin();
  Pump();
  const size_t allocated = b.core().Status().blocks_allocated;
  Step(0);
  EXPECT_THAT(VersionsOf(b), ElementsAre(1, 1));
  // Adam's two slots of each partition have initial values, and no memory, until then.
  EXPECT_EQ(b.core().Status().blocks_allocated, allocated + 2 * 2);
}

TEST_F(CopiesTest, ProgressNamesTheWholeCopies) {
  Begin();
  Pump();
  b.now += absl::Seconds(1);
  b.core().OnTick(b.now);
  const auto progress =
      b.TakeMessages(&v1::MemberMessage::has_shard_progress, &v1::MemberMessage::shard_progress);
  ASSERT_FALSE(progress.empty());
  EXPECT_THAT(progress.back().copies(), ElementsAre(0, 1));
  EXPECT_GT(progress.back().copied_bytes(), 0);
}

TEST_F(CopiesTest, CopyHasTheBitsOfItsOwnerAfterEachStep) {
  Begin();
  Pump();
  for (uint64_t step = 0; step < 5; ++step) {
    Step(step);
    EXPECT_EQ(a.Version(0), step + 1);
    ExpectEqualCopies();
  }
}

TEST_F(CopiesTest, CopyCatchesUpWithStepsThatArrivedDuringItsTransfer) {
  a.options.max_data_frame_bytes = 8;  // each block is a part of its own
  Begin();
  const std::vector<SendToShard> state = a.TakeActions<SendToShard>();
  ASSERT_THAT(state, SizeIs(2));
  // The frames of partition 1's state are late; its step is queued.
  b.Send(at_b, state[0].header, state[0].payload);
  while (b.ReadCopyIfDue() || b.TickIfDue()) {
  }
  v1::Header first = state[1].header;
  first.mutable_copy_state()->set_parts(2);
  const uint64_t half = state[1].payload.size() / 2;
  b.Send(at_b, first, state[1].payload.Subcord(0, half));
  Step(0);
  EXPECT_THAT(VersionsOf(b), ElementsAre(1)) << "partition 0";
  EXPECT_EQ(a.Version(1), 1) << "a copy that is not whole acks steps";
  v1::Header second = first;
  second.mutable_copy_state()->set_part(1);
  b.Send(at_b, second, state[1].payload.Subcord(half, state[1].payload.size() - half));
  Pump();
  ExpectEqualCopies();
}

TEST_F(CopiesTest, StepsDoNotWaitForStatesThatHaveArrived) {
  Begin();
  Carry();  // the states
  Push(0, 0);
  Carry();
  EXPECT_EQ(a.Version(0), 1);
  EXPECT_THAT(VersionsOf(b), IsEmpty());
  EXPECT_TRUE(b.ReadCopyIfDue());
  EXPECT_THAT(VersionsOf(b), IsEmpty());
  EXPECT_TRUE(b.TickIfDue());
  EXPECT_THAT(VersionsOf(b), ElementsAre(1));
  Push(0, 1);
  Pump();
  ExpectEqualCopies();
}

TEST_F(CopiesTest, ACopyCatchesUpByOneStepAtATime) {
  Begin();
  Carry();
  EXPECT_TRUE(b.ReadCopyIfDue());  // partition 0
  for (uint64_t step = 0; step < 3; ++step) {
    Push(step, 0);
    Push(step, 1);
    Carry();
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(b.TickIfDue());
  EXPECT_THAT(VersionsOf(b), IsEmpty());
  EXPECT_TRUE(b.TickIfDue());
  EXPECT_THAT(VersionsOf(b), ElementsAre(3));
  Pump();
  ExpectEqualCopies();
}

TEST_F(CopiesTest, AStateThatWasReadForAnEarlierViewHasNoEffect) {
  Begin();
  Carry();
  const std::vector<ReadCopy> reads = b.TakeActions<ReadCopy>();
  ASSERT_THAT(reads, SizeIs(2));
  a.Pause(3);
  b.Pause(3);
  BeginCopies(3, 0, {});
  Carry();  // the states, again
  for (const ReadCopy& read : reads) {
    b.core().OnCopyRead(read.transfer, ReadReceivedCopy(read), b.now);
    EXPECT_FALSE(b.TickIfDue());
  }
  EXPECT_THAT(VersionsOf(b), IsEmpty());
  Pump();
  EXPECT_THAT(VersionsOf(b), ElementsAre(0, 0));
}

TEST_F(CopiesTest, AcksAreHeldBackWhileTooManyStepsAreQueued) {
  b.options.max_copy_queue_bytes = 16;  // a step of partition 0, or of 1
  Begin();
  Carry();
  Push(0, 0);
  Carry();
  EXPECT_EQ(a.Version(0), 1);
  Push(0, 1);
  Carry();
  EXPECT_EQ(a.Version(1), 0);
  const BoundUse use = b.core().Status().bounds[static_cast<size_t>(Bound::kCopyQueueBytes)];
  EXPECT_GT(use.used, use.limit);
  EXPECT_EQ(use.reached, 1u);
  // Partition 0 becomes whole, and the queue is short again.
  EXPECT_TRUE(b.ReadCopyIfDue());
  EXPECT_TRUE(b.TickIfDue());
  Carry();
  EXPECT_EQ(a.Version(1), 1);
  Pump();
  ExpectEqualCopies();
}

TEST_F(CopiesTest, AcksStayHeldBackWhileTheQueueOfAnotherCopyIsFull) {
  b.options.max_copy_queue_bytes = 0;
  Begin();
  Carry();
  Push(0, 0);
  Push(0, 1);
  Carry();
  EXPECT_TRUE(b.ReadCopyIfDue());
  EXPECT_TRUE(b.TickIfDue());
  Carry();
  EXPECT_THAT(VersionsOf(b), ElementsAre(1)) << "partition 0 is whole, and partition 1 is queued";
  EXPECT_EQ(a.Version(0), 0);
  Pump();
  EXPECT_EQ(a.Version(0), 1);
  EXPECT_EQ(a.Version(1), 1);
  ExpectEqualCopies();
}

TEST_F(CopiesTest, APromiseReleasesAcksThatWereHeldBack) {
  b.options.max_copy_queue_bytes = 0;
  Begin();
  Carry();
  Push(0, 0);
  Carry();
  EXPECT_EQ(a.Version(0), 0);
  b.Pause(3);  // no copy becomes whole any more, and the owner may have to finish the step
  Pump();
  EXPECT_EQ(a.Version(0), 1);
}

// The owner has received no Pause.
TEST_F(CopiesTest, APromisedShardKeepsNoStepsOfCopiesThatAreNotWhole) {
  a.options.max_data_frame_bytes = 8;  // each block is a part of its own
  Begin();
  Carry();
  b.Pause(3);
  for (uint64_t step = 0; step < 3; ++step) {
    Push(step, 0);
    Push(step, 1);
    Carry();
  }
  EXPECT_EQ(a.Version(0), 3);
  EXPECT_EQ(a.Version(1), 3);
  EXPECT_EQ(b.core().Status().bounds[static_cast<size_t>(Bound::kCopyQueueBytes)].used, 0u);
  BeginCopies(4, 3, {});
  Pump();
  ExpectEqualCopies();
}

// The copy of partition 0 is whole, that of partition 1 is not.
TEST_F(CopiesTest, APromisedShardAcksNoEntryBehindOneThatItDrops) {
  Begin();
  Pump();
  BeginCopies(3, 0, {0});
  b.Pause(4);
  Push(0, 0);
  Push(0, 1);
  Carry();
  EXPECT_EQ(a.Version(0), 0);
  EXPECT_EQ(a.Version(1), 0);
}

TEST_F(CopiesTest, APromisedShardAcksEntriesBeforeTheOneThatItDrops) {
  Begin();
  Pump();
  BeginCopies(3, 0, {0});
  b.Pause(4);
  Push(0, 1);
  Push(0, 0);
  Carry();
  EXPECT_EQ(a.Version(0), 0);
  EXPECT_EQ(a.Version(1), 1);
}

TEST_F(CopiesTest, APromiseDoesNotBlockAStepBehindAnotherFrame) {
  Begin();
  Carry();
  b.Pause(3);
  v1::Header norms = a.HeaderOf(2);
  norms.mutable_norms()->set_step(0);
  b.Send(at_b, norms);
  Push(0, 0);
  Carry();
  EXPECT_EQ(a.Version(0), 1);
}

TEST_F(CopiesTest, TransferBeginsAtACommittedVersion) {
  Begin();
  Pump();
  Step(0);
  // Version 1 is not committed: no member has pushed step 1.
  a.Pause(3);
  b.Pause(3);
  BeginCopies(3, 1, {0});
  Push(1, 0);  // commits version 1 of partition 0 only; the copy of partition 1 begins at it
  Pump();
  EXPECT_EQ(a.Version(0), 2);
  EXPECT_THAT(VersionsOf(b), ElementsAre(2, 1));
}

TEST_F(CopiesTest, StateIsSentAtThePaceOfTheJob) {
  a.job.mutable_parameter_server()->set_copy_megabytes_per_second(1);
  a.w = {1, 2, 3, 4};
  Begin();
  EXPECT_THAT(a.TakeActions<SendToShard>(), SizeIs(2)) << "the first part of each state";
  EXPECT_EQ(a.core().Status().highest, 0);
}

TEST_F(CopiesTest, FewTransfersBeginWhereStepsAreShort) {
  a.options.copy_transfer_bytes = 1600;  // at least 200: less than a state
  Begin();
  EXPECT_THAT(a.TakeActions<SendToShard>(), SizeIs(1));
}

TEST_F(CopiesTest, ManyTransfersBeginWhereStepsAreLong) {
  a.options.copy_transfer_bytes = 1600;
  BeginWithoutCopies();
  for (uint64_t step = 0; step < 4; ++step) {
    Push(step, 0);
    Push(step, 1);
    a.now += absl::Seconds(10);
  }
  BeginCopies(2, 4, {});
  EXPECT_THAT(a.TakeActions<SendToShard>(), SizeIs(2));
}

// ---- closing with copies

TEST_F(CopiesTest, StepClosesOnceTheCopyHasAckedIt) {
  Begin();
  Pump();
  Push(0, 0);
  EXPECT_EQ(a.Version(0), 0) << "the copy has not acked";
  Pump();
  EXPECT_EQ(a.Version(0), 1);
  EXPECT_EQ(a.Version(1), 0);
}

TEST_F(CopiesTest, StepClosesWithoutTheCopyWhileItsTransferHasNotBegun) {
  Begin();
  Pump();
  a.Pause(3);
  v1::View view = a.MakeView(3, 0, {7, 8});
  a.Install(view);
  Push(0, 0);
  EXPECT_EQ(a.Version(0), 1) << "the view names no copy";
}

// The owner may get the decisions earlier than the shard with the copy.
TEST_F(CopiesTest, CopyWaitsForTheDecisionsWithWhichItsOwnerClosesTheStep) {
  for (ShardHarness* shard : {&a, &b}) {
    shard->job.mutable_optimizer()->mutable_plateau()->set_factor(0.5);
  }
  Begin();
  Pump();
  Step(0);
  const auto barrier = [&](ShardHarness& shard, uint64_t version) {
    v1::CoordinatorMessage message;
    *message.mutable_barrier()->mutable_view() = shard.MakeView(2, 0, {7, 8}).id();
    message.mutable_barrier()->set_version(version);
    if (version == 2) {
      message.mutable_barrier()->mutable_decisions()->set_step(1);
      message.mutable_barrier()->mutable_decisions()->set_learning_rate_factor(0.5);
    }
    shard.Deliver(message);
  };
  barrier(a, 1);
  barrier(b, 1);
  barrier(a, 2);
  Step(1);
  EXPECT_THAT(VersionsOf(b), ElementsAre(1, 1));
  EXPECT_EQ(a.Version(0), 1) << "the copy has not acked";
  barrier(b, 2);
  Pump();
  EXPECT_THAT(VersionsOf(b), ElementsAre(2, 2));
  EXPECT_EQ(a.Version(0), 2);
  ExpectEqualCopies();
}

TEST_F(CopiesTest, QueuedStepsHaveTheLearningRateOfTheirTime) {
  for (ShardHarness* shard : {&a, &b}) {
    shard->job.mutable_optimizer()->mutable_plateau()->set_factor(0.5);
  }
  Begin();
  Carry();  // the states, which are not read yet
  const auto release = [&](ShardHarness& shard) {
    v1::CoordinatorMessage message;
    *message.mutable_barrier()->mutable_view() = shard.MakeView(2, 0, {7, 8}).id();
    message.mutable_barrier()->mutable_decisions()->set_step(1);
    message.mutable_barrier()->mutable_decisions()->set_learning_rate_factor(0.5);
    shard.Deliver(message);
  };
  for (const uint64_t step : {0, 1}) {
    Push(step, 0);
    Push(step, 1);
    for (int i = 0; i < 4; ++i) Carry();
    if (step == 0) release(a);
  }
  EXPECT_EQ(a.Version(0), 2);
  release(b);
  Pump();
  EXPECT_THAT(VersionsOf(b), ElementsAre(2, 2));
  ExpectEqualCopies();
}

TEST_F(CopiesTest, PullIsAnsweredWhenTheCopyHasAcked) {
  Begin();
  Pump();
  a.TakeData(one);
  Push(0, 0);
  EXPECT_THAT(a.TakeData(one), IsEmpty());
  Pump();
  EXPECT_THAT(a.TakeData(one), SizeIs(1));
}

// ---- lost streams

TEST_F(CopiesTest, OwnerRepeatsWhatWasNotAcked) {
  Begin();
  Discard();
  Connect();
  Pump();
  EXPECT_THAT(VersionsOf(b), ElementsAre(0, 0));
  Push(0, 0);
  Push(0, 1);
  Discard();
  Connect();
  Pump();
  EXPECT_EQ(a.Version(0), 1);
  ExpectEqualCopies();
}

TEST_F(CopiesTest, AStepMayComeBeforeItsState) {
  Begin();
  Push(0, 0);
  Push(0, 1);
  Connect();  // neither states nor steps have arrived; steps are repeated first
  const std::vector<SendToShard> sent = a.TakeActions<SendToShard>();
  ASSERT_THAT(sent, SizeIs(4));
  EXPECT_TRUE(sent.front().header.has_copy_entry());
  EXPECT_TRUE(sent.back().header.has_copy_state());
  for (const SendToShard& send : sent) b.Send(at_b, send.header, send.payload);
  Pump();
  EXPECT_EQ(a.Version(0), 1);
  ExpectEqualCopies();
}

TEST_F(CopiesTest, HolderAcksAgainOnANewStream) {
  Begin();
  Pump();
  Push(0, 0);
  for (SendToShard& send : a.TakeActions<SendToShard>()) b.Send(at_b, send.header, send.payload);
  EXPECT_THAT(VersionsOf(b), ElementsAre(1, 0));
  b.TakeActions<SendToShard>();  // the ack is lost with b's stream; a's own stream is intact
  EXPECT_EQ(a.Version(0), 0);
  b.core().OnShardConnected(kShardIncarnation, b.now);
  Pump();
  EXPECT_EQ(a.Version(0), 1);
}

// ---- promises and views

TEST_F(CopiesTest, PromiseStopsAcksOfWholeCopies) {
  Begin();
  Pump();
  b.Pause(3);
  Push(0, 0);
  Pump();
  EXPECT_EQ(a.Version(0), 0);
  EXPECT_THAT(VersionsOf(b), ElementsAre(0, 0));
}

// Found by the model: with the ack lost, the owner could never stop after the step.
TEST_F(CopiesTest, PromisedShardAcksAStepThatItHasAppliedAgain) {
  Begin();
  Pump();
  Push(0, 0);
  for (SendToShard& send : a.TakeActions<SendToShard>()) b.Send(at_b, send.header, send.payload);
  b.Pause(3);
  Connect();
  Pump();
  EXPECT_EQ(a.Version(0), 1);
}

TEST_F(CopiesTest, PromisedShardAcksAnEntryThatComesAgain) {
  Begin();
  Pump();
  Push(0, 0);
  for (SendToShard& send : a.TakeActions<SendToShard>()) b.Send(at_b, send.header, send.payload);
  b.Pause(3);
  Discard();  // the ack
  a.core().OnShardConnected(kOtherShardIncarnation, a.now);
  Pump();
  EXPECT_EQ(a.Version(0), 1);
}

TEST_F(CopiesTest, ReplyNamesPartitionsAndWholeCopies) {
  Begin();
  Pump();
  Step(0);
  a.TakeMessages();
  b.TakeMessages();
  b.Pause(3);
  const std::vector<v1::PauseReply> replies = b.TakePauseReplies();
  ASSERT_THAT(replies, SizeIs(1));
  ASSERT_THAT(replies[0].partitions(), SizeIs(2));
  for (const auto& state : replies[0].partitions()) {
    EXPECT_TRUE(state.copy());
    EXPECT_EQ(state.version(), 1);
    EXPECT_TRUE(state.has_undo()) << "version 1 is not known to be committed";
  }
}

TEST_F(CopiesTest, AfterStepWaitsForWholeCopies) {
  Begin();
  Pump();
  b.TakeMessages();
  b.PauseAfter(0, 3);
  EXPECT_THAT(b.TakePauseReplies(), IsEmpty()) << "the owner still needs the acks of step 0";
  Push(0, 0);
  Pump();
  EXPECT_THAT(b.TakePauseReplies(), IsEmpty());
  Push(0, 1);
  Pump();
  EXPECT_THAT(b.TakePauseReplies(), SizeIs(1));
}

TEST_F(CopiesTest, CopyRollsBackWithItsOwner) {
  Begin();
  Pump();
  const uint64_t before = StateHash(*a.core().Content(0));
  Push(0, 0);
  for (SendToShard& send : a.TakeActions<SendToShard>()) b.Send(at_b, send.header, send.payload);
  ASSERT_THAT(VersionsOf(b), ElementsAre(1, 0));
  BeginCopies(3, 0, {0, 1});
  EXPECT_THAT(VersionsOf(b), ElementsAre(0, 0));
  EXPECT_EQ(StateHash(*b.core().CopyContent(0)), before);
  Step(0);
  ExpectEqualCopies();
}

TEST_F(CopiesTest, InstallDropsCopiesThatItDoesNotNameWhole) {
  Begin();
  Pump();
  v1::CoordinatorMessage message;
  *message.mutable_install() = b.MakeInstall(ViewWithCopies(3, 0));
  message.mutable_install()->add_whole_followers(1);
  b.Pause(3);
  b.Deliver(message);
  EXPECT_EQ(b.core().CopyContent(0), nullptr);
  EXPECT_NE(b.core().CopyContent(1), nullptr);
}

TEST_F(CopiesTest, FollowerBecomesTheOwner) {
  Begin();
  Pump();
  Step(0);
  const uint64_t hash = StateHash(*a.core().Content(0));
  b.owner = {1, 1};
  b.Pause(3);
  b.Install(b.MakeView(3, 1, {7, 8}));
  ASSERT_NE(b.core().Content(0), nullptr);
  EXPECT_EQ(StateHash(*b.core().Content(0)), hash);
  EXPECT_EQ(b.core().CopyContent(0), nullptr);

  // The workers push the step to the new owner.
  const StreamId first = b.Open(7);
  const StreamId second = b.Open(8);
  b.Push(first, 1, 0, Values(4, 1), kMicrobatches(0, 2));
  b.Push(second, 1, 0, Values(4, 1), kMicrobatches(2, 4));
  EXPECT_EQ(b.Version(0), 2);
}

TEST_F(CopiesTest, OwnerAndFollowerSwapPlaces) {
  Begin();
  Pump();
  Step(0);
  v1::CoordinatorMessage message;
  a.owner = {1, 0};
  v1::View view = a.MakeView(3, 1, {7, 8});
  view.add_follower(1);
  view.add_follower(2);
  *message.mutable_install() = a.MakeInstall(view);
  message.mutable_install()->add_whole_followers(0);
  message.mutable_install()->add_whole_followers(1);
  for (ShardHarness* shard : {&a, &b}) {
    shard->Pause(3);
    shard->Deliver(message);
  }
  Connect();
  EXPECT_NE(a.core().CopyContent(0), nullptr);
  EXPECT_NE(b.core().Content(0), nullptr);
  const StreamId first = b.Open(7);
  const StreamId second = b.Open(8);
  b.Push(first, 1, 0, Values(4, 2), kMicrobatches(0, 2));
  b.Push(second, 1, 0, Values(4, 2), kMicrobatches(2, 4));
  Push(1, 1);
  Pump();
  EXPECT_EQ(StateHash(*a.core().CopyContent(0)), StateHash(*b.core().Content(0)));
  EXPECT_EQ(StateHash(*b.core().CopyContent(1)), StateHash(*a.core().Content(1)));
  EXPECT_EQ(b.Version(0), 2);
}

TEST_F(CopiesTest, ShardWithoutPartitionsInstallsTheViewThatLeavesItOut) {
  Begin();
  Pump();
  a.owner = {1, 1};
  v1::View view = a.MakeView(3, 0, {7, 8});
  for (uint32_t& owner : *view.mutable_owner()) owner = 0;
  view.mutable_shards()->DeleteSubrange(0, 1);
  a.Pause(3);
  a.TakeMessages();
  a.Install(view);
  EXPECT_THAT(a.TakeMessages(&v1::MemberMessage::has_installed, &v1::MemberMessage::installed),
              SizeIs(1));
  EXPECT_EQ(a.core().Content(0), nullptr);
}

TEST_F(CopiesTest, FirstViewNamesTheShard) {
  a.Connect();
  a.owner = {1, 1};
  a.Prepare(1);
  v1::View view = a.MakeView(1, 0, {7});
  for (uint32_t& owner : *view.mutable_owner()) owner = 0;
  view.mutable_shards()->DeleteSubrange(0, 1);
  a.Pause(1);
  a.TakeMessages();
  a.Install(view);
  const auto failures =
      a.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0].reason(), HasSubstr("this shard is not in it"));
}

TEST_F(CopiesTest, InstallThatNamesACopyTheShardLacksFailsTheJob) {
  Begin();
  v1::CoordinatorMessage message;
  *message.mutable_install() = b.MakeInstall(ViewWithCopies(3, 0));
  message.mutable_install()->add_whole_followers(0);
  b.Pause(3);
  b.TakeMessages();
  b.Deliver(message);
  const auto failures =
      b.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0].reason(), HasSubstr("does not hold it"));
}

// ---- frames that break the contract

class HostileCopiesTest : public CopiesTest {
 protected:
  HostileCopiesTest() {
    Begin();
    state = a.TakeActions<SendToShard>()[0];
    Connect();
    Pump();
  }
  v1::Header StepHeader() const {
    v1::Header header = state.header;
    header.mutable_copy_entry()->set_sequence(1);
    v1::CopyEntry::Gradients& step = *header.mutable_copy_entry()->mutable_gradients();
    step.set_parts(1);
    step.set_gradient_scale(1);
    step.set_buffer_scale(1);
    return header;
  }
  std::string ErrorOf(const v1::Header& header, const absl::Cord& payload = absl::Cord()) {
    b.Send(at_b, header, payload);
    return std::string(b.StatusOf(at_b).message());
  }

  SendToShard state;
};

TEST_F(HostileCopiesTest, StepAheadOfTheCopy) {
  v1::Header header = StepHeader();
  header.mutable_copy_entry()->mutable_gradients()->set_number(1);
  EXPECT_THAT(ErrorOf(header), HasSubstr("whose copy is at version 0"));
}

TEST_F(HostileCopiesTest, PartitionThatTheSenderDoesNotOwn) {
  v1::Header header = StepHeader();
  header.mutable_copy_entry()->mutable_gradients()->set_partition(9);
  EXPECT_THAT(ErrorOf(header), HasSubstr("not owned by the sender"));
}

TEST_F(HostileCopiesTest, SumOfAnotherSize) {
  v1::Header header = StepHeader();
  v1::BlockHeader& block = *header.mutable_copy_entry()->mutable_gradients()->add_blocks();
  block.set_block(0);
  block.set_payload_bytes(4);
  EXPECT_THAT(ErrorOf(header, CordOf({1})), HasSubstr("a sum of 4 bytes, not of 16"));
}

TEST_F(HostileCopiesTest, PartBeyondTheNumberOfParts) {
  v1::Header header = StepHeader();
  header.mutable_copy_entry()->mutable_gradients()->set_part(1);
  EXPECT_THAT(ErrorOf(header), HasSubstr("part 1 of 1"));
}

TEST_F(HostileCopiesTest, PartThatHasArrived) {
  v1::Header header = StepHeader();
  header.mutable_copy_entry()->mutable_gradients()->set_parts(2);
  EXPECT_EQ(ErrorOf(header), "");
  header.mutable_copy_entry()->set_sequence(2);
  EXPECT_THAT(ErrorOf(header), HasSubstr("part 0 of 2 of the gradients 0 of partition 0 comes"));
}

TEST_F(HostileCopiesTest, EntryBehindAGap) {
  v1::Header header = StepHeader();
  header.mutable_copy_entry()->set_sequence(3);
  EXPECT_THAT(ErrorOf(header), HasSubstr("entry 3 comes after entry 0"));
}

TEST_F(HostileCopiesTest, EntriesOfAnotherMode) {
  v1::Header header = StepHeader();
  header.mutable_copy_entry()->set_worker(7);
  EXPECT_THAT(ErrorOf(header), HasSubstr("not for the mode of the view"));
  header = StepHeader();
  header.mutable_copy_entry()->mutable_applied()->set_clock(1);
  at_b = b.Open(kShardIncarnation, v1::SHARD);
  EXPECT_THAT(ErrorOf(header), HasSubstr("entry 1 is not a step"));
}

TEST_F(HostileCopiesTest, AckOfAnEntryThatWasNotSent) {
  v1::Header header = a.HeaderOf(2);
  header.mutable_copy_ack()->set_sequence(1);
  a.Send(at_a, header);
  EXPECT_THAT(std::string(a.StatusOf(at_a).message()),
              HasSubstr("entry 1 is acked, which the sender was not sent"));
}

TEST_F(HostileCopiesTest, WholeCopyThatWasNotSent) {
  v1::Header header = a.HeaderOf(2);
  header.mutable_copy_whole()->set_partition(9);
  a.Send(at_a, header);
  EXPECT_THAT(std::string(a.StatusOf(at_a).message()), HasSubstr("no copy of a partition 9"));
}

TEST_F(HostileCopiesTest, StateThatDoesNotPrecedeTheStepsThatWereQueued) {
  a.Pause(3);
  b.Pause(3);
  BeginCopies(3, 0, {});
  const SendToShard sent = a.TakeActions<SendToShard>()[0];
  v1::Header step = StepHeader();
  *step.mutable_view() = sent.header.view();
  step.mutable_copy_entry()->mutable_gradients()->set_number(5);
  EXPECT_EQ(ErrorOf(step), "");
  EXPECT_EQ(ErrorOf(sent.header, sent.payload), "");
  EXPECT_TRUE(b.ReadCopyIfDue());
  EXPECT_TRUE(b.TickIfDue());
  EXPECT_THAT(std::string(b.StatusOf(at_b).message()),
              HasSubstr("update 5 of partition 0 does not follow its state, of version 0"));
  EXPECT_THAT(VersionsOf(b), IsEmpty());
}

// The owner does not send them again.
TEST_F(HostileCopiesTest, StepsThatWereQueuedForADamagedStateAreKept) {
  a.Pause(3);
  b.Pause(3);
  BeginCopies(3, 0, {});
  std::vector<SendToShard> parts = a.TakeActions<SendToShard>();
  parts[0].header.mutable_copy_state()->set_file_crc32c(1);
  for (const SendToShard& part : parts) EXPECT_EQ(ErrorOf(part.header, part.payload), "");
  Push(0, 0);
  Push(0, 1);
  Carry();
  EXPECT_EQ(a.Version(0), 1);
  while (b.ReadCopyIfDue()) {
  }
  Connect();
  Pump();
  ExpectEqualCopies();
}

TEST_F(HostileCopiesTest, DamagedStateIsRefusedAndMayBeSentAgain) {
  a.Pause(3);
  b.Pause(3);
  BeginCopies(3, 0, {});
  std::vector<SendToShard> parts = a.TakeActions<SendToShard>();
  v1::Header damaged = parts[0].header;
  damaged.mutable_copy_state()->set_file_crc32c(1);
  EXPECT_EQ(ErrorOf(damaged, parts[0].payload), "");
  EXPECT_TRUE(b.ReadCopyIfDue());
  EXPECT_THAT(std::string(b.StatusOf(at_b).message()), HasSubstr("CRC32C"));
  EXPECT_THAT(VersionsOf(b), IsEmpty());
  Connect();
  Pump();
  ExpectEqualCopies();
}

}  // namespace
}  // namespace sluice::ps

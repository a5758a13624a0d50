// The first state of an attempt through ShardCore (R12): version 0 from a worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/two_members_test.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Values = std::vector<float>;

class InitializationTest : public TwoMembersTest {
 protected:
  void PushInitial(StreamId stream, uint64_t init_id, uint32_t partition, const Values& values,
                   bool last = false, uint64_t attempt = 1) {
    v1::Header header;
    v1::InitPush& push = *header.mutable_init_push();
    *push.mutable_init_id() = ShardHarness::FirstInitId(1);
    push.mutable_init_id()->set_number(init_id);
    push.mutable_init_id()->set_attempt(attempt);
    push.set_partition(partition);
    push.set_last(last);
    v1::BlockHeader& block = *push.add_blocks();
    block.set_block(partition);
    block.set_payload_bytes(values.size() * 4);
    shard.Send(stream, header, CordOf(values));
  }
  std::vector<uint64_t> TakeStateReady() {
    std::vector<uint64_t> ids;
    for (const v1::StateReady& ready :
         shard.TakeMessages(&v1::MemberMessage::has_state_ready, &v1::MemberMessage::state_ready)) {
      EXPECT_EQ(ready.error(), "");
      ids.push_back(ready.init_id().number());
    }
    return ids;
  }
  void InstallFirst(uint64_t init_id) {
    v1::View view = shard.MakeView(1, 0, {7, 8});
    view.mutable_init_id()->set_number(init_id);
    shard.Pause(1);
    shard.Install(view);
  }
};

TEST_F(InitializationTest, SendsStateReadyOnceItHasEveryBlock) {
  shard.Connect();
  shard.Prepare(1);
  const StreamId stream = shard.Open(7);
  PushInitial(stream, 1, 0, {1, 2, 3, 4});
  PushInitial(stream, 1, 0, {9, 9, 9, 9});
  EXPECT_THAT(TakeStateReady(), IsEmpty());
  PushInitial(stream, 1, 1, {5, 6}, /*last=*/true);
  EXPECT_THAT(TakeStateReady(), ElementsAre(1));
  const std::vector<v1::Header> frames = shard.TakeFrames(stream);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].initialized().init_id().number(), 1);
  InstallFirst(1);
  EXPECT_EQ(shard.Values(0), (Values{1, 2, 3, 4}));
  EXPECT_EQ(shard.Values(1), (Values{5, 6}));
}

TEST_F(InitializationTest, HigherInitIdDiscardsTheStateAndLowerOneIsRefused) {
  shard.Connect();
  shard.Prepare(1);
  const StreamId first = shard.Open(7);
  PushInitial(first, 1, 0, {1, 1, 1, 1});
  shard.Prepare(2);
  PushInitial(first, 1, 1, {1, 1});
  EXPECT_TRUE(shard.TakeFrames(first).at(0).has_refused());
  EXPECT_THAT(TakeStateReady(), IsEmpty());
  const StreamId second = shard.Open(8);
  PushInitial(second, 2, 0, {2, 2, 2, 2});
  PushInitial(second, 2, 1, {2, 2}, true);
  EXPECT_THAT(TakeStateReady(), ElementsAre(2));
  shard.Prepare(1);
  InstallFirst(2);
  EXPECT_EQ(shard.Values(0), (Values{2, 2, 2, 2}));
}

TEST_F(InitializationTest, PushWithUnknownInitIdWaits) {
  shard.Connect();
  const StreamId stream = shard.Open(7);
  PushInitial(stream, 1, 0, {1, 1, 1, 1});
  PushInitial(stream, 1, 1, {1, 1}, true);
  EXPECT_EQ(shard.core().Status().waiting_frames, 2);
  shard.Prepare(1);
  EXPECT_THAT(TakeStateReady(), ElementsAre(1));
}

TEST_F(InitializationTest, FirstViewMustNameTheInitIdOfTheLoadedState) {
  shard.Connect();
  shard.Prepare(1);
  const StreamId stream = shard.Open(7);
  PushInitial(stream, 1, 0, {1, 1, 1, 1});
  InstallFirst(1);
  EXPECT_FALSE(shard.core().Status().has_view) << "the state is not complete";
  PushInitial(stream, 1, 1, {1, 1}, true);
  InstallFirst(2);
  EXPECT_FALSE(shard.core().Status().has_view) << "the state is of another init request";
  InstallFirst(1);
  EXPECT_TRUE(shard.core().Status().has_view);
}

TEST_F(InitializationTest, PauseReplyReportsReadyInitIdOrNewestView) {
  shard.Connect();
  shard.Prepare(1);
  shard.Pause(1);
  EXPECT_FALSE(shard.TakePauseReplies().at(0).has_ready_init_id());

  const StreamId stream = shard.Open(7);
  PushInitial(stream, 1, 0, {1, 1, 1, 1});
  PushInitial(stream, 1, 1, {1, 1}, true);
  shard.Pause(2, /*term=*/2);
  EXPECT_EQ(shard.TakePauseReplies().at(0).ready_init_id().number(), 1);

  v1::View view = shard.MakeView(3, 0, {7, 8});
  view.mutable_id()->mutable_term()->set_counter(3);
  view.mutable_id()->mutable_term()->set_coordinator(3);
  shard.Pause(3, /*term=*/3);
  shard.TakeMessages();
  shard.Install(view);

  shard.Pause(4, /*term=*/4);
  const v1::PauseReply reply = shard.TakePauseReplies().at(0);
  EXPECT_FALSE(reply.has_ready_init_id());
  EXPECT_EQ(reply.newest().id().number(), 3);
}

TEST_F(InitializationTest, ClosesStreamOfInvalidInitialization) {
  shard.Connect();
  shard.Prepare(1);
  StreamId stream = shard.Open(7);
  PushInitial(stream, 1, 0, {1, 1, 1, 1}, /*last=*/true);
  EXPECT_THAT(std::string(shard.StatusOf(stream).message()), HasSubstr("not block b[0:2]"));
  stream = shard.Open(7);
  PushInitial(stream, 1, 0, {1, 1});
  EXPECT_THAT(std::string(shard.StatusOf(stream).message()), HasSubstr("arrived with 8 bytes"));
}

TEST_F(InitializationTest, StateReadyReportsErrorOfImpossibleJob) {
  shard.Connect();
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(1);
  shard.job.mutable_optimizer()->set_momentum(-1);
  shard.Prepare(1);
  const auto ready =
      shard.TakeMessages(&v1::MemberMessage::has_state_ready, &v1::MemberMessage::state_ready);
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_THAT(ready[0].error(), HasSubstr("momentum"));
}

TEST_F(InitializationTest, ShardWithoutPartitionsIsReadyAndStopsImmediately) {
  shard.owner = {1, 1};
  shard.Connect();
  shard.Prepare(1);
  EXPECT_THAT(TakeStateReady(), ElementsAre(1));
  InstallFirst(1);
  shard.TakeMessages();
  shard.PauseAfter(100, 2);
  EXPECT_THAT(shard.TakePauseReplies(), SizeIs(1));
}

TEST_F(InitializationTest, NewAttemptDiscardsTheOldOneAndItsFrames) {
  Begin();
  Step(0);
  shard.Prepare(1, /*attempt=*/2);
  EXPECT_FALSE(shard.core().Status().has_view);
  v1::Header old = shard.HeaderOf(1);
  old.mutable_pull()->set_version(1);
  shard.TakeFrames(one);
  shard.Send(one, old);
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty());
  EXPECT_EQ(shard.core().Status().waiting_frames, 0)
      << "the initialization would have to wait behind the old frames";
  shard.Prepare(7, /*attempt=*/1);  // from the previous coordinator
  EXPECT_THAT(shard.TakeActions<DropCoordinator>(), SizeIs(1));
}

TEST_F(InitializationTest, LaterAttemptBeginsWithNothingOfTheOneBefore) {
  Begin();
  Step(0);
  shard.Pull(one, 2);  // waits, for both partitions
  shard.Pause(2);
  const ShardStatus before = shard.core().Status();
  ASSERT_TRUE(before.has_view && before.frozen);
  ASSERT_EQ(before.parked_pulls, 2);
  ASSERT_EQ(before.highest, 1);

  shard.Prepare(1, /*attempt=*/2);
  const ShardStatus after = shard.core().Status();
  EXPECT_FALSE(after.has_view);
  EXPECT_FALSE(after.frozen);
  EXPECT_EQ(after.parked_pulls, 0);
  EXPECT_EQ(after.highest, 0);
  EXPECT_EQ(after.streams, before.streams) << "streams outlive attempts";
}

// A restoration without a checkpoint initializes again, over the existing streams.
TEST_F(InitializationTest, FramesOfOldAttemptDoNotDelayInitializationOfNewOne) {
  Begin();
  Step(0);
  v1::Header old = shard.HeaderOf(1);
  old.mutable_push()->set_step(1);
  old.mutable_push()->add_complete(0);
  shard.Pause(2);
  shard.Send(one, old);  // waits for an Install that will not come
  shard.Prepare(1, /*attempt=*/2);
  shard.TakeMessages();
  shard.Send(one, old);
  PushInitial(one, 1, 0, {1, 2, 3, 4}, /*last=*/false, /*attempt=*/2);
  PushInitial(one, 1, 1, {5, 6}, /*last=*/true, /*attempt=*/2);
  EXPECT_THAT(TakeStateReady(), ElementsAre(1));
}

}  // namespace
}  // namespace sluice::ps

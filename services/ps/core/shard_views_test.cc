// Views, promises, initialization and snapshots through ShardCore.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/protocol/ids.h"
#include "services/ps/core/partition_file.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_harness.h"

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

class ViewsTest : public ::testing::Test {
 protected:
  void Begin() {
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
  }
  void PushOne(uint64_t step, uint32_t p, float value = 1) {
    shard.Push(one, step, p, Values(p == 0 ? 4 : 2, value), kMicrobatches(0, 2));
  }
  void PushTwo(uint64_t step, uint32_t p, float value = 1) {
    shard.Push(two, step, p, Values(p == 0 ? 4 : 2, value), kMicrobatches(2, 4));
  }
  void Close(uint64_t step, uint32_t p) {
    PushOne(step, p);
    PushTwo(step, p);
  }
  void Step(uint64_t step) {
    Close(step, 0);
    Close(step, 1);
  }
  // Versions of both partitions in the only reply since the last Take.
  std::vector<uint64_t> RepliedVersions() {
    const std::vector<v1::PauseReply> replies = shard.TakePauseReplies();
    EXPECT_THAT(replies, SizeIs(1));
    std::vector<uint64_t> versions;
    if (replies.empty()) return versions;
    for (const auto& state : replies[0].partitions()) versions.push_back(state.version());
    return versions;
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
};

// ---------------------------------------------------------------- views of frames

TEST_F(ViewsTest, RefusesFramesOfOlderViewOnceWithTheNewestView) {
  Begin();
  const v1::Header old = shard.MakePush(0, 0, kMicrobatches(0, 2), 1);
  shard.ChangeView(2, 0, {7});
  shard.TakeFrames(one);
  shard.Send(one, old, CordOf({1, 1, 1, 1}));
  shard.Send(one, old, CordOf({1, 1, 1, 1}));
  const std::vector<v1::Header> answers = shard.TakeFrames(one);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].refused().newest().id().number(), 2);
  EXPECT_EQ(answers[0].refused().newest().workers_size(), 1);
  EXPECT_EQ(shard.Version(0), 0);
}

TEST_F(ViewsTest, FrameOfLaterViewWaitsForItsView) {
  Begin();
  v1::Header early = shard.MakePush(0, 0, kMicrobatches(0, 4), 1);
  *early.mutable_view() = shard.HeaderOf(2).view();
  shard.Pause(2);
  shard.Send(one, early, CordOf({3, 3, 3, 3}));
  EXPECT_EQ(shard.core().Status().waiting_frames, 1);
  shard.ChangeView(2, 0, {7});
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Values(0), (Values{3, 3, 3, 3}));
  EXPECT_EQ(shard.core().Status().waiting_frames, 0);
}

TEST_F(ViewsTest, RefusesFramesOfNonMembers) {
  Begin();
  const StreamId stranger = shard.Open(9);
  shard.Push(stranger, 0, 0, {1, 1, 1, 1}, kMicrobatches(0, 2));
  const std::vector<v1::Header> answers = shard.TakeFrames(stranger);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0].refused().reason(), HasSubstr("not a member"));
}

TEST_F(ViewsTest, InstallAnswersParkedPullsWithNewView) {
  Begin();
  PushOne(0, 0);
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty());
  shard.ChangeView(2, 0, {7, 9});
  const std::vector<v1::Header> answers = shard.TakeFrames(one);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].refused().newest().id().number(), 2);
  EXPECT_EQ(shard.core().Status().parked_pulls, 0);
}

TEST_F(ViewsTest, ViewWithoutWorkersClosesNoStep) {
  Begin();
  shard.ChangeView(2, 0, {});
  PushOne(0, 0);
  EXPECT_EQ(shard.Version(0), 0);
}

// ---------------------------------------------------------------- promises (R2)

TEST_F(ViewsTest, NothingChangesBetweenPauseReplyAndInstall) {
  Begin();
  PushOne(0, 0);
  shard.Pause(2);
  EXPECT_THAT(RepliedVersions(), ElementsAre(0, 0));
  PushTwo(0, 0);
  PushOne(0, 1);
  EXPECT_EQ(shard.Version(0), 0);
  EXPECT_EQ(shard.core().Status().waiting_frames, 2);
  shard.Install(shard.MakeView(2, 0, {7, 8}));
  EXPECT_EQ(shard.core().Status().waiting_frames, 0) << "frames of the old view are discarded";
  Close(0, 0);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1})) << "the accumulators were discarded";
}

TEST_F(ViewsTest, PromiseKeepsTheUndoCopy) {
  Begin();
  Step(0);
  shard.Pause(2);
  PushOne(1, 0);
  v1::CoordinatorMessage committed;
  *committed.mutable_committed()->mutable_view() = shard.HeaderOf(1).view();
  committed.mutable_committed()->set_version(1);
  shard.Tell(committed);
  shard.Install(shard.MakeView(2, 0, {7, 8}));
  EXPECT_EQ(shard.Version(0), 0);
  EXPECT_EQ(shard.Values(0), (Values{0, 0, 0, 0}));
}

TEST_F(ViewsTest, AnswersPullsOfExistingVersionsDuringPromise) {
  Begin();
  Step(0);
  shard.TakeFrames(one);
  shard.Pause(2);
  shard.Pull(one, 1);
  EXPECT_THAT(shard.TakeData(one), SizeIs(2));
}

TEST_F(ViewsTest, LaterPauseIsAnsweredAgainAndOnlyItsInstallCounts) {
  Begin();
  shard.Pause(2);
  shard.Pause(3);
  EXPECT_THAT(shard.TakePauseReplies(), SizeIs(2));
  shard.Install(shard.MakeView(2, 0, {7}));
  EXPECT_EQ(shard.core().Status().view.number(), 1);
  EXPECT_TRUE(shard.core().Status().frozen);
  shard.Install(shard.MakeView(3, 0, {7}));
  EXPECT_EQ(shard.core().Status().view.number(), 3);
  EXPECT_FALSE(shard.core().Status().frozen);
}

TEST_F(ViewsTest, IgnoresInstallWithoutPauseAndAnswersRepeatedInstall) {
  Begin();
  shard.Install(shard.MakeView(2, 0, {7}));
  EXPECT_EQ(shard.core().Status().view.number(), 1);
  shard.TakeMessages();
  shard.Install(shard.MakeView(1, 0, {7, 8}));
  const auto installed =
      shard.TakeMessages(&v1::MemberMessage::has_installed, &v1::MemberMessage::installed);
  ASSERT_THAT(installed, SizeIs(1));
  EXPECT_EQ(installed[0].view().number(), 1);
}

TEST_F(ViewsTest, IgnoresPauseOfInstalledView) {
  Begin();
  shard.ChangeView(3, 0, {7, 8});
  shard.TakeMessages();
  shard.Pause(2);
  shard.Pause(3);
  EXPECT_FALSE(shard.core().Status().frozen);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty());
}

TEST_F(ViewsTest, DropsCoordinatorOfLowerTermOrSecondOneOfSameTerm) {
  Begin();
  shard.Pause(2, /*term=*/3);
  EXPECT_THAT(shard.TakePauseReplies(), SizeIs(1));
  shard.Pause(9, /*term=*/2);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty());
  EXPECT_THAT(shard.TakeActions<DropCoordinator>(), SizeIs(1));
  v1::CoordinatorMessage twin;
  twin.mutable_pause()->mutable_id()->set_attempt(1);
  twin.mutable_pause()->mutable_id()->mutable_term()->set_counter(3);
  twin.mutable_pause()->mutable_id()->mutable_term()->set_coordinator(77);
  twin.mutable_pause()->mutable_id()->set_number(9);
  twin.mutable_pause()->set_now(true);
  shard.Tell(twin);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty());
  EXPECT_THAT(shard.TakeActions<DropCoordinator>(), SizeIs(1));
}

// The first coordinator died before it claimed an attempt, so the second could not know its term.
TEST_F(ViewsTest, AcceptsSecondCoordinatorOfSameTermIfFirstClaimedNothing) {
  Begin();
  v1::CoordinatorMessage registered;
  registered.mutable_registered()->set_attempt(1);
  registered.mutable_registered()->mutable_term()->set_counter(2);
  for (const uint64_t coordinator : {50, 51}) {
    registered.mutable_registered()->mutable_term()->set_coordinator(coordinator);
    shard.Tell(registered);
    EXPECT_THAT(shard.TakeActions<DropCoordinator>(), IsEmpty()) << coordinator;
  }
  // After a coordinator has claimed an attempt, its term is taken.
  shard.Pause(2, /*term=*/3);
  EXPECT_THAT(shard.TakePauseReplies(), SizeIs(1));
  shard.Tell(registered);
  EXPECT_THAT(shard.TakeActions<DropCoordinator>(), SizeIs(1));
}

// ---------------------------------------------------------------- AfterStep (R5)

TEST_F(ViewsTest, AfterStepStopsOnceEveryPartitionIsOnePastTheStep) {
  Begin();
  Close(0, 0);
  shard.PauseAfter(0, 2);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty());
  EXPECT_FALSE(shard.core().Status().frozen);
  Close(0, 1);
  EXPECT_THAT(RepliedVersions(), ElementsAre(1, 1));
  PushOne(1, 0);
  PushTwo(1, 0);
  EXPECT_EQ(shard.Version(0), 1) << "the shard has stopped";
  shard.Install(shard.MakeView(2, 1, {7, 8}));
  Close(1, 0);
  EXPECT_EQ(shard.Version(0), 2);
}

TEST_F(ViewsTest, AfterStepInThePastStopsImmediately) {
  Begin();
  Step(0);
  Step(1);
  shard.PauseAfter(0, 2);
  EXPECT_THAT(RepliedVersions(), ElementsAre(2, 2));
}

TEST_F(ViewsTest, NowOverridesPendingAfterStep) {
  Begin();
  shard.PauseAfter(5, 2);
  shard.Pause(3);
  EXPECT_THAT(RepliedVersions(), ElementsAre(0, 0));
  shard.Install(shard.MakeView(2, 0, {7}));
  EXPECT_EQ(shard.core().Status().view.number(), 1) << "the planned change was dropped";
}

// ---------------------------------------------------------------- barriers

v1::CoordinatorMessage BarrierAt(uint64_t version, const v1::View& view) {
  v1::CoordinatorMessage message;
  *message.mutable_barrier()->mutable_view() = view.id();
  message.mutable_barrier()->set_version(version);
  return message;
}

TEST_F(ViewsTest, ClosesNoStepAtBarrierUntilItMoves) {
  Begin();
  const v1::View view = shard.MakeView(1, 0, {7, 8});
  shard.Tell(BarrierAt(1, view));
  Step(0);
  Step(1);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Version(1), 1);
  shard.Tell(BarrierAt(2, view));
  EXPECT_EQ(shard.Version(0), 2) << "pushes that arrived at the barrier are kept";
  EXPECT_EQ(shard.Version(1), 2);
  Step(2);
  EXPECT_EQ(shard.Version(0), 2);
  shard.Tell(BarrierAt(0, view));
  EXPECT_EQ(shard.Version(0), 3);
}

TEST_F(ViewsTest, InstallSetsTheFirstBarrierOfItsView) {
  Begin();
  shard.Pause(2);
  v1::CoordinatorMessage message;
  *message.mutable_install() = shard.MakeInstall(shard.MakeView(2, 0, {7, 8}));
  message.mutable_install()->set_barrier(1);
  shard.Tell(message);
  Step(0);
  Step(1);
  EXPECT_EQ(shard.Version(0), 1);
  shard.ChangeView(3, 1, {7, 8});
  Step(1);
  EXPECT_EQ(shard.Version(0), 2) << "an Install without a barrier removes it";
}

TEST_F(ViewsTest, IgnoresBarrierOfOlderView) {
  Begin();
  const v1::View old = shard.MakeView(1, 0, {7, 8});
  shard.ChangeView(2, 0, {7, 8});
  shard.Tell(BarrierAt(0, old));
  Step(0);
  EXPECT_EQ(shard.Version(0), 1);
}

TEST_F(ViewsTest, AnswersAfterStepAtBarrierBeforeIt) {
  Begin();
  shard.Tell(BarrierAt(1, shard.MakeView(1, 0, {7, 8})));
  shard.PauseAfter(4, 2);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty());
  Close(0, 0);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty()) << "the other partition may still close";
  Close(0, 1);
  EXPECT_THAT(RepliedVersions(), ElementsAre(1, 1));
}

// ---------------------------------------------------------------- rolling back

TEST_F(ViewsTest, RollsBackPartitionsAheadOfTheViewsFirstStep) {
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(1);
  shard.job.mutable_optimizer()->set_momentum(1);

  Begin();
  Step(0);
  Close(1, 0);

  shard.Pause(2);
  const std::vector<v1::PauseReply> replies = shard.TakePauseReplies();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_TRUE(replies[0].partitions(0).has_undo());
  EXPECT_EQ(replies[0].partitions(0).version(), 2);
  EXPECT_EQ(replies[0].partitions(1).version(), 1);
  EXPECT_EQ(replies[0].committed(), 1);

  shard.Install(shard.MakeView(2, 1, {7, 8}));
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Values(0), (Values{-1, -1, -1, -1}));
  Close(1, 0);
  EXPECT_EQ(shard.Values(0), (Values{-3, -3, -3, -3})) << "the momentum rolled back too";
}

TEST_F(ViewsTest, ImpossibleRollbackFailsTheJob) {
  Begin();
  Step(0);
  Step(1);
  shard.ChangeView(2, 0, {7});
  const auto failures =
      shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0].reason(), HasSubstr("begins at step 0, partition 0 is at 2"));
}

TEST_F(ViewsTest, CommitFreesTheUndoCopy) {
  Begin();
  Step(0);
  v1::CoordinatorMessage committed;
  *committed.mutable_committed()->mutable_view() = shard.HeaderOf(1).view();
  committed.mutable_committed()->set_version(1);
  shard.Tell(committed);
  EXPECT_EQ(shard.core().Status().committed, 1);
  shard.Pause(2);
  EXPECT_FALSE(shard.TakePauseReplies()[0].partitions(0).has_undo());
}

// ---------------------------------------------------------------- initialization (R12)

class InitializationTest : public ViewsTest {
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

// ---------------------------------------------------------------- reconnecting

// A coordinator may have died after its Pause: only the shards know its term.
TEST_F(ViewsTest, RegistersWithTheTermOfTheLastPause) {
  Begin();
  shard.Pause(2, /*term=*/7);
  shard.TakeMessages();
  shard.core().OnCoordinatorDisconnected(shard.now);
  shard.Connect();
  bool registered = false;
  for (const v1::MemberMessage& message : shard.TakeMessages()) {
    if (!message.has_register_()) continue;
    registered = true;
    EXPECT_EQ(message.register_().newest_view().term().counter(), 1);
    EXPECT_EQ(message.register_().obeyed().attempt(), 1);
    EXPECT_EQ(message.register_().obeyed().term().counter(), 7);
  }
  EXPECT_TRUE(registered);
}

TEST_F(ViewsTest, ResendsUnacknowledgedMessagesAfterReconnect) {
  Begin();
  shard.Pause(2);
  shard.TakeMessages();
  shard.core().OnCoordinatorDisconnected(shard.now);
  shard.Connect();

  bool registered = false;
  bool replied = false;
  for (const v1::MemberMessage& message : shard.TakeMessages()) {
    if (message.has_register_()) {
      registered = true;
      EXPECT_EQ(message.register_().newest_view().number(), 1);
    }
    if (message.has_pause_reply()) replied = message.pause_reply().pause().number() == 2;
  }

  EXPECT_TRUE(registered);
  EXPECT_TRUE(replied);
}

TEST_F(ViewsTest, HeartbeatsAndProgressFollowTheClock) {
  shard.job.mutable_timeouts()->set_heartbeat(0.5);
  Begin();
  shard.now += absl::Seconds(1);
  shard.core().OnTick(shard.now);
  shard.TakeMessages();
  EXPECT_EQ(shard.core().NextDeadline(), shard.now + absl::Milliseconds(500));

  Step(0);
  shard.TakeMessages();
  Step(1);
  EXPECT_THAT(shard.TakeMessages(&v1::MemberMessage::has_shard_progress,
                                 &v1::MemberMessage::shard_progress),
              IsEmpty())
      << "at most one report in 100 ms";

  shard.now = shard.core().NextDeadline();
  shard.core().OnTick(shard.now);
  const auto progress = shard.TakeMessages(&v1::MemberMessage::has_shard_progress,
                                           &v1::MemberMessage::shard_progress);
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_EQ(progress[0].closed(), 2);
  EXPECT_EQ(progress[0].committed(), 1);

  shard.now += absl::Milliseconds(500);
  shard.core().OnTick(shard.now);
  EXPECT_THAT(shard.TakeMessages(&v1::MemberMessage::has_heartbeat, &v1::MemberMessage::heartbeat),
              SizeIs(1));
}

TEST_F(ViewsTest, ReportsTheLastStepImmediately) {
  shard.job.mutable_training()->set_steps(2);
  Begin();
  Step(0);
  shard.TakeMessages();
  Step(1);
  const auto progress = shard.TakeMessages(&v1::MemberMessage::has_shard_progress,
                                           &v1::MemberMessage::shard_progress);
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_EQ(progress[0].closed(), 2);
}

TEST_F(ViewsTest, FinishEndsTheProcess) {
  Begin();
  v1::CoordinatorMessage finish;
  finish.mutable_finish()->set_succeeded(true);
  shard.Tell(finish);
  const std::vector<ExitProcess> exits = shard.TakeActions<ExitProcess>();
  ASSERT_THAT(exits, SizeIs(1));
  EXPECT_EQ(exits[0].code, kExitFinished);
}

// ---------------------------------------------------------------- snapshots (R14)

class SnapshotsTest : public ViewsTest {
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
    shard.Tell(message);
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
    shard.Tell(message);
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
    shard.Tell(message);
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
  shard.Tell(message);

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

  shard.Tell(message);
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

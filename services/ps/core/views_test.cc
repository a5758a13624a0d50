// View changes through ShardCore: promises, barriers, rolling back, and the connection to the
// coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
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

constexpr auto kMicrobatches = ShardHarness::Microbatches;

class ViewsTest : public TwoMembersTest {
 protected:
  // Versions of both partitions in the only reply since the last Take.
  std::vector<uint64_t> RepliedVersions() {
    const std::vector<v1::PauseReply> replies = shard.TakePauseReplies();
    EXPECT_THAT(replies, SizeIs(1));
    std::vector<uint64_t> versions;
    if (replies.empty()) return versions;
    for (const auto& state : replies[0].partitions()) versions.push_back(state.version());
    return versions;
  }
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
  shard.Deliver(committed);
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
  shard.Deliver(twin);
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
    shard.Deliver(registered);
    EXPECT_THAT(shard.TakeActions<DropCoordinator>(), IsEmpty()) << coordinator;
  }
  // After a coordinator has claimed an attempt, its term is taken.
  shard.Pause(2, /*term=*/3);
  EXPECT_THAT(shard.TakePauseReplies(), SizeIs(1));
  shard.Deliver(registered);
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
  shard.Deliver(BarrierAt(1, view));
  Step(0);
  Step(1);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Version(1), 1);
  shard.Deliver(BarrierAt(2, view));
  EXPECT_EQ(shard.Version(0), 2) << "pushes that arrived at the barrier are kept";
  EXPECT_EQ(shard.Version(1), 2);
  Step(2);
  EXPECT_EQ(shard.Version(0), 2);
  shard.Deliver(BarrierAt(0, view));
  EXPECT_EQ(shard.Version(0), 3);
}

TEST_F(ViewsTest, InstallSetsTheFirstBarrierOfItsView) {
  Begin();
  shard.Pause(2);
  v1::CoordinatorMessage message;
  *message.mutable_install() = shard.MakeInstall(shard.MakeView(2, 0, {7, 8}));
  message.mutable_install()->set_barrier(1);
  shard.Deliver(message);
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
  shard.Deliver(BarrierAt(0, old));
  Step(0);
  EXPECT_EQ(shard.Version(0), 1);
}

TEST_F(ViewsTest, AnswersAfterStepAtBarrierBeforeIt) {
  Begin();
  shard.Deliver(BarrierAt(1, shard.MakeView(1, 0, {7, 8})));
  shard.PauseAfter(4, 2);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty());
  Close(0, 0);
  EXPECT_THAT(shard.TakePauseReplies(), IsEmpty()) << "the other partition may still close";
  Close(0, 1);
  EXPECT_THAT(RepliedVersions(), ElementsAre(1, 1));
}

// ---------------------------------------------------------------- decisions of evaluations

v1::CoordinatorMessage Release(uint64_t barrier, uint64_t step, double factor,
                               const v1::View& view) {
  v1::CoordinatorMessage message = BarrierAt(barrier, view);
  message.mutable_barrier()->mutable_decisions()->set_step(step);
  message.mutable_barrier()->mutable_decisions()->set_learning_rate_factor(factor);
  return message;
}

TEST_F(ViewsTest, DecisionHoldsFromTheBarrierOnAndInTheNextView) {
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(1);
  shard.job.mutable_optimizer()->mutable_plateau()->set_factor(0.5);
  Begin();
  const v1::View view = shard.MakeView(1, 0, {7, 8});
  shard.Deliver(BarrierAt(1, view));
  Step(0);
  Close(1, 0);
  EXPECT_EQ(shard.Values(0), (Values{-1, -1, -1, -1}));
  shard.Deliver(Release(2, 1, 0.5, view));
  EXPECT_EQ(shard.Values(0), (Values{-1.5, -1.5, -1.5, -1.5}));
  Close(1, 1);
  Close(2, 0);
  shard.Deliver(Release(3, 1, 0.25, view));
  EXPECT_EQ(shard.Values(0), (Values{-2, -2, -2, -2})) << "the same decision again, changed";

  shard.Pause(2);
  const std::vector<v1::PauseReply> replies = shard.TakePauseReplies();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].decisions().step(), 1);
  EXPECT_EQ(replies[0].decisions().learning_rate_factor(), 0.5);
  v1::CoordinatorMessage message;
  *message.mutable_install() = shard.MakeInstall(shard.MakeView(2, 2, {7, 8}));
  message.mutable_install()->mutable_decisions()->set_step(2);
  message.mutable_install()->mutable_decisions()->set_learning_rate_factor(0.25);
  shard.Deliver(message);
  EXPECT_EQ(shard.Values(0), (Values{-1.5, -1.5, -1.5, -1.5}));
  Close(2, 0);
  EXPECT_EQ(shard.Values(0), (Values{-1.75, -1.75, -1.75, -1.75}));
}

TEST_F(ViewsTest, ImpossibleLearningRateFactorFailsTheJob) {
  for (const double factor : {-0.5, 1.5, std::nan("")}) {
    ShardHarness harness;
    harness.Begin({7, 8});
    harness.Deliver(Release(0, 1, factor, harness.MakeView(1, 0, {7, 8})));
    const auto failures =
        harness.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
    ASSERT_THAT(failures, SizeIs(1)) << factor;
    EXPECT_THAT(failures[0].reason(), HasSubstr("it should be from 0 to 1"));
  }
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
  shard.Deliver(committed);
  EXPECT_EQ(shard.core().Status().committed, 1);
  shard.Pause(2);
  EXPECT_FALSE(shard.TakePauseReplies()[0].partitions(0).has_undo());
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
  shard.Deliver(finish);
  const std::vector<Exit> exits = shard.TakeActions<Exit>();
  ASSERT_THAT(exits, SizeIs(1));
  EXPECT_EQ(exits[0].reason, ExitReason::kFinished);
}

}  // namespace
}  // namespace sluice::ps

// Synchronous training through ShardCore: contributions, close, undo, commit, pulls, streams.
#include "services/ps/core/shard_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "services/ps/core/testing/two_members_test.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using SynchronousTest = TwoMembersTest;
using Values = std::vector<float>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

// ---- leaving

class LeavingTest : public SynchronousTest {
 protected:
  std::vector<v1::Leave> TakeLeaves() {
    return shard.TakeMessages(&v1::MemberMessage::has_leave, &v1::MemberMessage::leave);
  }
  std::vector<ExitReason> TakeExits() {
    std::vector<ExitReason> reasons;
    for (const Exit& exit : shard.TakeActions<Exit>()) reasons.push_back(exit.reason);
    return reasons;
  }
  void Tick(absl::Duration later) {
    shard.now += later;
    shard.core().OnTick(shard.now);
  }
};

TEST_F(LeavingTest, LeavingShardContinuesUntilTheCoordinatorReleasesIt) {
  Begin();
  shard.core().OnAskedToStop("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeLeaves(), SizeIs(1));
  EXPECT_THAT(TakeExits(), IsEmpty());
  Step(0, 1);
  EXPECT_EQ(shard.Version(0), 1) << "the final checkpoint needs this version";
  shard.core().OnAskedToStop("asked again", absl::ZeroDuration(), shard.now);
  EXPECT_THAT(TakeLeaves(), IsEmpty());
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(true);
  shard.Deliver(message);
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kFinished));
}

TEST_F(LeavingTest, ReportsItsLastStepWhenTheJobEnds) {
  Begin();
  Step(0, 1);
  shard.TakeMessages(&v1::MemberMessage::has_shard_progress, &v1::MemberMessage::shard_progress);
  Step(1, 2);
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(false);
  shard.Deliver(message);
  const auto reports = shard.TakeMessages(&v1::MemberMessage::has_shard_progress,
                                          &v1::MemberMessage::shard_progress);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().closed(), 2);
}

TEST_F(LeavingTest, LeavingShardExitsWhenItsGraceIsOver) {
  Begin();
  shard.core().OnAskedToStop("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_LE(shard.core().NextDeadline(), shard.now + absl::Seconds(60));
  Tick(absl::Seconds(59));
  EXPECT_THAT(TakeExits(), IsEmpty());
  EXPECT_LE(shard.core().NextDeadline(), shard.now + absl::Seconds(1));
  Tick(absl::Seconds(1));
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kLeft));
}

TEST_F(LeavingTest, LeavingShardAsksTheNextCoordinatorToo) {
  Begin();
  shard.core().OnAskedToStop("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeLeaves(), SizeIs(1));
  shard.core().OnCoordinatorDisconnected(shard.now);
  Tick(absl::Seconds(14));
  EXPECT_THAT(TakeExits(), IsEmpty());
  shard.core().OnCoordinatorConnected(shard.now);
  EXPECT_THAT(TakeLeaves(), SizeIs(1));
  v1::CoordinatorMessage answer;
  answer.mutable_registered()->set_attempt(1);
  answer.mutable_registered()->mutable_term()->set_counter(100);
  answer.mutable_registered()->mutable_term()->set_coordinator(100);
  shard.Deliver(answer);
  Tick(absl::Seconds(45));
  EXPECT_THAT(TakeExits(), IsEmpty());
  Tick(absl::Seconds(1));
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kLeft)) << "its grace period is over";
}

TEST_F(LeavingTest, ShardWithAViewAwaitsACoordinatorBeforeItLeaves) {
  Begin();
  shard.core().OnCoordinatorDisconnected(shard.now);
  shard.core().OnAskedToStop("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeLeaves(), IsEmpty());
  EXPECT_EQ(shard.core().NextDeadline(), shard.now + absl::Seconds(15));
  Tick(absl::Seconds(14));
  EXPECT_THAT(TakeExits(), IsEmpty());
  Tick(absl::Seconds(1));
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kLeft));
}

TEST_F(LeavingTest, StreamOnWhichNoCoordinatorAnswersDoesNotProlongTheWait) {
  Begin();
  shard.core().OnCoordinatorDisconnected(shard.now);
  shard.core().OnAskedToStop("asked to stop", absl::Seconds(60), shard.now);
  for (int second = 1; second < 15; ++second) {
    Tick(absl::Seconds(1));
    shard.core().OnCoordinatorConnected(shard.now);
    shard.core().OnCoordinatorDisconnected(shard.now);
    EXPECT_THAT(TakeExits(), IsEmpty());
  }
  Tick(absl::Seconds(1));
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kLeft));
}

TEST_F(LeavingTest, ShardWithoutAViewNeedsNoCoordinatorToLeave) {
  shard.Connect();
  shard.core().OnAskedToStop("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeExits(), IsEmpty());
  shard.core().OnCoordinatorDisconnected(shard.now);
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kLeft));
}

TEST_F(LeavingTest, ExitIsTheLastActionAndLaterEventsHaveNoEffect) {
  Begin();
  Step(0);
  shard.TakeMessages();
  shard.now += absl::Seconds(1);  // the progress of step 0 is due
  v1::CoordinatorMessage message;
  message.mutable_refusal()->set_code(v1::Refusal::FINISHED);
  shard.Deliver(message);
  EXPECT_THAT(TakeExits(), ElementsAre(ExitReason::kFinished));
  Step(1);
  shard.core().OnAskedToStop("asked to stop", absl::ZeroDuration(), shard.now);
  Tick(absl::Seconds(60));
  EXPECT_THAT(TakeExits(), IsEmpty());
  EXPECT_THAT(shard.TakeMessages(), IsEmpty());
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.core().NextDeadline(), absl::InfiniteFuture());
}

// ---- steps

TEST_F(SynchronousTest, PartitionClosesWithItsLastMemberAndAnswersParkedPulls) {
  Begin();
  shard.Push(one, 0, 0, {1, 2, 3, 4}, kMicrobatches(0, 2), 2);
  EXPECT_EQ(shard.Version(0), 0);
  EXPECT_THAT(shard.TakeData(one), IsEmpty());
  shard.Push(two, 0, 0, {3, 2, 1, 0}, kMicrobatches(2, 4), 2);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Version(1), 0) << "each partition closes independently";
  EXPECT_THAT(shard.TakeData(one), ElementsAre(Pair(Pair(0, 1), Values{1, 1, 1, 1})));
  EXPECT_THAT(shard.TakeData(two), ElementsAre(Pair(Pair(0, 1), Values{1, 1, 1, 1})));
}

TEST_F(SynchronousTest, IgnoresRepeatedBlocksAndCompletions) {
  Begin();
  for (int i = 0; i < 3; ++i) shard.Push(one, 0, 0, {1, 1, 1, 1}, kMicrobatches(0, 2));
  EXPECT_EQ(shard.Version(0), 0);
  EXPECT_EQ(shard.core().Status().repeated_blocks, 2);
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kMicrobatches(2, 4));
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
}

TEST_F(SynchronousTest, NewStreamClosesOldOneWhoseFramesStillCount) {
  Begin();
  v1::Header part = shard.MakePush(0, 0, kMicrobatches(0, 2), 1);
  part.mutable_push()->clear_complete();
  shard.Send(one, part, CordOf({1, 1, 1, 1}));
  const StreamId again = shard.Open(7);
  EXPECT_EQ(shard.StatusOf(one).code(), absl::StatusCode::kAborted);
  shard.Push(one, 0, 0, {9, 9, 9, 9}, kMicrobatches(0, 2));  // too late
  shard.Push(again, 0, 0, {1, 1, 1, 1}, kMicrobatches(0, 2));
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kMicrobatches(2, 4));
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
  EXPECT_THAT(shard.TakeData(one), IsEmpty());
  EXPECT_THAT(shard.TakeData(again), SizeIs(1));
}

TEST_F(SynchronousTest, AnswersPushRepeatedAfterTheCloseWithNewVersion) {
  Begin();
  Step(0, 1);
  const StreamId again = shard.Open(7);
  shard.Push(again, 0, 0, {1, 1, 1, 1}, kMicrobatches(0, 2));
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_THAT(shard.TakeData(again), ElementsAre(Pair(Pair(0, 1), Values{1, 1, 1, 1})));
}

TEST_F(SynchronousTest, KeepsPreviousVersionUntilEveryMemberHasPushedTheNextStep) {
  Begin();
  Step(0, 1);
  shard.TakeData(one);
  shard.Pull(one, 0);
  EXPECT_THAT(shard.TakeData(one),
              UnorderedElementsAre(Pair(Pair(0, 0), Values(4, 0)), Pair(Pair(1, 0), Values(2, 0))));
  EXPECT_EQ(shard.core().Status().committed, 0);

  shard.Push(two, 1, 1, {0, 0}, kMicrobatches(2, 4));
  EXPECT_EQ(shard.core().Status().committed, 0) << "one member's push is not enough";
  shard.Push(one, 1, 1, {0, 0}, kMicrobatches(0, 2));
  EXPECT_EQ(shard.core().Status().committed, 1);

  shard.TakeData(one);
  shard.Pull(one, 0);
  const std::vector<v1::Header> answers = shard.TakeFrames(one);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_THAT(answers[0].refused().reason(), HasSubstr("version 0 of partition 0"));
  EXPECT_TRUE(shard.StatusOf(one).ok());
}

TEST_F(SynchronousTest, PullWaitsForItsVersion) {
  Begin();
  shard.Pull(one, 1, 77);
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty());
  EXPECT_EQ(shard.core().Status().parked_pulls, 2);
  Step(0, 1);
  const std::vector<v1::Header> frames = shard.TakeFrames(one);
  EXPECT_EQ(std::count_if(frames.begin(), frames.end(),
                          [](const v1::Header& h) { return h.data().request() == 77; }),
            2);
  EXPECT_EQ(shard.core().Status().parked_pulls, 0);
}

TEST_F(SynchronousTest, CountsMemberWithoutBlocks) {
  Begin();
  v1::Header nothing = shard.MakePush(0, 0, kMicrobatches(0, 0), 0);
  nothing.mutable_push()->clear_blocks();
  nothing.mutable_push()->clear_microbatches();
  nothing.mutable_push()->add_complete(1);
  shard.Send(one, nothing);
  shard.Push(two, 0, 0, {4, 4, 4, 4}, kMicrobatches(2, 4), 2);
  EXPECT_EQ(shard.Values(0), (Values{2, 2, 2, 2}));
}

TEST_F(SynchronousTest, TenThousandStepsAllocateNoMemory) {
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(0.1);
  shard.job.mutable_optimizer()->set_momentum(0.9);
  shard.job.mutable_training()->set_steps(100000);
  Begin();

  for (uint64_t step = 0; step < 10; ++step) Step(step, 1);
  shard.TakeData(one);
  shard.TakeData(two);
  const size_t allocated = shard.core().Status().blocks_allocated;

  for (uint64_t step = 10; step < 10000; ++step) {
    Step(step, 1);
    shard.TakeData(one);
    shard.TakeData(two);
    shard.TakeMessages();
  }

  EXPECT_EQ(shard.Version(0), 10000);
  EXPECT_EQ(shard.core().Status().blocks_allocated, allocated);
}

TEST_F(SynchronousTest, ReplyKeepsItsVersionWhileTrainingContinues) {
  Begin();
  shard.TakeData(one);
  v1::Header pull = shard.HeaderOf(1);
  pull.mutable_pull()->set_version(0);
  shard.core().OnFrame(one, pull, absl::Cord(), shard.now);
  const std::vector<ShardAction> actions = shard.core().TakeActions();
  const absl::Cord kept = std::get<SendFrame>(actions[0]).payload;
  for (uint64_t step = 0; step < 5; ++step) Step(step, 1);
  EXPECT_EQ(FloatsOf(kept), (Values{0, 0, 0, 0}));
}

// ---------------------------------------------------------------- bad input

struct BadPush {
  const char* name;
  std::function<void(v1::Header&, absl::Cord&)> spoil;
  const char* says;
};

TEST_F(SynchronousTest, InvalidPushClosesItsStreamAndChangesNothing) {
  Begin();
  const std::vector<BadPush> table = {
      {"step ahead", [](auto& h, auto&) { h.mutable_push()->set_step(1); }, "is at version 0"},
      {"unknown partition", [](auto& h, auto&) { h.mutable_push()->set_partition(9); },
       "partition 9"},
      {"block of another partition",
       [](auto& h, auto&) { h.mutable_push()->mutable_blocks(0)->set_block(1); },
       "block 1 is not of partition 0"},
      {"unknown block", [](auto& h, auto&) { h.mutable_push()->mutable_blocks(0)->set_block(77); },
       "block 77"},
      {"wrong size",
       [](auto& h, auto&) { h.mutable_push()->mutable_blocks(0)->set_payload_bytes(12); },
       "w[0:4] arrived with 12 bytes; it has 16"},
      {"short payload", [](auto&, auto& p) { p.RemoveSuffix(1); }, "ends after"},
      {"long payload", [](auto&, auto& p) { p.Append("x"); }, "has 17 bytes"},
      {"twice in a frame",
       [](auto& h, auto& p) {
         *h.mutable_push()->add_blocks() = h.push().blocks(0);
         p.Append(absl::Cord(p));
       },
       "twice"},
      {"unknown codec",
       [](auto& h, auto&) {
         h.mutable_push()->mutable_blocks(0)->set_codec(static_cast<v1::Codec>(99));
       },
       "codec 99"},
      {"microbatches of another member",
       [](auto& h, auto&) { *h.mutable_push()->mutable_microbatches() = kMicrobatches(2, 4); },
       "not assigned"},
      {"no microbatches", [](auto& h, auto&) { h.mutable_push()->clear_microbatches(); },
       "not assigned"},
      {"completes an unknown partition", [](auto& h, auto&) { h.mutable_push()->add_complete(2); },
       "partition 2"},
      {"no view", [](auto& h, auto&) { h.clear_view(); }, "without a view"},
      {"an empty frame", [](auto& h, auto&) { h.clear_push(); }, "not for a shard"},
      {"asynchronous", [](auto& h, auto&) { h.mutable_apply()->set_clock(1); }, "not for a shard"},
      {"another Hello", [](auto& h, auto&) { h.mutable_hello(); }, "second Hello"},
      {"norms of a worker", [](auto& h, auto&) { h.mutable_norms(); }, "not for a shard"},
  };
  for (const BadPush& bad : table) {
    SCOPED_TRACE(bad.name);
    const StreamId stream = shard.Open(7);
    v1::Header header = shard.MakePush(0, 0, kMicrobatches(0, 2), 1);
    absl::Cord payload = CordOf({1, 1, 1, 1});
    bad.spoil(header, payload);
    shard.Send(stream, header, payload);
    EXPECT_EQ(shard.StatusOf(stream).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(shard.StatusOf(stream).message()), HasSubstr(bad.says));
  }
  one = shard.Open(7);
  Step(0, 1);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
}

TEST_F(SynchronousTest, RefusesOverlappingMicrobatchesAndBlocksAfterCompletion) {
  Begin();
  v1::Header header = shard.MakePush(0, 0, kMicrobatches(0, 1), 1);
  header.mutable_push()->clear_complete();
  shard.Send(one, header, CordOf({1, 1, 1, 1}));
  *header.mutable_push()->mutable_microbatches() = kMicrobatches(0, 2);
  shard.Send(one, header, CordOf({1, 1, 1, 1}));
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("overlap [0, 1)"));
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kMicrobatches(2, 3));
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kMicrobatches(3, 4));
  EXPECT_THAT(std::string(shard.StatusOf(two).message()),
              HasSubstr("after the completion of partition 0"));
}

TEST_F(SynchronousTest, RefusesInvalidHello) {
  Begin();
  const std::vector<std::pair<std::function<void(v1::Hello&)>, absl::StatusCode>> table = {
      {[](v1::Hello& h) { h.set_job("default/other/1"); }, absl::StatusCode::kFailedPrecondition},
      {[](v1::Hello& h) { h.set_min_wire_version(2); }, absl::StatusCode::kFailedPrecondition},
      {[](v1::Hello& h) { h.set_shard_incarnation(1); }, absl::StatusCode::kNotFound},
      {[](v1::Hello& h) { h.mutable_sender()->set_role(v1::OPERATOR); },
       absl::StatusCode::kPermissionDenied},
      {[](v1::Hello& h) { h.mutable_sender()->set_incarnation(0); },
       absl::StatusCode::kInvalidArgument},
  };

  StreamId stream = 10000;
  for (const auto& [spoil, code] : table) {
    shard.core().OnConnected(++stream, shard.now);
    v1::Header header = shard.core().MakeHello(shard.options.identity.process());
    header.mutable_hello()->mutable_sender()->set_incarnation(3);
    spoil(*header.mutable_hello());
    shard.Send(stream, header);
    EXPECT_EQ(shard.StatusOf(stream).code(), code);
  }

  shard.core().OnConnected(++stream, shard.now);
  shard.Send(stream, shard.HeaderOf(1));
  EXPECT_EQ(shard.StatusOf(stream).message(), "the first frame must be a Hello");
}

TEST_F(SynchronousTest, ReaderMayPullOnlyPinnedVersions) {
  Begin();
  const StreamId reader = shard.Open(50, v1::READER);
  shard.Pull(reader, 0);
  EXPECT_EQ(shard.StatusOf(reader).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SynchronousTest, BoundsWaitingFramesByTheWindow) {
  shard.options.window_bytes = 64;
  Begin();
  v1::Header early = shard.MakePush(0, 0, kMicrobatches(0, 2), 1);
  *early.mutable_view() = shard.HeaderOf(2).view();
  shard.Pause(2);
  for (int i = 0; i < 4; ++i) shard.Send(one, early, CordOf({1, 1, 1, 1}));
  EXPECT_TRUE(shard.StatusOf(one).ok());
  EXPECT_EQ(shard.core().Status().waiting_bytes, 64);
  shard.Send(one, early, CordOf({1, 1, 1, 1}));
  EXPECT_EQ(shard.StatusOf(one).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(shard.core().Status().waiting_bytes, 0);
}

TEST_F(SynchronousTest, ReturnsCreditForHandledFrames) {
  shard.options.window_bytes = 64;
  Begin();
  uint64_t credit = 0;
  for (uint64_t step = 0; step < 20; ++step) {
    Step(step, 1);
    for (const v1::Header& header : shard.TakeFrames(one)) credit += header.credit().bytes();
  }
  EXPECT_EQ(shard.Version(0), 20);
  EXPECT_EQ(credit, 20 * 24);
}

TEST_F(SynchronousTest, BoundsNumberOfStreams) {
  shard.options.max_streams = 3;
  Begin();  // 999, 7, 8
  shard.core().OnConnected(77, shard.now);
  EXPECT_EQ(shard.StatusOf(77).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace sluice::ps

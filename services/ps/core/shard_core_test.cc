// Synchronous training through ShardCore: contributions, close, undo, commit, pulls, streams.
#include "services/ps/core/shard_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Values = std::vector<float>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

// Two members, 7 and 8; 7 has microbatches [0, 2), 8 has [2, 4).
class SynchronousTest : public ::testing::Test {
 protected:
  void Begin() {
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
  }
  // Both members push both partitions of a step: adds `value` to every element.
  void Step(uint64_t step, float value) {
    for (uint32_t p : {0, 1}) {
      const Values values(p == 0 ? 4 : 2, value);
      shard.Push(one, step, p, values, kMicrobatches(0, 2));
      shard.Push(two, step, p, values, kMicrobatches(2, 4));
    }
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
};

// ---- leaving

class LeavingTest : public SynchronousTest {
 protected:
  std::vector<v1::Leave> TakeLeaves() {
    return shard.TakeMessages(&v1::MemberMessage::has_leave, &v1::MemberMessage::leave);
  }
  // Exit codes that the core has requested.
  std::vector<int> TakeExits() {
    std::vector<int> codes;
    for (const ExitProcess& exit : shard.TakeActions<ExitProcess>()) codes.push_back(exit.code);
    return codes;
  }
  void Tick(absl::Duration later) {
    shard.now += later;
    shard.core().OnTick(shard.now);
  }
};

TEST_F(LeavingTest, LeavingShardContinuesUntilTheCoordinatorReleasesIt) {
  Begin();
  shard.core().OnLeave("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeLeaves(), SizeIs(1));
  EXPECT_THAT(TakeExits(), IsEmpty());
  Step(0, 1);
  EXPECT_EQ(shard.Version(0), 1) << "the final checkpoint needs this version";
  shard.core().OnLeave("asked again", absl::ZeroDuration(), shard.now);
  EXPECT_THAT(TakeLeaves(), IsEmpty());
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(true);
  shard.Tell(message);
  EXPECT_THAT(TakeExits(), ElementsAre(kExitFinished));
}

TEST_F(LeavingTest, LeavingShardExitsWhenItsGraceIsOver) {
  Begin();
  shard.core().OnLeave("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_LE(shard.core().NextDeadline(), shard.now + absl::Seconds(60));
  Tick(absl::Seconds(59));
  EXPECT_THAT(TakeExits(), IsEmpty());
  EXPECT_LE(shard.core().NextDeadline(), shard.now + absl::Seconds(1));
  Tick(absl::Seconds(1));
  EXPECT_THAT(TakeExits(), ElementsAre(kExitFinished));
}

TEST_F(LeavingTest, LeavingShardExitsWhenItsCoordinatorIsLost) {
  Begin();
  shard.core().OnLeave("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeExits(), IsEmpty());
  shard.core().OnCoordinatorDisconnected(shard.now);
  EXPECT_THAT(TakeExits(), ElementsAre(kExitFinished));
}

TEST_F(LeavingTest, ShardWithoutCoordinatorLeavesImmediately) {
  Begin();
  shard.core().OnCoordinatorDisconnected(shard.now);
  EXPECT_THAT(TakeExits(), IsEmpty());
  shard.core().OnLeave("asked to stop", absl::Seconds(60), shard.now);
  EXPECT_THAT(TakeExits(), ElementsAre(kExitFinished));
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

TEST_F(SynchronousTest, MeanDividesByTheSamplesOfAllMembers) {
  Begin();
  shard.Push(one, 0, 0, {8, 8, 8, 8}, kMicrobatches(0, 2), 1);
  shard.Push(two, 0, 0, {0, 4, 0, 0}, kMicrobatches(2, 4), 3);
  EXPECT_EQ(shard.Values(0), (Values{2, 3, 2, 2}));
}

TEST_F(SynchronousTest, SumAddsGradientsWithoutAveraging) {
  shard.job.mutable_training()->set_aggregation(v1::TrainingSpec::SUM);
  Begin();
  shard.Push(one, 0, 0, {8, 8, 8, 8}, kMicrobatches(0, 2), 1);
  shard.Push(two, 0, 0, {0, 4, 0, 0}, kMicrobatches(2, 4), 3);
  EXPECT_EQ(shard.Values(0), (Values{8, 12, 8, 8}));
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

TEST_F(SynchronousTest, LeavesTensorWithoutGradientUnchanged) {
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(0.5);
  shard.job.mutable_optimizer()->set_weight_decay(0.5);
  shard.w = {1, 1, 1, 1};
  Begin();

  for (StreamId stream : {one, two}) {
    v1::Header nothing = shard.MakePush(0, 0, kMicrobatches(0, 0), 1);
    nothing.mutable_push()->clear_blocks();
    nothing.mutable_push()->add_complete(1);
    shard.Send(stream, nothing);
  }

  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1})) << "weight decay must not apply either";

  shard.Push(one, 1, 0, {0, 0, 0, 0}, kMicrobatches(0, 2));
  v1::Header nothing = shard.MakePush(1, 0, kMicrobatches(0, 0), 1);
  nothing.mutable_push()->clear_blocks();
  shard.Send(two, nothing);
  EXPECT_EQ(shard.Values(0), (Values{0.75, 0.75, 0.75, 0.75}))
      << "a gradient of zeros is a gradient";
}

TEST_F(SynchronousTest, BuffersChangeByTheMeanOverMicrobatchesAndCountersByOne) {
  shard.table.mutable_tensors(0)->set_kind(v1::BUFFER);
  shard.table.mutable_tensors(1)->set_kind(v1::COUNTER);
  shard.table.mutable_tensors(1)->set_dtype(v1::INT64);
  shard.table.mutable_tensors(1)->set_shape(0, 1);
  shard.w = {10, 10, 10, 10};

  const int64_t forty = 40;
  shard.b.resize(2);
  memcpy(shard.b.data(), &forty, sizeof(forty));
  Begin();

  shard.Push(one, 0, 0, {4, 4, 4, 4}, kMicrobatches(0, 2), 30);
  shard.Push(two, 0, 0, {0, 4, 8, 12}, kMicrobatches(2, 4), 50);
  EXPECT_EQ(shard.Values(0), (Values{11, 12, 13, 14}));

  for (StreamId stream : {one, two}) {
    v1::Header nothing = shard.MakePush(0, 1, kMicrobatches(0, 0), 1);
    nothing.mutable_push()->clear_blocks();
    shard.Send(stream, nothing);
  }
  EXPECT_EQ(shard.core().Content(1)->blocks[0].parameters->As<int64_t>()[0], 41);
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

TEST_F(SynchronousTest, ReceivesAndSendsHalfPrecision) {
  shard.job.mutable_training()->set_pull_codec(v1::CODEC_FLOAT16);
  Begin();

  for (StreamId stream : {one, two}) {
    v1::Header header =
        shard.MakePush(0, 0, stream == one ? kMicrobatches(0, 2) : kMicrobatches(2, 4), 1);
    header.mutable_push()->set_pull_next(true);
    header.mutable_push()->mutable_blocks(0)->set_codec(v1::CODEC_FLOAT16);
    header.mutable_push()->mutable_blocks(0)->set_payload_bytes(8);
    const std::vector<uint16_t> ones(4, 0x3c00);
    shard.Send(stream, header,
               absl::Cord(absl::string_view(reinterpret_cast<const char*>(ones.data()), 8)));
  }

  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
  const std::vector<v1::Header> frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].data().blocks(0).codec(), v1::CODEC_FLOAT16);
  EXPECT_EQ(frames[0].data().blocks(0).payload_bytes(), 8);
}

// ---------------------------------------------------------------- BitExact

// Trains one step with 8 microbatches, some of which have no gradient, and returns the parameters.
// Each node is pushed by a separate member, in this order.
Values TreeStep(const std::vector<std::pair<uint64_t, uint64_t>>& nodes,
                const std::vector<Values>& gradients) {
  ShardHarness shard;
  shard.job.mutable_training()->set_bit_exact(true);
  shard.job.mutable_training()->set_aggregation(v1::TrainingSpec::SUM);
  shard.Connect();
  std::vector<uint64_t> members;
  for (size_t i = 0; i < nodes.size(); ++i) members.push_back(7 + i);
  shard.Begin({7});
  v1::View view = shard.MakeView(2, 0, members);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& [begin, size] = nodes[i];
    v1::View::Member& member = *view.mutable_workers(static_cast<int>(i));
    member.clear_microbatches();
    *member.add_microbatches() = kMicrobatches(begin, begin + size);
  }
  shard.Pause(2);
  shard.Install(view);
  // The sum that a worker computes for a node, in the same tree order.
  const std::function<Values(uint64_t, uint64_t)> sum = [&](uint64_t begin, uint64_t size) {
    if (size == 1) return gradients[begin];
    const Values left = sum(begin, size / 2);
    const Values right = sum(begin + size / 2, size / 2);
    if (left.empty() || right.empty()) return left.empty() ? right : left;
    Values both(left);
    for (size_t i = 0; i < both.size(); ++i) both[i] += right[i];
    return both;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& [begin, size] = nodes[i];
    const Values values = sum(begin, size);
    v1::Header header = shard.MakePush(0, 0, kMicrobatches(begin, begin + size), size);
    if (values.empty()) header.mutable_push()->clear_blocks();
    const StreamId stream = shard.Open(members[i]);
    shard.Send(stream, header, CordOf(values));
    EXPECT_TRUE(shard.StatusOf(stream).ok()) << shard.StatusOf(stream);
  }
  EXPECT_EQ(shard.Version(0), 1);
  return shard.Values(0);
}

TEST(BitExactTest, EveryOrderOfArrivalAndSplitIntoNodesGivesTheSameBits) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-1e3, 1e3);
  const std::vector<std::vector<std::pair<uint64_t, uint64_t>>> cuts = {
      {{0, 8}},
      {{0, 4}, {4, 4}},
      {{0, 1}, {1, 1}, {2, 2}, {4, 2}, {6, 1}, {7, 1}},
      {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}}};

  for (int round = 0; round < 20; ++round) {
    std::vector<Values> gradients(8);
    for (Values& gradient : gradients) {
      if (round % 2 == 1 && random() % 3 == 0) continue;  // no gradient in this microbatch
      for (int i = 0; i < 4; ++i) gradient.push_back(values(random));
    }
    gradients[round % 8] = {1, 2, 3, values(random)};
    const Values expected = TreeStep(cuts[0], gradients);
    for (std::vector<std::pair<uint64_t, uint64_t>> nodes : cuts) {
      std::shuffle(nodes.begin(), nodes.end(), random);
      EXPECT_EQ(TreeStep(nodes, gradients), expected);
    }
  }
}

// ---------------------------------------------------------------- norms

class NormsTest : public SynchronousTest {
 protected:
  // This shard owns partition 0, the other shard partition 1.
  void SetUp() override {
    shard.owner = {0, 1};
    shard.job.mutable_training()->set_aggregation(v1::TrainingSpec::SUM);
  }
  void PushBoth(uint64_t step, const Values& values) {
    shard.Push(one, step, 0, values, kMicrobatches(0, 2));
    shard.Push(two, step, 0, {0, 0, 0, 0}, kMicrobatches(2, 4));
  }
  void OtherShardSays(uint64_t step, double square_sum, bool non_finite = false) {
    if (other == 0) other = shard.Open(kOtherShardIncarnation, v1::SHARD);
    v1::Header header = shard.HeaderOf(1);
    header.mutable_norms()->set_step(step);
    v1::Norms::PartitionNorm& norm = *header.mutable_norms()->add_partitions();
    norm.set_partition(1);
    norm.set_square_sum(square_sum);
    norm.set_non_finite(non_finite);
    shard.Send(other, header);
  }
  StreamId other = 0;
};

TEST_F(NormsTest, ClipsGradientsByTheNormOverAllShards) {
  shard.job.mutable_optimizer()->set_clip_norm(1);
  Begin();
  PushBoth(0, {3, 0, 0, 0});
  EXPECT_EQ(shard.Version(0), 0) << "the other shard's norm has not arrived";
  const std::vector<SendToShard> said = shard.TakeActions<SendToShard>();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].shard.incarnation(), kOtherShardIncarnation);
  EXPECT_EQ(said[0].header.norms().partitions(0).square_sum(), 9);
  OtherShardSays(0, 16);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_NEAR(shard.Values(0)[0], 3.0 / 5, 1e-5);
}

TEST_F(NormsTest, ResendsNormsToShardThatConnects) {
  shard.job.mutable_optimizer()->set_clip_norm(1);
  Begin();
  PushBoth(0, {3, 0, 0, 0});
  OtherShardSays(0, 16);
  shard.TakeActions<SendToShard>();
  shard.core().OnShardConnected(kOtherShardIncarnation, shard.now);
  std::vector<SendToShard> said = shard.TakeActions<SendToShard>();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].header.norms().step(), 0) << "the other shard may not have closed step 0";
  PushBoth(1, {3, 0, 0, 0});
  shard.TakeActions<SendToShard>();
  shard.core().OnShardConnected(kOtherShardIncarnation, shard.now);
  EXPECT_THAT(shard.TakeActions<SendToShard>(), SizeIs(2));
}

TEST_F(NormsTest, ClosesStreamOfInvalidNorms) {
  shard.job.mutable_optimizer()->set_clip_norm(1);
  Begin();
  const StreamId stranger = shard.Open(4444, v1::SHARD);
  v1::Header header = shard.HeaderOf(1);
  header.mutable_norms()->set_step(0);
  shard.Send(stranger, header);
  EXPECT_EQ(shard.StatusOf(stranger).code(), absl::StatusCode::kPermissionDenied);
  OtherShardSays(1, 1);
  EXPECT_THAT(std::string(shard.StatusOf(other).message()), HasSubstr("norms of step 1"));
  other = shard.Open(kOtherShardIncarnation, v1::SHARD);
  header.mutable_norms()->add_partitions()->set_partition(0);
  shard.Send(other, header);
  EXPECT_THAT(std::string(shard.StatusOf(other).message()),
              HasSubstr("partition 0 is not owned by the sender"));
}

TEST_F(NormsTest, SkipsStepThatIsNonFiniteOnAnyShard) {
  shard.job.mutable_training()->set_non_finite(v1::TrainingSpec::SKIP);
  Begin();
  PushBoth(0, {1, 1, 1, 1});
  OtherShardSays(0, 0, true);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Values(0), (Values{0, 0, 0, 0}));
  EXPECT_EQ(shard.core().Status().steps_skipped, 1);
  EXPECT_THAT(shard.TakeData(one), ElementsAre(Pair(Pair(0, 1), Values{0, 0, 0, 0})));
  PushBoth(1, {1, INFINITY, 1, 1});
  OtherShardSays(1, 1);
  PushBoth(2, {1, 1, 1, 1});
  OtherShardSays(2, 1);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
  EXPECT_EQ(shard.core().Status().steps_skipped, 2);
}

TEST_F(SynchronousTest, NonFiniteGradientFailsTheJobAndNamesTheTensor) {
  Begin();
  shard.Push(one, 0, 0, {1, NAN, 1, 1}, kMicrobatches(0, 2));
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kMicrobatches(2, 4));
  EXPECT_EQ(shard.Version(0), 0);
  const auto failures =
      shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_EQ(failures[0].reason(), "step 0: w[0:4]: the gradient is not finite");
  shard.Push(one, 0, 1, {1, 1}, kMicrobatches(0, 2));
  shard.Push(two, 0, 1, {1, 1}, kMicrobatches(2, 4));
  EXPECT_EQ(shard.Version(1), 0) << "no partition closes after a failure";
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

// Tests how a synchronous step applies gradients, through ShardCore: mean and sum, buffers and
// counters, half precision, bit-exact sums, clipping, and gradients that are not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/two_members_test.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using SynchronousTest = TwoMembersTest;
using Values = std::vector<float>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

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

// A push of partition 0 with this weight.
class WeightedTest : public TwoMembersTest {
 protected:
  void Push(StreamId stream, const Values& values, const v1::Range& microbatches, uint64_t samples,
            double weight, uint64_t step = 0) {
    v1::Header header = shard.MakePush(step, 0, microbatches, samples);
    header.mutable_push()->set_weight(weight);
    shard.Send(stream, header, Cord(values));
  }
  static absl::Cord Cord(const Values& values) {
    return absl::Cord(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                        values.size() * sizeof(float)));
  }
};

TEST_F(WeightedTest, MeanDividesByTheWeightsOfAllMembers) {
  Begin();
  Push(one, {8, 8, 8, 8}, kMicrobatches(0, 2), 1, 0.25);
  Push(two, {0, 4, 0, 0}, kMicrobatches(2, 4), 3, 3.75);
  EXPECT_EQ(shard.Values(0), (Values{2, 3, 2, 2}));
}

TEST_F(WeightedTest, MemberWithoutWeightCountsItsSamples) {
  Begin();
  Push(one, {8, 8, 8, 8}, kMicrobatches(0, 2), 1, 5);
  shard.Push(two, 0, 0, {0, 8, 0, 0}, kMicrobatches(2, 4), 3);
  EXPECT_EQ(shard.Values(0), (Values{1, 2, 1, 1}));
}

TEST_F(WeightedTest, StepWithoutAnyWeightHasNoGradient) {
  shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  shard.job.mutable_optimizer()->set_learning_rate(0.5);
  shard.job.mutable_optimizer()->set_weight_decay(0.5);
  shard.w = {1, 1, 1, 1};
  Begin();
  Push(one, {0, 0, 0, 0}, kMicrobatches(0, 2), 1, 0);
  Push(two, {0, 0, 0, 0}, kMicrobatches(2, 4), 3, 1e-31);
  EXPECT_EQ(shard.Version(0), 1);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
}

TEST_F(WeightedTest, SumIgnoresWeights) {
  shard.job.mutable_training()->set_aggregation(v1::TrainingSpec::SUM);
  Begin();
  Push(one, {8, 8, 8, 8}, kMicrobatches(0, 2), 1, 0);
  Push(two, {0, 4, 0, 0}, kMicrobatches(2, 4), 3, 0);
  EXPECT_EQ(shard.Values(0), (Values{8, 12, 8, 8}));
}

TEST_F(WeightedTest, RepetitionWithAnotherWeightIsRefused) {
  Begin();
  Push(one, {8, 8, 8, 8}, kMicrobatches(0, 2), 1, 2);
  Push(one, {8, 8, 8, 8}, kMicrobatches(0, 2), 1, 3);
  EXPECT_THAT(shard.StatusOf(one).message(), HasSubstr("of weight 2 and is now with"));
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

}  // namespace
}  // namespace sluice::ps

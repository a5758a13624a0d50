#include "services/coordinator/core/decisions/assignment.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Apportion, DividesInProportionToWeights) {
  EXPECT_THAT(Apportion(8, {1, 1}, false), ElementsAre(Interval{0, 4}, Interval{4, 8}));
  EXPECT_THAT(Apportion(8, {1, 3}, false), ElementsAre(Interval{0, 2}, Interval{2, 8}));
  EXPECT_THAT(Apportion(10, {1, 2, 2}, false),
              ElementsAre(Interval{0, 2}, Interval{2, 6}, Interval{6, 10}));
}

TEST(Apportion, UnknownWeightCountsAsMeanOfOthers) {
  EXPECT_THAT(Apportion(8, {0, 0}, false), ElementsAre(Interval{0, 4}, Interval{4, 8}));
  EXPECT_THAT(Apportion(12, {10, 0, 30}, false),
              ElementsAre(Interval{0, 2}, Interval{2, 6}, Interval{6, 12}));
  EXPECT_THAT(Apportion(4, {std::nan(""), 5}, false), ElementsAre(Interval{0, 2}, Interval{2, 4}));
}

TEST(Apportion, GivesEveryMemberAShareIfThereIsEnough) {
  EXPECT_THAT(Apportion(3, {1000, 1, 1}, false),
              ElementsAre(Interval{0, 1}, Interval{1, 2}, Interval{2, 3}));
  EXPECT_THAT(Apportion(3, {1, 1, 1000}, false),
              ElementsAre(Interval{0, 1}, Interval{1, 2}, Interval{2, 3}));
}

TEST(Apportion, WithoutWeightsThereAreNoRanges) { EXPECT_THAT(Apportion(8, {}, false), IsEmpty()); }

TEST(Apportion, AlignedBordersAreMultiplesOfPowerOfTwo) {
  for (const Interval& range : Apportion(64, {1, 1.1, 0.9}, true)) {
    EXPECT_EQ(range.begin % 2, 0u);
    EXPECT_EQ(range.end % 2, 0u);
  }
  EXPECT_THAT(Apportion(4, {1, 1}, true), ElementsAre(Interval{0, 2}, Interval{2, 4}));
}

TEST(Apportion, RangesCoverEverythingOnceInOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t total = random() % 70;
    std::vector<double> weights(1 + random() % 9);
    for (double& weight : weights) weight = random() % 4 == 0 ? 0 : 0.1 + random() % 100;
    uint64_t end = 0;
    for (const Interval& range : Apportion(total, weights, round % 2 == 0)) {
      EXPECT_EQ(range.begin, end);
      EXPECT_GE(range.end, range.begin);
      if (total >= weights.size()) {
        EXPECT_GT(range.size(), 0u);
      }
      end = range.end;
    }
    EXPECT_EQ(end, total);
  }
}

// 16 microbatches of 4 samples, for a model that cannot compute one sample, and an epoch whose last
// step has `last` samples.
Division WithoutOne(uint64_t last) {
  return {.microbatches = 16, .smallest = 2, .microbatch_size = 4, .steps = {64, last}};
}

TEST(Divide, NoRangeHasASingleSampleOfTheLastStep) {
  // Without the rule the second member has the ninth microbatch alone: one sample.
  EXPECT_THAT(Divide(WithoutOne(33), {1, 1}), ElementsAre(Interval{0, 9}, Interval{9, 16}));
  EXPECT_THAT(Divide(WithoutOne(34), {1, 1}), ElementsAre(Interval{0, 8}, Interval{8, 16}));
  EXPECT_THAT(Divide(WithoutOne(37), {1, 1}), ElementsAre(Interval{0, 8}, Interval{8, 16}));
}

TEST(Divide, EveryRangeIsComputableInEveryStepWhateverTheSpeeds) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 20000; ++trial) {
    Division division;
    division.microbatch_size = 1 + random() % 5;
    division.microbatches = 1 + random() % 20;
    division.smallest = 2 + random() % 3;
    const uint64_t most = division.microbatches * division.microbatch_size;
    const uint64_t full = std::max(division.smallest, most - random() % division.microbatch_size);
    if (full > most) continue;
    division.steps = {full, division.smallest + random() % (full - division.smallest + 1)};
    std::vector<double> speeds(1 + random() % MostRanges(division));
    for (double& speed : speeds) speed = 1 + static_cast<double>(random() % 5);

    uint64_t next = 0;
    for (const Interval& range : Divide(division, speeds)) {
      EXPECT_EQ(range.begin, next);
      next = range.end;
      for (const uint64_t step : division.steps) {
        const uint64_t samples = std::min(step, range.end * division.microbatch_size) -
                                 std::min(step, range.begin * division.microbatch_size);
        EXPECT_TRUE(samples == 0 || samples >= division.smallest) << samples;
      }
    }
    EXPECT_EQ(next, division.microbatches);
  }
}

TEST(Divide, OneMicrobatchPerMemberIsEnoughIfItHasTwoSamples) {
  Division division{.microbatches = 4, .smallest = 2, .microbatch_size = 2, .steps = {8}};
  EXPECT_EQ(MostRanges(division), 4u);
  division.microbatch_size = 1;
  EXPECT_EQ(MostRanges(division), 2u);
  division.aligned = true;
  EXPECT_EQ(MostRanges(division), 4u) << "BitExact computes microbatches one by one";
}

TEST(Imbalance, IsOneWhereNoBetterDivisionIsComputable) {
  const Division division{.microbatches = 2, .smallest = 2, .microbatch_size = 4, .steps = {8, 5}};
  EXPECT_THAT(Divide(division, {1, 1}), ElementsAre(Interval{0, 2}, Interval{2, 2}));
  EXPECT_DOUBLE_EQ(Imbalance({{0, 2}, {2, 2}}, {1, 1}, division), 1);
}

TEST(Imbalance, IsStepTimeRelativeToBest) {
  EXPECT_DOUBLE_EQ(Imbalance({{0, 4}, {4, 8}}, {1, 1}, {8}), 1);
  EXPECT_DOUBLE_EQ(Imbalance({{0, 4}, {4, 8}}, {1, 3}, {8}), 2);
  EXPECT_DOUBLE_EQ(Imbalance({{0, 2}, {2, 8}}, {1, 3}, {8}), 1);
}

TEST(Imbalance, IsOneWhileASpeedIsUnknown) {
  EXPECT_DOUBLE_EQ(Imbalance({{0, 4}, {4, 8}}, {1, 0}, {8}), 1);
  EXPECT_DOUBLE_EQ(Imbalance({}, {}, {8}), 1);
}

TEST(Imbalance, IsOneIfDivisionIsBest) {
  // 2 microbatches cannot be divided better between speeds 1 and 3.
  EXPECT_DOUBLE_EQ(Imbalance({{0, 1}, {1, 2}}, {1, 3}, {2}), 1);
}

}  // namespace
}  // namespace sluice::coordinator

#include "services/coordinator/core/assignment.h"

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

TEST(Imbalance, IsStepTimeRelativeToBest) {
  EXPECT_DOUBLE_EQ(Imbalance({{0, 4}, {4, 8}}, {1, 1}, false), 1);
  EXPECT_DOUBLE_EQ(Imbalance({{0, 4}, {4, 8}}, {1, 3}, false), 2);
  EXPECT_DOUBLE_EQ(Imbalance({{0, 2}, {2, 8}}, {1, 3}, false), 1);
}

TEST(Imbalance, IsOneWhileASpeedIsUnknown) {
  EXPECT_DOUBLE_EQ(Imbalance({{0, 4}, {4, 8}}, {1, 0}, false), 1);
  EXPECT_DOUBLE_EQ(Imbalance({}, {}, false), 1);
}

TEST(Imbalance, IsOneIfDivisionIsBest) {
  // 2 microbatches cannot be divided better between speeds 1 and 3.
  EXPECT_DOUBLE_EQ(Imbalance({{0, 1}, {1, 2}}, {1, 3}, false), 1);
}

}  // namespace
}  // namespace sluice::coordinator

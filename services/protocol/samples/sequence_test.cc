#include "services/protocol/samples/sequence.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SampleOrder Order(uint64_t samples, uint64_t seed, bool shuffle = true) {
  return *SampleOrder::Create({samples, seed, shuffle});
}

uint64_t IndexAt(const SampleOrder& order, uint64_t position) {
  return order.IndicesOf({position, position + 1}).at(0);
}

std::vector<uint64_t> Sorted(std::vector<uint64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<uint64_t> FromZeroTo(uint64_t n) {
  std::vector<uint64_t> values;
  for (uint64_t i = 0; i < n; ++i) values.push_back(i);
  return values;
}

TEST(SampleOrderTest, IsAsTheHeaderSpecifies) {
  // A second implementation, written in Python from the header's text, has computed these numbers.
  EXPECT_THAT(Order(10, 42).IndicesOf({0, 20}), ElementsAre(9, 3, 4, 5, 0, 7, 1, 8, 6, 2,  //
                                                            8, 7, 3, 0, 4, 9, 5, 2, 6, 1));
  const SampleOrder mnist = Order(60000, 1);
  EXPECT_THAT(
      (std::vector<uint64_t>{IndexAt(mnist, 0), IndexAt(mnist, 1), IndexAt(mnist, 2),
                             IndexAt(mnist, 59999), IndexAt(mnist, 60000), IndexAt(mnist, 600000)}),
      ElementsAre(16774, 1310, 7738, 45446, 24690, 57207));
  const SampleOrder large = Order(kMaxSamples, ~uint64_t{0});
  EXPECT_EQ(IndexAt(large, 0), 1080103363567u);
  EXPECT_EQ(IndexAt(large, kMaxSamples - 1), 74437881634u);
  EXPECT_EQ(IndexAt(large, 5 * kMaxSamples), 1030001971394u);
}

TEST(SampleOrderTest, EveryEpochVisitsEachSampleOnce) {
  for (uint64_t samples : {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000}) {
    const SampleOrder order = Order(samples, samples);
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      EXPECT_EQ(Sorted(order.IndicesOf({epoch * samples, (epoch + 1) * samples})),
                FromZeroTo(samples));
    }
  }
}

TEST(SampleOrderTest, OrderDependsOnEpochAndSeed) {
  const SampleOrder order = Order(100, 7);
  EXPECT_NE(order.IndicesOf({0, 100}), order.IndicesOf({100, 200}));
  EXPECT_NE(order.IndicesOf({0, 100}), Order(100, 8).IndicesOf({0, 100}));
  EXPECT_NE(order.IndicesOf({0, 100}), FromZeroTo(100));
}

TEST(SampleOrderTest, EverySampleIsEquallyLikelyAtEveryPlace) {
  constexpr uint64_t kSamples = 7;
  constexpr uint64_t kEpochs = 7000;
  const SampleOrder order = Order(kSamples, 3);
  std::vector<int> count(kSamples * kSamples);
  for (uint64_t p = 0; p < kSamples * kEpochs; ++p) {
    ++count[p % kSamples * kSamples + IndexAt(order, p)];
  }
  // 1000 expected in each of the 49 cells, with a standard deviation of 29.
  for (int c : count) EXPECT_NEAR(c, 1000, 5 * 29);
}

TEST(SampleOrderTest, RangeOverSeveralEpochsEqualsItsSinglePositions) {
  const SampleOrder order = Order(10, 1);
  std::vector<uint64_t> singly;
  for (uint64_t p = 7; p < 34; ++p) singly.push_back(IndexAt(order, p));
  EXPECT_EQ(order.IndicesOf({7, 34}), singly);
  EXPECT_TRUE(order.IndicesOf({7, 7}).empty());
}

TEST(SampleOrderTest, SamplesAreInOrderWithoutShuffle) {
  EXPECT_THAT(Order(3, 9, false).IndicesOf({1, 8}), ElementsAre(1, 2, 0, 1, 2, 0, 1));
}

TEST(SampleOrderTest, RejectsImpossibleSizes) {
  EXPECT_EQ(SampleOrder::Create({0, 1, true}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SampleOrder::Create({kMaxSamples + 1, 1, true}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

StepSchedule Plan(uint64_t samples, uint64_t batch, uint64_t microbatch) {
  return *StepSchedule::Create({samples, batch, microbatch});
}

TEST(StepScheduleTest, LastStepOfEpochTakesRemainingSamples) {
  const StepSchedule plan = Plan(10, 4, 2);
  EXPECT_EQ(plan.StepsPerEpoch(), 3u);
  EXPECT_EQ(plan.PositionsOf(0), (PositionRange{0, 4}));
  EXPECT_EQ(plan.PositionsOf(2), (PositionRange{8, 10}));
  EXPECT_EQ(plan.PositionsOf(3), (PositionRange{10, 14}));
  EXPECT_EQ(plan.EpochOf(2), 0u);
  EXPECT_EQ(plan.EpochOf(3), 1u);
}

TEST(StepScheduleTest, DroppedPositionsAreInNoStep) {
  const StepSchedule plan = *StepSchedule::Create({10, 4, 2, /*drop_last=*/true});
  EXPECT_EQ(plan.StepsPerEpoch(), 2u);
  EXPECT_EQ(plan.StepsOfEpochs(3), 6u);
  EXPECT_EQ(plan.PositionsOf(1), (PositionRange{4, 8}));
  EXPECT_EQ(plan.PositionsOf(2), (PositionRange{10, 14}));
  EXPECT_EQ(plan.EpochOf(2), 1u);
  EXPECT_EQ(plan.MicrobatchesOfStep(2), 2u);
}

TEST(StepScheduleTest, NothingIsDroppedWhereTheBatchDividesTheSamples) {
  const StepSchedule plan = *StepSchedule::Create({8, 4, 2, /*drop_last=*/true});
  EXPECT_EQ(plan.StepsPerEpoch(), 2u);
  EXPECT_EQ(plan.PositionsOf(2), (PositionRange{8, 12}));
}

TEST(StepScheduleTest, StepsAndMicrobatchesCoverEveryPositionOnceInOrder) {
  for (uint64_t samples : {1, 7, 64, 100}) {
    for (uint64_t batch : {1, 3, 16, 64, 128}) {
      for (uint64_t microbatch : {1, 4, 5, 200}) {
        const StepSchedule plan = Plan(samples, batch, microbatch);
        uint64_t next = 0;
        for (uint64_t step = 0; step < plan.StepsOfEpochs(3); ++step) {
          uint64_t filled = 0;
          for (uint64_t j = 0; j < plan.MicrobatchesPerStep(); ++j) {
            const PositionRange range = plan.PositionsOf(step, {j, j + 1});
            EXPECT_EQ(range.begin, next);
            EXPECT_LE(range.size(), microbatch);
            next = range.end;
            if (!range.empty()) ++filled;
          }
          EXPECT_EQ(filled, plan.MicrobatchesOfStep(step));
          EXPECT_GE(filled, 1u);
          EXPECT_EQ(next, plan.PositionsOf(step).end);
        }
        EXPECT_EQ(next, 3 * samples);
      }
    }
  }
}

TEST(StepScheduleTest, MicrobatchesPastEndOfSmallerStepAreEmpty) {
  const StepSchedule plan = Plan(10, 8, 2);
  EXPECT_EQ(plan.MicrobatchesPerStep(), 4u);
  EXPECT_EQ(plan.MicrobatchesOfStep(1), 1u);
  EXPECT_EQ(plan.PositionsOf(1, {0, 4}), (PositionRange{8, 10}));
  EXPECT_TRUE(plan.PositionsOf(1, {1, 4}).empty());
  EXPECT_TRUE(plan.PositionsOf(1, {~uint64_t{0} - 1, ~uint64_t{0}}).empty());
}

TEST(StepScheduleTest, BatchLargerThanDataIsWholeEpoch) {
  const StepSchedule plan = Plan(10, 64, 4);
  EXPECT_EQ(plan.StepsPerEpoch(), 1u);
  EXPECT_EQ(plan.PositionsOf(1), (PositionRange{10, 20}));
  EXPECT_EQ(plan.MicrobatchesOfStep(0), 3u);
}

TEST(StepScheduleTest, NumberOfStepsSaturates) {
  EXPECT_EQ(Plan(10, 1, 1).StepsOfEpochs(~uint64_t{0}), ~uint64_t{0});
  EXPECT_EQ(Plan(10, 1, 1).StepsOfEpochs(0), 0u);
}

TEST(StepScheduleTest, ErrorNamesField) {
  EXPECT_THAT(std::string(StepSchedule::Create({10, 0, 1}).status().message()),
              HasSubstr("globalBatchSize is 0"));
  EXPECT_THAT(std::string(StepSchedule::Create({10, 1, 0}).status().message()),
              HasSubstr("microbatchSize is 0"));
  EXPECT_THAT(std::string(StepSchedule::Create({0, 1, 1}).status().message()),
              HasSubstr("number of samples is 0"));
  EXPECT_THAT(std::string(StepSchedule::Create({10, 11, 1, true}).status().message()),
              HasSubstr("training.lastBatch is Drop, and the training data have 10 samples"));
  EXPECT_TRUE(StepSchedule::Create({11, 11, 1, true}).ok());
}

TEST(StepScheduleTest, FindsFirstStepThatBeginsAtOrAfterPosition) {
  for (const bool drop_last : {false, true}) {
    const auto plan = StepSchedule::Create({/*samples=*/10, /*global_batch_size=*/4, 2, drop_last});
    ASSERT_TRUE(plan.ok());
    for (uint64_t position = 0; position < 30; ++position) {
      const uint64_t step = plan->StepFrom(position);
      EXPECT_GE(plan->PositionsOf(step).begin, position);
      if (step > 0) {
        EXPECT_LT(plan->PositionsOf(step - 1).begin, position);
      }
    }
  }
}

}  // namespace
}  // namespace sluice

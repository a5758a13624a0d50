#include "services/worker/compute/carried_state.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

std::vector<float> Before(const CarriedState& state, const std::vector<StreamPlace>& places) {
  std::vector<float> out(places.size() * state.size(), -1);
  state.Load(places, absl::MakeSpan(out));
  return out;
}

TEST(CarriedStateTest, SampleContinuesFromPreviousSampleOfItsStream) {
  CarriedState state(2);
  state.Store({{0, 0}, {1, 0}}, {1, 2, 3, 4});
  EXPECT_THAT(Before(state, {{1, 1}, {0, 1}}), ElementsAre(3, 4, 1, 2));
}

TEST(CarriedStateTest, IsZeroIfPreviousSampleWasComputedElsewhere) {
  CarriedState state(1);
  state.Store({{0, 0}}, {5});
  EXPECT_THAT(Before(state, {{0, 2}, {1, 1}}), ElementsAre(0, 0));
}

TEST(CarriedStateTest, StartsAgainWithTheStream) {
  CarriedState state(1);
  state.Store({{0, 7}}, {5});
  EXPECT_THAT(Before(state, {{0, 0}}), ElementsAre(0));
}

TEST(CarriedStateTest, RecomputedSampleStartsWithTheSameState) {
  CarriedState state(1);
  state.Store({{0, 3}}, {5});
  state.Store({{0, 4}}, {6});
  EXPECT_THAT(Before(state, {{0, 4}}), ElementsAre(5));
  state.Store({{0, 4}}, {7});
  EXPECT_THAT(Before(state, {{0, 4}}), ElementsAre(5));
  EXPECT_THAT(Before(state, {{0, 5}}), ElementsAre(7));
}

TEST(CarriedStateTest, KeepsAtMostTwoSamplesOfStream) {
  CarriedState state(1);
  for (uint64_t place = 0; place < 5; ++place) {
    state.Store({{0, place}}, {static_cast<float>(place + 10)});
  }
  EXPECT_THAT(Before(state, {{0, 3}, {0, 4}, {0, 5}}), ElementsAre(0, 13, 14));
}

}  // namespace
}  // namespace sluice

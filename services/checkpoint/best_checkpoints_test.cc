#include "services/checkpoint/best_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace sluice {
namespace {

using ::testing::ElementsAre;

v1::CheckpointRef Ref(uint64_t attempt, uint64_t step) {
  v1::CheckpointRef ref;
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

TEST(BestCheckpoints, OfEqualValuesTheFirstIsBestAndNaNIsNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<ValuedCheckpoint> all = {
      {Ref(2, 9), 1}, {Ref(1, 5), 1}, {Ref(1, 7), nan}, {Ref(1, 6), 3}, {Ref(1, 8), 2}};
  const auto steps = [&](bool maximize, uint64_t count) {
    std::vector<uint64_t> found;
    for (const v1::CheckpointRef& ref : BestCheckpoints(all, maximize, count)) {
      found.push_back(ref.step());
    }
    return found;
  };
  EXPECT_THAT(steps(false, 1), ElementsAre(5));
  EXPECT_THAT(steps(false, 3), ElementsAre(5, 9, 8));
  EXPECT_THAT(steps(true, 9), ElementsAre(6, 8, 5, 9));
}

}  // namespace
}  // namespace sluice

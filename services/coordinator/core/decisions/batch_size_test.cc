#include "services/coordinator/core/decisions/batch_size.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace sluice::coordinator {
namespace {

constexpr BatchBounds kBounds = {32, 1, 128};

TEST(BatchSizeTest, WorkersOfEqualSpeedGetGlobalBatchSize) {
  EXPECT_EQ(BatchSize(100, {100, 100, 100}, kBounds), 32u);
}

TEST(BatchSizeTest, AllUpdatesTakeTheSameTime) {
  const std::vector<double> speeds = {10, 20, 60};
  for (double speed : speeds) {
    const uint64_t batch = BatchSize(speed, speeds, kBounds);
    EXPECT_NEAR(static_cast<double>(batch) / speed, 32.0 / 30, 0.05) << speed;
  }
}

TEST(BatchSizeTest, BatchStaysWithinBounds) {
  EXPECT_EQ(BatchSize(1, {1, 1000}, kBounds), 1u);
  EXPECT_EQ(BatchSize(1000, {1, 1, 1, 1, 1000}, kBounds), 128u);
  EXPECT_EQ(BatchSize(1, {1, 1000}, {32, 8, 128}), 8u);
}

TEST(BatchSizeTest, WorkerOfUnknownSpeedGetsGlobalBatchSizeAndDoesNotCount) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(BatchSize(0, {0, 100, 200}, kBounds), 32u);
  EXPECT_EQ(BatchSize(infinite, {infinite, 100}, kBounds), 32u);
  EXPECT_EQ(BatchSize(100, {0, infinite, 100}, kBounds), 32u);
  EXPECT_EQ(BatchSize(0, {}, kBounds), 32u);
}

}  // namespace
}  // namespace sluice::coordinator

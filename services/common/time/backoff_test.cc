#include "services/common/time/backoff.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

TEST(BackoffTest, WaitsGrowToMaximumAndRestartAfterSuccess) {
  Backoff::Options options;
  options.initial = absl::Seconds(1);
  options.max = absl::Seconds(5);
  options.jitter = 0;
  Backoff backoff(options);
  std::mt19937 random;
  for (int seconds : {1, 2, 4, 5, 5}) EXPECT_EQ(backoff.Next(random), absl::Seconds(seconds));
  backoff.Reset();
  EXPECT_EQ(backoff.Next(random), absl::Seconds(1));
}

TEST(BackoffTest, JitterSpreadsWaitsBelowTheirFullLength) {
  Backoff::Options options;
  options.initial = absl::Seconds(1);
  options.max = absl::Seconds(1);
  options.jitter = 0.5;
  Backoff backoff(options);
  std::mt19937 random;
  absl::Duration least = absl::Seconds(1);
  absl::Duration most = absl::ZeroDuration();
  for (int i = 0; i < 200; ++i) {
    const absl::Duration wait = backoff.Next(random);
    least = std::min(least, wait);
    most = std::max(most, wait);
  }
  EXPECT_GE(least, absl::Milliseconds(500));
  EXPECT_LE(most, absl::Seconds(1));
  EXPECT_GT(most - least, absl::Milliseconds(300));
}

}  // namespace
}  // namespace sluice

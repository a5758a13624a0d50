#include "services/common/time/clock.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(ClockTest, FakeClockAdvancesOnlyWhenMoved) {
  FakeClock clock(absl::UnixEpoch());
  EXPECT_EQ(clock.Now(), absl::UnixEpoch());
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now(), absl::UnixEpoch() + absl::Seconds(3));
}

TEST(ClockTest, RealClockShowsTimeAndNeverGoesBack) {
  RealClock clock;
  EXPECT_LT(absl::AbsDuration(clock.Now() - absl::Now()), absl::Minutes(1));
  absl::Time last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace sluice

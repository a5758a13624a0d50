#include "services/common/time/deadline_timer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "services/common/threads/notification.h"

namespace sluice {
namespace {

TEST(DeadlineTimerTest, CallsBackAfterDeadlineAndNotBefore) {
  const RealClock clock;
  const absl::Time deadline = clock.Now() + absl::Milliseconds(20);
  Notification called;
  absl::Time when;
  DeadlineTimer timer(&clock, [&] {
    when = clock.Now();
    called.Notify();
  });
  timer.Set(deadline);
  called.Wait();
  EXPECT_GE(when, deadline);
}

TEST(DeadlineTimerTest, EarlierDeadlineReplacesLaterOne) {
  const RealClock clock;
  Notification called;
  DeadlineTimer timer(&clock, [&] { called.Notify(); });
  timer.Set(clock.Now() + absl::Hours(1));
  timer.Set(clock.Now() + absl::Milliseconds(1));
  EXPECT_TRUE(called.WaitWithTimeout(absl::Seconds(10)));
}

TEST(DeadlineTimerTest, CallsBackAtOnceForPastAndOncePerDeadline) {
  const RealClock clock;
  std::atomic<int> calls{0};
  Notification third;
  DeadlineTimer* self = nullptr;
  DeadlineTimer timer(&clock, [&] {
    if (++calls == 3) {
      third.Notify();
    } else {
      self->Set(absl::InfinitePast());
    }
  });
  self = &timer;
  timer.Set(absl::InfinitePast());
  EXPECT_TRUE(third.WaitWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(calls, 3);
}

TEST(DeadlineTimerTest, EndsBeforeDeadline) {
  const RealClock clock;
  std::atomic<int> calls{0};
  {
    DeadlineTimer timer(&clock, [&] { ++calls; });
    timer.Set(clock.Now() + absl::Hours(1));
  }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace sluice

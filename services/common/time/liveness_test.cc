#include "services/common/time/liveness.h"

#include "gtest/gtest.h"
#include "services/common/threads/notification.h"

namespace sluice {
namespace {

TEST(LivenessTest, ExecutorThatRunsItsTasksIsAliveHoweverSeldomChecked) {
  FakeClock clock;
  SerialExecutor executor({.name = "test"});
  Liveness liveness(&executor, absl::Seconds(5), &clock);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(liveness.Check().ok());
    executor.Flush();
    clock.Advance(absl::Hours(1));
  }
}

TEST(LivenessTest, ExecutorStuckBeyondPatienceIsNotAliveUntilItContinues) {
  FakeClock clock;
  SerialExecutor executor({.name = "test"});
  Liveness liveness(&executor, absl::Seconds(5), &clock);
  Notification go_on;
  executor.Post([&] { go_on.Wait(); });
  EXPECT_TRUE(liveness.Check().ok());
  clock.Advance(absl::Seconds(5));
  EXPECT_TRUE(liveness.Check().ok()) << "a long task alone does not fail the check";
  clock.Advance(absl::Seconds(1));
  const absl::Status stuck = liveness.Check();
  EXPECT_TRUE(absl::IsUnavailable(stuck)) << stuck;
  EXPECT_NE(stuck.message().find("6s"), absl::string_view::npos) << stuck;
  go_on.Notify();
  executor.Flush();
  EXPECT_TRUE(liveness.Check().ok());
}

}  // namespace
}  // namespace sluice

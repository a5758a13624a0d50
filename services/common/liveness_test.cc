#include "services/common/liveness.h"

#include "gtest/gtest.h"
#include "services/common/notification.h"

namespace sluice {
namespace {

TEST(LivenessTest, AnExecutorThatRunsItsTasksIsAlive) {
  SerialExecutor executor({.name = "test"});
  EXPECT_TRUE(CheckAlive(&executor, absl::InfiniteDuration()).ok());
}

TEST(LivenessTest, AnExecutorThatIsStuckIsNotAliveUntilItGoesOn) {
  SerialExecutor executor({.name = "test"});
  Notification go_on;
  executor.Post([&] { go_on.Wait(); });
  const absl::Status stuck = CheckAlive(&executor, absl::Milliseconds(10));
  EXPECT_TRUE(absl::IsUnavailable(stuck)) << stuck;
  go_on.Notify();
  EXPECT_TRUE(CheckAlive(&executor, absl::InfiniteDuration()).ok());
}

}  // namespace
}  // namespace sluice

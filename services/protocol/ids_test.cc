#include "services/protocol/ids.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

v1::ViewId View(uint64_t attempt, uint64_t counter, uint64_t coordinator, uint64_t number) {
  v1::ViewId id;
  id.set_attempt(attempt);
  id.mutable_term()->set_counter(counter);
  id.mutable_term()->set_coordinator(coordinator);
  id.set_number(number);
  return id;
}

TEST(IdsTest, OrdersViewsByAttemptThenTermThenNumber) {
  EXPECT_LT(Compare(View(1, 9, 9, 9), View(2, 1, 1, 1)), 0);
  EXPECT_LT(Compare(View(1, 1, 9, 9), View(1, 2, 1, 1)), 0);
  EXPECT_LT(Compare(View(1, 1, 1, 9), View(1, 1, 2, 1)), 0);
  EXPECT_LT(Compare(View(1, 1, 1, 1), View(1, 1, 1, 2)), 0);
  EXPECT_TRUE(Same(View(1, 2, 3, 4), View(1, 2, 3, 4)));
}

TEST(IdsTest, EmptyViewIsBelowAllOthers) {
  EXPECT_LT(Compare(v1::ViewId(), View(0, 0, 0, 1)), 0);
  EXPECT_EQ(Compare(v1::ViewId(), v1::ViewId()), 0);
}

TEST(IdsTest, NamesProcessesAsUsersKnowThem) {
  EXPECT_EQ(ProcessName(v1::SHARD, 2), "ps-2");
  EXPECT_EQ(ProcessName(v1::WORKER, 0), "worker-0");
  EXPECT_EQ(ProcessName(v1::COORDINATOR, 0), "coordinator");
}

TEST(IdsTest, LogsAndMetricsUseNameOfJob) {
  EXPECT_EQ(ShortJobName("default/mnist/1234"), "mnist");
  EXPECT_EQ(ShortJobName("mnist"), "mnist");
}

}  // namespace
}  // namespace sluice

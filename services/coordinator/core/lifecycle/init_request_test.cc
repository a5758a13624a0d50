#include "services/coordinator/core/lifecycle/init_request.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

const absl::Time kDeadline = absl::FromUnixSeconds(1'000'000);
const CoordinatorRules kRules;

v1::InitId InitIdOf(uint64_t number) {
  v1::InitId init_id;
  init_id.set_attempt(1);
  init_id.set_number(number);
  return init_id;
}

TEST(InitRequest, IsCompleteWhenAllShardsReportStateReady) {
  InitRequest request(&kRules);
  EXPECT_FALSE(request.complete());
  request.Begin(InitIdOf(1), {1, 2}, 7, kDeadline);
  EXPECT_TRUE(request.OnStateReady(1, InitIdOf(1)));
  EXPECT_FALSE(request.OnStateReady(1, InitIdOf(1))) << "repeated";
  EXPECT_FALSE(request.complete());
  EXPECT_TRUE(request.OnStateReady(2, InitIdOf(1)));
  EXPECT_TRUE(request.complete());
}

TEST(InitRequest, StateReadyCountsOnlyForItsInitRequest) {
  InitRequest request(&kRules);
  request.Begin(InitIdOf(1), {1, 2}, 7, kDeadline);
  request.OnStateReady(1, InitIdOf(1));
  request.Begin(InitIdOf(2), {1, 2}, 8, kDeadline);
  EXPECT_FALSE(request.OnStateReady(2, InitIdOf(1)));
  EXPECT_TRUE(request.OnStateReady(2, InitIdOf(2)));
  EXPECT_FALSE(request.complete()) << "the state of the first init request at shard 1 is discarded";
}

TEST(InitRequest, WorkersTakeTurns) {
  InitRequest request(&kRules);
  EXPECT_EQ(request.NextWorker({}), std::nullopt);
  EXPECT_EQ(request.NextWorker({7, 8}), 7);
  request.Begin(InitIdOf(1), {1}, 7, kDeadline);
  EXPECT_EQ(request.NextWorker({7, 8}), 8);
  request.Begin(InitIdOf(2), {1}, 8, kDeadline);
  EXPECT_EQ(request.NextWorker({7, 8}), 7);
  EXPECT_EQ(request.NextWorker({7, 8, 9}), 9);
}

TEST(InitRequest, OnlyInitRequestWithWorkerHasDeadline) {
  InitRequest request(&kRules);
  request.Begin(InitIdOf(1), {1}, 7, kDeadline);
  EXPECT_EQ(request.deadline(), kDeadline);
  request.Begin(InitIdOf(2), {1}, std::nullopt, kDeadline);
  EXPECT_EQ(request.deadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace sluice::coordinator

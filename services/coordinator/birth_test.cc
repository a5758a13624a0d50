#include "services/coordinator/birth.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

const absl::Time kDeadline = absl::FromUnixSeconds(1'000'000);
const CoordinatorRules kRules;

v1::AskId AskNumber(uint64_t number) {
  v1::AskId ask;
  ask.set_attempt(1);
  ask.set_number(number);
  return ask;
}

TEST(Birth, IsCompleteWhenAllShardsReportTheAskWhole) {
  Birth birth(&kRules);
  EXPECT_FALSE(birth.complete());
  birth.Ask(AskNumber(1), {1, 2}, 7, kDeadline);
  EXPECT_TRUE(birth.OnWhole(1, AskNumber(1)));
  EXPECT_FALSE(birth.OnWhole(1, AskNumber(1))) << "repeated";
  EXPECT_FALSE(birth.complete());
  EXPECT_TRUE(birth.OnWhole(2, AskNumber(1)));
  EXPECT_TRUE(birth.complete());
}

TEST(Birth, WholeCountsOnlyForItsAsk) {
  Birth birth(&kRules);
  birth.Ask(AskNumber(1), {1, 2}, 7, kDeadline);
  birth.OnWhole(1, AskNumber(1));
  birth.Ask(AskNumber(2), {1, 2}, 8, kDeadline);
  EXPECT_FALSE(birth.OnWhole(2, AskNumber(1)));
  EXPECT_TRUE(birth.OnWhole(2, AskNumber(2)));
  EXPECT_FALSE(birth.complete()) << "the state of the first ask at shard 1 is discarded";
}

TEST(Birth, WorkersTakeTurns) {
  Birth birth(&kRules);
  EXPECT_EQ(birth.NextWorker({}), std::nullopt);
  EXPECT_EQ(birth.NextWorker({7, 8}), 7);
  birth.Ask(AskNumber(1), {1}, 7, kDeadline);
  EXPECT_EQ(birth.NextWorker({7, 8}), 8);
  birth.Ask(AskNumber(2), {1}, 8, kDeadline);
  EXPECT_EQ(birth.NextWorker({7, 8}), 7);
  EXPECT_EQ(birth.NextWorker({7, 8, 9}), 9);
}

TEST(Birth, OnlyAskOfWorkerHasDeadline) {
  Birth birth(&kRules);
  birth.Ask(AskNumber(1), {1}, 7, kDeadline);
  EXPECT_EQ(birth.deadline(), kDeadline);
  birth.Ask(AskNumber(2), {1}, std::nullopt, kDeadline);
  EXPECT_EQ(birth.deadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace sluice::coordinator

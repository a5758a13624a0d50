#include "services/coordinator/core/facts/shard_load.h"

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::IsEmpty;

// Shards 1, 2 and 3 hold 100 bytes each; `rate` is what each is busy of a second.
class ShardLoadTest : public ::testing::Test {
 protected:
  // Returns the first changes, at most after `time`.
  std::vector<ShardLoad::Change> Pass(absl::Duration time) {
    const absl::Time end = now_ + time;
    while (now_ < end) {
      now_ += absl::Milliseconds(500);
      for (const auto& [shard, rate] : rate_) {
        busy_[shard] += rate / 2;
        load_.OnReport(shard, busy_[shard]);
      }
      if (!load_.Due(now_)) continue;
      std::vector<ShardLoad::Change> changes = load_.Measure(bytes_, now_);
      if (!changes.empty()) return changes;
    }
    return {};
  }

  ShardLoad load_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<uint64_t, double> rate_ = {{1, 0.2}, {2, 0.2}, {3, 0.2}};
  std::map<uint64_t, double> busy_;
  std::map<uint64_t, uint64_t> bytes_ = {{1, 100}, {2, 100}, {3, 100}};
};

TEST_F(ShardLoadTest, ShardOverTwiceTheMedianForAMinuteCostsMore) {
  EXPECT_THAT(Pass(absl::Seconds(120)), IsEmpty());
  EXPECT_NEAR(load_.highest(), 1, 1e-6);
  rate_[2] = 0.6;
  const absl::Time hot = now_;
  const auto changes = Pass(absl::Seconds(180));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_GE(now_ - hot, absl::Minutes(1));
  EXPECT_LE(now_ - hot, absl::Seconds(75));
  EXPECT_EQ(changes[0].shard, 2u);
  EXPECT_NEAR(changes[0].load, 3, 0.3);
  EXPECT_NEAR(load_.CostOf(2), 300, 30);
  EXPECT_EQ(load_.CostOf(1), 100u);
  EXPECT_NEAR(load_.highest(), 3, 1e-6);
  EXPECT_EQ(load_.changes(), 1u);
  EXPECT_EQ(load_.cooled(), 1u);
}

TEST_F(ShardLoadTest, OneOfTwoShardsMayBeHot) {
  bytes_ = {{1, 100}, {2, 100}};
  rate_ = {{1, 0.2}, {2, 0.5}};
  EXPECT_EQ(Pass(absl::Seconds(90)).size(), 1u);
  EXPECT_NEAR(load_.CostOf(2), 250, 5);
}

TEST_F(ShardLoadTest, IgnoresLoadThatIsNotHighAllTheTime) {
  for (int i = 0; i < 10; ++i) {
    rate_[2] = 0.9;
    EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty()) << "less than a minute";
    rate_[2] = 0.2;
    EXPECT_THAT(Pass(absl::Seconds(15)), IsEmpty());
  }
  rate_[2] = 0.39;
  EXPECT_THAT(Pass(absl::Minutes(10)), IsEmpty()) << "less than twice the median";
}

TEST_F(ShardLoadTest, IdleShardsAreNotHot) {
  rate_ = {{1, 0.001}, {2, 0.09}, {3, 0.001}};
  EXPECT_THAT(Pass(absl::Minutes(10)), IsEmpty());
}

TEST_F(ShardLoadTest, ShardsThatReportNothingAreNotCompared) {
  rate_ = {{2, 0.5}};
  EXPECT_THAT(Pass(absl::Minutes(10)), IsEmpty());
}

TEST_F(ShardLoadTest, LoadThatTheBytesExplainIsNoReason) {
  bytes_[2] = 400;  // a partition that cannot be divided
  rate_[2] = 0.8;
  EXPECT_THAT(Pass(absl::Minutes(10)), IsEmpty());
}

TEST_F(ShardLoadTest, MeasurementBeginsAgainWhenPartitionsMove) {
  rate_[2] = 0.6;
  EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty());
  bytes_[1] = 101;
  EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty());
  const auto held = bytes_;
  bytes_.clear();  // copies are under way
  EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty());
  bytes_ = held;
  EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty());
  EXPECT_EQ(Pass(absl::Seconds(20)).size(), 1u);
}

TEST_F(ShardLoadTest, CooledShardGetsItsPartAgainWhenTheCauseIsGone) {
  rate_[2] = 0.6;
  ASSERT_EQ(Pass(absl::Seconds(90)).size(), 1u);
  // It holds a third, and is as busy as the others.
  bytes_ = {{1, 133}, {2, 34}, {3, 133}};
  rate_ = {{1, 0.266}, {2, 0.204}, {3, 0.266}};
  EXPECT_THAT(Pass(absl::Minutes(10)), IsEmpty()) << "its bytes still cost three times as much";
  rate_[2] = 0.068;
  const auto changes = Pass(absl::Minutes(5));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].cost, 100u);
  EXPECT_EQ(load_.cooled(), 0u);
}

TEST_F(ShardLoadTest, ShardLeftWithNothingIsTriedAgain) {
  rate_[2] = 0.6;
  ASSERT_EQ(Pass(absl::Seconds(90)).size(), 1u);
  bytes_[2] = 0;
  ASSERT_EQ(Pass(absl::Minutes(5)).size(), 1u);
  EXPECT_EQ(load_.CostOf(2), 100u);
}

TEST_F(ShardLoadTest, LoadThatMovesAlongChangesPlaceLessAndLessOften) {
  std::vector<absl::Time> at;
  uint64_t hot = 1;
  for (int i = 0; i < 8; ++i) {
    for (auto& [shard, rate] : rate_) rate = shard == hot ? 0.8 : 0.2;
    while (Pass(absl::Hours(3)).empty() || load_.CostOf(hot) == 100) {
    }
    at.push_back(now_);
    hot = hot % 3 + 1;
    ++bytes_[hot];
  }
  EXPECT_GE(at[7] - at[6], absl::Minutes(30));
  EXPECT_LT(at[1] - at[0], absl::Minutes(5));
}

TEST_F(ShardLoadTest, ShardThatIsGoneIsForgotten) {
  rate_[2] = 0.6;
  ASSERT_EQ(Pass(absl::Seconds(90)).size(), 1u);
  rate_.erase(2);
  bytes_.erase(2);
  Pass(absl::Seconds(10));
  EXPECT_EQ(load_.cooled(), 0u);
  EXPECT_EQ(load_.CostOf(2), 100u);
}

}  // namespace
}  // namespace sluice::coordinator

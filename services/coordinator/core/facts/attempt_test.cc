#include "services/coordinator/core/facts/attempt.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

TEST(AttemptTest, NextHasNothingOfTheAttemptButTermNumbersAndModel) {
  Attempt attempt;
  attempt.id.number = 3;
  attempt.id.term.set_counter(2);
  attempt.model.ready.emplace().set_training_samples(100);
  attempt.losses.newest = 1;
  attempt.goal = Goal::kSwitch;
  attempt.decisions.set_step(10);
  attempt.last_position = 50;
  attempt.base.emplace().set_step(10);
  attempt.SetBase(10, v1::Ledger());
  attempt.TakeOverFrom({v1::View::Shard()});
  const uint64_t number = attempt.NextNumber();

  attempt = attempt.Next(v1::ASYNCHRONOUS);
  EXPECT_EQ(attempt.id.number, 3u);
  EXPECT_EQ(attempt.id.term.counter(), 2u);
  EXPECT_EQ(attempt.model.ready->training_samples(), 100u);
  EXPECT_EQ(attempt.NextNumber(), number + 1);
  EXPECT_EQ(attempt.mode, v1::ASYNCHRONOUS);

  EXPECT_EQ(attempt.losses.newest, 0u);
  EXPECT_EQ(attempt.goal, Goal::kNone);
  EXPECT_EQ(attempt.decisions.step(), 0u);
  EXPECT_EQ(attempt.last_position, 0u);
  EXPECT_FALSE(attempt.base.has_value());
  EXPECT_EQ(attempt.facts().base_version, 0u);
  EXPECT_TRUE(attempt.shards().empty());
  EXPECT_TRUE(attempt.facts().shards.empty());
}

}  // namespace
}  // namespace sluice::coordinator

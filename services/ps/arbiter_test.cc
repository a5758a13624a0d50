#include "services/ps/arbiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ArbiterTest : public ::testing::Test {
 protected:
  void Reset(uint64_t total, size_t members, const IntervalSet& applied = {},
             const std::map<uint64_t, IntervalSet>& leases = {}, uint64_t ordinal = 0) {
    Arbiter::Limits limits;
    limits.total_samples = total;
    limits.update_samples = 4;
    limits.permits = 2;
    arbiter.Reset(limits, members, applied, leases, ordinal);
  }
  static Interval Samples(const v1::Lease& lease) { return FromProto(lease.samples()); }

  const ShardRules rules{};
  Arbiter arbiter{&rules};
};

TEST_F(ArbiterTest, EverySampleIsLeasedOnceAndTheLastLeaseIsShort) {
  Reset(10, 1);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{0, 4}));
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{4, 8}));
  EXPECT_EQ(Samples(arbiter.RequestLease(3, 0, 0)), (Interval{8, 10}));
  EXPECT_TRUE(arbiter.RequestLease(4, 0, 0).wait());
}

TEST_F(ArbiterTest, WhatWasAppliedOrIsLeasedIsNotGivenAgainAfterAViewChange) {
  IntervalSet applied;
  applied.Add({0, 4});
  IntervalSet rest;
  rest.Add({6, 8});
  Reset(12, 2, applied, {{1, rest}});
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{4, 6})) << "of a member that is gone";
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{6, 8}));
  EXPECT_EQ(Samples(arbiter.RequestLease(3, 0, 0)), (Interval{8, 12}));
}

TEST_F(ArbiterTest, ALeaseShrinksWithItsUpdatesAndEndsWithTheLast) {
  Reset(100, 1);
  arbiter.RequestLease(1, 8, 0);
  EXPECT_TRUE(arbiter.Covers(1, {0, 4}));
  arbiter.OnApplied(1, 1, {0, 4});
  EXPECT_FALSE(arbiter.Covers(1, {0, 4}));
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 8, 1)), (Interval{4, 8}));
  arbiter.OnApplied(1, 2, {4, 8});
  EXPECT_FALSE(arbiter.HoldsLease(1));
}

TEST_F(ArbiterTest, AtTheEndEverybodyIsDoneAtOnce) {
  Reset(8, 2);
  arbiter.RequestLease(1, 0, 0);
  arbiter.RequestLease(2, 0, 0);
  arbiter.OnApplied(1, 1, {0, 4});
  EXPECT_TRUE(arbiter.RequestLease(1, 0, 1).wait());
  EXPECT_TRUE(arbiter.RequestLease(1, 0, 1).wait());
  EXPECT_THAT(arbiter.TakeAnswers(1), IsEmpty());
  arbiter.OnApplied(2, 1, {4, 8});
  const std::vector<Arbiter::Answer> answers = arbiter.TakeAnswers(2);
  ASSERT_THAT(answers, SizeIs(1)) << "once, however often it asked";
  EXPECT_TRUE(answers[0].lease->done());
  EXPECT_TRUE(arbiter.RequestLease(2, 0, 1).done());
}

TEST_F(ArbiterTest, PermitsAreGivenInTheOrderOfAskingUpToTheirNumber) {
  Reset(100, 3, {}, {}, /*ordinal=*/5);
  arbiter.RequestPermit(1, 1, 0);
  arbiter.RequestPermit(2, 1, 0);
  arbiter.RequestPermit(3, 1, 0);
  std::vector<Arbiter::Answer> answers = arbiter.TakeAnswers(9);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].permit->ordinal(), 5);
  EXPECT_EQ(answers[0].permit->staleness(), 9);
  EXPECT_EQ(answers[1].worker, 2);
  EXPECT_THAT(arbiter.Waiting(), ElementsAre(3));
  arbiter.OnApplied(2, 1, {});
  answers = arbiter.TakeAnswers(10);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 3);
  EXPECT_EQ(answers[0].permit->ordinal(), 7);
}

TEST_F(ArbiterTest, OnlyLeaseHoldersHoldAPullUp) {
  Reset(1000, 2);
  EXPECT_TRUE(arbiter.MayPull(1, 100, 0));
  arbiter.RequestLease(2, 0, 3);
  EXPECT_TRUE(arbiter.MayPull(1, 5, 2));
  EXPECT_FALSE(arbiter.MayPull(1, 6, 2));
  EXPECT_TRUE(arbiter.MayPull(2, 100, 0)) << "nobody waits for itself";
  arbiter.OnApplied(2, 4, {0, 4});
  EXPECT_TRUE(arbiter.MayPull(1, 6, 2));
}

TEST_F(ArbiterTest, ANewLeaseHolderIsRaisedToTheLowestOfTheOthersElseToTheHighestKnown) {
  Reset(1000, 3);
  arbiter.RequestLease(1, 0, 7);
  arbiter.RequestLease(2, 0, 9);
  EXPECT_EQ(arbiter.RequestLease(3, 0, 0).clock(), 7);
  EXPECT_EQ(arbiter.ClockOf(2), 9) << "nobody goes back";
  Reset(1000, 3);
  EXPECT_EQ(arbiter.RequestLease(4, 0, 0).clock(), 9);
}

TEST(TotalSamplesTest, ComesFromStepsOrEpochsAndSaturates) {
  EXPECT_EQ(TotalSamples(10, 64, 0, 1000), 640);
  EXPECT_EQ(TotalSamples(0, 64, 3, 1000), 3000);
  EXPECT_EQ(TotalSamples(uint64_t{1} << 60, 64, 0, 1), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(TotalSamples(0, 64, 0, 1000), 0);
}

}  // namespace
}  // namespace sluice::ps

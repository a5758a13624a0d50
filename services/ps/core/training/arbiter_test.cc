#include "services/ps/core/training/arbiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ArbiterTest : public ::testing::Test {
 protected:
  void Reset(uint64_t total, size_t members, const IntervalSet& applied = {},
             const std::map<uint64_t, IntervalSet>& leases = {}, uint64_t ordinal = 0) {
    limits.total_samples = total;
    limits.permits = 2;
    arbiter.Reset(limits, members, applied, leases, ordinal);
  }
  static Interval Samples(const v1::Lease& lease) { return FromProto(lease.samples()); }

  const ShardRules rules{};
  Arbiter::Limits limits = [] {
    Arbiter::Limits some;
    some.update_samples = 4;
    return some;
  }();
  Arbiter arbiter{&rules};
};

TEST_F(ArbiterTest, LeasesEverySampleOnceAndTheLastLeaseIsShort) {
  Reset(10, 1);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{0, 4}));
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{4, 8}));
  EXPECT_EQ(Samples(arbiter.RequestLease(3, 0, 0)), (Interval{8, 10}));
  EXPECT_TRUE(arbiter.RequestLease(4, 0, 0).wait());
}

TEST_F(ArbiterTest, LeavesNoSingleSample) {
  Reset(9, 1);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{0, 4}));
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{4, 9}));

  // Nor between two ranges.
  IntervalSet applied;
  applied.Add({5, 10});
  Reset(20, 1, applied);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{0, 5}));
}

TEST_F(ArbiterTest, LeasesSingleSamplesWhereEachUpdateIsOne) {
  limits.update_samples = 1;
  Reset(2, 2);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{0, 1}));
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{1, 2}));
}

TEST_F(ArbiterTest, NeverLeasesAppliedOrLeasedSamplesAgainAfterViewChange) {
  IntervalSet applied;
  applied.Add({0, 4});
  IntervalSet rest;
  rest.Add({6, 8});
  Reset(12, 2, applied, {{1, rest}});
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{4, 6}))
      << "samples of a former member";
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 0)), (Interval{6, 8}));
  EXPECT_EQ(Samples(arbiter.RequestLease(3, 0, 0)), (Interval{8, 12}));
}

TEST_F(ArbiterTest, LeaseShrinksWithEachUpdateAndEndsWithTheLast) {
  Reset(100, 1);
  arbiter.RequestLease(1, 8, 0);
  EXPECT_TRUE(arbiter.Covers(1, {0, 4}));
  arbiter.OnApplied(1, 1, {0, 4});
  EXPECT_FALSE(arbiter.Covers(1, {0, 4}));
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 8, 1)), (Interval{4, 8}));
  arbiter.OnApplied(1, 2, {4, 8});
  EXPECT_FALSE(arbiter.HoldsLease(1));
}

TEST_F(ArbiterTest, InformsAllWaitingWorkersThatTrainingIsDone) {
  Reset(8, 2);
  arbiter.RequestLease(1, 0, 0);
  arbiter.RequestLease(2, 0, 0);
  arbiter.OnApplied(1, 1, {0, 4});
  EXPECT_TRUE(arbiter.RequestLease(1, 0, 1).wait());
  EXPECT_TRUE(arbiter.RequestLease(1, 0, 1).wait());
  EXPECT_THAT(arbiter.TakeAnswers(), IsEmpty());
  arbiter.OnApplied(2, 1, {4, 8});
  const std::vector<Arbiter::Answer> answers = arbiter.TakeAnswers();
  ASSERT_THAT(answers, SizeIs(1)) << "one answer to repeated requests";
  EXPECT_TRUE(answers[0].lease->done());
  EXPECT_TRUE(arbiter.RequestLease(2, 0, 1).done());
}

TEST_F(ArbiterTest, GrantsPermitsInOrderOfRequestUpToTheLimit) {
  Reset(100, 3, {}, {}, /*ordinal=*/5);
  arbiter.RequestPermit(1, 1, 0);
  arbiter.RequestPermit(2, 1, 0);
  arbiter.RequestPermit(3, 1, 0);

  std::vector<Arbiter::Answer> answers = arbiter.TakeAnswers();
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].permit->ordinal(), 5);
  EXPECT_EQ(answers[0].permit->staleness(), 5);
  EXPECT_EQ(answers[1].permit->staleness(), 6)
      << "the first update counts although it is not applied";
  EXPECT_EQ(answers[1].worker, 2);
  EXPECT_THAT(arbiter.Waiting(), ElementsAre(3));

  arbiter.OnApplied(2, 1, {});
  answers = arbiter.TakeAnswers();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 3);
  EXPECT_EQ(answers[0].permit->ordinal(), 7);
}

TEST_F(ArbiterTest, PullWaitsOnlyForLeaseHolders) {
  Reset(1000, 2);
  EXPECT_TRUE(arbiter.MayPull(1, 100, 0));
  arbiter.RequestLease(2, 0, 3);
  EXPECT_TRUE(arbiter.MayPull(1, 5, 2));
  EXPECT_FALSE(arbiter.MayPull(1, 6, 2));
  EXPECT_TRUE(arbiter.MayPull(2, 100, 0)) << "a worker does not wait for itself";
  arbiter.OnApplied(2, 4, {0, 4});
  EXPECT_TRUE(arbiter.MayPull(1, 6, 2));
}

TEST_F(ArbiterTest, RaisesClockOfNewLeaseHolderToLowestOtherHolderOrHighestKnown) {
  Reset(1000, 3);
  arbiter.RequestLease(1, 0, 7);
  arbiter.RequestLease(2, 0, 9);
  EXPECT_EQ(arbiter.RequestLease(3, 0, 0).clock(), 7);
  EXPECT_EQ(arbiter.ClockOf(2), 9) << "no clock decreases";
  Reset(1000, 3);
  EXPECT_EQ(arbiter.RequestLease(4, 0, 0).clock(), 9);
}

TEST_F(ArbiterTest, MembersThatComputeTogetherBeginTogether) {
  limits.together = true;
  Reset(1000, 2);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 400, 0)), (Interval{0, 4})) << "one update at a time";
  EXPECT_FALSE(arbiter.MayPull(1, 0, 0)) << "the other member has not requested a lease";
  arbiter.RequestLease(2, 400, 0);
  EXPECT_TRUE(arbiter.MayPull(1, 0, 0));
  arbiter.OnApplied(1, 1, {0, 4});
  arbiter.OnApplied(2, 1, {4, 8});
  arbiter.RequestLease(1, 400, 1);
  EXPECT_FALSE(arbiter.MayPull(1, 1, 0)) << "the same applies to the second update";
  Reset(1000, 1, {}, arbiter.leases());
  EXPECT_TRUE(arbiter.MayPull(1, 1, 0)) << "a former member is not waited for";
}

TEST_F(ArbiterTest, MembersThatComputeTogetherApplyNothingBeforeAllHavePulled) {
  limits.together = true;
  Reset(1000, 3);
  for (const uint64_t worker : {1, 2, 3}) arbiter.RequestLease(worker, 0, 0);
  arbiter.RequestPermit(1, 1, 0);
  arbiter.RequestPermit(2, 1, 0);
  EXPECT_THAT(arbiter.TakeAnswers(), IsEmpty())
      << "the third member would pull what the other two apply";
  arbiter.RequestPermit(3, 1, 0);
  EXPECT_THAT(arbiter.TakeAnswers(), SizeIs(2));
  arbiter.OnApplied(1, 1, {0, 4});
  arbiter.RequestLease(1, 0, 1);
  EXPECT_THAT(arbiter.TakeAnswers(), SizeIs(1))
      << "the second member's first update, after the first member's";
}

TEST_F(ArbiterTest, MembersThatComputeTogetherDoNotWaitForMemberWithoutSamples) {
  limits.together = true;
  Reset(4, 2);
  arbiter.RequestLease(1, 0, 0);
  EXPECT_FALSE(arbiter.MayPull(1, 0, 0));
  EXPECT_TRUE(arbiter.RequestLease(2, 0, 0).wait());
  EXPECT_TRUE(arbiter.MayPull(1, 0, 0));
}

TEST_F(ArbiterTest, CountsLeaseOfOlderViewFromClockReportedByItsHolder) {
  Reset(1000, 2);
  arbiter.Reached(1, 7);
  arbiter.RequestLease(1, 0, 7);
  arbiter.RequestLease(2, 0, 0);  // raised to 7, which no other shard knows
  EXPECT_EQ(arbiter.ClockAtLease(2), 7);
  Reset(1000, 2, {}, arbiter.leases());
  EXPECT_EQ(arbiter.ClockAtLease(2), 7);
}

TEST_F(ArbiterTest, LeasesSamplesBeyondBarrierInLaterView) {
  limits.barrier = 8;
  Reset(12, 2);
  arbiter.RequestLease(1, 0, 0);
  EXPECT_EQ(Samples(arbiter.RequestLease(2, 0, 0)), (Interval{4, 8}));
  arbiter.OnApplied(1, 1, {0, 4});
  EXPECT_TRUE(arbiter.RequestLease(1, 0, 1).wait());
  arbiter.OnApplied(2, 1, {4, 8});
  EXPECT_TRUE(arbiter.RequestLease(2, 0, 1).wait())
      << "no member holds a lease, but samples remain";
  EXPECT_THAT(arbiter.TakeAnswers(), IsEmpty());
  limits.barrier = 12;
  IntervalSet applied;
  applied.Add({0, 8});
  Reset(12, 2, applied);
  EXPECT_EQ(Samples(arbiter.RequestLease(1, 0, 1)), (Interval{8, 12}));
}

TEST_F(ArbiterTest, StalenessCountsUpdatesPermittedSinceThePullEvenIfNotApplied) {
  Reset(100, 2);
  arbiter.RequestPermit(1, 1, 0);
  arbiter.RequestPermit(2, 1, 0);
  const std::vector<Arbiter::Answer> answers = arbiter.TakeAnswers();
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].permit->staleness(), 0);
  EXPECT_EQ(answers[1].permit->staleness(), 1);
}

}  // namespace
}  // namespace sluice::ps

#include "services/protocol/interval_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(IntervalSetTest, MergesAdjacentAndOverlappingRanges) {
  IntervalSet set;
  set.Add({0, 5});
  set.Add({10, 20});
  set.Add({5, 7});
  EXPECT_THAT(set.Intervals(), ElementsAre(Interval{0, 7}, Interval{10, 20}));
  set.Add({6, 11});
  EXPECT_THAT(set.Intervals(), ElementsAre(Interval{0, 20}));
  EXPECT_EQ(set.Count(), 20u);
}

TEST(IntervalSetTest, RemovalFromTheMiddleSplitsRange) {
  IntervalSet set;
  set.Add({0, 10});
  set.Remove({3, 5});
  EXPECT_THAT(set.Intervals(), ElementsAre(Interval{0, 3}, Interval{5, 10}));
  EXPECT_EQ(set.Count(), 8u);
}

TEST(IntervalSetTest, FirstGapEndsAtNextRangeEndOrLimit) {
  IntervalSet set;
  set.Add({0, 4});
  set.Add({6, 8});
  EXPECT_EQ(set.FirstGap(0, 100, 10), (Interval{4, 6}));
  EXPECT_EQ(set.FirstGap(0, 100, 1), (Interval{4, 5}));
  EXPECT_EQ(set.FirstGap(7, 100, 10), (Interval{8, 18}));
  EXPECT_EQ(set.FirstGap(7, 9, 10), (Interval{8, 9}));
  EXPECT_EQ(set.FirstGap(7, 9, UINT64_MAX), (Interval{8, 9}));
  EXPECT_TRUE(set.FirstGap(0, 4, 10).empty());
}

TEST(IntervalSetTest, AgreesWithPlainSetOverRandomOperations) {
  std::mt19937 random(7);
  IntervalSet set;
  std::set<uint64_t> plain;
  for (int round = 0; round < 2000; ++round) {
    const uint64_t begin = random() % 60;
    const Interval interval{begin, begin + random() % 12};
    const bool add = random() % 2 == 0;
    for (uint64_t v = interval.begin; v < interval.end; ++v) {
      add ? (void)plain.insert(v) : (void)plain.erase(v);
    }
    add ? set.Add(interval) : set.Remove(interval);
    ASSERT_EQ(set.Count(), plain.size());
    for (uint64_t v = 0; v < 75; ++v) ASSERT_EQ(set.Contains(v), plain.count(v) == 1) << v;
    const uint64_t from = random() % 70;
    bool all = true;
    bool any = false;
    for (uint64_t v = from; v < from + 3; ++v) {
      all = all && plain.count(v) == 1;
      any = any || plain.count(v) == 1;
    }
    ASSERT_EQ(set.ContainsAll({from, from + 3}), all);
    ASSERT_EQ(set.Intersects({from, from + 3}), any);
  }
}

TEST(IntervalSetTest, RejectsOverlappingProtos) {
  google::protobuf::RepeatedPtrField<v1::Range> ranges;
  *ranges.Add() = ToProto({0, 5});
  *ranges.Add() = ToProto({4, 6});
  EXPECT_EQ(IntervalSet::FromProtos(ranges).status().code(), absl::StatusCode::kInvalidArgument);
  ranges.Clear();
  *ranges.Add() = ToProto({3, 3});
  EXPECT_FALSE(IntervalSet::FromProtos(ranges).ok());
}

TEST(IntervalSetTest, ProtosRoundTrip) {
  IntervalSet set;
  set.Add({2, 5});
  set.Add({9, 12});
  google::protobuf::RepeatedPtrField<v1::Range> ranges;
  set.ToProtos(&ranges);
  EXPECT_EQ(*IntervalSet::FromProtos(ranges), set);
  IntervalSet().ToProtos(&ranges);
  EXPECT_THAT(ranges, IsEmpty());
}

}  // namespace
}  // namespace sluice

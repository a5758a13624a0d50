#include "services/coordinator/core/facts/snapshot.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);
constexpr uint64_t kEnd = 1000;

IntervalSchedule Every(uint64_t steps, uint64_t done = 0) {
  IntervalSchedule schedule(steps, absl::ZeroDuration());
  schedule.Done(done, kStart);
  return schedule;
}

TEST(IntervalSchedule, NamesMultiplesOfItsStepsAboveLastDone) {
  EXPECT_EQ(Every(10).NextStep(1, kStart), 10);
  EXPECT_EQ(Every(10, 10).NextStep(11, kStart), 20);
  EXPECT_EQ(Every(10, 13).NextStep(14, kStart), 20) << "a late step does not move later ones";
}

TEST(IntervalSchedule, MissedMultipleIsDueAtOnce) { EXPECT_EQ(Every(10).NextStep(17, kStart), 17); }

TEST(IntervalSchedule, IsDueAtEarliestStepOnceTimeHasPassed) {
  IntervalSchedule schedule(0, absl::Seconds(60));
  EXPECT_EQ(schedule.NextTime(), absl::InfiniteFuture()) << "no attempt has begun";
  schedule.Done(5, kStart);
  EXPECT_EQ(schedule.NextStep(9, kStart + absl::Seconds(59)), std::nullopt);
  EXPECT_EQ(schedule.NextTime(), kStart + absl::Seconds(60));
  EXPECT_EQ(schedule.NextStep(9, kStart + absl::Seconds(60)), 9);
  EXPECT_EQ(schedule.NextStep(5, kStart + absl::Seconds(60)), 6) << "there must be something new";
}

TEST(IntervalSchedule, IsNeverDueWithoutIntervals) {
  EXPECT_EQ(Every(0).NextStep(9, kStart + absl::Hours(9)), std::nullopt);
}

TEST(PlanSnapshot, TakesSoonerPurposeOrBothAtSameStep) {
  std::optional<SnapshotPlan> plan = PlanSnapshot(Every(10), Every(4), 1, kEnd, kStart);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->step, 4);
  EXPECT_TRUE(plan->evaluation);
  EXPECT_FALSE(plan->checkpoint);
  plan = PlanSnapshot(Every(10), Every(4, 16), 17, kEnd, kStart);
  EXPECT_EQ(plan->step, 17) << "the checkpoint of step 10 was missed";
  plan = PlanSnapshot(Every(10, 10), Every(4, 16), 17, kEnd, kStart);
  EXPECT_EQ(plan->step, 20);
  EXPECT_TRUE(plan->evaluation);
  EXPECT_TRUE(plan->checkpoint);
}

TEST(PlanSnapshot, PlansNoSnapshotAtEndOfJob) {
  EXPECT_FALSE(PlanSnapshot(Every(10), Every(0), 1, 10, kStart).has_value());
  EXPECT_FALSE(PlanSnapshot(Every(0), Every(0), 1, kEnd, kStart).has_value());
}

Snapshot SnapshotAt(uint64_t step) {
  Snapshot snapshot;
  snapshot.id = 3;
  snapshot.step = step;
  return snapshot;
}

TEST(SurvivesViewChange, SnapshotAtOrAfterFirstStepSurvives) {
  EXPECT_TRUE(SurvivesViewChange(SnapshotAt(9), 8, {1, 2}, false));
  EXPECT_TRUE(SurvivesViewChange(SnapshotAt(8), 8, {1, 2}, false)) << "all shards are at this step";
}

TEST(SurvivesViewChange, SnapshotBeforeFirstStepSurvivesOnlyIfEveryShardHasPinnedIt) {
  Snapshot snapshot = SnapshotAt(7);
  EXPECT_FALSE(SurvivesViewChange(snapshot, 8, {1, 2}, false));
  snapshot.pinned.insert(1);
  EXPECT_FALSE(SurvivesViewChange(snapshot, 8, {1, 2}, false));
  snapshot.pinned.insert(2);
  EXPECT_TRUE(SurvivesViewChange(snapshot, 8, {1, 2}, false));
}

TEST(SurvivesViewChange, NewOwnersHaveNoPins) {
  Snapshot snapshot = SnapshotAt(8);
  snapshot.pinned = {1, 2};
  EXPECT_FALSE(SurvivesViewChange(snapshot, 8, {1, 2}, true));
  EXPECT_FALSE(SurvivesViewChange(snapshot, 9, {1, 2}, true));
  EXPECT_TRUE(SurvivesViewChange(snapshot, 7, {1, 2}, true)) << "all shards pin it later";
}

TEST(Snapshot, RepeatsTheSameMessage) {
  Snapshot snapshot = SnapshotAt(7);
  snapshot.write = true;
  snapshot.directory = "step-7";
  const std::string first = snapshot.Message().SerializeAsString();
  snapshot.pinned = {1, 2};
  snapshot.reached = true;
  EXPECT_EQ(snapshot.Message().SerializeAsString(), first);
  EXPECT_TRUE(snapshot.Message().write());
}

}  // namespace
}  // namespace sluice::coordinator

#include "services/coordinator/cut.h"

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

TEST(PlanCut, TakesSoonerPurposeOrBothAtSameStep) {
  std::optional<CutPlan> plan = PlanCut(Every(10), Every(4), 1, kEnd, kStart);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->step, 4);
  EXPECT_TRUE(plan->evaluation);
  EXPECT_FALSE(plan->checkpoint);
  plan = PlanCut(Every(10), Every(4, 16), 17, kEnd, kStart);
  EXPECT_EQ(plan->step, 17) << "the checkpoint of step 10 was missed";
  plan = PlanCut(Every(10, 10), Every(4, 16), 17, kEnd, kStart);
  EXPECT_EQ(plan->step, 20);
  EXPECT_TRUE(plan->evaluation);
  EXPECT_TRUE(plan->checkpoint);
}

TEST(PlanCut, PlansNoCutAtEndOfJob) {
  EXPECT_FALSE(PlanCut(Every(10), Every(0), 1, 10, kStart).has_value());
  EXPECT_FALSE(PlanCut(Every(0), Every(0), 1, kEnd, kStart).has_value());
}

Cut CutAt(uint64_t step) {
  Cut cut;
  cut.id = 3;
  cut.step = step;
  return cut;
}

TEST(SurvivesViewChange, CutAtOrAfterFirstStepSurvives) {
  EXPECT_TRUE(SurvivesViewChange(CutAt(9), 8, {1, 2}));
  EXPECT_TRUE(SurvivesViewChange(CutAt(8), 8, {1, 2})) << "all shards are at this step";
}

TEST(SurvivesViewChange, CutBeforeFirstStepSurvivesOnlyIfEveryShardPinnedOrWrote) {
  Cut cut = CutAt(7);
  EXPECT_FALSE(SurvivesViewChange(cut, 8, {1, 2}));
  cut.pinned.insert(1);
  EXPECT_FALSE(SurvivesViewChange(cut, 8, {1, 2}));
  cut.written[2] = {};
  EXPECT_TRUE(SurvivesViewChange(cut, 8, {1, 2}));
}

TEST(Cut, IsInUseUntilAllPurposesAreDone) {
  Cut cut = CutAt(7);
  EXPECT_FALSE(cut.InUse());
  cut.saving = Cut::Saving::kWriting;
  EXPECT_TRUE(cut.InUse());
  cut.saving = Cut::Saving::kDone;
  EXPECT_FALSE(cut.InUse());
  cut.evaluation = true;
  EXPECT_TRUE(cut.InUse());
  cut.evaluation = false;
  cut.snapshots.push_back({});
  EXPECT_TRUE(cut.InUse());
}

TEST(Cut, RepeatsTheSameMessage) {
  Cut cut = CutAt(7);
  cut.write = true;
  cut.saving = Cut::Saving::kCollecting;
  const std::string first = cut.Message().SerializeAsString();
  cut.saving = Cut::Saving::kDone;
  EXPECT_EQ(cut.Message().SerializeAsString(), first);
  EXPECT_TRUE(cut.Message().write());
}

}  // namespace
}  // namespace sluice::coordinator

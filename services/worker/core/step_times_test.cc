#include "services/worker/core/step_times.h"

#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

v1::WorkerProgress Of(const StepTimes& times) {
  v1::WorkerProgress progress;
  times.AddTo(&progress);
  return progress;
}

void ExpectParts(const StepTimes& times, double push, double wait, double pull) {
  const v1::WorkerProgress progress = Of(times);
  EXPECT_DOUBLE_EQ(progress.push_seconds(), push);
  EXPECT_DOUBLE_EQ(progress.wait_seconds(), wait);
  EXPECT_DOUBLE_EQ(progress.pull_seconds(), pull);
}

TEST(StepTimesTest, PushLastsUntilTheLastByteIsSent) {
  StepTimes times;
  times.OnComputed(At(10));
  times.OnGiven(At(10));
  times.OnData(At(16), /*sent=*/At(12));
  times.OnData(At(17), /*sent=*/At(16.5));  // of something else
  times.OnWhole(At(20));
  ExpectParts(times, 2, 4, 4);
}

TEST(StepTimesTest, WithoutReportPushLastsUntilNothingWaitsForCredit) {
  StepTimes times;
  times.OnComputed(At(10));
  times.OnGiven(At(13));
  times.OnData(At(14), absl::InfinitePast());
  times.OnWhole(At(14));
  ExpectParts(times, 3, 1, 0);
}

TEST(StepTimesTest, BytesSentAfterTheAnswerDoNotBelongToThePush) {
  StepTimes times;
  times.OnComputed(At(10));
  times.OnGiven(At(10));
  times.OnAnswered(At(12), /*sent=*/At(11));
  times.OnData(At(20), /*sent=*/At(18));
  times.OnWhole(At(21));
  ExpectParts(times, 1, 9, 1);
}

TEST(StepTimesTest, DataThatArrivesDuringThePushTakesNoTime) {
  StepTimes times;
  times.OnData(At(8), At(7));
  times.OnComputed(At(10));
  times.OnGiven(At(12));
  times.OnData(At(15), At(13));
  times.OnWhole(At(16));
  ExpectParts(times, 3, 0, 3);
}

TEST(StepTimesTest, VersionCompletedWithoutTheContributionEndsItsPush) {
  StepTimes times;
  times.OnComputed(At(10));
  times.OnData(At(11), At(3));
  times.OnWhole(At(12));
  ExpectParts(times, 2, 0, 0);
}

TEST(StepTimesTest, VersionCompletedBeforeTheGradientTakesNoTime) {
  StepTimes times;
  times.OnData(At(8), At(7));
  times.OnWhole(At(9));
  times.OnComputed(At(10));
  ExpectParts(times, 0, 0, 0);
}

TEST(StepTimesTest, WithoutGradientCountsNothing) {
  StepTimes times;
  times.OnData(At(8), At(7));
  times.OnWhole(At(9));
  ExpectParts(times, 0, 0, 0);
}

TEST(StepTimesTest, StepsAddUp) {
  v1::WorkerProgress progress;
  StepTimes times;
  for (double begin : {10.0, 20.0}) {
    times.Begin();
    times.OnComputed(At(begin));
    times.OnGiven(At(begin + 1));
    times.OnData(At(begin + 3), At(0));
    times.OnWhole(At(begin + 7));
    times.AddTo(&progress);
  }
  EXPECT_DOUBLE_EQ(progress.push_seconds(), 2);
  EXPECT_DOUBLE_EQ(progress.wait_seconds(), 4);
  EXPECT_DOUBLE_EQ(progress.pull_seconds(), 8);
}

}  // namespace
}  // namespace sluice::worker

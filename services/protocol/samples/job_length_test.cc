#include "services/protocol/samples/job_length.h"

#include <limits>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Spec(v1::Mode mode, uint64_t steps, uint64_t epochs) {
  v1::JobSpec spec;
  spec.mutable_training()->set_mode(mode);
  spec.mutable_training()->set_global_batch_size(32);
  spec.mutable_training()->set_microbatch_size(8);
  spec.mutable_training()->set_steps(steps);
  spec.mutable_training()->set_epochs(epochs);
  return spec;
}

TEST(MovesPartitions, UnlessACopyWouldLackWhatItNeeds) {
  for (const v1::Mode mode : {v1::SYNCHRONOUS, v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS}) {
    v1::JobSpec spec = Spec(mode, 5, 0);
    EXPECT_TRUE(MovesPartitions(spec));
    spec.mutable_training()->set_execution(v1::TrainingSpec::SERVER);
    EXPECT_FALSE(MovesPartitions(spec));
  }
  v1::JobSpec spec = Spec(v1::ASYNCHRONOUS, 5, 0);
  spec.mutable_training()->mutable_staleness()->set_rule(v1::TrainingSpec::Staleness::INVERSE);
  EXPECT_TRUE(MovesPartitions(spec));
  spec.mutable_training()->mutable_staleness()->set_rule(
      v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
  EXPECT_FALSE(MovesPartitions(spec));
}

TEST(JobLength, SynchronousEpochsEndWithSmallerStep) {
  const auto length = JobLength::Create(Spec(v1::SYNCHRONOUS, 0, 2), 100);
  ASSERT_TRUE(length.ok());
  EXPECT_EQ(length->total_steps(), 8);
  EXPECT_EQ(length->total_samples(), 200);
  EXPECT_EQ(length->microbatches(), 4);
  EXPECT_EQ(length->SamplesAt(4), 100);
  EXPECT_DOUBLE_EQ(length->EpochsIn(150), 1.5);
}

TEST(JobLength, SynchronousStepsAreUsedAsGiven) {
  const auto length = JobLength::Create(Spec(v1::SYNCHRONOUS, 5, 0), 100);
  EXPECT_EQ(length->total_steps(), 5);
  EXPECT_EQ(length->total_samples(), 132);
}

TEST(JobLength, AsynchronousJobsCountSamples) {
  const auto steps = JobLength::Create(Spec(v1::ASYNCHRONOUS, 5, 0), 100);
  EXPECT_EQ(steps->total_samples(), 160);
  EXPECT_EQ(steps->BatchesIn(95), 2);
  const auto epochs = JobLength::Create(Spec(v1::BOUNDED_STALENESS, 0, 3), 100);
  EXPECT_EQ(epochs->total_samples(), 300);
  EXPECT_EQ(epochs->total_steps(), 10);
}

TEST(JobLength, StepIsOneMicrobatchWithoutMicrobatchSize) {
  v1::JobSpec spec = Spec(v1::SYNCHRONOUS, 5, 0);
  spec.mutable_training()->set_microbatch_size(0);
  EXPECT_EQ(JobLength::Create(spec, 100)->microbatches(), 1);
}

TEST(JobLength, NamesWrongField) {
  EXPECT_THAT(JobLength::Create(Spec(v1::SYNCHRONOUS, 5, 5), 100).status().message(),
              HasSubstr("exactly one of training.steps (5) and training.epochs (5)"));
  EXPECT_FALSE(JobLength::Create(Spec(v1::SYNCHRONOUS, 5, 0), 0).ok());
}

TEST(TotalStepsTest, AreNotKnownForEpochsWithoutAPlan) {
  EXPECT_EQ(TotalSteps(Spec(v1::SYNCHRONOUS, 5, 0).training(), std::nullopt), 5);
  EXPECT_EQ(TotalSteps(Spec(v1::SYNCHRONOUS, 0, 2).training(), std::nullopt), 0);
  const v1::JobSpec epochs = Spec(v1::SYNCHRONOUS, 0, 2);
  const auto plan = StepScheduleOf(epochs.training(), 100);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(TotalSteps(epochs.training(), *plan), 8);
}

TEST(TotalSamplesTest, ComesFromStepsOrEpochsAndSaturates) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(TotalSamples(Spec(v1::ASYNCHRONOUS, 10, 0).training(), 1000), 320);
  EXPECT_EQ(TotalSamples(Spec(v1::ASYNCHRONOUS, 0, 3).training(), 1000), 3000);
  EXPECT_EQ(TotalSamples(Spec(v1::ASYNCHRONOUS, uint64_t{1} << 60, 0).training(), 1), kMax);
  EXPECT_EQ(TotalSamples(Spec(v1::ASYNCHRONOUS, 0, 0).training(), 1000), 0);
}

}  // namespace
}  // namespace sluice

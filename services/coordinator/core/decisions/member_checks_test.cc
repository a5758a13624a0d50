#include "services/coordinator/core/decisions/member_checks.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/protocol/desired_number.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

WorkerFacts Facts() {
  WorkerFacts facts;
  facts.total_steps = 100;
  facts.total_samples = 3200;
  facts.largest_step = 32;
  facts.elapsed = absl::Seconds(1);
  return facts;
}

v1::WorkerProgress Report() {
  v1::WorkerProgress progress;
  v1::WorkerProgress::Step& step = *progress.add_steps();
  step.set_step(7);
  step.set_samples(32);
  step.set_loss_sum(16);
  step.set_correct(31);
  progress.set_compute_seconds(0.5);
  progress.set_pushed_bytes(1000);
  return progress;
}

TEST(KeepPossibleFigures, KeepsHonestReportUnchanged) {
  v1::WorkerProgress progress = Report();
  EXPECT_EQ(KeepPossibleFigures(&progress, Facts()), 0);
  EXPECT_EQ(progress.SerializeAsString(), Report().SerializeAsString());
}

TEST(KeepPossibleFigures, KeepsLossOfDivergedTraining) {
  for (const double loss : {std::nan(""), std::numeric_limits<double>::infinity(), 1e30}) {
    v1::WorkerProgress progress = Report();
    progress.mutable_steps(0)->set_loss_sum(loss);
    EXPECT_EQ(KeepPossibleFigures(&progress, Facts()), 0) << loss;
    EXPECT_EQ(progress.steps_size(), 1);
  }
}

TEST(KeepPossibleFigures, LossWithAnImpossibleWeightDoesNotCount) {
  for (const double weight : {-1.0, 2e30, std::nan("")}) {
    v1::WorkerProgress progress = Report();
    progress.mutable_steps(0)->set_weight(weight);
    EXPECT_EQ(KeepPossibleFigures(&progress, Facts()), 1) << weight;
    EXPECT_EQ(progress.steps(0).weight(), 0);
    progress.mutable_steps(0)->set_weight(2.5);
    EXPECT_EQ(KeepPossibleFigures(&progress, Facts()), 0);
    EXPECT_EQ(progress.steps(0).weight(), 2.5);
  }
}

TEST(KeepPossibleFigures, DropsImpossibleSteps) {
  for (int field = 0; field < 3; ++field) {
    v1::WorkerProgress progress = Report();
    v1::WorkerProgress::Step& step = *progress.add_steps();
    if (field == 0) step.set_step(101);
    if (field == 1) step.set_samples(33);
    if (field == 2) step.set_staleness(3201);
    EXPECT_EQ(KeepPossibleFigures(&progress, Facts()), 1) << field;
    ASSERT_EQ(progress.steps_size(), 1);
    EXPECT_EQ(progress.steps(0).step(), 7);
  }
}

TEST(KeepPossibleFigures, LimitsTimesToElapsedTime) {
  v1::WorkerProgress progress = Report();
  progress.set_data_seconds(1e300);
  progress.set_wait_seconds(-1);
  progress.set_pull_seconds(std::nan(""));
  EXPECT_EQ(KeepPossibleFigures(&progress, Facts()), 3);
  EXPECT_EQ(progress.data_seconds(), 16);
  EXPECT_EQ(progress.wait_seconds(), 0);
  EXPECT_EQ(progress.pull_seconds(), 0);
  EXPECT_EQ(progress.compute_seconds(), 0.5);
}

TEST(CheckSetDesired, NumberIsBounded) {
  v1::SetDesiredRequest desired;
  desired.set_number(kMaxDesiredNumber);
  EXPECT_TRUE(CheckSetDesired(desired).ok());
  desired.set_number(kMaxDesiredNumber + 1);
  EXPECT_THAT(std::string(CheckSetDesired(desired).message()), HasSubstr("number is"));
}

TEST(CheckRegister, NamesFieldAndBound) {
  v1::Register request;
  request.set_address(std::string(513, 'a'));
  EXPECT_THAT(CheckRegister(request).message(),
              HasSubstr("address has 513 bytes; at most 512 are allowed"));
}

TEST(CheckReady, RejectsTensorNameTooLongForAnEvent) {
  v1::Ready ready;
  v1::TensorSpec& tensor = *ready.mutable_table()->add_tensors();
  tensor.set_name(std::string(kMaxTensorNameBytes, 'x'));
  EXPECT_TRUE(CheckReady(ready).ok());
  tensor.mutable_name()->push_back('x');
  EXPECT_THAT(std::string(CheckReady(ready).message()),
              HasSubstr("a tensor's name has 4097 bytes; at most 4096 are allowed"));
  tensor.set_name("w");
  for (int i = 0; i <= kMaxTensorDimensions; ++i) tensor.add_shape(1);
  EXPECT_THAT(std::string(CheckReady(ready).message()), HasSubstr("65 dimensions"));
}

TEST(CheckShardProgress, AcceptsShardOfJobThatWasMadeShorter) {
  ShardFacts facts;
  facts.total_steps = 100;  // the checkpoint's; the job has fewer
  facts.first_version = 100;
  facts.owned = {0};
  v1::ShardProgress progress;
  progress.set_closed(100);
  progress.set_committed(100);
  EXPECT_TRUE(CheckShardProgress(progress, facts).ok());
}

TEST(CheckShardProgress, ShardWithoutBlocksCommitsWhatOtherShardsClose) {
  ShardFacts facts;
  facts.total_steps = 100;
  v1::ShardProgress progress;
  progress.set_committed(7);
  EXPECT_TRUE(CheckShardProgress(progress, facts).ok());
  facts.owned = {3};
  EXPECT_THAT(CheckShardProgress(progress, facts).message(),
              HasSubstr("committed is 7, past what the shard has closed, 0"));
}

// A worker's clock is not set back when the job is restored.
TEST(CheckPauseReply, AcceptsClockCountedOverSeveralAttempts) {
  std::map<uint64_t, v1::Install> installs;
  ShardFacts facts;
  facts.synchronous = false;
  facts.total_samples = 28;
  facts.installs = &installs;
  facts.attempt = 2;
  v1::PauseReply reply;
  reply.mutable_view()->set_attempt(2);
  reply.mutable_view()->set_number(3);
  *reply.mutable_newest()->mutable_id() = reply.view();
  *installs[3].mutable_view() = reply.newest();
  reply.add_clocks()->set_clock(37);
  EXPECT_TRUE(CheckPauseReply(reply, facts).ok()) << CheckPauseReply(reply, facts);
}

TEST(CheckEvaluationResult, ReportsThatLossIsNotFinite) {
  v1::EvaluationResult result;
  v1::Range asked;
  asked.set_end(10);
  result.set_count(10);
  EXPECT_TRUE(CheckEvaluationResult(result, asked).ok());
  result.set_loss_sum(std::nan(""));
  EXPECT_THAT(CheckEvaluationResult(result, asked).message(), HasSubstr("is not finite"));
}

TEST(CheckEvaluationResult, RefusesAWeightThatIsNone) {
  v1::EvaluationResult result;
  v1::Range asked;
  asked.set_end(10);
  result.set_count(10);
  for (const double weight : {0.0, 1e30}) {
    result.set_weight(weight);
    EXPECT_TRUE(CheckEvaluationResult(result, asked).ok()) << weight;
  }
  for (const double weight : {-1.0, 1e31, std::nan("")}) {
    result.set_weight(weight);
    EXPECT_THAT(CheckEvaluationResult(result, asked).message(), HasSubstr("weight is")) << weight;
  }
}

TEST(CheckPositions, ViewNamesEachShardOnce) {
  v1::View view;
  for (const uint64_t incarnation : {11, 12}) {
    view.add_shards()->mutable_process()->set_incarnation(incarnation);
  }
  view.add_owner(1);
  EXPECT_TRUE(CheckPositions(view).ok());
  view.mutable_shards(1)->mutable_process()->set_incarnation(11);
  EXPECT_THAT(CheckPositions(view).message(), HasSubstr("twice"));
}

}  // namespace
}  // namespace sluice::coordinator

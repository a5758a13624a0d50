#include "services/coordinator/core/evaluation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

Evaluation::Options Options() {
  Evaluation::Options options;
  options.id = 4;
  options.snapshot = 9;
  options.attempt = 2;
  options.version = 100;
  options.samples = 1000;
  options.started = kStart;
  return options;
}

v1::EvaluationResult ResultOf(const v1::Evaluate& asked, double loss, double correct) {
  v1::EvaluationResult result;
  result.set_evaluation(asked.evaluation());
  *result.mutable_samples() = asked.samples();
  result.mutable_name()->set_attempt(2);
  result.mutable_name()->set_step(asked.version());
  const double count = static_cast<double>(asked.samples().end() - asked.samples().begin());
  result.set_count(asked.samples().end() - asked.samples().begin());
  result.set_loss_sum(loss * count);
  result.set_correct(correct * count);
  result.set_counted(true);
  return result;
}

TEST(Evaluation, IgnoresResultOfAnotherAttemptOrVersion) {
  Evaluation evaluation(Options());
  const auto asked = evaluation.Assign({{1, 10}}, kStart);
  ASSERT_EQ(asked.size(), 1u);
  v1::EvaluationResult result = ResultOf(asked[0].second, 1.0, 0.5);
  result.mutable_name()->set_attempt(1);
  evaluation.OnResult(1, result);
  result.mutable_name()->set_attempt(2);
  result.mutable_name()->set_step(99);
  evaluation.OnResult(1, result);
  result.clear_name();
  evaluation.OnResult(1, result);
  EXPECT_FALSE(evaluation.done());
  evaluation.OnResult(1, ResultOf(asked[0].second, 1.0, 0.5));
  EXPECT_TRUE(evaluation.done());
}

TEST(Evaluation, HasAccuracyIfWorkersCountedEvenIfNothingIsCorrect) {
  for (const bool counted : {true, false}) {
    Evaluation evaluation(Options());
    for (const auto& [worker, asked] : evaluation.Assign({{1, 10}, {2, 30}}, kStart)) {
      v1::EvaluationResult result = ResultOf(asked, 1.0, 0);
      result.set_counted(counted || worker == 1);
      evaluation.OnResult(worker, result);
    }
    ASSERT_TRUE(evaluation.done());
    EXPECT_EQ(evaluation.Result(kStart).has_accuracy(), counted);
    EXPECT_EQ(evaluation.Result(kStart).accuracy(), 0);
  }
}

TEST(Evaluation, LossIsTheMeanOverTheWeightsOfAllSamples) {
  // All targets of the first worker's samples weigh 1, of the second one's 9, of the third one's 0.
  const double loss[] = {2, 4, 0};
  const double weight[] = {1, 9, 0};
  Evaluation evaluation(Options());
  for (const auto& [worker, asked] : evaluation.Assign({{1, 10}, {2, 10}, {3, 20}}, kStart)) {
    v1::EvaluationResult result = ResultOf(asked, loss[worker - 1], 0.5);
    result.set_weight(weight[worker - 1]);
    evaluation.OnResult(worker, result);
  }
  ASSERT_TRUE(evaluation.done());
  EXPECT_DOUBLE_EQ(evaluation.Result(kStart).loss(), 3.8);
  EXPECT_DOUBLE_EQ(evaluation.Result(kStart).accuracy(), 50);
  EXPECT_EQ(evaluation.Result(kStart).samples(), 1000u);
}

TEST(Evaluation, NoWeightAtAllIsALossOfZero) {
  Evaluation evaluation(Options());
  for (const auto& [worker, asked] : evaluation.Assign({{1, 10}}, kStart)) {
    v1::EvaluationResult result = ResultOf(asked, 0, 0);
    result.set_weight(0);
    evaluation.OnResult(worker, result);
  }
  EXPECT_EQ(evaluation.Result(kStart).loss(), 0);
}

TEST(Evaluation, IsDividedBySpeedAndSummed) {
  Evaluation evaluation(Options());
  const auto asked = evaluation.Assign({{1, 10}, {2, 30}}, kStart);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].second.samples().end(), 250);
  EXPECT_EQ(asked[0].second.snapshot_id(), 9);
  EXPECT_EQ(asked[0].second.version(), 100);
  EXPECT_TRUE(evaluation.Assign({{1, 10}, {2, 30}}, kStart).empty()) << "nothing is left to assign";

  evaluation.OnResult(1, ResultOf(asked[0].second, 1.0, 0.5));
  EXPECT_FALSE(evaluation.done());
  evaluation.OnResult(2, ResultOf(asked[1].second, 2.0, 1.0));
  ASSERT_TRUE(evaluation.done());

  const v1::Evaluation result = evaluation.Result(kStart + absl::Seconds(2));
  EXPECT_DOUBLE_EQ(result.loss(), 1.75);
  EXPECT_DOUBLE_EQ(result.accuracy(), 87.5);
  EXPECT_EQ(result.samples(), 1000);
  EXPECT_EQ(result.step(), 100);
  EXPECT_DOUBLE_EQ(result.seconds(), 2);
}

TEST(Evaluation, ReportsFirstSamplesSeparately) {
  Evaluation::Options options = Options();
  options.first = 200;
  Evaluation evaluation(options);
  ASSERT_TRUE(evaluation.has_first());

  for (const auto& [worker, asked] : evaluation.Assign({{1, 10}, {2, 10}}, kStart)) {
    const bool first = asked.samples().begin() < 200;
    EXPECT_EQ(first, asked.samples().end() <= 200) << "no range spans the border";
    evaluation.OnResult(worker, ResultOf(asked, first ? 1.0 : 2.0, first ? 0.5 : 1.0));
  }
  ASSERT_TRUE(evaluation.done());
  EXPECT_EQ(evaluation.FirstResult(kStart).samples(), 200);
  EXPECT_DOUBLE_EQ(evaluation.FirstResult(kStart).loss(), 1.0);
  EXPECT_DOUBLE_EQ(evaluation.FirstResult(kStart).accuracy(), 50);
  EXPECT_EQ(evaluation.Result(kStart).samples(), 1000);
  EXPECT_DOUBLE_EQ(evaluation.Result(kStart).loss(), 1.8);
  EXPECT_DOUBLE_EQ(evaluation.Result(kStart).accuracy(), 90);
}

TEST(Evaluation, DoesNotReportFirstSamplesSeparatelyIfTheyAreAll) {
  Evaluation::Options options = Options();
  options.first = 1000;
  EXPECT_FALSE(Evaluation(options).has_first());
}

TEST(Evaluation, RangeOfLostMemberGoesToOthers) {
  Evaluation evaluation(Options());
  const auto asked = evaluation.Assign({{1, 1}, {2, 1}}, kStart);
  const auto again = evaluation.Assign({{2, 1}}, kStart);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, 2);
  EXPECT_EQ(again[0].second.samples().end(), 500);
  EXPECT_EQ(evaluation.OwedBy(2).size(), 2u);
  evaluation.OnResult(1, ResultOf(asked[0].second, 9, 0));  // too late
  evaluation.OnResult(2, ResultOf(again[0].second, 1, 1));
  evaluation.OnResult(2, ResultOf(asked[1].second, 1, 1));
  ASSERT_TRUE(evaluation.done());
  EXPECT_DOUBLE_EQ(evaluation.Result(kStart).loss(), 1);
}

TEST(Evaluation, RepeatedResultCountsOnce) {
  Evaluation evaluation(Options());
  const auto asked = evaluation.Assign({{1, 1}, {2, 1}}, kStart);
  evaluation.OnResult(1, ResultOf(asked[0].second, 1, 1));
  evaluation.OnResult(1, ResultOf(asked[0].second, 1, 1));
  evaluation.OnResult(2, ResultOf(asked[1].second, 1, 1));
  EXPECT_EQ(evaluation.Result(kStart).samples(), 1000);
}

TEST(Evaluation, WaitsIfThereIsNoEvaluator) {
  Evaluation evaluation(Options());
  EXPECT_TRUE(evaluation.Assign({}, kStart).empty());
  EXPECT_EQ(evaluation.Assign({{5, 0}}, kStart).size(), 1u);
}

TEST(Evaluation, RetriesErrorsAndGivesUpInTheEnd) {
  Evaluation evaluation(Options());
  int tries = 0;
  while (!evaluation.failed()) {
    const auto asked = evaluation.Assign({{1, 1}}, kStart);
    ASSERT_EQ(asked.size(), 1u);
    v1::EvaluationResult result = ResultOf(asked[0].second, 0, 0);
    result.set_error("out of memory");
    evaluation.OnResult(1, result);
    ASSERT_LT(++tries, 100);
  }
  EXPECT_GT(tries, 3);
  EXPECT_FALSE(evaluation.done());
  EXPECT_EQ(evaluation.last_error(), "out of memory");
}

TEST(Evaluation, UnansweredRangeOfLivingMemberGoesToAnother) {
  Evaluation::Options options = Options();
  options.patience = absl::Seconds(60);
  Evaluation evaluation(options);
  const auto asked = evaluation.Assign({{1, 1}, {2, 1}}, kStart);
  evaluation.OnResult(2, ResultOf(asked[1].second, 1, 1));
  EXPECT_EQ(evaluation.NextDeadline(), kStart + absl::Seconds(60));
  EXPECT_TRUE(evaluation.Assign({{1, 1}, {2, 1}}, kStart + absl::Seconds(59)).empty());

  const auto again = evaluation.Assign({{1, 1}, {2, 1}}, kStart + absl::Seconds(60));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, 2u);
  EXPECT_EQ(evaluation.NextDeadline(), kStart + absl::Seconds(120));
  evaluation.OnResult(1, ResultOf(asked[0].second, 9, 0));  // too late
  EXPECT_FALSE(evaluation.done());
  evaluation.OnResult(2, ResultOf(again[0].second, 1, 1));
  ASSERT_TRUE(evaluation.done());
  EXPECT_EQ(evaluation.NextDeadline(), absl::InfiniteFuture());
  EXPECT_DOUBLE_EQ(evaluation.Result(kStart).loss(), 1);
}

TEST(Evaluation, AsksOnlyMemberAgainAndGivesUpInTheEnd) {
  Evaluation::Options options = Options();
  options.patience = absl::Seconds(60);
  Evaluation evaluation(options);
  absl::Time now = kStart;
  int asked = 0;
  for (; !evaluation.failed() && asked < 100; ++asked, now += absl::Seconds(60)) {
    ASSERT_EQ(evaluation.Assign({{1, 1}}, now).size(), 1u);
  }
  EXPECT_GT(asked, 3);
  EXPECT_TRUE(evaluation.failed());
  EXPECT_EQ(evaluation.last_error(), "no answer within 1m");
}

}  // namespace
}  // namespace sluice::coordinator

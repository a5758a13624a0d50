#include "services/coordinator/core/evaluation/evaluation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/protocol/worker_limits.h"

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

// The losses of float32 samples add up to other bits in another order.
TEST(EvaluationRanges, FixedOnesGiveTheSameBitsWhoeverEvaluates) {
  Evaluation::Options options = Options();
  options.exact = true;
  options.first = 100;
  const auto run = [&](const std::vector<Evaluator>& evaluators, uint64_t dies) {
    Evaluation evaluation(options);
    std::vector<Evaluator> living = evaluators;
    for (int round = 0; round < 3; ++round) {
      auto asked = evaluation.Assign(living, kStart);
      std::reverse(asked.begin(), asked.end());
      for (const auto& [worker, range] : asked) {
        if (worker == dies) continue;
        v1::EvaluationResult result = ResultOf(range, 1, 0.5);
        double loss = 0;
        for (uint64_t i = range.samples().begin(); i < range.samples().end(); ++i) {
          loss += 1 / static_cast<double>(3 + i * i % 101);
        }
        result.set_loss_sum(loss);
        evaluation.OnResult(worker, result);
      }
      living.erase(std::remove_if(living.begin(), living.end(),
                                  [&](const Evaluator& e) { return e.incarnation == dies; }),
                   living.end());
    }
    EXPECT_TRUE(evaluation.done());
    return std::make_pair(evaluation.Result(kStart).loss(), evaluation.FirstResult(kStart).loss());
  };
  const auto alone = run({{1, 10}}, 0);
  EXPECT_EQ(run({{1, 10}, {2, 31}}, 0), alone);
  EXPECT_EQ(run({{1, 10}, {2, 31}, {3, 7}}, 2), alone);
  EXPECT_NE(alone.first, alone.second);
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

TEST(Evaluation, HasDivergedIfALossIsNotFinite) {
  Evaluation evaluation(Options());
  const auto asked = evaluation.Assign({{1, 1}, {2, 1}}, kStart);
  evaluation.OnResult(1, ResultOf(asked[0].second, std::nan(""), 0));
  EXPECT_TRUE(evaluation.failed());
  EXPECT_TRUE(evaluation.diverged());
}

// ---- metrics of the program's own

Evaluation::Options WithMetrics() {
  Evaluation::Options options = Options();
  options.metrics = {"auc", "f1"};
  options.patience = absl::Seconds(60);
  return options;
}

v1::EvaluationResult WithStates(v1::EvaluationResult result, size_t bytes = 2) {
  for (const char* name : {"auc", "f1"}) {
    v1::MetricState& state = *result.add_metrics();
    state.set_name(name);
    state.set_state(std::string(bytes, name[0]));
  }
  return result;
}

v1::MetricValues Values(const v1::ComputeMetrics& request, double value) {
  v1::MetricValues values;
  values.set_evaluation(request.evaluation());
  *values.mutable_name() = request.name();
  for (const char* name : {"auc", "f1"}) {
    v1::Metric& metric = *values.add_metrics();
    metric.set_name(name);
    metric.set_value(value);
  }
  return values;
}

void AnswerAll(Evaluation* evaluation, const std::vector<Evaluator>& evaluators) {
  auto asked = evaluation->Assign(evaluators, kStart);
  std::reverse(asked.begin(), asked.end());
  for (const auto& [worker, range] : asked) {
    EXPECT_TRUE(evaluation->AssignMetrics(evaluators, kStart).empty()) << "ranges are missing";
    evaluation->OnResult(worker, WithStates(ResultOf(range, 1, 1)));
  }
}

TEST(EvaluationMetrics, AreComputedByOneWorkerFromStatesInTheOrderOfSamples) {
  Evaluation evaluation(WithMetrics());
  AnswerAll(&evaluation, {{1, 10}, {2, 30}, {3, 20}});
  EXPECT_FALSE(evaluation.done()) << "the values are missing";

  const auto asked = evaluation.AssignMetrics({{1, 10}, {2, 30}, {3, 20}}, kStart);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].first, 2u) << "the fastest";
  const v1::ComputeMetrics& request = asked[0].second;
  EXPECT_EQ(request.name().attempt(), 2u);
  EXPECT_EQ(request.name().step(), 100u);
  uint64_t end = 0;
  for (const v1::ComputeMetrics::Part& part : request.parts()) {
    EXPECT_EQ(part.samples().begin(), end);
    end = part.samples().end();
    ASSERT_EQ(part.metrics_size(), 2);
    EXPECT_EQ(part.metrics(0).state(), "aa");
  }
  EXPECT_EQ(end, 1000u);
  EXPECT_TRUE(evaluation.AssignMetrics({{1, 10}, {2, 30}, {3, 20}}, kStart).empty());

  evaluation.OnMetricValues(1, Values(request, 0.1));
  EXPECT_FALSE(evaluation.done()) << "another worker was asked";
  v1::MetricValues values = Values(request, 0.5);
  values.mutable_name()->set_step(99);
  evaluation.OnMetricValues(2, values);
  EXPECT_FALSE(evaluation.done()) << "of another version";
  values = Values(request, 0.75);
  values.set_error("a note");
  evaluation.OnMetricValues(2, values);
  ASSERT_TRUE(evaluation.done());
  EXPECT_EQ(evaluation.note(), "a note");
  EXPECT_EQ(MetricOf(evaluation.Result(kStart), "f1"), 0.75);
  EXPECT_EQ(MetricOf(evaluation.Result(kStart), "loss"), 1);
  EXPECT_EQ(MetricOf(evaluation.Result(kStart), "f2"), std::nullopt);
}

TEST(EvaluationMetrics, OfFirstSamplesAreComputedFromTheirStatesAlone) {
  Evaluation::Options options = WithMetrics();
  options.first = 200;
  options.first_id = 5;
  Evaluation evaluation(options);
  AnswerAll(&evaluation, {{1, 1}, {2, 1}});
  const auto asked = evaluation.AssignMetrics({{1, 1}, {2, 1}}, kStart);
  ASSERT_EQ(asked.size(), 2u);
  for (const auto& [worker, request] : asked) {
    const auto end = request.parts(request.parts_size() - 1).samples().end();
    EXPECT_EQ(end, request.evaluation() == 5 ? 200u : 1000u);
    evaluation.OnMetricValues(worker, Values(request, static_cast<double>(end)));
  }
  ASSERT_TRUE(evaluation.done());
  EXPECT_EQ(MetricOf(evaluation.FirstResult(kStart), "auc"), 200);
  EXPECT_EQ(MetricOf(evaluation.Result(kStart), "auc"), 1000);
}

TEST(EvaluationMetrics, AreComputedByAnotherWorkerIfOneDiesOrIsLateOrFails) {
  Evaluation evaluation(WithMetrics());
  AnswerAll(&evaluation, {{1, 1}, {2, 9}, {3, 5}});
  const auto first = evaluation.AssignMetrics({{1, 1}, {2, 9}, {3, 5}}, kStart);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].first, 2u);
  EXPECT_EQ(evaluation.MetricsOwedBy(2).size(), 1u);

  const auto second = evaluation.AssignMetrics({{1, 1}, {3, 5}}, kStart);
  ASSERT_EQ(second.size(), 1u) << "worker 2 has died";
  EXPECT_EQ(second[0].first, 3u);
  EXPECT_EQ(evaluation.NextDeadline(), kStart + absl::Seconds(60));

  const absl::Time later = kStart + absl::Seconds(60);
  const auto third = evaluation.AssignMetrics({{1, 1}, {3, 5}}, later);
  ASSERT_EQ(third.size(), 1u) << "worker 3 is late";
  EXPECT_EQ(third[0].first, 1u);
  evaluation.OnMetricValues(3, Values(second[0].second, 0.3));
  EXPECT_FALSE(evaluation.done()) << "too late";

  v1::MetricValues failed;
  failed.set_evaluation(third[0].second.evaluation());
  *failed.mutable_name() = third[0].second.name();
  failed.set_error("no memory");
  evaluation.OnMetricValues(1, failed);
  EXPECT_EQ(evaluation.last_error(), "no memory");
  const auto fourth = evaluation.AssignMetrics({{1, 1}}, later);
  ASSERT_EQ(fourth.size(), 1u);
  evaluation.OnMetricValues(1, Values(fourth[0].second, std::nan("")));
  ASSERT_TRUE(evaluation.done());
  EXPECT_TRUE(std::isnan(*MetricOf(evaluation.Result(kStart), "auc")));
}

TEST(EvaluationMetrics, ResultWithoutStateOfEachMetricIsRefused) {
  Evaluation evaluation(WithMetrics());
  auto asked = evaluation.Assign({{1, 1}}, kStart);
  evaluation.OnResult(1, ResultOf(asked[0].second, 1, 1));
  EXPECT_EQ(evaluation.last_error(), "0 metrics; the workers of this job have 2");
  asked = evaluation.Assign({{1, 1}}, kStart);
  v1::EvaluationResult result = WithStates(ResultOf(asked[0].second, 1, 1));
  result.mutable_metrics(1)->set_name("auc");
  evaluation.OnResult(1, result);
  EXPECT_EQ(evaluation.last_error(), "metric 1 is not 'f1'");
  EXPECT_EQ(evaluation.Assign({{1, 1}}, kStart).size(), 1u) << "the range is free again";
}

TEST(EvaluationMetrics, StatesOfAllRangesFitAMessage) {
  Evaluation evaluation(WithMetrics());
  const auto asked = evaluation.Assign({{1, 1}, {2, 1}}, kStart);
  ASSERT_EQ(asked.size(), 2u);
  evaluation.OnResult(1, WithStates(ResultOf(asked[0].second, 1, 1), kMaxMetricStateBytes / 4));
  EXPECT_FALSE(evaluation.failed());
  evaluation.OnResult(2, WithStates(ResultOf(asked[1].second, 1, 1), kMaxMetricStateBytes / 4 + 1));
  EXPECT_TRUE(evaluation.failed()) << "another worker would compute the same";
  EXPECT_THAT(
      evaluation.last_error(),
      ::testing::HasSubstr("the largest is that of 'auc' with 2097153 bytes for 500 samples"));
}

// ---- ranges that do not depend on the workers

TEST(EvaluationRanges, AreFixedAndSummedInTheOrderOfSamples) {
  std::set<double> losses;
  for (const std::vector<Evaluator>& evaluators :
       {std::vector<Evaluator>{{1, 1}}, {{1, 7}, {2, 1}, {3, 2}}}) {
    Evaluation::Options options = Options();
    options.exact = true;
    options.first = 300;
    Evaluation evaluation(options);
    auto asked = evaluation.Assign(evaluators, kStart);
    EXPECT_EQ(asked.size(), 10u + 22u) << "of 32 samples, and the last ones of each section";
    if (evaluators.size() > 1) std::reverse(asked.begin(), asked.end());
    std::set<uint64_t> workers;
    for (const auto& [worker, range] : asked) {
      workers.insert(worker);
      v1::EvaluationResult result = ResultOf(range, 1, 1);
      result.set_loss_sum(1.0 / static_cast<double>(1 + range.samples().begin()));
      evaluation.OnResult(worker, result);
    }
    EXPECT_EQ(workers.size(), evaluators.size());
    ASSERT_TRUE(evaluation.done());
    EXPECT_EQ(evaluation.FirstResult(kStart).samples(), 300u);
    losses.insert(evaluation.Result(kStart).loss());
  }
  EXPECT_EQ(losses.size(), 1u);
}

TEST(EvaluationRanges, LateWorkerCountsAsOneError) {
  Evaluation::Options options = Options();
  options.exact = true;
  options.samples = 100'000;
  options.patience = absl::Seconds(60);
  Evaluation evaluation(options);
  EXPECT_EQ(evaluation.Assign({{1, 1}, {2, 1}}, kStart).size(), 64u);
  const auto again = evaluation.Assign({{1, 1}, {2, 1}}, kStart + absl::Seconds(60));
  EXPECT_EQ(again.size(), 64u);
  EXPECT_FALSE(evaluation.failed());
}

}  // namespace
}  // namespace sluice::coordinator

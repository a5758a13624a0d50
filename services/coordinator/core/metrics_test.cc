// Metrics of the program's own in the evaluations of a whole coordinator.

#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/snapshot_schedule.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(CoordinatorMetrics, AreOfAllSamplesAndReported) {
  FakeJob job(EvaluateEvery(5));
  job.traits.add_metrics("samples");
  job.Start();
  job.Train(6);
  const v1::Evaluation result = job.Progress().last_evaluation();
  ASSERT_EQ(result.metrics_size(), 1);
  EXPECT_EQ(result.metrics(0).name(), "samples");
  EXPECT_EQ(result.metrics(0).value(), 1000);
  EXPECT_TRUE(job.HasEvent("evaluation at step 5: loss 0.5000, accuracy 5.00 %, samples 1000"));
}

TEST(CoordinatorMetrics, OfLastEvaluationAreOfItsFirstSamplesToo) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->mutable_evaluation()->set_max_samples(100);
  FakeJob job(spec);
  job.traits.add_metrics("samples");
  job.Start();
  job.Train(25);
  std::vector<double> values;
  const v1::JobProgress progress = job.Progress();
  for (const v1::Event& event : progress.events()) {
    if (!event.has_evaluation()) continue;
    ASSERT_EQ(event.evaluation().metrics_size(), 1);
    EXPECT_EQ(event.evaluation().metrics(0).value(),
              static_cast<double>(event.evaluation().samples()));
    values.push_back(event.evaluation().metrics(0).value());
  }
  ASSERT_FALSE(values.empty());
  EXPECT_EQ(values.front(), 100);
  EXPECT_EQ(values.back(), 1000);
}

TEST(CoordinatorMetrics, AreComputedByAnotherWorkerIfOneIsLost) {
  FakeJob job(EvaluateEvery(5));
  job.traits.add_metrics("samples");
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->computes_metrics = false;
  job.Train(7);
  FakeWorker* asked = nullptr;
  for (FakeWorker* worker : job.Workers()) {
    if (!worker->computations.empty()) asked = worker;
  }
  ASSERT_NE(asked, nullptr);
  EXPECT_FALSE(job.Progress().has_last_evaluation());

  asked->computations.clear();
  job.Break(*asked);
  job.Connect(*asked);
  job.Pump();
  EXPECT_EQ(asked->computations.size(), 1u) << "it is asked again on a new stream";

  for (FakeWorker* worker : job.Workers()) worker->computes_metrics = true;
  job.Kill(*asked);
  job.Pass(absl::Seconds(30));
  job.Train(1);
  EXPECT_EQ(job.Progress().last_evaluation().metrics(0).value(), 1000);
}

TEST(CoordinatorMetrics, AreTheSameInAllWorkers) {
  FakeJob job(EvaluateEvery(5));
  job.Pump();
  job.traits.add_metrics("auc");
  job.AddWorker(0);
  job.traits.set_metrics(0, "f1");
  job.AddWorker(1);
  job.Pump();
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::FAILED);
  EXPECT_THAT(job.Progress().reason(), HasSubstr("its evaluations have the metrics f1, not auc"));
}

TEST(CoordinatorMetrics, TargetIsAMetricThatTheProgramHas) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_training()->mutable_target()->set_metric("samples");
  spec.mutable_training()->mutable_target()->set_goal("AtLeast");
  spec.mutable_training()->mutable_target()->set_value(1000);
  FakeJob reaches(spec);
  reaches.traits.add_metrics("samples");
  reaches.Start();
  reaches.Train(10);
  EXPECT_LT(reaches.Version(), 10) << "the first evaluation ends training";

  FakeJob lacks(spec);
  lacks.traits.add_metrics("auc");
  lacks.Start();
  EXPECT_EQ(lacks.Progress().phase(), v1::JobProgress::FAILED);
  EXPECT_THAT(lacks.Progress().reason(),
              HasSubstr("training.target.metric is samples, and the program's evaluations have no "
                        "such metric: they have loss, accuracy, perplexity, auc."));
}

}  // namespace
}  // namespace sluice::coordinator

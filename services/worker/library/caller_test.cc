#include "services/worker/library/caller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "proto/control.pb.h"
#include "services/common/threads/notification.h"
#include "services/common/time/clock.h"
#include "services/protocol/worker_limits.h"
#include "services/worker/library/testing/caller_harness.h"

namespace sluice::worker {
namespace {

TEST_F(CallerTest, WorkIsTakenInTheOrderInWhichItIsRequested) {
  Open();
  Instance instance(&caller_);
  ASSERT_TRUE(caller_.WaitForJob().ok());
  EXPECT_EQ(caller_.job_name(), "ns/job/uid");
  instance.Give(ComputeOf(1, {4, 10}));
  instance.Give(EvaluationOf(2, ComputeEngine::Buffer::kCurrent));

  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(work_.kind, SLUICE_GRADIENTS);
  EXPECT_EQ(work_.step, 3u);
  EXPECT_EQ(work_.first_microbatch, 1u);
  EXPECT_EQ(work_.microbatches, 2u);
  EXPECT_EQ(Indices(), (std::vector<uint64_t>{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(Next(), SLUICE_WRONG_STATE) << "the work was not answered";
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_OK);

  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(work_.kind, SLUICE_EVALUATE);
  EXPECT_EQ(Indices(), (std::vector<uint64_t>{2, 3, 4}));
  EXPECT_EQ(Done(), SLUICE_OK);
  EXPECT_EQ(Next(kSoon), SLUICE_TIMEOUT);
}

TEST_F(CallerTest, WorkHasThePositionsOfItsSamplesAndLaterPositionsCanBeLookedUp) {
  Open();
  uint64_t some[4];
  EXPECT_EQ(caller_.Indices(0, 1, some).code, SLUICE_WRONG_STATE);
  v1::JobSpec job = MakeJob();
  job.mutable_data()->set_no_shuffle(false);
  Instance instance(&caller_, job);
  ASSERT_TRUE(caller_.WaitForJob().ok());
  instance.Give(ComputeOf(1, {98, 102}));  // of two epochs
  ASSERT_EQ(Next(), SLUICE_OK);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(work_.positions[i], 98 + i);
  ASSERT_TRUE(caller_.Indices(98, 4, some).ok());
  EXPECT_EQ(std::vector<uint64_t>(some, some + 4), Indices());
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_OK);

  instance.Give(EvaluationOf(2, ComputeEngine::Buffer::kCurrent));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(work_.positions, nullptr);
  EXPECT_EQ(Done(), SLUICE_OK);
}

TEST_F(CallerTest, NextReturnsWhenWorkArrives) {
  Open();
  Instance instance(&caller_);
  std::thread program([&] { EXPECT_EQ(Next(), SLUICE_OK); });
  instance.Give(ComputeOf(1, {0, 4}));
  program.join();
  EXPECT_EQ(work_.samples, 4u);
}

TEST_F(CallerTest, WorkThatIsCancelledBeforeItIsTakenIsNotGiven) {
  Open();
  Instance instance(&caller_);
  instance.Give(ComputeOf(1, {0, 4}));
  instance.Give(ComputeOf(2, {4, 8}));
  instance.Cancel(1);
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Indices().front(), 4u);
  EXPECT_FALSE(caller_.Cancelled());
}

TEST_F(CallerTest, CancelledWorkNeedsNoGradientAndReleasesThoseThatItIsGiven) {
  Open();
  Instance instance(&caller_);
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_WRONG_STATE) << "without the gradient";
  instance.Cancel(1);
  EXPECT_TRUE(caller_.Cancelled());
  EXPECT_EQ(Gradient(/*token=*/5), SLUICE_OK);
  EXPECT_EQ(Released(), (std::vector<uint64_t>{5}));
  EXPECT_EQ(Done(), SLUICE_OK);
}

TEST_F(CallerTest, ParametersStayAsTheyAreUntilTheNextCall) {
  Open();
  Instance instance(&caller_);
  instance.Receive(1.5);
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Parameter(), 1.5);
  EXPECT_EQ(caller_.Position(), 1u);

  instance.Receive(2.5);
  instance.Receive(3.5);
  EXPECT_EQ(Parameter(), 1.5);
  EXPECT_EQ(caller_.Position(), 1u);
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_OK);
  EXPECT_EQ(Parameter(), 1.5);

  EXPECT_EQ(Next(kSoon), SLUICE_TIMEOUT);
  EXPECT_EQ(Parameter(), 3.5);
  EXPECT_EQ(caller_.Position(), 3u);
}

TEST_F(CallerTest, WeightIsGivenOnceBeforeTheFirstGradient) {
  Open();
  Instance instance(&caller_);
  EXPECT_EQ(caller_.GiveWeight(1).code, SLUICE_WRONG_STATE);
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  for (const double wrong : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(caller_.GiveWeight(wrong).code, SLUICE_INVALID_ARGUMENT) << wrong;
  }
  EXPECT_EQ(caller_.GiveWeight(0).code, SLUICE_OK);
  EXPECT_EQ(caller_.GiveWeight(1).code, SLUICE_WRONG_STATE);
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_OK);

  instance.Give(ComputeOf(2, {4, 8}));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(caller_.GiveWeight(1).code, SLUICE_WRONG_STATE);
  EXPECT_EQ(Done(), SLUICE_OK);
}

TEST_F(CallerTest, JobLearnsWhatTheProgramSaysOfItsModel) {
  v1::Ready traits;
  traits.set_smallest_batch(2);
  traits.set_smallest_batch_module("bn1");
  traits.add_notes("Dropout stays on.");
  traits.mutable_environment()->set_library("PyTorch 2.15.0");
  EXPECT_TRUE(caller_.AddDigest("the vocabulary", 7).ok());
  EXPECT_EQ(caller_.Describe(traits).code, SLUICE_OK);
  Open();
  EXPECT_EQ(caller_.Describe(traits).code, SLUICE_WRONG_STATE);
  Instance instance(&caller_);
  ASSERT_TRUE(caller_.WaitForJob().ok());
  const v1::Ready ready = instance.Ready();
  EXPECT_EQ(ready.training_samples(), 100u);
  EXPECT_EQ(ready.table().tensors_size(), 1);
  EXPECT_EQ(ready.smallest_batch(), 2u);
  EXPECT_EQ(ready.smallest_batch_module(), "bn1");
  EXPECT_EQ(ready.notes(0), "Dropout stays on.");
  EXPECT_EQ(ready.environment().library(), "PyTorch 2.15.0");
  ASSERT_EQ(ready.digests_size(), 1);
  EXPECT_EQ(ready.digests(0).name(), "the vocabulary");
  EXPECT_EQ(ready.digests(0).hash(), 7u);
}

TEST_F(CallerTest, AnEvaluationReadsItsOwnVersion) {
  Open();
  Instance instance(&caller_);
  instance.Receive(1.5);
  instance.Receive(9.5, ComputeEngine::Buffer::kEvaluation);
  instance.Give(EvaluationOf(1, ComputeEngine::Buffer::kEvaluation));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Parameter(), 9.5);
  EXPECT_TRUE(caller_.GiveWeight(3).ok());
  EXPECT_EQ(caller_.GiveWeight(3).code, SLUICE_WRONG_STATE);
  EXPECT_EQ(Done(), SLUICE_OK);
  EXPECT_EQ(Parameter(), 1.5);
}

TEST_F(CallerTest, EachMetricHasOneStateOfAnEvaluationAndOneValue) {
  constexpr uint32_t kCount = kMaxMetrics;
  EXPECT_EQ(caller_.AddMetric("auc").code, SLUICE_OK);
  EXPECT_EQ(caller_.AddMetric("f1").code, SLUICE_OK);
  EXPECT_EQ(caller_.AddMetric("f1").code, SLUICE_INVALID_ARGUMENT) << "twice";
  EXPECT_EQ(caller_.AddMetric("loss").code, SLUICE_INVALID_ARGUMENT);
  for (uint32_t i = 2; i < kCount; ++i) {
    EXPECT_EQ(caller_.AddMetric("m" + std::to_string(i)).code, SLUICE_OK);
  }
  EXPECT_EQ(caller_.AddMetric("one_too_many").code, SLUICE_INVALID_ARGUMENT);
  Open();
  EXPECT_EQ(caller_.AddMetric("late").code, SLUICE_WRONG_STATE);
  Instance instance(&caller_);
  ASSERT_TRUE(caller_.WaitForJob().ok());
  EXPECT_EQ(instance.Ready().metrics_size(), kMaxMetrics);
  EXPECT_EQ(instance.Ready().metrics(1), "f1");

  instance.Give(EvaluationOf(1, ComputeEngine::Buffer::kCurrent));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(caller_.GiveMetricState(kCount, "s").code, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(caller_.GiveMetricState(0, std::string(kMaxMetricStateBytes + 1, 's')).code,
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(caller_.GiveMetricState(0, "s").code, SLUICE_OK);
  EXPECT_EQ(caller_.GiveMetricState(0, "s").code, SLUICE_WRONG_STATE) << "twice";
  EXPECT_EQ(caller_.GiveMetricValue(0, 1, "").code, SLUICE_WRONG_STATE) << "other work";
  const CallResult missing = caller_.Done({});
  EXPECT_EQ(missing.code, SLUICE_WRONG_STATE);
  EXPECT_EQ(missing.text,
            "the state of metric 'f1' was not given: call sluice_worker_metric_state");
  for (uint32_t i = 1; i < kCount; ++i) caller_.GiveMetricState(i, "s");
  EXPECT_EQ(Done(), SLUICE_OK);

  ComputeMetrics compute;
  for (const char* state : {"of the first", "of the second"}) {
    v1::ComputeMetrics::Part& part = *compute.request.add_parts();
    for (uint32_t i = 0; i < kCount; ++i) part.add_metrics()->set_state(state);
  }
  instance.Give(compute);
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(work_.kind, SLUICE_METRICS);
  EXPECT_EQ(work_.samples, 0u);
  size_t parts = 0;
  EXPECT_EQ(caller_.MetricParts(&parts).code, SLUICE_OK);
  EXPECT_EQ(parts, 2u);
  const void* state = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(caller_.MetricPart(1, 1, &state, &bytes).code, SLUICE_OK);
  EXPECT_EQ(std::string(static_cast<const char*>(state), bytes), "of the second");
  EXPECT_EQ(caller_.MetricPart(1, 2, &state, &bytes).code, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(caller_.MetricPart(kCount, 0, &state, &bytes).code, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(caller_.GiveMetricState(0, "s").code, SLUICE_WRONG_STATE) << "other work";
  EXPECT_EQ(caller_.GiveMetricValue(0, 0.5, "a note").code, SLUICE_OK);
  EXPECT_EQ(caller_.GiveMetricValue(0, 0.5, "").code, SLUICE_WRONG_STATE) << "twice";
  EXPECT_EQ(Done(), SLUICE_WRONG_STATE);
  for (uint32_t i = 1; i < kCount; ++i) caller_.GiveMetricValue(i, 0.5, "");
  EXPECT_EQ(Done(), SLUICE_OK);
  EXPECT_EQ(caller_.MetricParts(&parts).code, SLUICE_WRONG_STATE);
}

TEST_F(CallerTest, WorkOfAnInstanceThatHasEndedIsDropped) {
  Open();
  {
    Instance first(&caller_);
    first.Give(ComputeOf(1, {0, 4}));
    first.Give(ComputeOf(2, {4, 8}));
    ASSERT_EQ(Next(), SLUICE_OK);
  }
  EXPECT_TRUE(caller_.Cancelled());
  Instance second(&caller_);
  second.Give(ComputeOf(3, {8, 12}));
  EXPECT_EQ(Gradient(/*token=*/6), SLUICE_OK);
  EXPECT_EQ(Released(), (std::vector<uint64_t>{6}));
  EXPECT_EQ(Done(), SLUICE_OK);

  // The other request of the first instance is forgotten.
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Indices().front(), 8u);
  EXPECT_FALSE(caller_.Cancelled());
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_OK);
  EXPECT_EQ(Next(kSoon), SLUICE_TIMEOUT);
}

TEST_F(CallerTest, NextInstanceWaitsUntilAnEvaluationHasReadItsVersion) {
  Open();
  {
    Instance first(&caller_);
    first.Receive(9.5, ComputeEngine::Buffer::kEvaluation);
    first.Give(EvaluationOf(1, ComputeEngine::Buffer::kEvaluation));
    ASSERT_EQ(Next(), SLUICE_OK);
  }
  Notification unused;
  std::thread worker([&] {
    caller_.WaitUntilUnused();
    unused.Notify();
  });
  EXPECT_FALSE(unused.WaitWithTimeout(kSoon));
  EXPECT_EQ(Parameter(), 9.5);
  EXPECT_EQ(Done(), SLUICE_OK);
  worker.join();
}

TEST_F(CallerTest, WorkersWithSamplesOfTheirOwnWalkThroughAllOfThem) {
  v1::JobSpec job = MakeJob();
  job.mutable_data()->set_partitioning(v1::DataSpec::PER_WORKER);
  Open();
  Instance instance(&caller_, job);
  std::vector<uint64_t> all;
  // The job's positions are spread over the workers: this one's samples follow each other.
  for (uint64_t i = 0; i < 25; ++i) {
    instance.Give(ComputeOf(i + 1, {i * 40, i * 40 + 4}));
    ASSERT_EQ(Next(), SLUICE_OK);
    EXPECT_EQ(work_.positions[0], i * 4) << "of this worker's own sequence";
    for (uint64_t index : Indices()) all.push_back(index);
    EXPECT_EQ(Gradient(), SLUICE_OK);
    EXPECT_EQ(Done(), SLUICE_OK);
  }
  std::sort(all.begin(), all.end());
  std::vector<uint64_t> each_once(100);
  for (uint64_t i = 0; i < 100; ++i) each_once[i] = i;
  EXPECT_EQ(all, each_once);
}

TEST_F(CallerTest, RowsBelongToTheirWorkAndTheirTensor) {
  Open(/*rows=*/true);
  Instance instance(&caller_);
  instance.Give(FindRows{.id = 1, .positions = {{0, 2}, {10, 12}}});
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(work_.kind, SLUICE_ROWS);
  EXPECT_EQ(Indices(), (std::vector<uint64_t>{0, 1, 10, 11}));
  const uint64_t rows[] = {3, 1}, far[] = {4};
  EXPECT_EQ(caller_.GiveRows(1, rows, 2).code, SLUICE_OK);
  EXPECT_EQ(caller_.GiveRows(0, rows, 2).code, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(caller_.GiveRows(1, far, 1).text, "a sample names row 4 of 'table', which has 4");
  EXPECT_EQ(Gradient(), SLUICE_WRONG_STATE);
  EXPECT_EQ(Done(), SLUICE_OK);
}

TEST_F(CallerTest, JobsDelayPrecedesEachStep) {
  v1::JobSpec job = MakeJob();
  job.mutable_debug()->set_step_delay_seconds(0.05);
  Open();
  Instance instance(&caller_, job);
  instance.Give(ComputeOf(1, {0, 4}));
  const absl::Time begun = absl::Now();
  EXPECT_EQ(Next(absl::Milliseconds(1)), SLUICE_TIMEOUT);
  EXPECT_EQ(Next(), SLUICE_OK);
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(50));
}

TEST_F(CallerTest, EndIsTheAnswerOfAThreadThatWaitsAndOfEveryLaterCall) {
  Open();
  Instance instance(&caller_);
  std::thread program([&] { EXPECT_EQ(Next(), SLUICE_JOB_FAILED); });
  caller_.End({SLUICE_JOB_FAILED, "a reason"});
  program.join();
  EXPECT_EQ(caller_.Ended().text, "a reason");
  EXPECT_EQ(Next(), SLUICE_JOB_FAILED);
  EXPECT_EQ(Gradient(), SLUICE_WRONG_STATE);
}

TEST_F(CallerTest, StopsOnlyWhileNoThreadWaitsForWork) {
  Open();
  Instance instance(&caller_);
  std::thread program([&] {
    EXPECT_EQ(Next(), SLUICE_OK);
    EXPECT_EQ(Gradient(), SLUICE_OK);
    EXPECT_EQ(Done(), SLUICE_OK);
  });
  sluice_work other{};
  while (caller_.Next(absl::ZeroDuration(), &other).code != SLUICE_BUSY) std::this_thread::yield();
  EXPECT_FALSE(caller_.StopIfIdle());
  EXPECT_FALSE(caller_.leaving());
  instance.Give(ComputeOf(1, {0, 4}));
  program.join();
  EXPECT_TRUE(caller_.StopIfIdle());
  EXPECT_TRUE(caller_.leaving());
  EXPECT_FALSE(caller_.Sleep(kPatience)) << "stopped, so it does not sleep";
  EXPECT_EQ(Next(), SLUICE_ENDED);
}

TEST_F(CallerTest, OnStartedReportsThatTheProgramHasLeft) {
  Open();
  caller_.Leave("enough", absl::ZeroDuration());
  RealClock clock;
  struct Role final : CoreShell<WorkerCore>::Role {
    void PerformAction(CoreShell<WorkerCore>::Action&) override {}
    void Publish(absl::Time) override {}
  } role;
  CoreShell<WorkerCore> shell("worker", &clock, &role);
  const std::unique_ptr<ModelRunner> runner = caller_.MakeRunner(&shell);
  EXPECT_FALSE(caller_.OnStarted());
  runner->Stop();
}

}  // namespace
}  // namespace sluice::worker

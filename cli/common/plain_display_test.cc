#include <sstream>

#include "cli/common/run_display.h"
#include "gtest/gtest.h"

namespace sluice::cli {
namespace {

class PlainDisplayTest : public ::testing::Test {
 protected:
  PlainDisplayTest() {
    environment.out = &out;
    environment.err = &err;
    progress.set_total_steps(200);
  }
  v1::Evaluation& Evaluate(uint64_t step, double accuracy) {
    v1::Event& event = *progress.add_events();
    event.set_kind(v1::Event::EVALUATION);
    event.mutable_evaluation()->set_step(step);
    event.mutable_evaluation()->set_has_accuracy(true);
    event.mutable_evaluation()->set_accuracy(accuracy);
    return *event.mutable_evaluation();
  }
  SummaryFacts Facts() {
    SummaryFacts facts;
    facts.name = "job";
    facts.result.outcome.kind = policy::OutcomeKind::kSucceeded;
    facts.result.progress = progress;
    facts.result.progress.set_training_seconds(4.204);
    return facts;
  }

  std::ostringstream out, err;
  Environment environment;
  v1::JobProgress progress;
};

TEST_F(PlainDisplayTest, PrintsOnlyEvaluationsFinalMetricAndTime) {
  const auto display = MakePlainDisplay(environment, {});
  Evaluate(10, 85.13);
  *progress.mutable_last_evaluation() = Evaluate(200, 90.2);
  v1::Event& info = *progress.add_events();
  info.set_kind(v1::Event::INFO);
  info.set_message("training is complete");
  display->OnProgress(progress, "");
  display->Note("something");
  display->Finish(Facts(), 0, {});
  EXPECT_EQ(out.str(),
            "Iter 10: accuracy is 85.1\nIter 200: accuracy is 90.2\nFinal accuracy is 90.2\n"
            "This took 4.20 seconds\n");
  EXPECT_EQ(err.str(), "");
}

TEST_F(PlainDisplayTest, LastVersionIsEvaluatedOnFirstAndOnAllSamples) {
  const auto display = MakePlainDisplay(environment, {});
  Evaluate(200, 91.5);
  v1::Evaluation& all = Evaluate(200, 90.2);
  all.set_final(true);
  *progress.mutable_last_evaluation() = all;
  display->OnProgress(progress, "");
  display->Finish(Facts(), 0, {});
  EXPECT_EQ(out.str(),
            "Iter 200: accuracy is 91.5\nFinal accuracy is 90.2\nThis took 4.20 seconds\n");
}

TEST_F(PlainDisplayTest, PrintsLossesWithServerSideLayers) {
  DisplayOptions options;
  options.losses = true;
  const auto display = MakePlainDisplay(environment, std::move(options));
  for (const uint32_t worker : {0, 1}) {
    v1::BatchLoss& loss = *progress.add_losses();
    loss.set_worker(worker);
    loss.set_batch(5);
    loss.set_loss(2.29519);
  }
  progress.set_phase(v1::JobProgress::TRAINING);
  display->OnProgress(progress, "");
  progress.clear_losses();
  progress.set_phase(v1::JobProgress::EVALUATING);
  display->OnProgress(progress, "");
  *progress.mutable_last_evaluation() = Evaluate(200, 90.2);
  display->Finish(Facts(), 0, {});
  EXPECT_EQ(out.str(),
            "worker-0 training batch 5 loss 2.295\nworker-1 training batch 5 loss 2.295\n"
            "Training complete\nFinal accuracy is 90.2\nThis took 4.20 seconds\n");
}

TEST_F(PlainDisplayTest, IterationMayBeOneUpdatePerWorker) {
  DisplayOptions options;
  options.iteration_steps = 25;
  const auto display = MakePlainDisplay(environment, std::move(options));
  Evaluate(51, 40);
  display->OnProgress(progress, "");
  EXPECT_EQ(out.str(), "Iter 2: accuracy is 40.0\n");
}

TEST_F(PlainDisplayTest, WarningsAndFailuresGoToStandardError) {
  const auto display = MakePlainDisplay(environment, {});
  v1::Event& warning = *progress.add_events();
  warning.set_kind(v1::Event::WARNING);
  warning.set_message("ps-0 is lost");
  display->OnProgress(progress, "");
  SummaryFacts facts = Facts();
  facts.result.outcome.kind = policy::OutcomeKind::kFailed;
  facts.result.outcome.reason = "no memory";
  display->Finish(facts, 1, {"termination message"});
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(err.str(),
            "Warning: ps-0 is lost\n  termination message\nsluice: job job: no memory\n");
}

TEST_F(PlainDisplayTest, PrintsTrainingLossWithoutEvaluation) {
  const auto display = MakePlainDisplay(environment, {});
  progress.set_has_loss(true);
  progress.set_loss(2.29519);
  display->Finish(Facts(), 0, {});
  EXPECT_EQ(out.str(), "Final training loss is 2.295\nThis took 4.20 seconds\n");
}

TEST_F(PlainDisplayTest, ReportsStopOnceAndItsStep) {
  const auto display = MakePlainDisplay(environment, {});
  display->Stopping();
  display->Stopping();
  SummaryFacts facts = Facts();
  facts.result.outcome.kind = policy::OutcomeKind::kSuspended;
  facts.result.has_progress = true;
  facts.result.progress.set_step(1234);
  display->Finish(facts, 130, {});
  facts.result.outcome.reason = "stopped immediately";
  display->Finish(facts, 130, {});
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(err.str(),
            "Saving a checkpoint and stopping\nsluice: job job: suspended at step 1,234\n"
            "sluice: job job: suspended at step 1,234 (stopped immediately)\n");
}

}  // namespace
}  // namespace sluice::cli

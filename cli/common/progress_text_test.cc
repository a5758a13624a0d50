#include "cli/common/progress_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

namespace sluice::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobProgress Training() {
  v1::JobProgress progress;
  progress.set_phase(v1::JobProgress::TRAINING);
  progress.set_step(1163);
  progress.set_total_steps(1876);
  progress.set_epoch(1.24);
  progress.set_samples(74432);
  progress.set_total_samples(120000);
  progress.set_samples_per_second(1000);
  progress.set_has_loss(true);
  progress.set_loss(0.07123);
  return progress;
}

ProcessState Running(uint32_t restarts = 0) {
  return {"running", ProcessState::Tone::kGood, restarts};
}

TEST(ProgressTextTest, ShowsPushedBytesPerStepAndTheirShare) {
  v1::JobProgress progress = Training();
  EXPECT_EQ(PushedText(progress), "");
  progress.set_step(1000);
  progress.set_pushed_bytes(2048 * 1000);
  progress.set_gradient_bytes(2048 * 1000 * 50);
  EXPECT_EQ(PushedText(progress), "2.0 KiB of gradients a step, 2 % of their size");
  progress.set_gradient_bytes(progress.pushed_bytes());
  EXPECT_EQ(PushedText(progress), "2.0 KiB of gradients a step");
  progress.set_restored(true);
  EXPECT_EQ(PushedText(progress), "2.0 MiB of gradients");
}

TEST(ProgressTextTest, ShowsPulledBytesIfFewerThanTheParameters) {
  v1::JobProgress progress = Training();
  progress.set_step(10);
  progress.set_pulled_bytes(2048 * 10);
  progress.set_parameter_bytes(2048 * 10);
  EXPECT_EQ(PulledText(progress), "");
  progress.set_parameter_bytes(2048 * 40);
  EXPECT_EQ(PulledText(progress), "2.0 KiB of parameters a step, 25 % of their size");
}

TEST(ProgressTextTest, ShowsQuantilesOfStaleness) {
  v1::JobProgress progress = Training();
  EXPECT_EQ(StalenessText(progress), "");
  progress.mutable_staleness()->set_mean(1.666);
  progress.mutable_staleness()->set_median(1);
  progress.mutable_staleness()->set_percentile_95(3);
  progress.mutable_staleness()->set_largest(1200);
  EXPECT_EQ(StalenessText(progress), "mean 1.67, median 1, 95 % at most 3, largest 1,200 updates");
}

TEST(ProgressTextTest, FormatsNumbers) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1876), "1,876");
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(BytesText(100), "100 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(uint64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(DurationText(absl::Milliseconds(12340)), "12.3 s");
  EXPECT_EQ(DurationText(absl::Seconds(97)), "1m 37s");
  EXPECT_EQ(DurationText(absl::Seconds(59.97)), "1m 00s");
  EXPECT_EQ(DurationText(absl::Minutes(123)), "2h 03m");
  EXPECT_EQ(DurationText(-absl::Seconds(1)), "0.0 s");
  EXPECT_EQ(LossText(0.07123), "0.0712");
  EXPECT_EQ(LossText(2.30259), "2.303");
  EXPECT_EQ(LossText(8.76e-6), "8.76e-06");
  EXPECT_EQ(LossText(std::nan("")), "nan");
}

TEST(ProgressTextTest, EvaluationIsOneLine) {
  v1::Evaluation evaluation;
  evaluation.set_step(938);
  evaluation.set_epoch(1);
  evaluation.set_has_accuracy(true);
  evaluation.set_accuracy(97.85);
  evaluation.set_loss(0.0712);
  evaluation.set_samples(10000);
  EXPECT_EQ(EvaluationText(evaluation),
            "Step 938 (epoch 1.00): accuracy 97.85 %, loss 0.0712 on 10,000 samples");
  evaluation.set_has_accuracy(false);
  EXPECT_EQ(EvaluationText(evaluation), "Step 938 (epoch 1.00): loss 0.0712 on 10,000 samples");
  evaluation.set_has_perplexity(true);
  evaluation.set_perplexity(162.389);
  evaluation.set_loss(5.09);
  EXPECT_EQ(EvaluationText(evaluation),
            "Step 938 (epoch 1.00): perplexity 162.39, loss 5.090 on 10,000 samples");
  evaluation.set_samples(0);
  EXPECT_EQ(EvaluationText(evaluation), "Step 938 (epoch 1.00): perplexity 162.39");
  evaluation.set_has_perplexity(false);
  EXPECT_EQ(EvaluationText(evaluation), "Step 938 (epoch 1.00): loss 5.090");
}

TEST(ProgressTextTest, MetricsOfTheProgramAreShown) {
  v1::JobProgress progress = Training();
  v1::Evaluation& evaluation = *progress.mutable_last_evaluation();
  evaluation.set_step(938);
  evaluation.set_loss(0.5);
  evaluation.set_samples(100);
  v1::Metric& auc = *evaluation.add_metrics();
  auc.set_name("auc");
  auc.set_value(0.93123);
  v1::Metric& f1 = *evaluation.add_metrics();
  f1.set_name("f1");
  f1.set_value(std::nan(""));
  EXPECT_EQ(EvaluationText(evaluation), "Step 938: auc 0.9312, f1 nan, loss 0.5000 on 100 samples");

  JobSummary view;
  view.has_progress = true;
  view.progress = progress;
  EXPECT_THAT(LiveLines(view, 200, false)[2], HasSubstr(", auc 0.9312, f1 nan at step 938"));
  view.progress.mutable_last_evaluation()->set_has_accuracy(true);
  for (int i = 0; i < 10; ++i) view.progress.mutable_last_evaluation()->add_metrics();
  const std::string line = LiveLines(view, 200, false)[2];
  EXPECT_THAT(line, HasSubstr(", accuracy 0.00 %, auc 0.9312, f1 nan,  0,  0 at step 938"))
      << "no more than four";
}

TEST(ProgressTextTest, ProgressLineShowsTheStep) {
  JobSummary view;
  EXPECT_EQ(ProgressLine(view), "starting");
  view.has_progress = true;
  view.progress = Training();
  EXPECT_EQ(ProgressLine(view),
            "training: step 1,163 of 1,876 (62 %), epoch 1.24, loss 0.0712, 1,000 samples/s, "
            "45.6 s left");
  view.progress.set_evaluating_step(1100);
  EXPECT_THAT(ProgressLine(view), HasSubstr("training, evaluating step 1,100: step 1,163 of"));
  EXPECT_THAT(LiveLines(view, 200, false)[0], HasSubstr("  training, evaluating step 1,100  step"));
}

TEST(ProgressTextTest, AStreamOfUnknownLengthHasNoEpoch) {
  JobSummary view;
  view.has_progress = true;
  view.progress = Training();
  view.progress.set_epoch(1e-9);
  EXPECT_THAT(ProgressLine(view), HasSubstr("step 1,163 of 1,876 (62 %), loss"));
  EXPECT_THAT(LiveLines(view, 200, false)[0], ::testing::EndsWith("step 1,163 of 1,876"));
}

TEST(ProgressTextTest, TimeLeftIsUnknownWithoutASpeed) {
  v1::JobProgress progress = Training();
  EXPECT_EQ(TimeLeft(progress), absl::Seconds(45.568));
  progress.set_samples_per_second(0);
  EXPECT_EQ(TimeLeft(progress), absl::InfiniteDuration());
  progress = Training();
  progress.set_samples(130000);
  EXPECT_EQ(TimeLeft(progress), absl::ZeroDuration());
}

TEST(LiveLinesTest, ListsEveryProcessWithItsState) {
  JobSummary view;
  view.name = "demo";
  view.has_progress = true;
  view.progress = Training();
  view.processes[{v1::COORDINATOR, 0}] = Running();
  view.processes[{v1::WORKER, 0}] = {"training, 512 samples/s", ProcessState::Tone::kGood, 1};
  const std::vector<std::string> lines = LiveLines(view, 100, false);
  EXPECT_EQ(lines[0], "demo  training  step 1,163 of 1,876  epoch 1.24");
  EXPECT_THAT(lines[1], HasSubstr("62 %"));
  EXPECT_EQ(lines[2], "  loss 0.0712, 1,000 samples/s, 45.6 s left");
  EXPECT_THAT(lines, Contains("  coordinator  running"));
  EXPECT_THAT(lines, Contains("  worker-0     training, 512 samples/s (restarted once)"));
}

TEST(LiveLinesTest, StateReplacesThePhase) {
  JobSummary view;
  view.name = "demo";
  view.state = "waits: Unschedulable";
  EXPECT_EQ(LiveLines(view, 80, false)[0], "demo  waits: Unschedulable");
  EXPECT_EQ(ProgressLine(view), "waits: Unschedulable");
  view.has_progress = true;
  EXPECT_EQ(ProgressLine(view), "waits: Unschedulable");
  view.progress = Training();
  view.state = "recovering";
  EXPECT_THAT(ProgressLine(view), ::testing::StartsWith("recovering: step 1,163 of 1,876"));
}

TEST(LiveLinesTest, NoLineIsWiderThanTheTerminal) {
  JobSummary view;
  view.name = "a-job-with-a-rather-long-name-that-does-not-fit";
  view.has_progress = true;
  view.progress = Training();
  view.processes[{v1::COORDINATOR, 0}] = Running(100);
  for (const int columns : {20, 33, 80, 300}) {
    for (const std::string& line : LiveLines(view, columns, false)) {
      int width = 0;
      for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      EXPECT_LE(width, columns) << line;
    }
  }
}

TEST(LiveLinesTest, UsesColoursOnlyIfRequested) {
  JobSummary view;
  view.name = "demo";
  view.has_progress = true;
  view.progress = Training();
  view.processes[{v1::COORDINATOR, 0}] = Running();
  EXPECT_THAT(absl::StrJoin(LiveLines(view, 80, false), "\n"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(absl::StrJoin(LiveLines(view, 80, true), "\n"), HasSubstr("\x1b[32m"));
}

TEST(LiveLinesTest, DrawsAsciiBarWithoutUnicode) {
  JobSummary view;
  view.has_progress = true;
  view.progress = Training();
  EXPECT_THAT(LiveLines(view, 80, false, /*unicode=*/true)[1], HasSubstr("█"));
  const std::string bar = LiveLines(view, 80, false, /*unicode=*/false)[1];
  EXPECT_THAT(bar, HasSubstr("##"));
  EXPECT_THAT(bar, HasSubstr("--"));
  for (const char c : bar) EXPECT_GT(c, 0) << bar;
}

TEST(LiveLinesTest, WidthCountsVisibleCharacters) {
  EXPECT_EQ(WidthOf("\x1b[32m██\x1b[0m ab"), 5);
  EXPECT_EQ(CutToWidth("██ab", 3), "██a");
}

TEST(LiveLinesTest, CountsProcessesBeyondTheLimit) {
  JobSummary view;
  for (uint32_t i = 0; i < 100; ++i) view.processes[{v1::WORKER, i}] = Running();
  const std::vector<std::string> lines = LiveLines(view, 80, false);
  EXPECT_LT(lines.size(), 20u);
  EXPECT_EQ(lines.back(), "  and 88 more");
}

TEST(CutToWidthTest, KeepsEscapeSequencesAndIgnoresTheirWidth) {
  EXPECT_EQ(CutToWidth("\x1b[1mabcdef\x1b[0m", 3), "\x1b[1mabc\x1b[0m");
  EXPECT_EQ(CutToWidth("█░█░", 2), "█░");
  EXPECT_EQ(CutToWidth("abc", 3), "abc");
  EXPECT_EQ(CutToWidth("\x1b[1", 3), "\x1b[1");
}

TEST(SummaryTest, TrainedJobShowsItsMetricAndExportCommand) {
  SummaryFacts facts;
  facts.name = "demo";
  facts.logs = ".sluice/demo/logs";
  facts.export_command = "sluice export demo -o demo.safetensors";
  facts.elapsed = absl::Seconds(97);
  facts.training_time = absl::Seconds(60);
  facts.samples = 120000;
  facts.result.has_progress = true;
  facts.result.restarts = 1;
  facts.result.outcome.kind = policy::OutcomeKind::kSucceeded;
  v1::JobProgress& progress = facts.result.progress;
  progress = Training();
  progress.set_step(1876);
  progress.set_epoch(2);
  progress.mutable_last_evaluation()->set_has_accuracy(true);
  progress.mutable_last_evaluation()->set_accuracy(98.61);
  progress.set_compute_seconds(3);
  progress.set_wait_seconds(1);
  progress.mutable_checkpoint()->mutable_last()->set_step(1876);
  progress.mutable_checkpoint()->set_directory("directory");
  const std::vector<std::string> lines = SummaryLines(facts);
  EXPECT_EQ(lines[0], "Trained demo: accuracy 98.61 % after 1,876 steps (2.00 epochs)");
  EXPECT_THAT(lines, Contains(HasSubstr("1m 37s")));
  EXPECT_THAT(lines, Contains(HasSubstr("75 % compute")));
  EXPECT_THAT(lines, Contains("  samples/s    2,000"));
  EXPECT_THAT(lines, Contains("  model        sluice export demo -o demo.safetensors"));
  facts.result.outcome.kind = policy::OutcomeKind::kSuspended;
  progress.set_step(900);
  EXPECT_EQ(SummaryLines(facts)[0], "Stopped demo at step 900 of 1,876 (2.00 epochs)");
}

}  // namespace
}  // namespace sluice::cli

#include "services/coordinator/core/facts/progress.h"

#include <iterator>
#include <limits>

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

v1::WorkerProgress StepOf(uint64_t samples, double loss, double seconds) {
  v1::WorkerProgress progress;
  progress.add_steps()->set_samples(samples);
  progress.mutable_steps(0)->set_loss_sum(loss * static_cast<double>(samples));
  progress.set_compute_seconds(seconds);
  progress.set_wait_seconds(0.25);
  return progress;
}

TEST(EventLog, NumbersEventsAndKeepsNewestThousand) {
  EventLog log;
  for (int i = 0; i < 1500; ++i) log.Add(v1::Event::INFO, "event", kStart);
  v1::JobProgress progress;
  log.CopyTo(0, &progress);
  ASSERT_EQ(progress.events_size(), 1000);
  EXPECT_EQ(progress.events(0).sequence(), 501);
  progress.Clear();
  log.CopyTo(1498, &progress);
  EXPECT_EQ(progress.events_size(), 2);
  EXPECT_DOUBLE_EQ(progress.events(0).time(), 1'000'000);
}

v1::WorkerProgress StepNumbered(uint64_t step, double loss) {
  v1::WorkerProgress progress = StepOf(32, loss, 1);
  progress.mutable_steps(0)->set_step(step);
  return progress;
}

TEST(BatchLosses, KeepsFirstAndEveryFifthBatchOfEachWorker) {
  BatchLosses losses;
  for (uint64_t clock = 1; clock <= 12; ++clock) {
    losses.OnWorkerProgress(3, /*synchronous=*/false,
                            StepNumbered(clock, static_cast<double>(clock)));
  }
  v1::JobProgress progress;
  losses.CopyTo(0, &progress);
  ASSERT_EQ(progress.losses_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(progress.losses(i).sequence(), static_cast<uint64_t>(i + 1));
    EXPECT_EQ(progress.losses(i).worker(), 3u);
    EXPECT_EQ(progress.losses(i).batch(), static_cast<uint64_t>(5 * i));
    EXPECT_DOUBLE_EQ(progress.losses(i).loss(), 5.0 * i + 1);
  }
}

TEST(BatchLosses, CountsBatchesOfWorkerWithRaisedClock) {
  BatchLosses losses;
  for (const uint64_t clock : {1, 2, 9, 10, 11, 12}) {
    losses.OnWorkerProgress(3, /*synchronous=*/false, StepNumbered(clock, 1));
    losses.OnWorkerProgress(4, /*synchronous=*/false, StepNumbered(clock, 1));
  }
  v1::JobProgress progress;
  losses.CopyTo(0, &progress);
  ASSERT_EQ(progress.losses_size(), 4) << "each worker's first and sixth";
  EXPECT_EQ(progress.losses(0).batch(), 0u);
  EXPECT_EQ(progress.losses(3).batch(), 5u);
}

TEST(BatchLosses, NumbersSynchronousBatchByStep) {
  BatchLosses losses;
  losses.OnWorkerProgress(0, /*synchronous=*/true, StepNumbered(5, 2.5));
  losses.OnWorkerProgress(1, /*synchronous=*/true, StepNumbered(6, 2.5));
  v1::JobProgress progress;
  losses.CopyTo(0, &progress);
  ASSERT_EQ(progress.losses_size(), 1);
  EXPECT_EQ(progress.losses(0).batch(), 5u);
}

TEST(BatchLosses, KeepsNewestThousandAndReportsNewerOnes) {
  BatchLosses losses;
  for (uint64_t step = 0; step < 5 * 1500; step += 5) {
    losses.OnWorkerProgress(0, /*synchronous=*/true, StepNumbered(step, 1));
  }
  v1::JobProgress progress;
  losses.CopyTo(0, &progress);
  ASSERT_EQ(progress.losses_size(), 1000);
  EXPECT_EQ(progress.losses(0).sequence(), 501u);
  progress.Clear();
  losses.CopyTo(1499, &progress);
  EXPECT_EQ(progress.losses_size(), 1);
}

TEST(TrainingMeter, LossIsMeanOverLastSamples) {
  TrainingMeter meter(100);
  EXPECT_FALSE(meter.has_loss());
  meter.OnWorkerProgress(1, StepOf(50, 8.0, 1));
  meter.OnWorkerProgress(2, StepOf(50, 2.0, 1));
  EXPECT_DOUBLE_EQ(meter.loss(), 5.0);
  meter.OnWorkerProgress(1, StepOf(50, 4.0, 1));
  EXPECT_DOUBLE_EQ(meter.loss(), 3.0) << "the first is forgotten";
}

TEST(TrainingMeter, IgnoresLossThatIsNotFinite) {
  TrainingMeter meter(100);
  meter.OnWorkerProgress(1, StepOf(50, std::numeric_limits<double>::infinity(), 1));
  meter.OnWorkerProgress(1, StepOf(50, 2.0, 1));
  EXPECT_DOUBLE_EQ(meter.loss(), 2.0);
}

v1::WorkerProgress WeightedStep(uint64_t samples, double loss, double weight) {
  v1::WorkerProgress progress = StepOf(samples, loss, 1);
  progress.mutable_steps(0)->set_weight(weight);
  return progress;
}

TEST(TrainingMeter, LossIsWeighedByTheWeightsOfReports) {
  TrainingMeter meter(100);
  meter.OnWorkerProgress(1, WeightedStep(10, 4.0, 0.5));
  meter.OnWorkerProgress(2, WeightedStep(30, 1.0, 1.5));
  EXPECT_DOUBLE_EQ(meter.loss(), 1.75);
  meter.OnWorkerProgress(2, StepOf(2, 4.0, 1));
  EXPECT_DOUBLE_EQ(meter.loss(), (3.5 + 8) / 4) << "without a weight, the samples count";
}

TEST(TrainingMeter, LossIsTheSameForEveryNumberOfWorkers) {
  constexpr double kLosses[] = {4, 1, 0.5, 8, 2, 16};
  constexpr double kWeights[] = {0.25, 2, 0, 1, 4, 0.75};
  for (const size_t workers : {1, 2, 3}) {
    TrainingMeter meter(1000);
    for (size_t worker = 0; worker < workers; ++worker) {
      double sum = 0;
      double weight = 0;
      const size_t share = std::size(kLosses) / workers;
      for (size_t i = worker * share; i < (worker + 1) * share; ++i) {
        sum += kLosses[i] * kWeights[i];
        weight += kWeights[i];
      }
      meter.OnWorkerProgress(worker, WeightedStep(share, sum / weight, weight));
    }
    EXPECT_DOUBLE_EQ(meter.loss(), 31.0 / 8) << workers;
  }
}

TEST(TrainingMeter, ReportWithoutWeightHasNoLoss) {
  TrainingMeter meter(100);
  BatchLosses losses;
  for (int step = 0; step < 2; ++step) {
    const v1::WorkerProgress report = WeightedStep(10, 4.0, step);
    meter.OnWorkerProgress(1, report);
    losses.OnWorkerProgress(1, /*synchronous=*/true, report);
    EXPECT_EQ(meter.has_loss(), step == 1);
    v1::JobProgress progress;
    losses.CopyTo(0, &progress);
    EXPECT_EQ(progress.losses_size(), step);
  }
  EXPECT_DOUBLE_EQ(meter.loss(), 4);
}

TEST(TrainingMeter, WorkerSpeedIsSamplesPerSecondOfWorkNotOfWaiting) {
  TrainingMeter meter(100);
  EXPECT_EQ(meter.SpeedOf(1), 0);
  meter.OnWorkerProgress(1, StepOf(50, 1, 0.5));
  EXPECT_DOUBLE_EQ(meter.SpeedOf(1), 100);
  for (int i = 0; i < 50; ++i) meter.OnWorkerProgress(1, StepOf(50, 1, 0.25));
  EXPECT_NEAR(meter.SpeedOf(1), 200, 2) << "it follows the change";
  meter.Forget(1);
  EXPECT_EQ(meter.SpeedOf(1), 0);
}

TEST(TrainingMeter, JobSpeedIsThatOfLastSeconds) {
  TrainingMeter meter(100);
  for (int i = 0; i <= 100; ++i) {
    meter.OnSamples(static_cast<uint64_t>(i) * (i < 50 ? 100 : 200), kStart + absl::Seconds(i));
  }
  EXPECT_NEAR(meter.SamplesPerSecond(kStart + absl::Seconds(100)), 200, 1);
  EXPECT_LT(meter.SamplesPerSecond(kStart + absl::Seconds(400)), 25) << "and falls when it stops";
}

TEST(TrainingMeter, SpeedStartsOverAfterRestoration) {
  TrainingMeter meter(100);
  meter.OnSamples(1000, kStart);
  meter.OnSamples(2000, kStart + absl::Seconds(1));
  meter.OnSamples(500, kStart + absl::Seconds(2));
  meter.OnSamples(600, kStart + absl::Seconds(3));
  EXPECT_DOUBLE_EQ(meter.SamplesPerSecond(kStart + absl::Seconds(3)), 100);
}

TEST(TrainingMeter, TrainingTimeIsFromFirstViewToNewestStep) {
  TrainingMeter meter(100);
  EXPECT_EQ(meter.TrainingTime(), absl::ZeroDuration());
  meter.OnSamples(0, kStart);
  meter.OnSamples(0, kStart + absl::Seconds(1));
  EXPECT_EQ(meter.TrainingTime(), absl::ZeroDuration());
  meter.OnSamples(100, kStart + absl::Seconds(2));
  meter.OnSamples(50, kStart + absl::Seconds(60));
  meter.OnSamples(100, kStart + absl::Seconds(90));
  meter.OnSamples(100, kStart + absl::Seconds(95));
  EXPECT_EQ(meter.TrainingTime(), absl::Seconds(90));
  v1::JobProgress progress;
  meter.CopyTo(&progress);
  EXPECT_EQ(progress.training_seconds(), 90);
}

TEST(TrainingMeter, SumsTimesByActivity) {
  TrainingMeter meter(100);
  meter.OnWorkerProgress(1, StepOf(50, 1, 0.5));
  meter.OnWorkerProgress(2, StepOf(50, 1, 0.5));
  v1::JobProgress progress;
  meter.CopyTo(&progress);
  EXPECT_DOUBLE_EQ(progress.compute_seconds(), 1.0);
  EXPECT_DOUBLE_EQ(progress.wait_seconds(), 0.5);
}

TEST(TrainingMeter, SumsPushedBytes) {
  TrainingMeter meter(100);
  v1::WorkerProgress pushed;
  pushed.set_pushed_bytes(10);
  pushed.set_gradient_bytes(400);
  pushed.set_pulled_bytes(30);
  pushed.set_parameter_bytes(600);
  meter.OnWorkerProgress(1, pushed);
  meter.OnWorkerProgress(2, pushed);
  v1::JobProgress progress;
  meter.CopyTo(&progress);
  EXPECT_EQ(progress.pushed_bytes(), 20);
  EXPECT_EQ(progress.gradient_bytes(), 800);
  EXPECT_EQ(progress.pulled_bytes(), 60);
  EXPECT_EQ(progress.parameter_bytes(), 1200);
  EXPECT_FALSE(progress.has_staleness());
}

TEST(TrainingMeter, ReportsQuantilesOfStaleness) {
  TrainingMeter meter(100);
  for (uint64_t staleness = 0; staleness < 100; ++staleness) {
    v1::WorkerProgress update = StepOf(1, 1, 1);
    update.mutable_steps(0)->set_staleness(staleness == 99 ? 1'000'000'000'000 : staleness / 10);
    meter.OnWorkerProgress(staleness % 3, update);
  }
  v1::JobProgress progress;
  meter.CopyTo(&progress);
  EXPECT_EQ(progress.staleness().updates(), 100);
  EXPECT_EQ(progress.staleness().median(), 4);
  EXPECT_EQ(progress.staleness().percentile_95(), 9);
  EXPECT_EQ(progress.staleness().largest(), 1'000'000'000'000);
  // 10 updates each of staleness 0 to 8, 9 of staleness 9, and the single one.
  EXPECT_DOUBLE_EQ(progress.staleness().mean(), (360 + 81 + 1e12) / 100);
}

}  // namespace
}  // namespace sluice::coordinator

// All-reduce with real workers: the workers sum their gradients themselves, and the result is the
// same as when the shards add, to the last sample, whichever worker dies on the way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/exit_code.h"
#include "tests/testing/counting_engine.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Lt;
using ::testing::Pointwise;

// Several blocks, so that each worker sums some of them.
constexpr uint64_t kSamples = 120000;

v1::JobSpec AllReduceJob(const std::string& directory, uint32_t workers, uint64_t steps_per_epoch) {
  v1::JobSpec job = CountingJob(directory, kSamples, /*epochs=*/1);
  job.mutable_training()->set_global_batch_size(kSamples / steps_per_epoch);
  job.mutable_training()->set_microbatch_size(kSamples / steps_per_epoch / 8);
  job.mutable_training()->mutable_dense()->set_aggregation(v1::TrainingSpec::Dense::ALL_REDUCE);
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_worker()->set_replicas(workers);
  job.mutable_timeouts()->set_heartbeat(0.2);
  job.mutable_timeouts()->set_suspect(0.3);
  job.mutable_timeouts()->set_heartbeat_timeout(2);
  return job;
}

class AllReduceTest : public ::testing::Test {
 protected:
  void Start(const v1::JobSpec& job, const std::string& directory) {
    processes_ = std::make_unique<JobProcesses>(JobProcesses::Options{
        .job = job, .directory = directory, .worker_program = "tests/testing/counting_worker"});
    const absl::Status status = processes_->StartAll();
    ASSERT_TRUE(status.ok()) << status;
  }
  // The number of the last step; 0 if the job does not answer.
  uint64_t Step() {
    const auto progress =
        processes_->WaitFor([](const v1::JobProgress&) { return true; }, absl::Seconds(60));
    EXPECT_TRUE(progress.ok()) << progress.status();
    return progress.ok() ? progress->step() : 0;
  }
  void WaitForStep(uint64_t step) {
    const auto progress = processes_->WaitFor(
        [&](const v1::JobProgress& p) {
          return p.phase() > v1::JobProgress::TRAINING || p.step() >= step;
        },
        absl::Seconds(120));
    ASSERT_TRUE(progress.ok()) << progress.status();
    ASSERT_LE(progress->phase(), v1::JobProgress::TRAINING) << "trained too fast for this test";
  }
  // Starts each expelled worker again until the job has ended, then checks the counts.
  v1::JobProgress FinishAndCheck() {
    v1::JobProgress last;
    const absl::Time deadline = absl::Now() + absl::Seconds(200);
    while (processes_->Lives("coordinator") && absl::Now() < deadline) {
      if (const auto progress = processes_->Progress(); progress.ok()) last = *progress;
      for (uint32_t i = 0; i < processes_->job().worker().replicas(); ++i) {
        if (processes_->ExitCode(absl::StrCat("worker-", i)) != kExitExpelled) continue;
        const absl::Status status = processes_->StartWorker(i);
        EXPECT_TRUE(status.ok()) << status;
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    const auto code = processes_->WaitForExit("coordinator", absl::Seconds(5));
    EXPECT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(code.value_or(-1), 0) << Contents(processes_->LogFile("coordinator"));
    const auto counts = FinalTensor(processes_->checkpoints(), "counts");
    EXPECT_TRUE(counts.ok()) << counts.status();
    EXPECT_THAT(counts.value_or(std::vector<double>()), Each(1.0));
    return last;
  }

  std::unique_ptr<JobProcesses> processes_;
};

TEST_F(AllReduceTest, CountsEachSampleOnceWithOneTwoOrThreeWorkers) {
  for (const uint32_t workers : {1, 2, 3}) {
    const std::string directory = NewDirectory(absl::StrCat("w", workers));
    v1::JobSpec job = AllReduceJob(directory, workers, 20);
    // No worker is expelled because the machine is busy, so the groups are never renewed.
    job.mutable_timeouts()->set_suspect(60);
    job.mutable_timeouts()->set_heartbeat_timeout(60);
    ASSERT_NO_FATAL_FAILURE(Start(job, directory));
    const v1::JobProgress progress = FinishAndCheck();
    // Each step pushes the gradient once, not once per worker.
    EXPECT_GT(progress.pushed_bytes(), 0u);
    EXPECT_LE(progress.pushed_bytes(), 20 * kSamples * sizeof(double)) << workers;
    const std::string log = Contents(processes_->LogFile("worker-0"));
    EXPECT_EQ(log.find("could not be summed"), std::string::npos) << log;
  }
}

TEST_F(AllReduceTest, LosesNoSampleWhenWorkerIsKilled) {
  const std::string directory = NewDirectory("killed");
  ASSERT_NO_FATAL_FAILURE(Start(AllReduceJob(directory, 3, 300), directory));
  ASSERT_NO_FATAL_FAILURE(WaitForStep(10));
  // The first death is reported to the coordinator; it detects the second itself.
  for (const bool report : {true, false}) {
    const uint64_t step = Step();
    ASSERT_TRUE(processes_->Kill("worker-1", report).ok());
    ASSERT_TRUE(processes_->StartWorker(1).ok());
    ASSERT_NO_FATAL_FAILURE(WaitForStep(step + 10));
  }
  FinishAndCheck();
}

TEST_F(AllReduceTest, ContinuesWithoutFrozenWorker) {
  const std::string directory = NewDirectory("frozen");
  ASSERT_NO_FATAL_FAILURE(Start(AllReduceJob(directory, 3, 300), directory));
  ASSERT_NO_FATAL_FAILURE(WaitForStep(10));
  processes_->Signal("worker-2", SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(WaitForStep(Step() + 20));
  processes_->Signal("worker-2", SIGCONT);
  FinishAndCheck();
}

TEST_F(AllReduceTest, NewWorkerTakesPart) {
  const std::string directory = NewDirectory("joins");
  v1::JobSpec job = AllReduceJob(directory, 2, 300);
  ASSERT_NO_FATAL_FAILURE(Start(job, directory));
  ASSERT_NO_FATAL_FAILURE(WaitForStep(10));
  v1::SetDesiredRequest desired;
  desired.set_workers(3);
  desired.set_shards(2);
  ASSERT_TRUE(processes_->SetDesired(desired).ok());
  // The other workers reach it at the address that it advertises.
  ASSERT_TRUE(processes_->StartWorker(2, {"--advertise", "127.0.0.2"}).ok());
  const auto three = processes_->WaitFor(
      [](const v1::JobProgress& p) { return p.view().workers_size() == 3; }, absl::Seconds(60));
  ASSERT_TRUE(three.ok()) << three.status();
  FinishAndCheck();
  EXPECT_NE(Contents(processes_->LogFile("worker-2")).find("View installed"), std::string::npos);
}

// The values of all final parameters; empty if the job failed.
std::vector<double> FinalParameters(const v1::JobSpec& job, const std::string& directory) {
  JobProcesses processes({.job = job, .directory = directory});
  const absl::Status status = processes.StartAll();
  EXPECT_TRUE(status.ok()) << status;
  const auto code = processes.WaitForExit("coordinator", absl::Seconds(120));
  EXPECT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(code.value_or(-1), 0) << Contents(processes.LogFile("coordinator"));
  const auto manifest = FinalCheckpointIndex(processes.checkpoints());
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  std::vector<double> all;
  if (!manifest.ok()) return all;
  for (const v1::TensorSpec& tensor : manifest->table().tensors()) {
    const auto values = FinalTensor(processes.checkpoints(), tensor.name());
    EXPECT_TRUE(values.ok()) << values.status();
    if (values.ok()) all.insert(all.end(), values->begin(), values->end());
  }
  return all;
}

// Trains with three workers and two shards, once with the shards adding and once with all-reduce:
// only the order of additions may differ. Returns the parameters of the all-reduce run.
std::vector<double> ExpectTheSameAsWithTheShardsAdding(v1::JobSpec job, double difference,
                                                       const std::string& directory) {
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_worker()->set_replicas(3);
  const std::vector<double> pushed = FinalParameters(job, NewDirectory(directory + "-pushed"));
  job.mutable_training()->mutable_dense()->set_aggregation(v1::TrainingSpec::Dense::ALL_REDUCE);
  const std::vector<double> reduced = FinalParameters(job, NewDirectory(directory + "-reduced"));
  EXPECT_FALSE(pushed.empty());
  EXPECT_THAT(reduced, Pointwise(DoubleNear(difference), pushed));
  return reduced;
}

// A real model with several tensors.
TEST_F(AllReduceTest, MatchesShardAggregationWithClipping) {
  v1::JobSpec job = LinearJob(/*steps=*/30, /*delay=*/0);
  job.mutable_model()->set_dtype(v1::FLOAT64);
  job.mutable_optimizer()->set_clip_norm(0.5);
  ExpectTheSameAsWithTheShardsAdding(job, 1e-12, "model");
}

// One of 240 samples gives a non-finite gradient, in one step of one worker.
TEST_F(AllReduceTest, AllWorkersSkipNonFiniteStep) {
  const std::string directory = NewDirectory("not-finite");
  std::ofstream rows(directory + "/train.csv");
  rows << "a,b,y\n";
  for (int i = 0; i < 240; ++i) {
    if (i == 100) {
      rows << "3e38,1,3e38\n";  // its square overflows float32
    } else {
      rows << i % 7 << "," << i % 5 << "," << i % 3 << "\n";
    }
  }
  rows.close();

  v1::JobSpec job = LinearJob(/*steps=*/20, /*delay=*/0);
  v1::DataSpec& data = *job.mutable_data();
  data.Clear();
  data.set_format(v1::DataSpec::CSV);
  data.mutable_source()->set_path(directory + "/train.csv");
  data.mutable_csv()->set_label_column("y");
  data.mutable_csv()->set_regression(true);
  job.mutable_optimizer()->set_learning_rate(0.01);
  job.mutable_training()->set_global_batch_size(12);
  job.mutable_training()->set_microbatch_size(4);
  job.mutable_training()->set_non_finite(v1::TrainingSpec::SKIP);

  // The bad gradient is not in the parameters.
  EXPECT_THAT(ExpectTheSameAsWithTheShardsAdding(job, 1e-5, "skipped"), Each(Lt(10)));
}

}  // namespace
}  // namespace sluice::testing

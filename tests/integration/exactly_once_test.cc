// Kills and freezes real processes at random while a job counts its samples; at the end every
// sample has been applied exactly once per epoch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <random>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/exit_code.h"
#include "tests/testing/counting_engine.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::Each;

constexpr uint64_t kSamples = 6000;
constexpr uint64_t kEpochs = 2;

v1::JobSpec HurtJob(const std::string& directory) {
  v1::JobSpec job = CountingJob(directory, kSamples, kEpochs);
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_worker()->set_replicas(3);
  job.mutable_timeouts()->set_heartbeat(0.2);
  job.mutable_timeouts()->set_suspect(0.3);
  job.mutable_timeouts()->set_heartbeat_timeout(1);
  return job;
}

class ExactlyOnceTest : public ::testing::Test {
 protected:
  void Start(const v1::JobSpec& job, const std::string& directory) {
    processes_ = std::make_unique<JobProcesses>(JobProcesses::Options{
        .job = job, .directory = directory, .worker_program = "tests/testing/counting_worker"});
    const absl::Status status = processes_->StartAll();
    ASSERT_TRUE(status.ok()) << status;
    WaitForStep(5);
  }

  // `step`: steps, or updates, of the current attempt.
  void WaitForStep(uint64_t step) {
    WaitFor([&](const v1::JobProgress& p) {
      return p.phase() > v1::JobProgress::TRAINING ||
             (p.phase() == v1::JobProgress::TRAINING && p.step() >= step);
    });
  }

  void WaitForCheckpoint(uint64_t step) {
    WaitFor([&](const v1::JobProgress& p) { return p.checkpoint().last().step() >= step; });
    ASSERT_LE(last_.phase(), v1::JobProgress::TRAINING) << "trained too fast for this test";
  }

  // Waits for a restoration after `attempt`. It may be a later attempt than the next one: on a busy
  // machine a process that sends nothing for a second is expelled.
  void WaitForRestoration(uint64_t attempt) {
    WaitFor([&](const v1::JobProgress& p) {
      return p.attempt() > attempt && p.phase() >= v1::JobProgress::TRAINING && p.restored();
    });
  }

  // Sets `last_` to the progress that met the condition.
  void WaitFor(absl::FunctionRef<bool(const v1::JobProgress&)> condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    absl::StatusOr<v1::JobProgress> progress;
    do {
      ASSERT_NO_FATAL_FAILURE(RestartWhatWouldBe());
      progress = processes_->Progress();
      if (progress.ok() && condition(*progress)) {
        last_ = *progress;
        return;
      }
      absl::SleepFor(absl::Milliseconds(10));
    } while (absl::Now() < deadline);
    FAIL() << (progress.ok() ? progress->ShortDebugString() : progress.status().ToString());
  }

  bool Over() {
    const auto progress = processes_->Progress();
    return !processes_->Lives("coordinator") ||
           (progress.ok() && progress->phase() > v1::JobProgress::TRAINING);
  }

  // Restarts processes as a process manager would, except those that the test itself has killed.
  void RestartWhatWouldBe() {
    if (processes_->ExitCode("coordinator") == kExitRetry) {
      const absl::Status status = processes_->StartCoordinator();
      ASSERT_TRUE(status.ok()) << status;
    }
    for (uint32_t i = 0; i < processes_->job().parameter_server().replicas(); ++i) {
      const std::optional<int> code = processes_->ExitCode(absl::StrCat("ps-", i));
      if (code != kExitExpelled && code != kExitRetry) continue;
      const absl::Status status = processes_->StartShard(i);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void RestartDeadWorkers() {
    for (uint32_t i = 0; i < processes_->job().worker().replicas(); ++i) {
      if (processes_->Lives(absl::StrCat("worker-", i))) continue;
      const absl::Status status = processes_->StartWorker(i);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  // Kills (reported to the coordinator or not) or freezes random workers, `faults` times or until
  // the job no longer trains. Returns the number of faults.
  int HurtWorkers(int faults, uint32_t seed) {
    std::mt19937 random(seed);
    std::set<std::string> frozen;
    int done = 0;
    for (; done < faults && !Over(); ++done) {
      const std::string name =
          absl::StrCat("worker-", random() % processes_->job().worker().replicas());
      const uint32_t kind = random() % 4;
      if (frozen.count(name) != 0) {
        processes_->Signal(name, SIGCONT);
        frozen.erase(name);
      } else if (kind == 0) {
        processes_->Signal(name, SIGSTOP);
        frozen.insert(name);
      } else if (processes_->Lives(name)) {
        EXPECT_TRUE(processes_->Kill(name, /*report=*/kind != 1).ok());
      }
      RestartDeadWorkers();
      absl::SleepFor(absl::Milliseconds(random() % 200));
    }
    for (const std::string& name : frozen) processes_->Signal(name, SIGCONT);
    return done;
  }

  // Keeps restarting workers until the job has ended.
  void FinishAndCheck(uint64_t epochs = kEpochs) {
    const absl::Time deadline = absl::Now() + absl::Seconds(150);
    while (absl::Now() < deadline) {
      ASSERT_NO_FATAL_FAILURE(RestartWhatWouldBe());
      if (!processes_->Lives("coordinator")) break;
      if (!Over()) RestartDeadWorkers();
      absl::SleepFor(absl::Milliseconds(50));
    }
    const auto code = processes_->WaitForExit("coordinator", absl::Seconds(5));
    ASSERT_TRUE(code.ok()) << code.status();
    ASSERT_EQ(*code, 0) << Contents(processes_->LogFile("coordinator"));
    const auto counts = FinalTensor(processes_->checkpoints(), "counts");
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_THAT(*counts, Each(static_cast<double>(epochs)));
  }

  std::unique_ptr<JobProcesses> processes_;
  v1::JobProgress last_;
};

TEST_F(ExactlyOnceTest, SynchronousJobCountsEachSampleOncePerEpochWhileWorkersDie) {
  const std::string directory = NewDirectory("synchronous");
  Start(HurtJob(directory), directory);
  EXPECT_GT(HurtWorkers(12, 1), 3);
  FinishAndCheck();
}

TEST_F(ExactlyOnceTest, AsynchronousJobCountsEachSampleOncePerEpochThroughFiftyFaults) {
  const std::string directory = NewDirectory("asynchronous");
  v1::JobSpec job = HurtJob(directory);
  job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  job.mutable_training()->set_global_batch_size(5);
  // Long enough for fifty faults.
  constexpr uint64_t kManyEpochs = 3 * kEpochs;
  job.mutable_training()->set_epochs(kManyEpochs);
  Start(job, directory);
  EXPECT_EQ(HurtWorkers(50, 2), 50);
  FinishAndCheck(kManyEpochs);
}

TEST_F(ExactlyOnceTest, BoundedStalenessJobCountsEachSampleOncePerEpochWhileWorkersDie) {
  const std::string directory = NewDirectory("bounded");
  v1::JobSpec job = HurtJob(directory);
  job.mutable_training()->set_mode(v1::BOUNDED_STALENESS);
  job.mutable_training()->set_max_staleness(2);
  job.mutable_training()->set_global_batch_size(10);
  Start(job, directory);
  EXPECT_GT(HurtWorkers(12, 3), 3);
  FinishAndCheck();
}

TEST_F(ExactlyOnceTest, KilledShardRollsBackToNewestCheckpointAndLosesNoSample) {
  const std::string directory = NewDirectory("shard");
  v1::JobSpec job = HurtJob(directory);
  job.mutable_checkpoint()->set_interval_steps(20);
  Start(job, directory);
  ASSERT_NO_FATAL_FAILURE(WaitForCheckpoint(20));
  // Shard 1 holds no parameters, and is lost without consequences.
  ASSERT_TRUE(processes_->Kill("ps-0", /*report=*/true).ok());
  ASSERT_TRUE(processes_->StartShard(0).ok());
  ASSERT_NO_FATAL_FAILURE(WaitForRestoration(last_.attempt()));
  EXPECT_GE(last_.restored_from_step(), 20u);
  FinishAndCheck();
}

// All parameters are in one partition, so one shard owns everything, and another one has the copy.
TEST_F(ExactlyOnceTest, KilledShardsCostNoUpdateOfAsynchronousJobsWithCopies) {
  for (const v1::Mode mode : {v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS}) {
    const std::string directory = NewDirectory(absl::StrCat("copies", static_cast<int>(mode)));
    v1::JobSpec job = HurtJob(directory);
    job.mutable_training()->set_mode(mode);
    job.mutable_training()->set_max_staleness(2);
    job.mutable_training()->set_global_batch_size(5);
    constexpr uint64_t kManyEpochs = 3 * kEpochs;
    job.mutable_training()->set_epochs(kManyEpochs);
    job.mutable_debug()->set_step_delay_seconds(0.005);
    job.mutable_parameter_server()->set_replicas(3);
    job.mutable_parameter_server()->set_copies(2);
    Start(job, directory);
    int owners = 0;
    for (int killed = 0; killed < 6; ++killed) {
      ASSERT_NO_FATAL_FAILURE(WaitFor([&](const v1::JobProgress& progress) {
        return (progress.copies() > 0 && progress.missing_copies() == 0) ||
               progress.phase() > v1::JobProgress::TRAINING;
      }));
      ASSERT_EQ(last_.phase(), v1::JobProgress::TRAINING) << "trained too fast for this test";
      const uint32_t index = static_cast<uint32_t>(killed) % 3;
      const uint64_t view = last_.view().id().number();
      for (const v1::ProcessStatus& process : last_.processes()) {
        const v1::ProcessId& id = process.process();
        const bool owns = process.partitions() > 0;
        owners += id.role() == v1::SHARD && id.index() == index && owns ? 1 : 0;
      }
      ASSERT_TRUE(processes_->Kill(absl::StrCat("ps-", index), /*report=*/true).ok());
      ASSERT_TRUE(processes_->StartShard(index).ok());
      ASSERT_NO_FATAL_FAILURE(WaitFor([&](const v1::JobProgress& progress) {
        return progress.view().id().number() > view && progress.view().shards_size() == 3;
      }));
      EXPECT_EQ(last_.attempt(), 1u);
      EXPECT_FALSE(last_.restored());
    }
    EXPECT_GT(owners, 0) << "a shard with parameters was killed";
    FinishAndCheck(kManyEpochs);
  }
}

TEST_F(ExactlyOnceTest, KilledCoordinatorsCostNoSampleAndNoAttempt) {
  const std::string directory = NewDirectory("coordinator");
  v1::JobSpec job = HurtJob(directory);
  job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  job.mutable_training()->set_global_batch_size(5);
  job.mutable_checkpoint()->set_interval_steps(100);
  Start(job, directory);
  ASSERT_NO_FATAL_FAILURE(WaitForCheckpoint(100));
  for (int killed = 0; killed < 2; ++killed) {
    const uint64_t term = last_.view().id().term().counter();
    ASSERT_TRUE(processes_->Kill("coordinator", /*report=*/false).ok());
    ASSERT_TRUE(processes_->StartCoordinator().ok());
    ASSERT_NO_FATAL_FAILURE(WaitFor([&](const v1::JobProgress& progress) {
      return progress.view().id().term().counter() > term;
    }));
    EXPECT_EQ(last_.attempt(), 1u);
    EXPECT_FALSE(last_.restored());
  }
  FinishAndCheck();
}

TEST_F(ExactlyOnceTest, ChangingModeCountsEachSampleOncePerEpoch) {
  const std::string directory = NewDirectory("modes");
  v1::JobSpec job = HurtJob(directory);
  job.mutable_training()->set_global_batch_size(20);
  job.mutable_training()->set_max_staleness(2);
  job.mutable_debug()->set_step_delay_seconds(0.02);

  uint64_t samples = 0;
  for (const v1::Mode mode : {v1::ASYNCHRONOUS, v1::SYNCHRONOUS, v1::BOUNDED_STALENESS,
                              v1::SYNCHRONOUS, v1::ASYNCHRONOUS}) {
    job.mutable_training()->set_mode(mode);
    Start(job, directory);
    WaitFor([&](const v1::JobProgress& p) { return p.samples() >= samples + 300; });
    // The samples that it was training stay unfinished.
    ASSERT_TRUE(processes_->Kill("worker-1", /*report=*/true).ok());
    ASSERT_TRUE(processes_->Suspend().ok());
    const auto code = processes_->WaitForExit("coordinator", absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << code.status();
    ASSERT_EQ(*code, kExitOk) << Contents(processes_->LogFile("coordinator"));

    const auto manifest = FinalCheckpointIndex(processes_->checkpoints());
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    samples = manifest->samples();
    ASSERT_LT(samples, kSamples * kEpochs);
  }

  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  job.mutable_debug()->set_step_delay_seconds(0);
  Start(job, directory);
  FinishAndCheck();
}

}  // namespace
}  // namespace sluice::testing

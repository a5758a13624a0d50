// Coordinator, shards and workers as threads of one process, so that the sanitizers see all of it
// (exactly_once_test runs the programs): jobs whose members join, leave and vanish count each
// sample exactly once per epoch.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/transport/grpc_settings.h"
#include "tests/testing/counting_engine.h"
#include "tests/testing/final_state.h"
#include "tests/testing/in_process_job.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::Each;

constexpr uint64_t kSamples = 1200;
// For jobs in which something that takes seconds on a busy machine has to happen during training.
constexpr uint64_t kManySamples = 4000;
constexpr uint64_t kEpochs = 2;
// A timeout for the job's end that suffices for the slowest sanitizer on a busy machine.
constexpr absl::Duration kLong = absl::Seconds(120);

v1::JobSpec Job(const std::string& directory, v1::Mode mode, uint64_t samples = kSamples) {
  v1::JobSpec job = CountingJob(directory, samples, kEpochs);
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_worker()->set_replicas(2);
  v1::TrainingSpec& training = *job.mutable_training();
  training.set_mode(mode);
  training.set_global_batch_size(10);
  if (mode == v1::BOUNDED_STALENESS) training.set_max_staleness(2);
  // The norm is never clipped, but the shards have to exchange it.
  if (mode == v1::SYNCHRONOUS) job.mutable_optimizer()->set_clip_norm(1e9);
  return job;
}

class InProcessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ConfigureGrpcProcess({}); }

  void Start(const v1::JobSpec& job, const std::string& directory) {
    job_ = std::make_unique<InProcessJob>(job, directory);
    const absl::Status status = job_->StartAll();
    ASSERT_TRUE(status.ok()) << status;
    WaitForStep(10);
  }

  void WaitForStep(uint64_t step) {
    const absl::Status status = job_->WaitForStep(step);
    ASSERT_TRUE(status.ok()) << status;
  }

  void WaitForCheckpoint(uint64_t step) {
    const auto saved = job_->WaitFor(
        [&](const v1::JobProgress& p) { return p.checkpoint().last().step() >= step; }, kLong);
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_LE(saved->phase(), v1::JobProgress::TRAINING) << "trained too fast for this test";
  }

  // Waits for attempt 2 or a later one: a busy machine may cause more restorations.
  void WaitForRestoration() {
    const auto restored = job_->WaitFor(
        [](const v1::JobProgress& p) {
          return p.attempt() >= 2 && p.phase() >= v1::JobProgress::TRAINING && p.restored();
        },
        kLong);
    ASSERT_TRUE(restored.ok()) << restored.status();
  }

  // A reader's call, which keeps a version pinned as long as this object exists.
  class Reader {
   public:
    Reader(v1::JobControl::StubInterface* control, uint64_t incarnation) {
      context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      v1::OpenSnapshotRequest request;
      request.set_hold_seconds(60);
      request.mutable_reader()->set_role(v1::READER);
      request.mutable_reader()->set_incarnation(incarnation);
      call_ = control->OpenSnapshot(&context_, request);
    }
    ~Reader() { context_.TryCancel(); }

    // Blocks until the version is pinned; returns the error if it is not.
    grpc::Status Wait(v1::Snapshot* snapshot) {
      return call_->Read(snapshot) ? grpc::Status::OK : call_->Finish();
    }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderInterface<v1::Snapshot>> call_;
  };

  std::unique_ptr<Reader> NewReader() {
    return std::make_unique<Reader>(&job_->control(), ++last_reader_);
  }

  void FinishAndCheck() {
    const absl::Status end = job_->WaitForEnd(coordinator::ExitReason::kSucceeded, kLong);
    ASSERT_TRUE(end.ok()) << end;
    const auto counts = FinalTensor(job_->checkpoints(), "counts");
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_THAT(*counts, Each(static_cast<double>(kEpochs)));
  }

  std::unique_ptr<InProcessJob> job_;
  uint64_t last_reader_ = 0;  // incarnation
};

class EveryModeTest : public InProcessTest, public ::testing::WithParamInterface<v1::Mode> {};

TEST_P(EveryModeTest, AppliesEachSampleOnceWhileWorkersLeaveVanishAndJoin) {
  const std::string directory = NewDirectory(v1::Mode_Name(GetParam()));
  Start(Job(directory, GetParam(), kManySamples), directory);
  const worker::WorkerProcess::Result left = job_->Leave(0);
  EXPECT_EQ(left.reason, ExitReason::kLeft) << left.message;
  job_->StartWorker(0);
  WaitForStep(40);
  job_->DropWorker(1);
  job_->StartWorker(1);
  FinishAndCheck();
}

INSTANTIATE_TEST_SUITE_P(
    , EveryModeTest, ::testing::Values(v1::SYNCHRONOUS, v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS),
    [](const ::testing::TestParamInfo<v1::Mode>& mode) { return v1::Mode_Name(mode.param); });

TEST_F(InProcessTest, LostShardRollsBackToCheckpoint) {
  const std::string directory = NewDirectory("shard");
  v1::JobSpec job = Job(directory, v1::SYNCHRONOUS);
  job.mutable_checkpoint()->set_interval_steps(10);
  Start(job, directory);
  ASSERT_NO_FATAL_FAILURE(WaitForCheckpoint(10));
  // Shard 1 holds no parameters, and is lost without consequences.
  job_->DropShard(0);
  ASSERT_TRUE(job_->StartShard(0).ok());
  WaitForRestoration();
  FinishAndCheck();
}

TEST_F(InProcessTest, LostShardBeforeFirstCheckpointStartsOver) {
  const std::string directory = NewDirectory("initialization");
  Start(Job(directory, v1::ASYNCHRONOUS), directory);
  job_->DropShard(1);
  ASSERT_TRUE(job_->StartShard(1).ok());
  FinishAndCheck();
}

TEST_F(InProcessTest, NewCoordinatorTakesOverAddressAndAttemptOfLostOne) {
  const std::string directory = NewDirectory("coordinator");
  v1::JobSpec job = Job(directory, v1::ASYNCHRONOUS);
  job.mutable_checkpoint()->set_interval_steps(20);
  Start(job, directory);
  ASSERT_NO_FATAL_FAILURE(WaitForCheckpoint(20));
  job_->DropCoordinator();
  const absl::Status started = job_->StartCoordinator();
  ASSERT_TRUE(started.ok()) << started;
  const auto taken_over = job_->WaitFor(
      [](const v1::JobProgress& p) { return p.view().id().term().counter() >= 2; }, kLong);
  ASSERT_TRUE(taken_over.ok()) << taken_over.status();
  EXPECT_EQ(taken_over->attempt(), 1u);
  FinishAndCheck();
}

TEST_F(InProcessTest, SuspendedJobResumesWithNewProcesses) {
  const std::string directory = NewDirectory("suspend");
  Start(Job(directory, v1::BOUNDED_STALENESS, kManySamples), directory);
  job_->Suspend();
  const absl::Status suspended = job_->WaitForEnd(coordinator::ExitReason::kSuspended, kLong);
  ASSERT_TRUE(suspended.ok()) << suspended;
  const absl::Status again = job_->StartAll();
  ASSERT_TRUE(again.ok()) << again;
  FinishAndCheck();
}

TEST_F(InProcessTest, PinsVersionForReaderWhileTrainingContinues) {
  const std::string directory = NewDirectory("snapshot");
  Start(Job(directory, v1::SYNCHRONOUS), directory);
  v1::Snapshot snapshot;
  std::unique_ptr<Reader> reader = NewReader();
  const grpc::Status opened = reader->Wait(&snapshot);
  ASSERT_TRUE(opened.ok()) << opened.error_message();
  EXPECT_GE(snapshot.version(), 10u);
  EXPECT_EQ(snapshot.view().shards_size(), 2);
  WaitForStep(snapshot.version() + 5);
  reader.reset();
  FinishAndCheck();
}

TEST_F(InProcessTest, ReleasesVersionOfDisconnectedReader) {
  const std::string directory = NewDirectory("gone");
  Start(Job(directory, v1::SYNCHRONOUS, kManySamples), directory);
  std::vector<std::unique_ptr<Reader>> readers;
  v1::Snapshot snapshot;
  for (int i = 0; i < 16; ++i) {
    readers.push_back(NewReader());
    const grpc::Status opened = readers.back()->Wait(&snapshot);
    ASSERT_TRUE(opened.ok()) << opened.error_message();
  }
  EXPECT_EQ(NewReader()->Wait(&snapshot).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  readers.clear();
  grpc::Status opened;
  for (const absl::Time deadline = absl::Now() + kLong; absl::Now() < deadline;) {
    opened = NewReader()->Wait(&snapshot);
    if (opened.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) break;
  }
  EXPECT_TRUE(opened.ok()) << opened.error_message();

  FinishAndCheck();
}

TEST_F(InProcessTest, RefusesReaderAfterEndAtOnce) {
  const std::string directory = NewDirectory("late");
  Start(Job(directory, v1::SYNCHRONOUS), directory);
  const auto ended = job_->WaitFor(
      [](const v1::JobProgress& p) { return p.phase() == v1::JobProgress::SUCCEEDED; }, kLong);
  ASSERT_TRUE(ended.ok()) << ended.status();
  v1::Snapshot snapshot;
  EXPECT_EQ(NewReader()->Wait(&snapshot).error_code(), grpc::StatusCode::UNAVAILABLE);
  FinishAndCheck();
}

}  // namespace
}  // namespace sluice::testing

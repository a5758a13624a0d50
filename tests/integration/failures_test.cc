// Failures around a job, and how the job handles them.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/frame.grpc.pb.h"
#include "services/common/exit_code.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class FailuresTest : public ::testing::Test {
 protected:
  void Start(const v1::JobSpec& job, const std::string& name) {
    processes_ = std::make_unique<JobProcesses>(
        JobProcesses::Options{.job = job, .directory = NewDirectory(name)});
    const absl::Status status = processes_->StartAll();
    ASSERT_TRUE(status.ok()) << status;
  }

  v1::JobProgress WaitFor(absl::FunctionRef<bool(const v1::JobProgress&)> condition) {
    const auto progress = processes_->WaitFor(condition, absl::Seconds(60));
    EXPECT_TRUE(progress.ok()) << progress.status();
    return progress.value_or(v1::JobProgress());
  }
  v1::JobProgress Progress() {
    return WaitFor([](const v1::JobProgress&) { return true; });
  }
  v1::JobProgress WaitForStep(uint64_t step) {
    return WaitFor([&](const v1::JobProgress& p) { return p.step() >= step; });
  }

  // Suspends the job, which would train longer than any test; it must end with its last checkpoint.
  void SuspendAndExpectSuccess() {
    const absl::Status status = processes_->Suspend();
    ASSERT_TRUE(status.ok()) << status;
    const auto code = processes_->WaitForExit("coordinator", absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, kExitOk);
  }

  std::string AddressOf(v1::Role role) {
    const v1::JobProgress progress = WaitForStep(1);
    for (const v1::ProcessStatus& process : progress.processes()) {
      if (process.process().role() == role) return process.address();
    }
    return "";
  }

  std::unique_ptr<JobProcesses> processes_;
};

TEST_F(FailuresTest, ExpelsFrozenWorkerThatExitsWhenItWakes) {
  v1::JobSpec job = LinearJob(1500, 0.03);
  job.mutable_timeouts()->set_heartbeat_timeout(3);
  Start(job, "frozen");
  WaitFor([](const v1::JobProgress& p) { return p.view().workers_size() == 2 && p.step() >= 3; });
  processes_->Signal("worker-1", SIGSTOP);
  const v1::JobProgress expelled =
      WaitFor([](const v1::JobProgress& p) { return p.view().workers_size() == 1; });
  WaitForStep(expelled.step() + 5);

  processes_->Signal("worker-1", SIGCONT);
  const auto code = processes_->WaitForExit("worker-1", absl::Seconds(20));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitExpelled);

  ASSERT_TRUE(processes_->StartWorker(1).ok());
  // Waits for the new process itself: the other worker may have left the view meanwhile.
  const auto pid = static_cast<uint64_t>(processes_->pid("worker-1"));
  WaitFor([&](const v1::JobProgress& p) {
    for (const v1::ProcessStatus& process : p.processes()) {
      if (process.pid() == pid && process.state() == v1::ProcessStatus::MEMBER) return true;
    }
    return false;
  });
  SuspendAndExpectSuccess();
}

TEST_F(FailuresTest, ReportsFullDiskAndContinuesTraining) {
  v1::JobSpec job = LinearJob(1500, 0.03);
  job.mutable_checkpoint()->set_interval_steps(10);
  Start(job, "full");
  WaitFor([](const v1::JobProgress& p) { return p.checkpoint().has_last(); });

  // A limit on the size of files fails writes as a full disk does.
  const rlimit none{16, RLIM_INFINITY};
  ASSERT_EQ(prlimit(processes_->pid("ps-0"), RLIMIT_FSIZE, &none, nullptr), 0);
  const v1::JobProgress failed =
      WaitFor([](const v1::JobProgress& p) { return !p.checkpoint().error().empty(); });
  EXPECT_EQ(failed.phase(), v1::JobProgress::TRAINING);
  WaitForStep(failed.step() + 5);

  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(prlimit(processes_->pid("ps-0"), RLIMIT_FSIZE, &all, nullptr), 0);
  const uint64_t last = failed.checkpoint().last().step();
  WaitFor([&](const v1::JobProgress& p) {
    return p.checkpoint().last().step() > last && p.checkpoint().error().empty();
  });
  SuspendAndExpectSuccess();
}

TEST_F(FailuresTest, NamesDamagedCheckpointAndUsesNextOlder) {
  v1::JobSpec job = LinearJob(1500, 0.02);
  job.mutable_checkpoint()->set_interval_steps(10);
  Start(job, "damaged");
  WaitFor([](const v1::JobProgress& p) { return p.checkpoint().last().step() >= 30; });
  ASSERT_TRUE(processes_->Kill("coordinator", /*report=*/false).ok());
  ASSERT_TRUE(processes_->Kill("ps-0", /*report=*/false).ok());

  const auto manifest = FinalCheckpointIndex(processes_->checkpoints());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const std::string directory =
      absl::StrCat(processes_->checkpoints(), "/attempt-",
                   absl::Dec(manifest->checkpoint().attempt(), absl::kZeroPad4), "-step-",
                   absl::Dec(manifest->checkpoint().step(), absl::kZeroPad12));
  std::ofstream(absl::StrCat(directory, "/", manifest->files(0).name()), std::ios::app) << "x";

  ASSERT_TRUE(processes_->StartCoordinator().ok());
  ASSERT_TRUE(processes_->StartShard(0).ok());
  const v1::JobProgress restored = WaitFor([&](const v1::JobProgress& p) {
    return p.attempt() > manifest->checkpoint().attempt() && p.phase() == v1::JobProgress::TRAINING;
  });
  EXPECT_LT(restored.restored_from_step(), manifest->checkpoint().step());
  EXPECT_GE(restored.restored_from_step(), 10u);

  bool named = false;
  for (const v1::Event& event : restored.events()) {
    named = named || (absl::StrContains(event.message(), manifest->files(0).name()) &&
                      absl::StrContains(event.message(), "damaged"));
  }
  EXPECT_TRUE(named) << restored.DebugString();
}

TEST_F(FailuresTest, RefusesCheckpointOfOtherModelAndNamesDifference) {
  const std::string directory = NewDirectory("differs");
  v1::JobSpec job = LinearJob(1500, 0.02);
  {
    JobProcesses first({.job = job, .directory = directory});
    ASSERT_TRUE(first.StartAll().ok());
    const auto progress =
        first.WaitFor([](const v1::JobProgress& p) { return p.step() >= 3; }, absl::Seconds(60));
    ASSERT_TRUE(progress.ok()) << progress.status();
    ASSERT_TRUE(first.Suspend().ok());
    ASSERT_TRUE(first.WaitForExit("coordinator", absl::Seconds(60)).ok());
  }
  ASSERT_TRUE(FinalCheckpointIndex(absl::StrCat(directory, "/checkpoints")).ok());

  (*job.mutable_model()->mutable_dimensions())["out"] = 1;
  job.mutable_data()->mutable_synthetic()->clear_shape();
  job.mutable_data()->mutable_synthetic()->add_shape(17);
  JobProcesses second({.job = job, .directory = directory});
  ASSERT_TRUE(second.StartAll().ok());

  const auto code = second.WaitForExit("coordinator", absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitFailed);
  const std::string text = Contents(absl::StrCat(directory, "/status.json"));
  EXPECT_THAT(text, HasSubstr("weight"));
}

TEST_F(FailuresTest, ContinuesFromCheckpointOfAnotherJob) {
  const std::string first_directory = NewDirectory("source");
  {
    JobProcesses first({.job = LinearJob(20, 0), .directory = first_directory});
    ASSERT_TRUE(first.StartAll().ok());
    ASSERT_EQ(first.WaitForExit("coordinator", absl::Seconds(60)).value_or(-1), kExitOk);
  }

  v1::JobSpec job = LinearJob(30, 0);
  job.set_name("second");
  job.mutable_checkpoint()->set_restore_from(absl::StrCat(first_directory, "/checkpoints"));
  const std::string directory = NewDirectory("restored");
  JobProcesses second({.job = job, .directory = directory});
  ASSERT_TRUE(second.StartAll().ok());
  ASSERT_EQ(second.WaitForExit("coordinator", absl::Seconds(60)).value_or(-1), kExitOk);

  // It trained from step 20 to step 30.
  const auto manifest = FinalCheckpointIndex(absl::StrCat(directory, "/checkpoints"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->checkpoint().attempt(), 1u);
  EXPECT_EQ(manifest->checkpoint().step(), 30u);
  const std::string text = Contents(absl::StrCat(directory, "/status.json"));
  EXPECT_THAT(text, HasSubstr(R"("restoredFromStep":"20")"));
}

TEST_F(FailuresTest, RejectsRestoreFromWithoutCheckpoint) {
  v1::JobSpec job = LinearJob(30, 0);
  const std::string directory = NewDirectory("nothing");
  job.mutable_checkpoint()->set_restore_from(absl::StrCat(directory, "/missing"));
  JobProcesses processes({.job = job, .directory = directory});
  EXPECT_FALSE(processes.StartCoordinator().ok());
  const std::string text = Contents(absl::StrCat(directory, "/coordinator.stderr"));
  EXPECT_THAT(text, HasSubstr("checkpoint.restoreFrom"));
  EXPECT_THAT(text, HasSubstr("missing"));
}

TEST_F(FailuresTest, InvalidTorchScriptFileFailsJobByName) {
  const std::string directory = NewDirectory("script");
  std::ofstream(absl::StrCat(directory, "/model.pt")) << "not a model";
  v1::JobSpec job = LinearJob(20, 0);
  job.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  job.mutable_model()->set_path(absl::StrCat(directory, "/model.pt"));
  job.set_loss("mse");
  JobProcesses processes({.job = job, .directory = directory});
  ASSERT_TRUE(processes.StartAll().ok());
  const auto code = processes.WaitForExit("coordinator", absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitFailed);
  const std::string text = Contents(absl::StrCat(directory, "/status.json"));
  EXPECT_THAT(text, HasSubstr("model.pt"));
}

TEST_F(FailuresTest, CoordinatorAsksForRestartWhilePortIsTaken) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);

  const std::string directory = NewDirectory("taken");
  JobProcesses processes({.job = LinearJob(5, 0),
                          .directory = directory,
                          .coordinator = absl::StrCat("127.0.0.1:", ntohs(address.sin_port))});

  // Frees the port once the coordinator has tried to use it and failed.
  std::thread owner([&] {
    const absl::Time deadline = absl::Now() + absl::Seconds(15);
    while (absl::Now() < deadline && Contents(directory + "/coordinator.stderr").empty()) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    close(taken);
  });

  const absl::Status status = processes.StartCoordinator();
  owner.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(Contents(directory + "/coordinator.stderr"), HasSubstr("sluice-coordinator"));
}

// ---- peers that break the contract

// Sends one raw message as a frame; returns the status that the stream ends with.
grpc::Status SendRaw(const std::string& address,
                     const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                     const std::string& message) {
  auto channel = grpc::CreateCustomChannel(address, credentials, grpc::ChannelArguments());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/sluice.v1.ParameterServer/Exchange", &queue);
  call->StartCall(reinterpret_cast<void*>(1));
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  const grpc::Slice slice(message);
  call->Write(grpc::ByteBuffer(&slice, 1), reinterpret_cast<void*>(2));
  queue.Next(&tag, &ok);
  grpc::ByteBuffer reply;
  do {  // skips what the shard sends before it ends the stream
    call->Read(&reply, reinterpret_cast<void*>(3));
    queue.Next(&tag, &ok);
  } while (ok);
  grpc::Status status;
  call->Finish(&status, reinterpret_cast<void*>(4));
  queue.Next(&tag, &ok);
  return status;
}

TEST_F(FailuresTest, RefusesGarbageAndOversizeFramesAndContinues) {
  Start(LinearJob(1500, 0.02), "garbage");
  const std::string address = AddressOf(v1::SHARD);
  const auto credentials = processes_->credentials().value();
  EXPECT_EQ(SendRaw(address, credentials, "\xff\xff\xff garbage").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  const auto send_large = [&](size_t bytes) {
    v1::Frame frame;
    frame.mutable_header()->mutable_push()->add_blocks()->set_payload_bytes(bytes);
    frame.set_payload(std::string(bytes, 'x'));
    return SendRaw(address, credentials, frame.SerializeAsString()).error_code();
  };
  EXPECT_EQ(send_large(size_t{4} << 20), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // gRPC reads the whole message before it refuses it; one this large may abort the connection.
  EXPECT_THAT(send_large(size_t{64} << 20),
              AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::UNAVAILABLE));

  v1::Frame no_hello;
  no_hello.mutable_header()->mutable_pull();
  EXPECT_EQ(SendRaw(address, credentials, no_hello.SerializeAsString()).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  v1::Frame wrong_job;
  v1::Hello& hello = *wrong_job.mutable_header()->mutable_hello();
  hello.set_min_wire_version(1);
  hello.set_max_wire_version(1);
  hello.set_job("default/another/job");
  hello.mutable_sender()->set_role(v1::WORKER);
  hello.mutable_sender()->set_incarnation(7);
  EXPECT_FALSE(SendRaw(address, credentials, wrong_job.SerializeAsString()).ok());

  const uint64_t step = Progress().step();
  EXPECT_EQ(WaitForStep(step + 10).attempt(), 1u);
}

TEST_F(FailuresTest, CoordinatorRefusesWorkerOfOtherJob) {
  Start(LinearJob(1500, 0.02), "other");
  WaitForStep(1);
  v1::JobSpec other = processes_->job();

  // The same coordinator, but the name of another job.
  JobProcesses stranger({.job =
                             [&] {
                               v1::JobSpec job = other;
                               job.set_uid("another");
                               return job;
                             }(),
                         .directory = NewDirectory("stranger"),
                         .coordinator = processes_->coordinator_address(),
                         .secret_file = processes_->secret_file()});

  ASSERT_TRUE(stranger.StartWorker(5).ok());
  const auto code = stranger.WaitForExit("worker-5", absl::Seconds(30));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitRefused);
  WaitForStep(Progress().step() + 5);
}

}  // namespace
}  // namespace sluice::testing

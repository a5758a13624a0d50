// A job whose processes use TLS, each with its own certificate.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/snapshot/running_snapshot.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/credential_directories.h"
#include "services/transport/security/transport_security.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// A TLS job with two shards.
v1::JobSpec TlsJob(uint64_t steps, double delay) {
  v1::JobSpec job = LinearJob(steps, delay);
  job.set_tls(v1::JobSpec::TLS_ENABLED);
  job.mutable_parameter_server()->set_replicas(2);
  return job;
}

class TlsTest : public ::testing::Test {
 protected:
  void Prepare(const v1::JobSpec& job, const std::string& name) {
    directory_ = NewDirectory(name);
    MakeCredentials("tls");
    processes_ = std::make_unique<JobProcesses>(JobProcesses::Options{
        .job = job, .directory = directory_, .tls_directories = directory_ + "/tls"});
  }

  void MakeCredentials(const std::string& name) {
    const auto made = security::WriteCredentialDirectories(
        files_.get(), absl::StrCat(directory_, "/", name),
        {.job = "default/test", .shards = 2, .workers = 3}, absl::Now());
    ASSERT_TRUE(made.ok()) << made.status();
  }

  std::string Read(const std::string& path) {
    return files_->Read(absl::StrCat(directory_, "/", path), 1 << 20).value();
  }

  // Replaces a process's certificate and key by those in `from`, and trusts both authorities.
  void Renew(const std::string& process, const std::string& from) {
    const std::string bundle = absl::StrCat(Read("tls/ca/ca.crt"), Read(from + "/ca/ca.crt"));
    const std::string source = absl::StrCat(from, "/", process);
    ASSERT_TRUE(security::WriteCredentialDirectory(
                    files_.get(), absl::StrCat(directory_, "/tls/", process), bundle,
                    {Read(source + "/tls.crt"), Read(source + "/tls.key")})
                    .ok());
  }

  void WaitForStep(uint64_t step) {
    const auto progress = processes_->WaitFor(
        [&](const v1::JobProgress& p) { return p.step() >= step; }, absl::Seconds(60));
    ASSERT_TRUE(progress.ok()) << progress.status();
  }

  // Suspends the job, which would train longer than any test; it must end with its last checkpoint.
  void SuspendAndExpectSuccess() {
    const absl::Status status = processes_->Suspend();
    ASSERT_TRUE(status.ok()) << status;
    const auto code = processes_->WaitForExit("coordinator", absl::Seconds(90));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, kExitOk);
  }

  const std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string directory_;
  std::unique_ptr<JobProcesses> processes_;
};

absl::Status AskInPlainText(const std::string& address) {
  const auto control = v1::JobControl::NewStub(MakeChannel({.address = address}));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::JobProgress progress;
  const grpc::Status status = control->GetProgress(&context, {}, &progress);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

TEST_F(TlsTest, TrainsAndRefusesPlainTextClient) {
  Prepare(TlsJob(1500, 0.02), "trains");
  ASSERT_TRUE(processes_->StartAll().ok());
  WaitForStep(10);

  EXPECT_EQ(AskInPlainText(processes_->coordinator_address()).code(),
            absl::StatusCode::kUnavailable);
  const auto progress = processes_->Progress();
  ASSERT_TRUE(progress.ok()) << progress.status();
  for (const v1::ProcessStatus& process : progress->processes()) {
    if (process.process().role() != v1::SHARD) continue;
    EXPECT_EQ(AskInPlainText(process.address()).code(), absl::StatusCode::kUnavailable);
  }

  // The servers refused the calls: they are still running, and the job continues.
  for (const char* process : {"coordinator", "ps-0", "ps-1"}) {
    EXPECT_TRUE(processes_->Lives(process)) << process;
  }
  const auto later = processes_->Progress();
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->attempt(), progress->attempt());
  WaitForStep(later->step() + 5);
  SuspendAndExpectSuccess();
}

TEST_F(TlsTest, ReaderPullsSnapshotWhileJobTrains) {
  Prepare(TlsJob(1500, 0.02), "read");
  ASSERT_TRUE(processes_->StartAll().ok());
  WaitForStep(10);
  const auto progress = processes_->Progress();
  ASSERT_TRUE(progress.ok()) << progress.status();

  const auto reader = security::TransportSecurity::Open(
      files_.get(),
      {.directory = directory_ + "/tls/reader", .role = v1::READER, .index = 0, .refresh = {}},
      absl::Now());
  ASSERT_TRUE(reader.ok()) << reader.status();

  SnapshotSource source;
  source.coordinator = processes_->coordinator_address();
  source.credentials = (*reader)->channel_credentials();
  const auto snapshot = PullSnapshot(source, progress->job(), absl::Seconds(30));
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_GE(snapshot->version, 10u);
  EXPECT_FALSE(snapshot->tensors.empty());

  source.credentials = nullptr;
  EXPECT_THAT(PullSnapshot(source, progress->job(), absl::Seconds(30)).status().message(),
              HasSubstr("this side uses plain text; the other side may use TLS"));
}

// A worker dies after the certificates and their authority were renewed. Its next instance has only
// the new ones, and the processes that it connects to must have loaded theirs.
TEST_F(TlsTest, RenewsCertificatesWhileJobTrains) {
  Prepare(TlsJob(1500, 0.02), "renewed");
  ASSERT_TRUE(processes_->StartAll().ok());
  WaitForStep(10);

  MakeCredentials("next");
  for (const char* process : {"coordinator", "ps-0", "ps-1"}) Renew(process, "next");
  ASSERT_TRUE(processes_->Kill("worker-1", /*report=*/true).ok());
  // The new instance knows only the new authority.
  const std::string next = directory_ + "/next/worker-1";
  const std::string own = directory_ + "/tls/worker-1";
  std::filesystem::remove_all(own);
  std::filesystem::copy(next, own);

  ASSERT_TRUE(processes_->StartWorker(1).ok());
  const auto joined = processes_->WaitFor(
      [&](const v1::JobProgress& p) {
        return p.view().workers_size() == 2 && p.step() < p.total_steps();
      },
      absl::Seconds(60));
  ASSERT_TRUE(joined.ok()) << joined.status();
  WaitForStep(joined->step() + 10);
  SuspendAndExpectSuccess();
}

TEST_F(TlsTest, WorkerRefusesCertificateOfOtherProcess) {
  Prepare(TlsJob(1500, 0.02), "another");
  ASSERT_TRUE(processes_->StartAll().ok());
  WaitForStep(1);
  // The worker refuses it itself, before it connects.
  std::filesystem::remove_all(directory_ + "/tls/worker-2");
  std::filesystem::copy(directory_ + "/tls/ps-0", directory_ + "/tls/worker-2");
  ASSERT_TRUE(processes_->StartWorker(2).ok());
  const auto code = processes_->WaitForExit("worker-2", absl::Seconds(30));
  EXPECT_EQ(code.value_or(-1), kExitUsage);
  EXPECT_THAT(Contents(directory_ + "/worker-2.stderr"),
              HasSubstr("that of ps 0 of default/test, but this is worker 2"));
}

TEST_F(TlsTest, CoordinatorOfTlsJobRequiresCertificate) {
  directory_ = NewDirectory("without");
  processes_ = std::make_unique<JobProcesses>(
      JobProcesses::Options{.job = TlsJob(10, 0), .directory = directory_});
  EXPECT_FALSE(processes_->StartCoordinator().ok());
  EXPECT_THAT(Contents(directory_ + "/coordinator.stderr"), HasSubstr("set --tls-directory"));
}

}  // namespace
}  // namespace sluice::testing

// Programs of two releases in one job. The "next" ones support wire versions 1 and 2, the "late"
// ones only 2.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/common/exit_code.h"
#include "tests/testing/counting_engine.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kSamples = 1000;
constexpr uint64_t kEpochs = 2;
constexpr char kNextCoordinator[] = "services/coordinator/next-coordinator";
constexpr char kNextShard[] = "services/ps/next-ps";
constexpr char kWorker[] = "tests/testing/counting_worker";
constexpr char kNextWorker[] = "tests/testing/next_counting_worker";
constexpr char kLateWorker[] = "tests/testing/late_counting_worker";

JobProcesses::Options Options(const std::string& name) {
  const std::string directory = NewDirectory(name);
  v1::JobSpec job = CountingJob(directory, kSamples, kEpochs);
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_worker()->set_replicas(2);
  return {.job = std::move(job), .directory = directory, .worker_program = kWorker};
}

std::string EventsOf(const v1::JobProgress& progress) {
  std::string text;
  for (const v1::Event& event : progress.events()) absl::StrAppend(&text, event.message(), "\n");
  return text;
}

// Starts no workers; the job waits for them.
void StartServers(JobProcesses* processes) {
  ASSERT_TRUE(processes->StartCoordinator().ok());
  for (uint32_t shard : {0, 1}) ASSERT_TRUE(processes->StartShard(shard).ok());
}

void StartWorkers(JobProcesses* processes) {
  for (uint32_t worker : {0, 1}) ASSERT_TRUE(processes->StartWorker(worker).ok());
}

void FinishAndCheck(JobProcesses* processes) {
  const auto code = processes->WaitForExit("coordinator", absl::Seconds(120));
  ASSERT_TRUE(code.ok()) << code.status();
  ASSERT_EQ(*code, kExitOk) << Contents(processes->LogFile("coordinator"));
  const auto counts = FinalTensor(processes->checkpoints(), "counts");
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_THAT(*counts, Each(static_cast<double>(kEpochs)));
}

struct Mixture {
  std::string name;
  std::string coordinator, shard, worker;  // program; empty: the current release
};

class MixtureTest : public ::testing::TestWithParam<Mixture> {};

TEST_P(MixtureTest, TrainsToTheEndWithExactCounts) {
  JobProcesses::Options options = Options(GetParam().name);
  options.coordinator_program = GetParam().coordinator;
  options.shard_program = GetParam().shard;
  if (!GetParam().worker.empty()) options.worker_program = GetParam().worker;
  JobProcesses processes(options);
  const absl::Status status = processes.StartAll();
  ASSERT_TRUE(status.ok()) << status;
  FinishAndCheck(&processes);
}

INSTANTIATE_TEST_SUITE_P(All, MixtureTest,
                         ::testing::Values(Mixture{"NewWorkers", "", "", kNextWorker},
                                           Mixture{"NewShards", "", kNextShard, ""},
                                           Mixture{"NewCoordinator", kNextCoordinator, "", ""},
                                           Mixture{"OldCoordinator", "", kNextShard, kNextWorker},
                                           Mixture{"OldShards", kNextCoordinator, "", kNextWorker},
                                           Mixture{"OldWorkers", kNextCoordinator, kNextShard, ""},
                                           Mixture{"AllNew", kNextCoordinator, kNextShard,
                                                   kLateWorker}),
                         [](const auto& info) { return info.param.name; });

TEST(VersionsTest, RefusesWorkerWithoutCommonVersionAndContinues) {
  JobProcesses::Options options = Options("late");
  JobProcesses processes(options);
  StartServers(&processes);

  options.coordinator = processes.coordinator_address();
  options.secret_file = processes.secret_file();
  options.directory = NewDirectory("late_worker");
  options.worker_program = kLateWorker;
  JobProcesses late(options);
  ASSERT_TRUE(late.StartWorker(1).ok());
  const auto code = late.WaitForExit("worker-1", absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitRefused);

  const auto reported = processes.WaitFor(
      [](const v1::JobProgress& progress) {
        return absl::StrContains(EventsOf(progress), "worker-1 asks for wire version 2");
      },
      absl::Seconds(60));
  EXPECT_TRUE(reported.ok()) << reported.status();

  StartWorkers(&processes);
  FinishAndCheck(&processes);
}

TEST(VersionsTest, WorkerRefusesFlagOfNewerReleaseAndJobContinues) {
  const JobProcesses::Options options = Options("newer_flag");
  JobProcesses processes(options);
  StartServers(&processes);
  ASSERT_TRUE(processes.StartWorker(1, {"--flag-of-a-newer-release=1"}).ok());
  const auto code = processes.WaitForExit("worker-1", absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitRefused);
  EXPECT_THAT(Contents(absl::StrCat(options.directory, "/worker-1.stderr")),
              HasSubstr("--flag-of-a-newer-release"));
  StartWorkers(&processes);
  FinishAndCheck(&processes);
}

TEST(VersionsTest, IgnoresAndReportsUnknownFieldOfJobFile) {
  JobProcesses::Options options = Options("newer_field");
  options.more_of_job = R"({"newField": {"deep": [1, 2]}})";
  JobProcesses processes(options);
  StartServers(&processes);
  const auto reported = processes.WaitFor(
      [](const v1::JobProgress& progress) {
        return absl::StrContains(EventsOf(progress), "ignores: newField;");
      },
      absl::Seconds(60));
  EXPECT_TRUE(reported.ok()) << reported.status();
  EXPECT_THAT(Contents(processes.LogFile("coordinator")), HasSubstr("ignores: newField;"));
  StartWorkers(&processes);
  FinishAndCheck(&processes);
}

TEST(VersionsTest, RefusesUnknownValueInJobFileByName) {
  JobProcesses::Options options = Options("newer_value");
  options.more_of_job = R"({"spec": {"tls": "OfTomorrow"}})";
  JobProcesses processes(options);
  EXPECT_FALSE(processes.StartCoordinator().ok());
  EXPECT_EQ(processes.ExitCode("coordinator"), kExitRefused);
  EXPECT_THAT(Contents(absl::StrCat(options.directory, "/coordinator.stderr")),
              HasSubstr(R"(spec.tls: "OfTomorrow" is not a value that this release knows)"));
}

}  // namespace
}  // namespace sluice::testing

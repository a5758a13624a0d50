// Tests of `sluice run` on this machine, with programs that are shell scripts; tests/integration
// starts the real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/local/job_directory.h"
#include "cli/testing/cli_test_base.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using RunCommandTest = CliTestBase;

TEST_F(RunCommandTest, DryRunShowsWhatWouldStartAndChangesNothing) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--dry-run", "--workers", "5", "--shards", "3"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("5 workers"));
  EXPECT_THAT(out_.str(), HasSubstr("3 shards"));
  EXPECT_THAT(out_.str(), HasSubstr("(new)"));
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(RunCommandTest, ForegroundIsForTheProgramOfOneWorker) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--foreground", "--workers", "1"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("the job has none: set spec.worker.command"));
  Write("job.yaml", R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {type: Custom}
  data: {format: Custom}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
  worker: {replicas: 2, command: [python3, train.py]}
)");
  EXPECT_EQ(RunJob({"--foreground"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("the job has 2 workers: add --workers 1"));
  EXPECT_EQ(RunJob({"--foreground", "--workers", "1", "--output", "json"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--foreground excludes --output"));
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(RunCommandTest, DryRunIsRefusedLikeTheRun) {
  WritePrograms("exit 1");
  Write("job.yaml", kIdxManifest);
  EXPECT_EQ(RunJob({"--dry-run", "--workers", "1", "--shards", "1"}), 2);
  EXPECT_THAT(out_.str(), HasSubstr("Job example would be refused\n  1 coordinator  "));
  EXPECT_THAT(out_.str(), HasSubstr("\n  1 shard        " + directory_));
  EXPECT_THAT(out_.str(), HasSubstr("\n  1 worker       " + directory_));
  EXPECT_THAT(out_.str(), HasSubstr("  missing        spec.data.source.path: " + directory_ +
                                    "/data/digits: no such file or directory\n"));
  EXPECT_EQ(RunJob({"--dry-run", "--output", "json"}), 2);
  EXPECT_EQ(Objects()[0]["exitCode"], 2);
  EXPECT_THAT(Objects()[0]["missing"].get<std::string>(), HasSubstr("/data/digits"));
  // A finished job would read nothing.
  Write("job.yaml", kManifest);
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Job example would start\n"));
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Job example would resume\n"));
  Write("state/example/result.json", R"({"outcome":"Succeeded","step":10})");
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Job example has finished\n"));
}

TEST_F(RunCommandTest, ReportsIgnoredClusterFields) {
  WritePrograms("exit 1");
  Write("job.yaml", absl::StrCat(kManifest,
                                 "  cleanPodPolicy: All\n"
                                 "  worker: {template: {spec: {nodeSelector: {disk: fast}}}}\n"));
  EXPECT_EQ(RunJob({"--dry-run"}), 0) << err_.str();
  EXPECT_EQ(err_.str(),
            "Note: ignoring cluster-only fields: spec.worker.template, spec.cleanPodPolicy\n");
  Write("job.yaml", absl::StrCat(kManifest, "  tls: Enabled\n"));
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_EQ(err_.str(), "Note: ignoring cluster-only fields: spec.tls\n");
  Write("job.yaml",
        absl::StrCat(kManifest,
                     "  tls: Disabled\n"));  // processes of one machine run without TLS anyway
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(err_.str(), IsEmpty());
  Write("job.yaml", kManifest);
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(err_.str(), IsEmpty());
}

TEST_F(RunCommandTest, RejectsReplicasOutOfRange) {
  EXPECT_EQ(RunJob({"--workers", "0"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--workers: '0' is not a whole number from 1 to 1024"));
}

TEST_F(RunCommandTest, ReportsMissingProgram) {
  WriteProgram("sluice-coordinator", "exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("sluice-ps is missing"));
  EXPECT_THAT(err_.str(), HasSubstr("--bin-dir"));
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(RunCommandTest, JobWithCustomWorkerNeedsNoLibTorch) {
  WriteProgram("sluice-coordinator", "exit 1");
  WriteProgram("sluice-ps", "exit 1");
  EXPECT_EQ(RunJob({"--dry-run"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("sluice-worker is missing"));
  Write("job.yaml", kCustomManifest);
  EXPECT_EQ(RunJob({"--dry-run"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("2 workers      python3 train.py"));
}

TEST_F(RunCommandTest, RejectsPortInUse) {
  WritePrograms("exit 1");
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  EXPECT_EQ(RunJob({"--port", absl::StrCat(ntohs(address.sin_port))}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("is in use"));
  close(fd);
}

TEST_F(RunCommandTest, FailingProgramFailsTheJobWithReasonAndLastLines) {
  WritePrograms("echo some context; echo 'sluice-coordinator: the disk is on fire' >&2; exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("some context"));
  EXPECT_THAT(err_.str(),
              HasSubstr("job example failed: coordinator ended with exit code 1: the disk is on "
                        "fire"));
  EXPECT_EQ(Run({"status", "--state-dir", State()}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Failed"));
  EXPECT_EQ(Run({"logs", "example", "--state-dir", State(), "--tail", "1"}), 0);
  EXPECT_EQ(out_.str(), "coordinator | sluice-coordinator: the disk is on fire\n");
}

TEST_F(RunCommandTest, FailureOmitsLogLinesOfEarlierRun) {
  WritePrograms("echo 'time=1 level=error msg=\"labels are missing\"'; exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("ended with exit code 1: labels are missing"));
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_EQ(err_.str(), "sluice: job example failed: coordinator ended with exit code 1\n");
}

TEST_F(RunCommandTest, JsonOutputHasOneObjectPerLineAndASummaryLast) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--output", "json"}), 1);
  std::istringstream lines(out_.str());
  std::string line;
  nlohmann::json last;
  while (std::getline(lines, line)) {
    last = nlohmann::json::parse(line);
    EXPECT_TRUE(last.contains("type") && last.contains("time")) << line;
  }
  EXPECT_EQ(last["type"], "summary");
  EXPECT_EQ(last["outcome"], "Failed");
  EXPECT_EQ(last["exitCode"], 1);
  EXPECT_EQ(last["process"], "coordinator");
}

TEST_F(RunCommandTest, RejectsChangedFieldsUnlessFresh) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  WriteCheckpoint();
  Write("job.yaml", std::string(kManifest) + "  worker: {replicas: 3}\n  loss: crossEntropy\n");
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("spec.loss: "));
  EXPECT_THAT(err_.str(), HasSubstr("--fresh"));
  EXPECT_EQ(RunJob({"--dry-run"}), 2);
  EXPECT_THAT(out_.str(), HasSubstr("not allowed    spec.loss"));
  EXPECT_THAT(out_.str(), HasSubstr("changed        spec.worker.replicas"));
  // The change is taken now, but not the checkpoint: it cannot be read.
  Write("job.yaml",
        std::string(kManifest) + "  loss: crossEntropy\n  checkpoint: {onExisting: Replace}\n");
  EXPECT_EQ(RunJob({"--dry-run"}), 2);
  EXPECT_THAT(out_.str(), HasSubstr("in use         "));
  EXPECT_THAT(out_.str(), Not(HasSubstr("not allowed")));
  EXPECT_EQ(RunJob({"--fresh"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("deletes the existing checkpoints"));
  EXPECT_THAT(err_.str(), HasSubstr("failed: coordinator"));
}

TEST_F(RunCommandTest, DryRunTakesWhatTheRunTakes) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  WriteFinished(State() + "/example/checkpoints", 10);
  const std::string changed = std::string(kManifest) + "  loss: crossEntropy\n";
  Write("job.yaml", changed + "  checkpoint: {onExisting: Replace}\n");
  EXPECT_EQ(RunJob({"--dry-run"}), 0) << out_.str();
  EXPECT_THAT(out_.str(), HasSubstr("Job example would start\n"));
  EXPECT_THAT(out_.str(), HasSubstr("changed        spec.loss"));
}

TEST_F(RunCommandTest, UntrainedJobAcceptsAnyChange) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  Write("job.yaml", std::string(kManifest) + "  loss: crossEntropy\n");
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("changed        spec.loss"));
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(out_.str(), HasSubstr("Changed: spec.loss (unset) -> \"crossEntropy\""));
  EXPECT_THAT(err_.str(), HasSubstr("failed: coordinator"));
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("spec.loss")));
}

TEST_F(RunCommandTest, FreshRemovesNothingIfDataIsMissing) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  const std::string checkpoint = WriteCheckpoint();
  Write("job.yaml", kIdxManifest);
  EXPECT_EQ(RunJob({"--fresh"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("spec.data.source.path: " + directory_ +
                                    "/data/digits: no such file or directory"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint));
  Write("job.yaml", kManifest);
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("(resumes)"));
}

TEST_F(RunCommandTest, RefusedNewJobLeavesNoFiles) {
  WritePrograms("exit 1");
  Write("job.yaml", kIdxManifest);
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/data/digits: no such file or directory"));
  EXPECT_FALSE(std::filesystem::exists(State()));
  Write("job.yaml",
        absl::StrCat(kManifest, "  checkpoint: {restoreFrom: ", directory_, "/none}\n"));
  EXPECT_EQ(RunJob({"--fresh"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/none: no such file or directory"));
  WriteFinished(directory_ + "/kept", 10);
  Write("job.yaml",
        absl::StrCat(kManifest, "  checkpoint: {storage: {path: ", directory_, "/kept}}\n"));
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_THAT(err_.str(),
              HasSubstr("CheckpointDirectoryInUse: the checkpoint directory " + directory_ +
                        "/kept holds job default/example/earlier, which finished "
                        "after step 10"));
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(RunCommandTest, KeepsCheckpointsOfUnknownJob) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  const std::string checkpoint = WriteCheckpoint();
  std::filesystem::remove(State() + "/example/job.json");
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr(State() + "/example/checkpoints holds checkpoints"));
  EXPECT_THAT(err_.str(), HasSubstr("--fresh"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint));
  EXPECT_EQ(RunJob({"--fresh"}), 1);
  EXPECT_FALSE(std::filesystem::exists(checkpoint));
}

TEST_F(RunCommandTest, ReportsDataUsedFromDataDirectory) {
  WritePrograms("exit 1");
  Write("job.yaml", kIdxManifest);
  data_directory_ = directory_ + "/kept";
  std::filesystem::create_directories(data_directory_ + "/digits");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("Note: spec.data.source.path: " + directory_ +
                                    "/data/digits does not exist; using " + data_directory_ +
                                    "/digits (SLUICE_DATA)"));
  EXPECT_THAT(err_.str(), HasSubstr("failed: coordinator"));
}

TEST_F(RunCommandTest, ValidatesFlagsLikeManifest) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--shards", "70", "--dry-run"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("must be at least `replicas`"));
  EXPECT_THAT(err_.str(), HasSubstr("(with --shards 70)"));
}

TEST_F(RunCommandTest, DryRunPrintsJsonObject) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--dry-run", "--output", "json", "--workers", "3"}), 0) << err_.str();
  ASSERT_EQ(Objects().size(), 1u) << out_.str();
  nlohmann::json plan = Objects()[0];
  EXPECT_EQ(plan["type"], "dryRun");
  EXPECT_EQ(plan["state"], "new");
  EXPECT_EQ(plan["processes"][2]["role"], "worker");
  EXPECT_EQ(plan["processes"][2]["count"], 3);
  EXPECT_TRUE(plan["changes"].empty());

  EXPECT_EQ(RunJob({}), 1);
  WriteCheckpoint();
  Write("job.yaml", std::string(kManifest) + "  loss: crossEntropy\n");
  EXPECT_EQ(RunJob({"--dry-run", "--output", "json"}), 2);
  plan = Objects()[0];
  EXPECT_EQ(plan["state"], "resumes");
  EXPECT_EQ(plan["changes"][0]["field"], "spec.loss");
  EXPECT_EQ(plan["changes"][0]["allowed"], false);
  EXPECT_EQ(plan["exitCode"], 2);
}

TEST_F(RunCommandTest, SuspendedJobIsReportedInJson) {
  WritePrograms("exit 1");
  Write("job.yaml", std::string(kManifest) + "  suspend: true\n");
  EXPECT_EQ(RunJob({}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("is suspended (spec.suspend): nothing runs"));
  EXPECT_EQ(RunJob({"--output", "json"}), 0);
  const std::vector<nlohmann::json> objects = Objects();
  ASSERT_EQ(objects.size(), 2u) << out_.str();
  EXPECT_EQ(objects[0]["type"], "note");
  EXPECT_EQ(objects[1]["type"], "summary");
  EXPECT_EQ(objects[1]["outcome"], "Suspended");
}

TEST_F(RunCommandTest, FinishedJobReportsItsResultInJson) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  Write("state/example/result.json", R"({"outcome":"Succeeded","step":10,"totalSteps":10,
      "samples":320,"totalSamples":320,"epoch":3.2,"accuracy":98.5,"loss":0.5,
      "evaluation":{"step":"10","hasAccuracy":true,"accuracy":98.5,"loss":0.25,"samples":"100"}})");
  EXPECT_EQ(RunJob({}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("with an accuracy of 98.50 %; there is nothing to do. --fresh "
                                    "starts over.\n"));
  EXPECT_EQ(RunJob({"--output", "json"}), 0);
  const nlohmann::json summary = Objects().back();
  EXPECT_EQ(summary["outcome"], "Succeeded");
  EXPECT_EQ(summary["samples"], 320);
  EXPECT_EQ(summary["totalSamples"], 320);
  EXPECT_EQ(summary["loss"], 0.5);
  EXPECT_EQ(summary["evaluation"]["accuracy"], 98.5);
  EXPECT_EQ(summary["evaluation"]["samples"], 100);
}

TEST_F(RunCommandTest, FinishedJobWithMoreStepsNeedsOnExisting) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  Write("state/example/result.json", R"({"outcome":"Succeeded","step":10,"totalSteps":10})");
  const std::string claims = State() + "/example/checkpoints/claims";
  const std::string begun = State() + "/example/job.json", first = directory_ + "/first.json";
  std::filesystem::copy_file(begun, first);
  WriteFinished(State() + "/example/checkpoints", 10);
  std::string longer = kManifest;
  longer.replace(longer.find("steps: 10"), 9, "steps: 20");
  for (const char* policy : {"", "  checkpoint: {onExisting: Fail}\n"}) {
    Write("job.yaml", longer + policy);
    EXPECT_EQ(RunJob({"--dry-run"}), 2);
    EXPECT_THAT(out_.str(), HasSubstr("in use         CheckpointDirectoryInUse"));
    EXPECT_EQ(RunJob({}), 2);
    EXPECT_THAT(err_.str(), HasSubstr("which finished after step 10"));
    EXPECT_THAT(err_.str(), HasSubstr("spec.training.steps 10 -> 20"));
    EXPECT_THAT(err_.str(), HasSubstr("Set checkpoint.onExisting: Resume"));
  }
  // With either policy the earlier checkpoints still exist when the programs start.
  for (const char* policy : {"Resume", "Replace"}) {
    Write("state/example/result.json", R"({"outcome":"Succeeded","step":10,"totalSteps":10})");
    Write("job.yaml", absl::StrCat(longer, "  checkpoint: {onExisting: ", policy, "}\n"));
    EXPECT_EQ(RunJob({}), 1);
    EXPECT_THAT(err_.str(), HasSubstr("failed: coordinator"));
    EXPECT_TRUE(std::filesystem::exists(claims + "/000002.json"));
    std::filesystem::copy_file(first, begun, std::filesystem::copy_options::overwrite_existing);
  }
}

TEST_F(RunCommandTest, RejectsFreshOfRunningJobBeforeAnyRemoval) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  local::JobDirectory directory(files_.get(), State(), "example");
  const auto lock = directory.Lock();
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(RunJob({"--fresh"}), 2);
  const std::string runs = absl::StrCat("sluice: the job in ", State(),
                                        "/example is already running (pid ", getpid(), "); ");
  EXPECT_EQ(err_.str(), runs + "`sluice stop example` stops it\n");
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_EQ(err_.str(), runs +
                            "--take-over checkpoints and stops it, then continues with this "
                            "manifest\n");
}

TEST_F(RunCommandTest, ReportsUnwritableStateDirectory) {
  WritePrograms("exit 1");
  Write("state", "a file, not a directory");
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_EQ(err_.str(),
            "sluice: cannot make the directory " + State() +
                "/example: Not a directory; choose another directory with --state-dir\n");
}

}  // namespace
}  // namespace sluice::cli

// `sluice run` as a user runs it: the user stops the job, or the job loses a process, its disk or
// its terminal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/run_fixture.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(RunTest, CtrlCSavesCheckpointAndSameCommandResumes) {
  WriteManifest(1000, 0.05);
  StartRun();
  // Meanwhile a second run is refused, and `sluice status` shows the job.
  EXPECT_EQ(Sluice(RunArguments()), 2);
  EXPECT_THAT(ReadAll(output_), HasSubstr(absl::StrCat("pid ", running_)));
  EXPECT_EQ(Sluice({"status", "example"}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("training"));

  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  ExpectEachEndedWell();
  const Json stopped = Summary(run_output_);
  EXPECT_EQ(stopped["outcome"], "Suspended");
  const uint64_t step = stopped["step"];
  EXPECT_LT(step, 1000u);

  WriteManifest(1000, 0);  // the test no longer has to observe it
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  const Json summary = Summary(output_);
  EXPECT_EQ(summary["outcome"], "Succeeded");
  EXPECT_EQ(summary["restoredFromStep"], step);
  EXPECT_EQ(summary["step"], 1000);
}

TEST_F(RunTest, ResumesFromDamagedDirectoryAndNeverStartsOver) {
  WriteManifest(1000, 0.05);
  StartRun();
  ASSERT_TRUE(WaitUntil([&] { return LastStep() >= 25; })) << ReadAll(run_output_);
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  const uint64_t step = Summary(run_output_)["step"];
  const std::string store = directory_ + "/state/example/checkpoints";
  WriteManifest(1000, 0);

  // Without the claims the run cannot know its attempt number: it is refused, not started over.
  std::filesystem::rename(store + "/claims", directory_ + "/claims");
  EXPECT_NE(Sluice(RunArguments()), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("claims were removed"));
  EXPECT_THAT(ReadAll(output_), HasSubstr("restoreFrom"));
  std::filesystem::remove_all(store + "/claims");
  std::filesystem::rename(directory_ + "/claims", store + "/claims");

  // The index of the newest checkpoint is a pipe, on which a careless reader would block.
  const std::string newest = absl::StrCat("attempt-0001-step-", absl::Dec(step, absl::kZeroPad12));
  const std::string manifest = absl::StrCat(store, "/", newest, "/manifest.json");
  ASSERT_TRUE(std::filesystem::remove(manifest)) << manifest;
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  std::string owner = ReadAll(store + "/owner");
  owner[3] = static_cast<char>(owner[3] ^ 1);
  std::ofstream(store + "/owner") << owner;
  std::ofstream(store + "/claims/README") << "junk";

  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  const std::string said = ReadAll(output_);
  EXPECT_THAT(said, HasSubstr(absl::StrCat("skipped: checkpoint ", newest, " is damaged")));
  EXPECT_THAT(said, HasSubstr("it is a pipe, not a file"));
  EXPECT_THAT(said, HasSubstr("owner is damaged"));
  EXPECT_THAT(said, HasSubstr("README is not a claim and is ignored"));

  const Json summary = Summary(output_);
  EXPECT_EQ(summary["outcome"], "Succeeded");
  EXPECT_EQ(summary["step"], 1000);
  ASSERT_TRUE(summary.contains("restoredFromStep")) << said;
  EXPECT_LT(summary["restoredFromStep"], step);
  EXPECT_GE(summary["restoredFromStep"], 10);
}

TEST_F(RunTest, WaitsForFailingDiskAtEndAndReportsItOnce) {
  WriteManifest(60, 0.05);
  StartRun();
  ASSERT_TRUE(WaitUntil([&] { return LastStep() >= 5; })) << ReadAll(run_output_);

  // The disk is gone: no file can be written in its place.
  const std::string store = directory_ + "/state/example/checkpoints";
  std::filesystem::rename(store, directory_ + "/kept");
  std::ofstream(store) << "";
  const std::string waits = "the job waits until its last checkpoint can be saved";
  ASSERT_TRUE(WaitUntil([&] { return ReadAll(run_output_).find(waits) != std::string::npos; }))
      << ReadAll(run_output_);

  // It keeps trying, more than three times.
  const int before = Tries("ps-0");
  ASSERT_TRUE(WaitUntil([&] { return Tries("ps-0") >= before + 4; })) << ReadAll(run_output_);
  EXPECT_TRUE(Objects(run_output_, "summary").empty()) << ReadAll(run_output_);

  int reports = 0;
  for (const Json& event : Objects(run_output_, "event")) {
    const std::string message = event.value("message", "");
    reports += absl::StrContains(message, "ps-0: ") && absl::StrContains(message, waits);
  }
  EXPECT_LE(reports, 1) << ReadAll(run_output_);

  std::filesystem::remove(store);
  std::filesystem::rename(directory_ + "/kept", store);
  EXPECT_EQ(FinishRun(), 0) << ReadAll(run_output_);
  EXPECT_EQ(Summary(run_output_)["outcome"], "Succeeded");
}

TEST_F(RunTest, ReplacesKilledWorker) {
  WriteManifest(80, 0.05);
  StartRun();
  const pid_t worker = PidOf("worker-1");
  ASSERT_GT(worker, 0);
  kill(worker, SIGKILL);
  EXPECT_EQ(FinishRun(), 0) << ReadAll(run_output_);
  const Json summary = Summary(run_output_);
  EXPECT_EQ(summary["outcome"], "Succeeded");
  EXPECT_EQ(summary["step"], 80);
  EXPECT_EQ(summary["restarts"], 1);
}

TEST_F(RunTest, StatusShowsReplacementOfKilledWorker) {
  WriteManifest(100000, 0.05);
  StartRun();
  // The number of workers of each view so far.
  const auto views = [&] {
    std::vector<int> workers;
    for (const Json& event : Objects(run_output_, "event")) {
      const std::string message = event["message"];
      const size_t at = message.find(" with ");
      if (event["kind"] == "view") workers.push_back(std::atoi(message.c_str() + at + 6));
    }
    return workers;
  };
  const auto two = [&] { return !views().empty() && views().back() == 2; };
  ASSERT_TRUE(WaitUntil(two)) << ReadAll(run_output_);

  const size_t before = views().size();
  kill(PidOf("worker-1"), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return views().size() > before && two(); })) << ReadAll(run_output_);

  EXPECT_EQ(Sluice({"status", "example"}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("worker-1     training"));
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
}

TEST_F(RunTest, ReplacesKilledCoordinatorAndRestoresKilledShardAndReportsBoth) {
  WriteManifest(150, 0.05, /*copies=*/1);
  StartRun();
  const auto said = [&](const std::string& text) {
    return ReadAll(run_output_).find(text) != std::string::npos;
  };

  ASSERT_TRUE(WaitUntil([&] { return Saved(); })) << ReadAll(run_output_);
  kill(PidOf("coordinator"), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return said("attempt 1 continues with another coordinator"); }))
      << ReadAll(run_output_);
  ASSERT_TRUE(WaitUntil([&] {
    const std::vector<Json> progress = Objects(run_output_, "progress");
    return progress.back()["attempt"] == 1 && progress.back()["phase"] == "TRAINING";
  }));

  kill(PidOf("ps-0"), SIGKILL);
  EXPECT_EQ(FinishRun(), 0) << ReadAll(run_output_);
  EXPECT_TRUE(said("; the job is restored")) << ReadAll(run_output_);
  EXPECT_TRUE(said("attempt 2: resumed from the checkpoint of attempt 1")) << ReadAll(run_output_);

  const Json summary = Summary(run_output_);
  EXPECT_EQ(summary["outcome"], "Succeeded");
  EXPECT_EQ(summary["step"], 150);
  EXPECT_EQ(summary["attempt"], 2);
  EXPECT_EQ(summary["restarts"], 2);
}

TEST_F(RunTest, ClosingTerminalStopsJobWithCheckpoint) {
  WriteManifest(100000, 0.05);
  StartRun();
  // The terminal and its shell each send one.
  kill(running_, SIGHUP);
  kill(running_, SIGHUP);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  ExpectEachEndedWell();
  EXPECT_NE(Summary(run_output_)["reason"], "stopped immediately") << ReadAll(run_output_);
}

TEST_F(RunTest, SurvivesClosedOutputPipe) {
  WriteManifest(40, 0.02);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  running_ = Start(RunArguments(), ends[1]);
  close(ends[1]);
  char byte;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  EXPECT_EQ(FinishRun(), 0);
  EXPECT_EQ(Sluice({"status", "example"}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("Succeeded at step 40"));
}

TEST_F(RunTest, SecondCtrlCStopsImmediately) {
  WriteManifest(100000, 0.05);
  StartRun();
  const std::vector<pid_t> processes = Pids();
  kill(PidOf("ps-0"), SIGSTOP);  // so that no checkpoint completes
  kill(running_, SIGINT);
  ASSERT_TRUE(WaitUntil([&] { return Objects(run_output_, "stopping").size() == 1; }));
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  ExpectGone(processes);
  const Json stopped = Summary(run_output_);
  EXPECT_EQ(stopped["outcome"], "Suspended");
  EXPECT_EQ(stopped["reason"], "stopped immediately");
}

TEST_F(RunTest, CtrlCSavesTheStepsOfAJobThatHasJustLostItsCoordinator) {
  WriteManifest(100000, 0.05);
  StartRun();
  // The first checkpoint and some steps more.
  ASSERT_TRUE(WaitUntil([&] { return LastStep() >= 13; })) << ReadAll(run_output_);
  const uint64_t step = LastStep();
  kill(PidOf("coordinator"), SIGKILL);
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  const Json stopped = Summary(run_output_);
  EXPECT_EQ(stopped["outcome"], "Suspended");
  EXPECT_EQ(stopped["reason"], "") << ReadAll(run_output_);
  EXPECT_EQ(stopped["attempt"], 1);
  EXPECT_GE(stopped["step"], step);
}

TEST_F(RunTest, StopCommandSavesCheckpointAndJobResumes) {
  WriteManifest(100000, 0.05);
  StartRun();
  EXPECT_EQ(Sluice({"stop", "example"}), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("after saving a checkpoint"));
  EXPECT_THAT(ReadAll(output_), HasSubstr("example: Suspended at step"));
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  ExpectEachEndedWell();
  const uint64_t step = Summary(run_output_)["step"];
  EXPECT_EQ(Sluice({"stop", "example"}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("is not running"));

  StartRun();
  ASSERT_TRUE(WaitUntil([&] { return LastStep() > step; })) << ReadAll(run_output_);
  EXPECT_EQ(Sluice({"stop", "example", "--now"}), 0) << ReadAll(output_);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  EXPECT_EQ(Summary(run_output_)["restoredFromStep"], step);
}

TEST_F(RunTest, KillingRunLeavesNoProcessBehind) {
  WriteManifest(100000, 0.05);
  StartRun();
  const std::vector<pid_t> processes = Pids();
  kill(running_, SIGKILL);
  FinishRun();
  ExpectGone(processes);
  // The lock is free: the job resumes.
  StartRun();
  kill(running_, SIGTERM);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
}

}  // namespace
}  // namespace sluice::testing

// `sluice run` as a user runs it: the real command and the real programs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/local/job_directory.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/safetensors.h"
#include "services/common/file_util.h"
#include "services/transport/security/job_secret.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pair;
using Json = nlohmann::json;

constexpr absl::Duration kPatience = absl::Minutes(2);

// $0: optimizer steps, $1: seconds of delay per step.
constexpr char kManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: logistic}
  data:
    format: Synthetic
    synthetic: {samples: 512, shape: [6], classes: 2}
    evaluation: {intervalSteps: 20}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: $0, globalBatchSize: 16}
  debug: {stepDelaySeconds: $1}
  parameterServer: {replicas: 2, copies: $2}
  worker: {replicas: 2}
  checkpoint: {intervalSteps: 10}
)";

// $0: steps, $1: another field of the spec.
constexpr char kScriptManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {type: TorchScript, path: net.pt}
  data:
    format: Synthetic
    synthetic: {samples: 512, shape: [2], classes: 2}
    evaluation: {intervalSteps: 10}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: $0, globalBatchSize: 16}
  $1
)";

bool WaitUntil(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class RunTest : public ::testing::Test {
 protected:
  RunTest()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        programs_(absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"))) {
    std::filesystem::create_directories(directory_);
  }
  ~RunTest() override {
    if (running_ > 0) {
      kill(running_, SIGKILL);
      waitpid(running_, nullptr, 0);
    }
  }

  // A job that trains the module on samples of two numbers.
  void WriteScriptJob(const ScriptModule& module, int steps, const std::string& more) {
    WriteScript(directory_ + "/net.pt", module);
    std::ofstream(directory_ + "/job.yaml") << absl::Substitute(kScriptManifest, steps, more);
  }
  void WriteManifest(int steps, double delay, int copies = 2) {
    std::ofstream(directory_ + "/job.yaml") << absl::Substitute(kManifest, steps, delay, copies);
  }

  // `output`: the end of a pipe that the command writes to instead of a new file.
  pid_t Start(std::vector<std::string> arguments, int output = -1) {
    output_ = absl::StrCat(directory_, "/output-", ++runs_);
    arguments.insert(arguments.begin(), programs_ + "/cli/sluice");
    arguments.insert(arguments.end(), {"--state-dir", directory_ + "/state"});
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    if (output >= 0) {
      posix_spawn_file_actions_adddup2(&files, output, 1);
    } else {
      posix_spawn_file_actions_addopen(&files, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0644);
    }
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, raw[0], &files, nullptr, raw.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    return pid;
  }
  static int Wait(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int Sluice(std::vector<std::string> arguments) { return Wait(Start(std::move(arguments))); }

  std::vector<std::string> RunArguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {
        "run", directory_ + "/job.yaml", "--output", "json", "--bin-dir", programs_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Starts a run in the background and waits until the job trains.
  void StartRun() {
    running_ = Start(RunArguments());
    run_output_ = output_;
    ASSERT_TRUE(WaitUntil([&] {
      return LastStep() >= 3 || !Objects(run_output_, "summary").empty();
    })) << ReadAll(run_output_);
    ASSERT_GE(LastStep(), 3u) << ReadAll(run_output_);
  }
  int FinishRun() { return Wait(std::exchange(running_, 0)); }

  // The objects of one type that a run has printed so far.
  static std::vector<Json> Objects(const std::string& output, const std::string& type) {
    std::vector<Json> objects;
    std::istringstream lines(ReadAll(output));
    std::string line;
    while (std::getline(lines, line)) {
      Json json = Json::parse(line, nullptr, false);
      if (json.is_object() && json["type"] == type) objects.push_back(std::move(json));
    }
    return objects;
  }
  uint64_t LastStep() const {
    const std::vector<Json> progress = Objects(run_output_, "progress");
    return progress.empty() ? 0 : progress.back()["step"].get<uint64_t>();
  }
  // Whether there is a checkpoint to resume from.
  bool Saved() const {
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    const auto storage =
        MakeLocalStorage(files.get(), directory_ + "/state/example/checkpoints", "test");
    return ReadNewestCheckpoint(*storage).ok();
  }
  Json Summary(const std::string& output) const {
    const std::vector<Json> summaries = Objects(output, "summary");
    if (summaries.size() == 1) return summaries[0];
    ADD_FAILURE() << "no summary in\n" << ReadAll(output);
    return Json::object();
  }
  // Each of the five processes of the run exited once, with code 0.
  void ExpectEachEndedWell() const {
    std::map<std::string, std::vector<int>> codes;
    for (const Json& process : Objects(run_output_, "process")) {
      if (process["state"] == "ended") {
        codes[process["name"]].push_back(process.value("exitCode", -1));
      }
    }
    const std::vector<int> well = {0};
    EXPECT_THAT(codes, ::testing::UnorderedElementsAre(
                           Pair("coordinator", well), Pair("ps-0", well), Pair("ps-1", well),
                           Pair("worker-0", well), Pair("worker-1", well)))
        << ReadAll(run_output_);
  }
  pid_t PidOf(const std::string& name) const {
    pid_t pid = 0;
    for (const Json& process : Objects(run_output_, "process")) {
      if (process["name"] == name && process["state"] == "started") pid = process["pid"];
    }
    return pid;
  }

  // How many writes of a partition file have failed in the process.
  int Tries(const std::string& name) const {
    const std::string log = ReadAll(absl::StrCat(directory_, "/state/example/logs/", name, ".log"));
    int tries = 0;
    constexpr char kFailed[] = "Partition write failed";
    for (size_t at = 0; (at = log.find(kFailed, at)) != std::string::npos; ++at) ++tries;
    return tries;
  }

  // The pids of all processes of the run, which must be running.
  std::vector<pid_t> Pids() const {
    std::vector<pid_t> pids;
    for (const char* name : {"coordinator", "ps-0", "ps-1", "worker-0", "worker-1"}) {
      pids.push_back(PidOf(name));
      EXPECT_EQ(kill(pids.back(), 0), 0) << name;
    }
    return pids;
  }
  static void ExpectGone(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
      // A zombie that no process reaps has ended too.
      EXPECT_TRUE(WaitUntil([&] {
        const std::string stat = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
        return stat.empty() || stat.find(") Z ") != std::string::npos;
      })) << pid;
    }
  }

  const std::string directory_;
  const std::string programs_;
  int runs_ = 0;
  std::string output_;      // path of the newest command's output
  std::string run_output_;  // path of the output of StartRun's command
  pid_t running_ = 0;
};

TEST_F(RunTest, TrainsExportsAndStartsOver) {
  WriteManifest(40, 0);
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  const Json summary = Summary(output_);
  EXPECT_EQ(summary["outcome"], "Succeeded");
  EXPECT_EQ(summary["step"], 40);
  EXPECT_EQ(summary["evaluation"]["step"], 40);
  EXPECT_TRUE(summary["evaluation"].contains("accuracy"));
  EXPECT_EQ(summary["restarts"], 0) << ReadAll(output_);

  ASSERT_EQ(Sluice({"inspect", "example", "--stats"}), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("all intact"));
  EXPECT_THAT(ReadAll(output_), HasSubstr("training    Synchronous, "));
  const std::string model = directory_ + "/model.safetensors";
  ASSERT_EQ(Sluice({"export", "example", "-o", model}), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("load_state_dict"));
  EXPECT_GT(std::filesystem::file_size(model), 0u);

  // The finished job has nothing left to do.
  ASSERT_EQ(Sluice(RunArguments()), 0);
  EXPECT_THAT(Objects(output_, "process"), ::testing::IsEmpty());
  EXPECT_THAT(ReadAll(output_), HasSubstr("has already finished"));

  ASSERT_EQ(Sluice(RunArguments({"--fresh"})), 0) << ReadAll(output_);
  EXPECT_EQ(Summary(output_)["step"], 40);
  EXPECT_FALSE(Summary(output_).contains("restoredFromStep"));
}

TEST_F(RunTest, ExtendingFinishedJobFollowsOnExisting) {
  const auto manifest = [this](int steps, const std::string& policy) {
    WriteManifest(steps, 0);
    std::string text = ReadAll(directory_ + "/job.yaml");
    const std::string interval = "{intervalSteps: 10}";
    const size_t at = text.find(interval);
    ASSERT_NE(at, std::string::npos);
    if (!policy.empty()) {
      text.replace(at, interval.size(),
                   absl::StrCat("{intervalSteps: 10, onExisting: ", policy, "}"));
    }
    std::ofstream(directory_ + "/job.yaml") << text;
  };
  manifest(20, "");
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  for (const char* policy : {"", "Fail"}) {
    manifest(40, policy);
    EXPECT_EQ(Sluice(RunArguments()), 2) << policy;
    EXPECT_THAT(ReadAll(output_), HasSubstr("CheckpointDirectoryInUse: the checkpoint directory"));
    EXPECT_THAT(ReadAll(output_), HasSubstr("which finished after step 20"));
    EXPECT_THAT(ReadAll(output_), HasSubstr("spec.training.steps 20 -> 40"));
  }
  manifest(20, "Resume");
  EXPECT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("has already finished"));

  manifest(40, "Resume");
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  EXPECT_EQ(Summary(output_)["step"], 40);
  EXPECT_EQ(Summary(output_)["restoredFromStep"], 20);

  manifest(30, "Replace");
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  EXPECT_EQ(Summary(output_)["step"], 30);
  EXPECT_FALSE(Summary(output_).contains("restoredFromStep"));
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const auto storage =
      MakeLocalStorage(files.get(), directory_ + "/state/example/checkpoints", "test");
  const std::vector<v1::CheckpointRef> left = storage->ListCheckpoints().value();
  for (const v1::CheckpointRef& ref : left) {
    EXPECT_EQ(ref.attempt(), 5) << "attempts 1 and 2: the first job; 3 and 4: the longer one";
  }
  // The checkpoints are now the job's own: the same command has nothing to do.
  EXPECT_EQ(Sluice(RunArguments()), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("has already finished"));
}

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

  // The manifest of the newest checkpoint is a pipe, on which a careless reader would block.
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

TEST_F(RunTest, ProcessesDemandSecretFromEveryClient) {
  WriteManifest(100000, 0.05);
  StartRun();
  const std::filesystem::path secret = directory_ + "/state/example/run/secret";
  const std::string kept = directory_ + "/kept";
  EXPECT_EQ(std::filesystem::status(secret).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(Sluice({"status", "example"}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("worker-0     training"));

  // Without the secret, as for a user that may not read it, `status` names the file.
  std::filesystem::rename(secret, kept);
  Sluice({"status", "example"});
  EXPECT_THAT(ReadAll(output_), HasSubstr("the call shows no secret"));
  EXPECT_THAT(ReadAll(output_), HasSubstr("run/secret"));
  ASSERT_TRUE(security::WriteSecretFile(secret, security::MakeSecret()).ok());
  Sluice({"status", "example"});
  EXPECT_THAT(ReadAll(output_), HasSubstr("the call shows a wrong secret"));
  std::filesystem::rename(kept, secret);

  // A process that is started later needs the secret too.
  const uint64_t step = LastStep();
  kill(PidOf("worker-1"), SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return LastStep() > step + 10; })) << ReadAll(run_output_);
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
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

TEST_F(RunTest, QuietPrintsOnlyMetricAndVerbosePrintsLogs) {
  WriteManifest(20, 0);
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", directory_ + "/job.yaml", "--bin-dir", programs_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(Sluice(arguments), 0) << ReadAll(output_);
    return ReadAll(output_);
  };

  const std::string quiet = text({"--quiet"});
  EXPECT_THAT(quiet, ::testing::StartsWith("Trained example: accuracy "));
  EXPECT_EQ(std::count(quiet.begin(), quiet.end(), '\n'), 1) << quiet;

  const std::string verbose = text({"--fresh", "--verbose"});
  for (const char* process : {"coordinator", "ps-1", "worker-0"}) {
    EXPECT_THAT(verbose, ::testing::ContainsRegex(absl::StrCat("\n", process, " +\\| ")))
        << process;
  }
  // --verbose logs a line for each gradient push, weight pull and closed step.
  for (const char* line : {"worker-0 .*msg=\"Sent gradients\".* step=19",
                           "worker-0 .*msg=\"Received weights\".* version=19",
                           "ps-[01] .*msg=\"Step closed\".* step=20"}) {
    EXPECT_THAT(verbose, ::testing::ContainsRegex(line));
  }

  const std::string log = text({"--fresh", "--verbose", "--log-level", "info"});
  EXPECT_EQ(log.find("Sent gradients"), std::string::npos) << log;
}

TEST_F(RunTest, FollowsLogsUntilJobEnds) {
  WriteManifest(40, 0.05);
  StartRun();
  const pid_t follower = Start({"logs", "example", "--follow"});
  const std::string followed = output_;
  EXPECT_EQ(FinishRun(), 0) << ReadAll(run_output_);
  EXPECT_EQ(Wait(follower), 0) << ReadAll(followed);
  for (const std::string process : {"coordinator", "ps-0", "worker-1"}) {
    const std::vector<std::string> last =
        local::LastLines(absl::StrCat(directory_, "/state/example/logs/", process, ".log"), 1);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_THAT(ReadAll(followed), HasSubstr(last[0])) << process;
  }
}

TEST_F(RunTest, RunsTwoJobsSideBySide) {
  std::string manifest = absl::Substitute(kManifest, 120, 0.02, 2);
  std::ofstream(directory_ + "/job.yaml") << manifest;
  manifest.replace(manifest.find("name: example"), 13, "name: another");
  std::ofstream(directory_ + "/another.yaml") << manifest;
  StartRun();
  EXPECT_EQ(
      Sluice({"run", directory_ + "/another.yaml", "--output", "json", "--bin-dir", programs_}), 0)
      << ReadAll(output_);
  EXPECT_EQ(Summary(output_)["step"], 120);
  EXPECT_EQ(FinishRun(), 0) << ReadAll(run_output_);
  EXPECT_EQ(Summary(run_output_)["step"], 120);
  EXPECT_EQ(Sluice({"status"}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("example "));
  EXPECT_THAT(ReadAll(output_), HasSubstr("another "));
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

TEST_F(RunTest, WatchPrintsOneLinePerVersionUntilJobStops) {
  WriteManifest(100000, 0.05);
  StartRun();
  const pid_t watch = Start({"inspect", "example", "--tensor", "weight", "--watch", "0.2"});
  const std::string watched = output_;
  const auto steps = [&] {
    std::vector<uint64_t> found;
    std::istringstream lines(ReadAll(watched));
    std::string line;
    const std::string head = "example (running) at step ";
    while (std::getline(lines, line)) {
      if (line.rfind(head, 0) == 0) found.push_back(std::stoull(line.substr(head.size())));
    }
    return found;
  };

  ASSERT_TRUE(WaitUntil([&] { return steps().size() >= 3; })) << ReadAll(watched);
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
  EXPECT_EQ(Wait(watch), 0) << ReadAll(watched);

  const std::vector<uint64_t> seen = steps();
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end())) << ReadAll(watched);
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << ReadAll(watched);

  std::istringstream lines(ReadAll(watched));
  std::string line;
  while (std::getline(lines, line)) {
    // Printed to standard error when a shard could not be reached because the job was ending.
    if (line.rfind("sluice: ", 0) == 0) continue;
    EXPECT_THAT(line, HasSubstr(": weight ")) << "more than one line per version";
  }
}

TEST_F(RunTest, WatchIntervalIsOptional) {
  WriteManifest(100000, 0.05);
  StartRun();
  // The next flag is not taken for the number of seconds; Start() adds --state-dir at the end.
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"inspect", "example", "--watch"},
        std::vector<std::string>{"inspect", "example", "--watch", "--stats"}}) {
    const pid_t watch = Start(arguments);
    const std::string watched = output_;
    EXPECT_TRUE(WaitUntil([&] { return ReadAll(watched).find(" at step ") != std::string::npos; }))
        << ReadAll(watched);
    kill(watch, SIGINT);
    EXPECT_EQ(Wait(watch), 130);
  }
  kill(running_, SIGINT);
  EXPECT_EQ(FinishRun(), 130) << ReadAll(run_output_);
}

TEST_F(RunTest, ExportsTrainedTorchScriptModelForPyTorch) {
  ScriptModule module;
  module.tensors = {{"weight", ScriptTensor::kParameter, {1, 2}, {1, 2}, ""},
                    {"bias", ScriptTensor::kParameter, {1}, {0.5}, ""}};
  module.source = "def forward(self, x):\n    return torch.linear(x, self.weight, self.bias)\n";
  WriteScriptJob(module, 20, "loss: binaryCrossEntropyWithLogits");
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  const std::string trained = directory_ + "/trained.model";
  ASSERT_EQ(Sluice({"export", "example", "-o", trained, "--format", "torchscript", "--bin-dir",
                    programs_}),
            0)
      << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("torch.jit.load"));

  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const auto storage =
      MakeLocalStorage(files.get(), directory_ + "/state/example/checkpoints", "test");
  const auto newest = ReadNewestCheckpoint(*storage);
  ASSERT_TRUE(newest.ok()) << newest.status();
  float parameters[3] = {};
  for (const SafetensorsArray& tensor : newest->tensors) {
    const std::string bytes(tensor.bytes);
    std::memcpy(tensor.name == "bias" ? parameters + 2 : parameters, bytes.data(), bytes.size());
  }
  EXPECT_NE(parameters[2], 0.5f);
  const std::vector<float> row = {3, -1};
  EXPECT_THAT(RunScript(trained, row),
              ElementsAre(FloatNear(3 * parameters[0] - parameters[1] + parameters[2], 1e-5f)));

  EXPECT_NE(Sluice({"export", "example", "-o", directory_ + "/x.pt", "--model", "missing.pt",
                    "--bin-dir", programs_}),
            0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("missing.pt"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/x.pt"));
}

// A strict load_state_dict needs the second names of tied tensors, and constants.
TEST_F(RunTest, ExportedSafetensorsHaveEveryStateDictName) {
  ScriptModule module;
  module.tensors = {{"weight", ScriptTensor::kParameter, {1, 2}, {1, 2}, ""},
                    {"bias", ScriptTensor::kParameter, {1}, {0.5}, ""},
                    {"tied", ScriptTensor::kParameter, {}, {}, "weight"},
                    {"order", ScriptTensor::kIntegerBuffer, {2}, {1, 0}, ""},
                    {"mask", ScriptTensor::kBoolBuffer, {2}, {1, 1}, ""}};
  module.source = R"(
def forward(self, x):
    x = torch.index_select(x, 1, self.order) * self.mask
    return torch.linear(x, self.weight, self.bias) + torch.linear(x, self.tied)
)";
  WriteScriptJob(module, 5, "loss: binaryCrossEntropyWithLogits");
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  const std::string exported = directory_ + "/trained.safetensors";
  ASSERT_EQ(Sluice({"export", "example", "-o", exported}), 0) << ReadAll(output_);
  const auto arrays = ReadSafetensors(absl::Cord(ReadAll(exported)));
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  std::map<std::string, SafetensorsArray> by_name;
  for (const SafetensorsArray& array : *arrays) by_name[array.name] = array;
  ASSERT_EQ(by_name.size(), 5u);
  EXPECT_EQ(by_name["tied"].bytes, by_name["weight"].bytes);
  EXPECT_EQ(by_name["mask"].bytes, std::string("\1\1"));
  EXPECT_EQ(by_name["mask"].other_type, "BOOL");
  EXPECT_EQ(by_name["order"].dtype, v1::INT64);

  // The TorchScript export takes these names from the module itself.
  ASSERT_EQ(Sluice({"export", "example", "-o", directory_ + "/trained.pt", "--bin-dir", programs_}),
            0)
      << ReadAll(output_);
  // A damaged file is named, not skipped.
  const std::string extras = directory_ + "/state/example/checkpoints/state_dict.extras";
  std::ofstream(extras, std::ios::app) << "x";
  EXPECT_NE(Sluice({"export", "example", "-o", exported}), 0);
  EXPECT_THAT(ReadAll(output_), HasSubstr("state_dict.extras: its CRC32C"));
}

TEST_F(RunTest, ModuleThatReturnsItsLossNeedsNoLossInManifest) {
  ScriptModule module;
  module.tensors = {{"weight", ScriptTensor::kParameter, {1, 2}, {1, 2}, ""},
                    {"bias", ScriptTensor::kParameter, {1}, {0.5}, ""}};
  module.source = R"(
def forward(self, x, y):
    logits = torch.linear(x, self.weight, self.bias).squeeze(1)
    return torch.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))
)";
  WriteScriptJob(module, 20, "worker: {replicas: 2}");
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  const Json evaluation = Objects(output_, "summary").at(0).at("evaluation");
  EXPECT_EQ(evaluation.at("step"), 20);
  EXPECT_GT(evaluation.at("loss"), 0);
}

TEST_F(RunTest, WorkerCommandRunsInManifestDirectory) {
  std::filesystem::create_directory(directory_ + "/project");
  std::ofstream(directory_ + "/project/worker.sh") << "pwd >&2; exit 1\n";
  std::ofstream(directory_ + "/project/job.yaml") << R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {type: Custom}
  data: {format: Custom}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 5, globalBatchSize: 16}
  worker: {command: [sh, worker.sh]}
)";

  std::vector<std::string> arguments = RunArguments();
  for (std::string& argument : arguments) {
    if (argument == directory_ + "/job.yaml") argument = directory_ + "/project/job.yaml";
  }
  ASSERT_EQ(Sluice(arguments), 1) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr(directory_ + "/project"));
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

TEST_F(RunTest, WorkerFailureFailsJobWithReasonAndLog) {
  // The model has two classes, the data five.
  std::string manifest = absl::Substitute(kManifest, 40, 0, 2);
  manifest.replace(manifest.find("classes: 2"), 10, "classes: 5");
  std::ofstream(directory_ + "/job.yaml") << manifest;
  EXPECT_EQ(Sluice(RunArguments()), 1);
  const Json summary = Summary(output_);
  EXPECT_EQ(summary["outcome"], "Failed");
  EXPECT_THAT(summary["reason"].get<std::string>(), HasSubstr("label"));
  EXPECT_THAT(summary["process"].get<std::string>(), HasSubstr("worker-"));
  EXPECT_FALSE(summary["logLines"].empty());
}

TEST_F(RunTest, ReportsNonFiniteGradientOnceWithRemedy) {
  std::string manifest = absl::Substitute(kManifest, 40, 0, 2);
  for (const auto& [from, to] : std::map<std::string, std::string>{
           {"logistic", "linear"}, {"classes: 2", "classes: 0"}, {"Rate: 0.1", "Rate: 1e10"}}) {
    manifest.replace(manifest.find(from), from.size(), to);
  }
  std::ofstream(directory_ + "/job.yaml") << manifest;
  EXPECT_EQ(Sluice({"run", directory_ + "/job.yaml", "--bin-dir", programs_}), 1);
  const std::string output = ReadAll(output_);
  const std::vector<std::string> parts = absl::StrSplit(output, "is not finite");
  EXPECT_EQ(parts.size(), 2u) << output;
  EXPECT_THAT(parts.back(), HasSubstr("Lower the learning rate"));
}

TEST_F(RunTest, InvalidManifestStartsNothing) {
  std::ofstream(directory_ + "/job.yaml") << "kind: TrainingJob\n";
  EXPECT_EQ(Sluice(RunArguments()), 2);
  EXPECT_THAT(ReadAll(output_), HasSubstr("job.yaml"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/state"));
}

}  // namespace
}  // namespace sluice

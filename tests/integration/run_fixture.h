// The fixture of tests of `sluice run` as a user runs it: the real command and the real programs.
#ifndef SLUICE_TESTS_INTEGRATION_RUN_FIXTURE_H_
#define SLUICE_TESTS_INTEGRATION_RUN_FIXTURE_H_

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/io/file_util.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice::testing {

inline constexpr absl::Duration kPatience = absl::Minutes(2);

// $0: optimizer steps, $1: seconds of delay per step, $2: copies of each partition.
inline constexpr char kManifest[] = R"(apiVersion: sluice.dev/v1alpha1
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
inline constexpr char kScriptManifest[] = R"(apiVersion: sluice.dev/v1alpha1
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

inline bool WaitUntil(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class RunTest : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

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
                           ::testing::Pair("coordinator", well), ::testing::Pair("ps-0", well),
                           ::testing::Pair("ps-1", well), ::testing::Pair("worker-0", well),
                           ::testing::Pair("worker-1", well)))
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

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_INTEGRATION_RUN_FIXTURE_H_

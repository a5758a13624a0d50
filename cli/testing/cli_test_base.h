// A test that runs command lines of `sluice` in a directory of its own, with programs that are
// shell scripts.
#ifndef SLUICE_CLI_TESTING_CLI_TEST_BASE_H_
#define SLUICE_CLI_TESTING_CLI_TEST_BASE_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/cli.h"
#include "cli/common/environment.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/io/file_util.h"
#include "services/common/time/clock.h"
#include "services/manifest/manifest.h"

namespace sluice::cli {

inline constexpr char kManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp}
  data: {format: Synthetic, synthetic: {samples: 100, shape: [4], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
)";

inline constexpr char kIdxManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp}
  data: {format: IDX, source: {path: data/digits}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
)";

inline constexpr char kCustomManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {type: Custom}
  data: {format: Custom}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
  worker: {replicas: 2, command: [python3, train.py]}
)";

class CliTestBase : public ::testing::Test {
 protected:
  CliTestBase()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        files_(MakeRealFileSystem()) {
    std::filesystem::create_directories(directory_ + "/bin");
    Write("job.yaml", kManifest);
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }

  // Writes a program of the job that runs this shell script.
  void WriteProgram(const std::string& name, const std::string& script) {
    Write("bin/" + name, absl::StrCat("#!/bin/sh\n", script, "\n"));
    chmod(absl::StrCat(directory_, "/bin/", name).c_str(), 0755);
  }
  void WritePrograms(const std::string& coordinator) {
    WriteProgram("sluice-coordinator", coordinator);
    WriteProgram("sluice-ps", "exec sleep 1000");
    WriteProgram("sluice-worker", "exec sleep 1000");
  }

  // `out` replaces out_.
  int Run(const std::vector<std::string>& arguments, std::ostream* out = nullptr) {
    out_.str("");
    err_.str("");
    Environment environment;
    environment.in = &in_;
    environment.out = out != nullptr ? out : &out_;
    environment.reader_gone = [this] { return reader_gone_; };
    environment.err = &err_;
    environment.program_directories = {directory_ + "/bin"};
    environment.data_directory = data_directory_;
    environment.files = files_.get();
    environment.clock = &clock_;
    return RunCommandLine(arguments, environment);
  }
  // Runs the job with the test's state directory.
  int RunJob(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", directory_ + "/job.yaml", "--state-dir", State()});
    return Run(arguments);
  }
  std::string State() const { return directory_ + "/state"; }
  // Makes the job look as if it had trained up to a checkpoint.
  std::string WriteCheckpoint() {
    const std::string directory = State() + "/example/checkpoints/attempt-0001-step-000000000005";
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/manifest.json") << "{}";
    return directory + "/manifest.json";
  }
  // Writes the checkpoints of a finished job with the same name and another uid.
  void WriteFinished(const std::string& directory, uint64_t step) {
    const auto storage = MakeLocalStorage(files_.get(), directory, "test");
    v1::JobSpec job = api::ReadManifest(directory_ + "/job.yaml", {})->spec;
    job.mutable_training()->set_steps(step);
    job.set_uid("earlier");
    v1::Claim claim;
    claim.set_attempt(1);
    claim.set_job(FullJobName(job));
    claim.set_settings(ClaimSettings(job));
    ASSERT_TRUE(storage->CreateClaim(claim).ok());
    v1::CheckpointIndex manifest;
    manifest.set_job(FullJobName(job));
    manifest.mutable_checkpoint()->set_attempt(1);
    manifest.mutable_checkpoint()->set_step(step);
    ASSERT_TRUE(storage->WriteCheckpointIndex(manifest).ok());
    claim.set_attempt(2);
    claim.set_end(true);
    ASSERT_TRUE(storage->CreateClaim(claim).ok());
  }
  // The JSON objects that were printed.
  std::vector<nlohmann::json> Objects() const {
    std::vector<nlohmann::json> objects;
    std::istringstream lines(out_.str());
    std::string line;
    while (std::getline(lines, line)) objects.push_back(nlohmann::json::parse(line));
    return objects;
  }

  const std::string directory_;
  const std::unique_ptr<FileSystem> files_;
  std::string data_directory_;
  bool reader_gone_ = false;
  const RealClock clock_;
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_TESTING_CLI_TEST_BASE_H_

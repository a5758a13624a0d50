// `sluice run` as a user runs it: what it trains, prints and exports, and what other commands show
// of the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "cli/local/job_directory.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/safetensors.h"
#include "services/common/io/file_util.h"
#include "services/transport/security/job_secret.h"
#include "services/worker/models/testing/script_files.h"
#include "tests/integration/run_fixture.h"

namespace sluice::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

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

TEST_F(RunTest, BestCheckpointIsInspectedAndAnotherJobBeginsWithIt) {
  WriteManifest(40, 0);
  std::string text = ReadAll(directory_ + "/job.yaml");
  const std::string interval = "{intervalSteps: 10}";
  const size_t at = text.find(interval);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, interval.size(), "{intervalSteps: 40, keepBest: {metric: loss, count: 1}}");
  std::ofstream(directory_ + "/job.yaml") << text;
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  std::vector<std::string> shown;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory_ + "/state/example/checkpoints")) {
    if (!std::filesystem::exists(entry.path() / "manifest.json")) continue;
    ASSERT_EQ(Sluice({"inspect", entry.path().string()}), 0) << ReadAll(output_);
    shown.push_back(ReadAll(output_));
  }
  EXPECT_THAT(shown, ::testing::Contains(HasSubstr("evaluation  loss ")));

  const std::string best = directory_ + "/state/example/checkpoints/best";
  ASSERT_EQ(Sluice({"inspect", best}), 0) << ReadAll(output_);
  EXPECT_THAT(shown, ::testing::Contains(ReadAll(output_)));
  text = absl::StrReplaceAll(
      text, {{"name: example", "name: second"},
             {"steps: 40", "steps: 60"},
             {"keepBest: {metric: loss, count: 1}", absl::StrCat("restoreFrom: ", best)}});
  std::ofstream(directory_ + "/job.yaml") << text;
  ASSERT_EQ(Sluice(RunArguments()), 0) << ReadAll(output_);
  EXPECT_GE(Summary(output_)["restoredFromStep"], 10);
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

TEST_F(RunTest, TableKeepsItsEncodingUntilTheJobStartsOver) {
  const std::string table = directory_ + "/train.csv";
  const std::string rows = "bonn,1\nkiel,2\nulm,3\n";
  const auto run = [&](const std::string& content, int epochs, const std::string& policy,
                       const std::vector<std::string>& more = {}) {
    std::ofstream(table) << "city,y\n" << content;
    std::ofstream(directory_ + "/job.yaml")
        << "apiVersion: sluice.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: example}\n"
        << "spec:\n  model: {name: linear}\n  data:\n    format: CSV\n"
        << "    source: {path: train.csv}\n"
        << "    csv: {labelColumn: y, regression: true, categoricalColumns: [city], "
        << "categories: Index}\n  optimizer: {name: SGD, learningRate: 0.01}\n"
        << "  training: {epochs: " << epochs << ", globalBatchSize: 3}\n"
        << "  checkpoint: {storage: {path: kept}, onExisting: " << policy << "}\n";
    return Sluice(RunArguments(more));
  };
  const std::string encoding = directory_ + "/kept/encoding.csv";

  ASSERT_EQ(run(rows, 1, "Resume"), 0) << ReadAll(output_);
  const std::string before = ReadAll(encoding);
  EXPECT_THAT(before, HasSubstr("\"city\",\"categorical\",\"value\",\"bonn\""));
  EXPECT_EQ(run("aalen,4\n" + rows, 2, "Resume"), 1);
  EXPECT_THAT(ReadAll(output_), HasSubstr("column 'city': the value 'aalen' is new"));
  ASSERT_EQ(run("ulm,4\nkiel,2\nulm,3\n", 3, "Resume"), 0) << ReadAll(output_);
  EXPECT_EQ(ReadAll(encoding), before);

  ASSERT_EQ(Sluice({"inspect", directory_ + "/kept"}), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(output_), HasSubstr("\ndata        the encoding of the columns: "));
  std::filesystem::remove(encoding);
  EXPECT_EQ(run("ulm,4\nkiel,2\nulm,3\n", 4, "Resume"), 1);
  EXPECT_THAT(ReadAll(output_), HasSubstr("the encoding of the columns differs from when"));
  std::ofstream(encoding) << before;

  ASSERT_EQ(run("aalen,4\n" + rows, 2, "Replace"), 0) << ReadAll(output_);
  EXPECT_THAT(ReadAll(encoding), HasSubstr("aalen"));
  EXPECT_EQ(ReadAll(encoding + ".replaced"), before);
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
  EXPECT_EQ(Sluice({"status", "example", "--output", "json"}), 0);
  const nlohmann::json status = nlohmann::json::parse(ReadAll(output_), nullptr, false);
  EXPECT_EQ(status.value("running", false), true) << ReadAll(output_);
  EXPECT_EQ(status.value("phase", ""), "TRAINING");
  EXPECT_GT(status.value("trainingSeconds", 0.0), 0);
  ASSERT_FALSE(status["processes"].empty());
  EXPECT_EQ(status["processes"][0]["name"], "ps-0");

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
  EXPECT_FALSE(std::filesystem::exists(secret.parent_path())) << "it is of no use any more";
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
}  // namespace sluice::testing

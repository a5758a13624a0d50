// Tests of the command line without a job's processes; tests/integration starts those.
#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/testing/cli_test_base.h"
#include "services/checkpoint/safetensors.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using CliTest = CliTestBase;

TEST_F(CliTest, RejectsWrongArgumentsWithCode2) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"fly"},
                                                       {"run"},
                                                       {"run", "a", "b"},
                                                       {"run", "x", "--output", "xml"},
                                                       {"run", "x", "--port", "99999"},
                                                       {"logs"},
                                                       {"scale", "x"},
                                                       {"scale", "x", "--workers", "0"},
                                                       {"export", "x"},
                                                       {"validate"}};
  for (const auto& arguments : wrong) {
    EXPECT_EQ(Run(arguments), 2) << ::testing::PrintToString(arguments);
    EXPECT_FALSE(err_.str().empty());
  }
}

TEST_F(CliTest, SuggestsTheNearestCommandOrFlag) {
  EXPECT_EQ(Run({"rnu", "job.yaml"}), 2);
  EXPECT_EQ(err_.str(),
            "sluice: there is no command rnu; did you mean run? (`sluice --help` lists the "
            "commands)\n");
  EXPECT_EQ(Run({"run", "--wrokers", "3", directory_ + "/job.yaml"}), 2);
  EXPECT_EQ(err_.str(), "sluice: run: there is no flag --wrokers; did you mean --workers?\n");
  EXPECT_EQ(Run({"run", "--wrokers=3", directory_ + "/job.yaml"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean --workers?"));
  EXPECT_EQ(Run({"--versoin"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean --version?"));
}

TEST_F(CliTest, ListsCommandsWithoutArguments) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("  validate      Check manifests"));
  const std::string bare = err_.str();
  EXPECT_LE(std::count(bare.begin(), bare.end(), '\n'), 42);
  EXPECT_EQ(Run({"run", "--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--port NUMBER"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("Excludes")));
  EXPECT_THAT(out_.str(), Not(HasSubstr("TEXT:{")));
}

// Fails like a full disk.
TEST_F(CliTest, FailsIfOutputCannotBeWritten) {
  const std::vector<std::vector<std::string>> printing = {{"render", directory_ + "/job.yaml"},
                                                          {"explain"},
                                                          {"init"},
                                                          {"status", "--state-dir", State()},
                                                          {"validate", directory_ + "/job.yaml"}};
  for (const auto& arguments : printing) {
    std::ofstream full("/dev/full");
    EXPECT_EQ(Run(arguments, &full), 1) << arguments[0];
    EXPECT_THAT(err_.str(), HasSubstr("could not be written")) << arguments[0];
  }
  // It is no error if the reader of a pipe has gone.
  std::ofstream full("/dev/full");
  reader_gone_ = true;
  EXPECT_EQ(Run(printing[0], &full), 0);
}

TEST_F(CliTest, AcceptsParametersWithSuffix) {
  EXPECT_EQ(Run({"plan", directory_ + "/job.yaml", "--parameters", "lots"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("\"lots\" is not a number of parameters; write for example "
                                    "12000000, 12k or 1.5M"));
  Write("job.yaml", kCustomManifest);
  EXPECT_EQ(Run({"plan", directory_ + "/job.yaml", "--parameters", "12k"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("12,000 parameters"));
}

TEST_F(CliTest, InitReadsColumnsOfTable) {
  Write("table.csv", "age,city,income\n31,Rome,high\n45,Oslo,low\n");
  const std::string table = directory_ + "/table.csv";
  EXPECT_EQ(Run({"init", "--model", "logistic", "--data", table}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("name the column to predict with --label-column"));
  EXPECT_EQ(Run({"init", "--model", "logistic", "--data", table, "--label-column", "incomme"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("has no column incomme; did you mean income? It has: age, "
                                    "city, income"));
  EXPECT_EQ(Run({"init", "--model", "logistic", "--data", table, "--label-column", "income"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("numericColumns: [\"age\"]"));
  EXPECT_THAT(out_.str(), HasSubstr("categoricalColumns: [\"city\"]"));
  in_.str(out_.str());
  EXPECT_EQ(Run({"validate", "-"}), 0) << err_.str();
  EXPECT_EQ(Run({"init", "--data", "table.parquet"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr(".parquet files cannot be read"));
}

TEST_F(CliTest, ValidateReportsMissingFiles) {
  Write("job.yaml", kIdxManifest);
  EXPECT_EQ(Run({"validate", directory_ + "/job.yaml"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("Note: spec.data.source.path: " + directory_ +
                                    "/data/digits: no such file or directory on this machine"));
  in_.str("kind: Trainingjob\n");
  EXPECT_EQ(Run({"validate", "-"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("standard input:1:1: kind: must be TrainingJob"));
}

TEST_F(CliTest, StatusOfEndedJobShowsItsCheckpoint) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  WriteCheckpoint();
  EXPECT_EQ(Run({"status", "example", "--state-dir", State()}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("newest checkpoint: " + State() +
                                    "/example/checkpoints/attempt-0001-step-000000000005\n"));
  EXPECT_THAT(out_.str(), HasSubstr("sluice export example -o example.safetensors\n"));
  EXPECT_THAT(out_.str(), HasSubstr("  ended: 20"));
}

// The job may have ended before it trained because of its data, which is different now.
TEST_F(CliTest, JobWithoutCheckpointLearnsTheEncodingOfItsDataAgain) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  const std::string directory = State() + "/example/checkpoints";
  const std::vector<std::string> kept = {directory + "/encoding.csv", directory + "/vocabulary.txt",
                                         directory + "/stream.states"};
  const auto write = [&] {
    std::filesystem::create_directories(directory);
    for (const std::string& file : kept) std::ofstream(file) << "x";
  };
  write();
  EXPECT_EQ(RunJob({}), 1);
  for (const std::string& file : kept) EXPECT_FALSE(std::filesystem::exists(file)) << file;

  write();
  WriteCheckpoint();
  EXPECT_EQ(RunJob({}), 1);
  for (const std::string& file : kept) EXPECT_TRUE(std::filesystem::exists(file)) << file;
}

TEST_F(CliTest, InspectShowsTheTensorsOfASafetensorsFile) {
  const std::string path = directory_ + "/model.safetensors";
  Write("model.safetensors",
        std::string(WriteSafetensors(
            {{"w", v1::FLOAT32, {2}, absl::Cord(std::string(8, '\0'))},
             {"mask", v1::DATA_TYPE_UNSPECIFIED, {1}, absl::Cord(std::string(1, '\1')), "BOOL"}},
            {{"format", "pt"}, {"step", "7"}})));
  EXPECT_EQ(Run({"inspect", path, "--stats"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("file        " + path));
  EXPECT_THAT(out_.str(), HasSubstr("metadata    step: 7\n"));
  EXPECT_THAT(out_.str(), HasSubstr("w     [2]    float32"));
  EXPECT_THAT(out_.str(), HasSubstr("mask  [1]    BOOL"));
  EXPECT_EQ(Run({"inspect", path, "--tensor", "v"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("there is no tensor v"));

  Write("cut.safetensors", "{}");
  EXPECT_EQ(Run({"inspect", directory_ + "/cut.safetensors"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("cut.safetensors is not a safetensors file: "));
}

TEST_F(CliTest, ImportRefusesWhatIsNotTheJobsModelAndWritesNothing) {
  Write("custom.yaml", kCustomManifest);
  const std::string output = directory_ + "/restored";
  const auto refusal = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"import", directory_ + "/custom.yaml", "--model",
                               directory_ + "/" + model, "-o", output});
    EXPECT_EQ(Run(more), 2) << model;
    EXPECT_FALSE(std::filesystem::exists(output)) << model;
    return err_.str();
  };
  const auto write = [&](const std::string& name, const std::vector<SafetensorsArray>& arrays,
                         const std::string& listed) {
    Write(name, std::string(
                    WriteSafetensors(arrays, {{"format", "sluice-model-1"}, {"tensors", listed}})));
  };
  const SafetensorsArray w = {"w", v1::FLOAT32, {2}, absl::Cord(std::string(8, '\0'))};
  const SafetensorsArray nan = {"w", v1::FLOAT32, {1}, absl::Cord(std::string("\0\0\xc0\x7f", 4))};

  Write("model.pt", "PK");
  EXPECT_THAT(refusal("model.pt", {}), HasSubstr("can only be read by PyTorch"));
  Write("cut.safetensors", "x");
  EXPECT_THAT(refusal("cut.safetensors", {}), HasSubstr("is not a safetensors file"));
  Write("plain.safetensors", std::string(WriteSafetensors({w}, {{"format", "pt"}})));
  EXPECT_THAT(refusal("plain.safetensors", {}), HasSubstr("sluice.save_checkpoint"));
  write("nan.safetensors", {nan}, R"([["w", "PARAMETER"]])");
  EXPECT_THAT(refusal("nan.safetensors", {}), HasSubstr("element 0 of 'w' is nan"));
  write("missing.safetensors", {w}, R"([["w", "PARAMETER"], ["v", "BUFFER"]])");
  EXPECT_THAT(refusal("missing.safetensors", {}), HasSubstr("the tensor 'v' is missing"));
  write("more.safetensors", {w}, "[]");
  EXPECT_THAT(refusal("more.safetensors", {}), HasSubstr("not in the job's model: w"));
  write("kind.safetensors", {w}, R"([["w", "WEIGHT"]])");
  EXPECT_THAT(refusal("kind.safetensors", {}), HasSubstr("names and kinds"));
  write("good.safetensors", {w}, R"([["w", "PARAMETER"]])");
  EXPECT_THAT(refusal("good.safetensors", {"--optimizer", directory_ + "/plain.safetensors"}),
              HasSubstr("plain.safetensors: it has no optimizer's state"));
  EXPECT_THAT(refusal("good.safetensors", {"--step", "18446744073709551615"}),
              HasSubstr("is more than a job can have"));

  EXPECT_EQ(Run({"import", directory_ + "/custom.yaml", "--model", directory_ + "/good.safetensors",
                 "-o", output, "--step", "7"}),
            0)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("starts afresh"));
  EXPECT_THAT(out_.str(), HasSubstr("continues at step 7 with\n\n  checkpoint: {restoreFrom: "));
  EXPECT_EQ(Run({"inspect", output}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("all intact"));
  EXPECT_EQ(Run({"import", directory_ + "/custom.yaml", "--model", directory_ + "/good.safetensors",
                 "-o", output}),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("has checkpoints already"));
}

TEST_F(CliTest, RestoreFromAFileNamesTheCommandThatConvertsIt) {
  Write("model.safetensors", "x");
  Write("job.yaml", absl::StrCat(kManifest, "  checkpoint: {restoreFrom: ", directory_,
                                 "/model.safetensors}\n"));
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("spec.checkpoint.restoreFrom: "));
  EXPECT_THAT(err_.str(), HasSubstr("model.safetensors is a file: `sluice import"));
}

TEST_F(CliTest, ExportOfAnOptimizerNeedsASafetensorsFile) {
  EXPECT_EQ(Run({"export", "example", "--optimizer", directory_ + "/o.pt", "--state-dir", State()}),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("o.pt: --optimizer writes a safetensors file"));
  EXPECT_EQ(Run({"export", "example", "--state-dir", State()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("name a file with --output, with --optimizer, or with both"));
  const std::string path = directory_ + "/o.safetensors";
  EXPECT_EQ(Run({"export", "example", "-o", path, "--optimizer", path, "--state-dir", State()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--output and --optimizer name one file"));
}

TEST_F(CliTest, StatusAsJsonIsOneObjectForEachJob) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  WriteCheckpoint();
  for (const std::vector<std::string>& name : {std::vector<std::string>{"example"}, {}}) {
    std::vector<std::string> arguments = {"status", "--output", "json", "--state-dir", State()};
    arguments.insert(arguments.end(), name.begin(), name.end());
    ASSERT_EQ(Run(arguments), 0) << err_.str();
    const nlohmann::json json = nlohmann::json::parse(out_.str(), nullptr, false);
    ASSERT_TRUE(json.is_object()) << out_.str();
    EXPECT_EQ(json["type"], "status");
    EXPECT_EQ(json["job"], "example");
    EXPECT_EQ(json["running"], false);
    EXPECT_EQ(json["outcome"], "Failed");
    EXPECT_EQ(json["step"], 0);
    EXPECT_EQ(json["checkpoint"], State() + "/example/checkpoints/attempt-0001-step-000000000005");
    EXPECT_EQ(json["logs"], State() + "/example/logs");
    EXPECT_FALSE(json.contains("samplesPerSecond")) << "nothing runs";
  }
  EXPECT_NE(Run({"status", "other", "--output", "json", "--state-dir", State()}), 0);
  EXPECT_EQ(Run({"status", "--output", "xml", "--state-dir", State()}), 2);
}

TEST_F(CliTest, HelpAndVersionSucceed) {
  for (const char* command :
       {"run", "init", "validate", "render", "explain", "status", "logs", "inspect", "export",
        "import", "stop", "scale", "verify", "chaos", "version"}) {
    EXPECT_EQ(Run({command, "--help"}), 0) << command;
    EXPECT_FALSE(out_.str().empty()) << command;
  }
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("sluice "));
}

TEST_F(CliTest, InitWritesValidManifestAndNeverOverwrites) {
  const std::string file = directory_ + "/first.yaml";
  EXPECT_EQ(Run({"init", "-o", file}), 0);
  EXPECT_EQ(Run({"validate", file}), 0) << err_.str();
  EXPECT_NE(Run({"init", "-o", file}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("already exists"));
}

TEST_F(CliTest, RejectsBadManifestWithFileLineAndCode2) {
  Write("bad.yaml", std::string(kManifest) + "  trainign: {}\n");
  for (const char* command : {"validate", "render", "run"}) {
    EXPECT_EQ(Run({command, directory_ + "/bad.yaml"}), 2) << command;
    EXPECT_THAT(err_.str(), HasSubstr("bad.yaml:9:3: spec.trainign")) << command;
  }
  EXPECT_EQ(Run({"run", directory_ + "/missing.yaml"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("missing.yaml"));
}

TEST_F(CliTest, RenderPrintsJobAsJson) {
  EXPECT_EQ(Run({"render", directory_ + "/job.yaml"}), 0);
  const nlohmann::json job = nlohmann::json::parse(out_.str());
  EXPECT_EQ(job["metadata"]["name"], "example");
  EXPECT_EQ(job["spec"]["training"]["steps"], 10);
}

TEST_F(CliTest, ExportDerivesFormatFromExtension) {
  EXPECT_EQ(Run({"export", "example", "-o", directory_ + "/model.foo", "--state-dir", State()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("model.foo"));
  EXPECT_THAT(err_.str(), HasSubstr(".safetensors"));
  EXPECT_THAT(err_.str(), HasSubstr(".pth"));
  EXPECT_EQ(Run({"export", "example", "-o", directory_ + "/model.foo", "--format", "safetensors",
                 "--state-dir", State()}),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("neither a checkpoint's directory nor a job"));
}

TEST_F(CliTest, RejectsLogsOfTwoProcesses) {
  WritePrograms("exit 1");
  RunJob({});
  EXPECT_EQ(Run({"logs", "example", "coordinator", "--role", "ps-0", "--state-dir", State()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("give only one of them"));
  for (const std::vector<std::string>& one :
       {std::vector<std::string>{"coordinator"}, {"--role", "coordinator"}}) {
    std::vector<std::string> arguments = {"logs", "example", "--state-dir", State()};
    arguments.insert(arguments.end(), one.begin(), one.end());
    EXPECT_EQ(Run(arguments), 0) << err_.str();
  }
}

TEST_F(CliTest, UnknownJobErrorListsExistingJobs) {
  WritePrograms("exit 1");
  RunJob({});
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status"}, {"logs"}, {"stop"}, {"scale", "--workers", "2"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"other", "--state-dir", State()});
    EXPECT_EQ(Run(arguments), 2) << command[0];
    EXPECT_THAT(err_.str(), HasSubstr("there are: example")) << command[0];
  }
  EXPECT_EQ(Run({"inspect", "other", "--state-dir", State()}), 2);
  EXPECT_EQ(Run({"export", "other", "-o", directory_ + "/x.pt", "--state-dir", State()}), 2);
}

}  // namespace
}  // namespace sluice::cli

// Tests of the command line without a job's processes; tests/integration starts those.
#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cli/local/job_directory.h"
#include "operator/api/manifest.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/local_storage.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp}
  data: {format: Synthetic, synthetic: {samples: 100, shape: [4], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
)";

constexpr char kIdxManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp}
  data: {format: IDX, source: {path: data/digits}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
)";

constexpr char kCustomManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {type: Custom}
  data: {format: Custom}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
  worker: {replicas: 2, command: [python3, train.py]}
)";

class CliTest : public ::testing::Test {
 protected:
  CliTest()
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
  int Run(std::vector<std::string> arguments, std::ostream* out = nullptr) {
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
    return Run(std::move(arguments));
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

TEST_F(CliTest, RejectsWrongArgumentsWithCode2) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"fly"},
                                                       {"run"},
                                                       {"run", "a", "b"},
                                                       {"run", "x", "--output", "xml"},
                                                       {"run", "x", "--port", "99999"},
                                                       {"logs"},
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
  EXPECT_LT(std::count(bare.begin(), bare.end(), '\n'), 40);
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

TEST_F(CliTest, HelpAndVersionSucceed) {
  for (const char* command : {"run", "init", "validate", "render", "explain", "status", "logs",
                              "inspect", "export", "stop", "version"}) {
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
  EXPECT_EQ(job["name"], "example");
  EXPECT_EQ(job["training"]["steps"], "10");
}

TEST_F(CliTest, DryRunShowsWhatWouldStartAndChangesNothing) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--dry-run", "--workers", "5", "--shards", "3"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("5 workers"));
  EXPECT_THAT(out_.str(), HasSubstr("3 shards"));
  EXPECT_THAT(out_.str(), HasSubstr("(new)"));
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(CliTest, DryRunIsRefusedLikeTheRun) {
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

TEST_F(CliTest, ReportsIgnoredClusterFields) {
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

TEST_F(CliTest, RejectsReplicasOutOfRange) {
  EXPECT_EQ(RunJob({"--workers", "0"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--workers: '0' is not a whole number from 1 to 1024"));
}

TEST_F(CliTest, ReportsMissingProgram) {
  WriteProgram("sluice-coordinator", "exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("sluice-ps is missing"));
  EXPECT_THAT(err_.str(), HasSubstr("--bin-dir"));
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(CliTest, JobWithCustomWorkerNeedsNoLibTorch) {
  WriteProgram("sluice-coordinator", "exit 1");
  WriteProgram("sluice-ps", "exit 1");
  EXPECT_EQ(RunJob({"--dry-run"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("sluice-worker is missing"));
  Write("job.yaml", kCustomManifest);
  EXPECT_EQ(RunJob({"--dry-run"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("2 workers      python3 train.py"));
}

TEST_F(CliTest, RejectsPortInUse) {
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

TEST_F(CliTest, FailingProgramFailsTheJobWithReasonAndLastLines) {
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

TEST_F(CliTest, FailureOmitsLogLinesOfEarlierRun) {
  WritePrograms("echo 'time=1 level=error msg=\"labels are missing\"'; exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("ended with exit code 1: labels are missing"));
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({}), 1);
  EXPECT_EQ(err_.str(), "sluice: job example failed: coordinator ended with exit code 1\n");
}

TEST_F(CliTest, JsonOutputHasOneObjectPerLineAndASummaryLast) {
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

TEST_F(CliTest, RejectsChangedFieldsUnlessFresh) {
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
  EXPECT_EQ(RunJob({"--fresh"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("deletes the existing checkpoints"));
  EXPECT_THAT(err_.str(), HasSubstr("failed: coordinator"));
}

TEST_F(CliTest, UntrainedJobAcceptsAnyChange) {
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

TEST_F(CliTest, FreshRemovesNothingIfDataIsMissing) {
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

TEST_F(CliTest, RefusedNewJobLeavesNoFiles) {
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

TEST_F(CliTest, KeepsCheckpointsOfUnknownJob) {
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

TEST_F(CliTest, ReportsDataUsedFromDataDirectory) {
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

TEST_F(CliTest, ValidatesFlagsLikeManifest) {
  WritePrograms("exit 1");
  EXPECT_EQ(RunJob({"--shards", "70", "--dry-run"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("must be at least `replicas`"));
  EXPECT_THAT(err_.str(), HasSubstr("(with --shards 70)"));
}

TEST_F(CliTest, DryRunPrintsJsonObject) {
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

TEST_F(CliTest, SuspendedJobIsReportedInJson) {
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

TEST_F(CliTest, FinishedJobReportsItsResultInJson) {
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

TEST_F(CliTest, FinishedJobWithMoreStepsNeedsOnExisting) {
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

TEST_F(CliTest, RejectsFreshOfRunningJobBeforeAnyRemoval) {
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
  for (const char* command : {"status", "logs", "stop"}) {
    EXPECT_EQ(Run({command, "other", "--state-dir", State()}), 2) << command;
    EXPECT_THAT(err_.str(), HasSubstr("there are: example")) << command;
  }
  EXPECT_EQ(Run({"inspect", "other", "--state-dir", State()}), 2);
  EXPECT_EQ(Run({"export", "other", "-o", directory_ + "/x.pt", "--state-dir", State()}), 2);
}

TEST_F(CliTest, ReportsUnwritableStateDirectory) {
  WritePrograms("exit 1");
  Write("state", "a file, not a directory");
  EXPECT_EQ(RunJob({}), 2);
  EXPECT_EQ(err_.str(),
            "sluice: cannot make the directory " + State() +
                "/example: Not a directory; choose another directory with --state-dir\n");
}

}  // namespace
}  // namespace sluice::cli

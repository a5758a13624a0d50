// Server-side execution with real processes: the shards compute the layers, and the result is the
// same as when the workers compute them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/io/file_util.h"
#include "services/protocol/interval_set.h"
#include "services/transport/security/credential_directories.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

using Stages = std::vector<std::vector<std::string>>;

const char* const kMnistNetTensors[] = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                        "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias"};

v1::JobSpec MnistNetJob(v1::TrainingSpec::Execution execution, const Stages& stages) {
  v1::JobSpec job = BaseJob();
  job.mutable_model()->set_name("mnist-net");
  job.mutable_model()->set_dtype(v1::FLOAT64);
  for (const auto& layers : stages) {
    v1::ModelSpec::Stage& stage = *job.mutable_model()->add_stages();
    for (const std::string& layer : layers) stage.add_layers(layer);
  }

  v1::DataSpec& data = *job.mutable_data();
  data.set_format(v1::DataSpec::SYNTHETIC);
  data.mutable_synthetic()->set_samples(400);
  data.mutable_synthetic()->set_classes(10);
  for (const int64_t extent : {1, 28, 28}) data.mutable_synthetic()->add_shape(extent);

  job.mutable_optimizer()->set_learning_rate(0.03);
  job.mutable_training()->set_execution(execution);
  job.mutable_training()->set_global_batch_size(8);
  job.mutable_training()->set_microbatch_size(4);
  job.mutable_training()->set_steps(12);
  job.mutable_training()->set_threads(1);
  job.mutable_parameter_server()->set_replicas(
      std::max<uint32_t>(1, static_cast<uint32_t>(stages.size())));
  return job;
}

v1::JobSpec AsynchronousJob(uint32_t workers) {
  v1::JobSpec job = MnistNetJob(v1::TrainingSpec::SERVER, {{"conv1", "conv2"}, {"fc1", "fc2"}});
  job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  job.mutable_debug()->set_verify_gradients(true);
  job.mutable_training()->set_steps(60);
  job.mutable_worker()->set_replicas(workers);
  job.mutable_data()->mutable_evaluation()->set_interval_steps(20);
  return job;
}

std::string LogOf(const JobProcesses& processes, const std::string& name) {
  std::ifstream file(processes.LogFile(name));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Finish(JobProcesses& processes) {
  const auto code = processes.WaitForExit("coordinator", absl::Seconds(240));
  ASSERT_TRUE(code.ok()) << code.status();
  ASSERT_EQ(*code, 0) << LogOf(processes, "coordinator");
}

// Writes credentials for the job's processes and returns their directory; empty without TLS.
std::string CredentialsOf(const v1::JobSpec& job, const std::string& directory) {
  if (job.tls() != v1::JobSpec::TLS_ENABLED) return "";
  std::string directories = absl::StrCat(directory, "/tls");
  const auto made = security::WriteCredentialDirectories(
      MakeRealFileSystem().get(), directories,
      {.job = "default/test",
       .shards = job.parameter_server().replicas(),
       .workers = std::max<uint32_t>(1, job.worker().replicas())},
      absl::Now());
  EXPECT_TRUE(made.ok()) << made.status();
  return directories;
}

using Parameters = std::vector<std::vector<double>>;

// Trains the job, with TLS if it asks for TLS, and returns the final values of `tensors`.
Parameters Train(const v1::JobSpec& job, const std::string& name,
                 const std::vector<const char*>& tensors = {std::begin(kMnistNetTensors),
                                                            std::end(kMnistNetTensors)}) {
  const std::string directory = NewDirectory(name);
  JobProcesses processes(
      {.job = job, .directory = directory, .tls_directories = CredentialsOf(job, directory)});
  const absl::Status status = processes.StartAll();
  EXPECT_TRUE(status.ok()) << status;
  Finish(processes);
  Parameters parameters;
  for (const char* tensor : tensors) {
    const auto values = FinalTensor(processes.checkpoints(), tensor);
    EXPECT_TRUE(values.ok()) << values.status();
    parameters.push_back(values.value_or(std::vector<double>()));
  }
  return parameters;
}

double LargestDifference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    EXPECT_EQ(a[t].size(), b[t].size());
    EXPECT_GT(a[t].size(), 0u);
    for (size_t i = 0; i < std::min(a[t].size(), b[t].size()); ++i) {
      largest = std::max(largest, std::fabs(a[t][i] - b[t][i]));
    }
  }
  return largest;
}

TEST(ServerExecutionTest, ShardsComputeLayersOverTls) {
  v1::JobSpec job = MnistNetJob(v1::TrainingSpec::SERVER, {{"conv1", "conv2"}, {"fc1", "fc2"}});
  const Parameters plain = Train(job, "plain");
  job.set_tls(v1::JobSpec::TLS_ENABLED);
  EXPECT_LE(LargestDifference(plain, Train(job, "tls")), 1e-9);
}

// With dropout: the generator has the same seed and is passed from stage to stage.
TEST(ServerExecutionTest, OneTrainerMatchesWorkerExecution) {
  const Parameters worker = Train(MnistNetJob(v1::TrainingSpec::WORKER, {}), "worker");
  EXPECT_LE(LargestDifference(worker, Train(MnistNetJob(v1::TrainingSpec::SERVER, {}), "one")),
            1e-9);
  EXPECT_LE(LargestDifference(worker, Train(MnistNetJob(v1::TrainingSpec::SERVER,
                                                        {{"conv1", "conv2"}, {"fc1", "fc2"}}),
                                            "two")),
            1e-9);
}

TEST(ServerExecutionTest, OneTrainerMatchesWorkerExecutionInFloat32) {
  const auto job = [](v1::TrainingSpec::Execution execution, const Stages& stages) {
    v1::JobSpec spec = MnistNetJob(execution, stages);
    spec.mutable_model()->set_dtype(v1::FLOAT32);
    return spec;
  };
  EXPECT_LE(LargestDifference(
                Train(job(v1::TrainingSpec::WORKER, {}), "worker"),
                Train(job(v1::TrainingSpec::SERVER, {{"conv1", "conv2"}, {"fc1", "fc2"}}), "two")),
            1e-5);
}

// Without dropout, which would depend on which process computes what.
TEST(ServerExecutionTest, SeveralTrainersMatchWorkerExecution) {
  const std::vector<const char*> tensors = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  for (const auto& [dtype, bound] :
       {std::make_pair(v1::FLOAT64, 1e-9), std::make_pair(v1::FLOAT32, 1e-5)}) {
    const auto job = [dtype = dtype](v1::TrainingSpec::Execution execution, const Stages& stages) {
      v1::JobSpec spec = MnistNetJob(execution, stages);
      spec.mutable_model()->set_name("mlp");
      spec.mutable_model()->set_dtype(dtype);
      spec.mutable_training()->set_microbatch_size(1);
      spec.mutable_training()->set_steps(60);
      spec.mutable_worker()->set_replicas(3);
      return spec;
    };
    EXPECT_LE(LargestDifference(
                  Train(job(v1::TrainingSpec::WORKER, {}), "workers", tensors),
                  Train(job(v1::TrainingSpec::SERVER, {{"fc1"}, {"fc2"}}), "trainers", tensors)),
              bound);
  }
}

TEST(ServerExecutionTest, SeveralTrainersApplyEachSampleOnceWhenOneIsKilled) {
  v1::JobSpec job = AsynchronousJob(3);
  job.mutable_debug()->set_step_delay_seconds(0.05);
  JobProcesses processes({.job = job, .directory = NewDirectory("asynchronous")});
  ASSERT_TRUE(processes.StartAll().ok());
  const auto begun = processes.WaitFor([](const v1::JobProgress& p) { return p.step() >= 10; },
                                       absl::Seconds(120));
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_TRUE(processes.Kill("worker-1", /*report=*/true).ok());
  Finish(processes);
  const auto manifest = FinalCheckpointIndex(processes.checkpoints());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto applied = IntervalSet::FromProtos(manifest->ledger().applied());
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ(applied->Count(), 60u * 8u) << "each position exactly once";
  EXPECT_EQ(manifest->ledger().updates(), 60u);
  EXPECT_EQ(manifest->checkpoint().attempt(), begun->attempt()) << "nothing was restored";
}

// Two classes, distinguished by the sign of the first column.
void WriteRows(const std::string& path, int rows) {
  std::ofstream file(path);
  file << "a,b,c\n";
  for (int i = 0; i < rows; ++i)
    file << (i % 2 == 0 ? i : -i) << "," << i % 7 << "," << i % 2 << "\n";
}

TEST(ServerExecutionTest, ShardsEvaluateAllSamplesWhenTargetIsReached) {
  for (const auto tls : {v1::JobSpec::TLS_DISABLED, v1::JobSpec::TLS_ENABLED}) {
    const std::string directory = NewDirectory(absl::StrCat("target-", tls));
    WriteRows(directory + "/train.csv", 400);
    WriteRows(directory + "/test.csv", 90);

    v1::JobSpec job = AsynchronousJob(2);
    job.set_tls(tls);
    job.mutable_model()->Clear();
    job.mutable_model()->set_name("mlp");
    for (const char* layer : {"fc1", "fc2"}) job.mutable_model()->add_stages()->add_layers(layer);

    v1::DataSpec& data = *job.mutable_data();
    data.Clear();
    data.set_format(v1::DataSpec::CSV);
    data.mutable_source()->set_path(directory + "/train.csv");
    data.mutable_csv()->set_label_column("c");
    data.mutable_evaluation()->mutable_source()->set_path(directory + "/test.csv");
    data.mutable_evaluation()->set_interval_steps(20);
    data.mutable_evaluation()->set_max_samples(30);

    job.mutable_optimizer()->set_learning_rate(1e-6);
    job.mutable_training()->set_steps(100000);
    v1::TrainingSpec::Target& target = *job.mutable_training()->mutable_target();
    target.set_metric("loss");
    target.set_goal("AtMost");
    target.set_value(1e9);

    JobProcesses processes(
        {.job = job, .directory = directory, .tls_directories = CredentialsOf(job, directory)});
    ASSERT_TRUE(processes.StartAll().ok());
    const auto ended = processes.WaitFor(
        [](const v1::JobProgress& p) { return p.phase() == v1::JobProgress::SUCCEEDED; },
        absl::Seconds(60));
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_EQ(ended->last_evaluation().samples(), 90u);
    EXPECT_TRUE(ended->last_evaluation().final());
  }
}

TEST(ServerExecutionTest, UsesCpuForMissingGpuWithOneWarning) {
  v1::JobSpec job = MnistNetJob(v1::TrainingSpec::SERVER, {});
  job.mutable_model()->set_device("cuda:7");
  JobProcesses processes({.job = job, .directory = NewDirectory("device")});
  ASSERT_TRUE(processes.StartAll().ok());
  Finish(processes);
  const std::string log = LogOf(processes, "ps-0");
  const size_t first = log.find("stage 0 is computed on the CPU");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("is computed on the CPU", first + 20), std::string::npos) << log;
}

struct BadJob {
  std::string name;
  v1::JobSpec job;
  std::string shard_program;
  std::string message;
};

TEST(ServerExecutionTest, InvalidStagesFailJobBeforeTraining) {
  const auto staged = [](const Stages& stages) {
    return MnistNetJob(v1::TrainingSpec::SERVER, stages);
  };
  v1::JobSpec crowded = staged({{"conv1", "conv2"}, {"fc1", "fc2"}});
  crowded.mutable_parameter_server()->set_replicas(1);

  const BadJob jobs[] = {
      {"unknown", staged({{"conv1", "conv2"}, {"fc1", "fc2", "fc3"}}), "", "no layer 'fc3'"},
      {"missing", staged({{"conv1", "conv2"}, {"fc1"}}), "", "layer 'fc2'"},
      {"twice", staged({{"conv1", "conv2"}, {"fc1", "fc2", "conv1"}}), "",
       "layer 'conv1' is in model.stages[0] already"},
      {"shapes", staged({{"fc1", "fc2"}, {"conv1", "conv2"}}), "",
       "layer 'fc1' takes samples of shape [64, 12, 12], but is given [1, 28, 28]"},
      {"crowded", crowded, "", "2 model.stages and 1 shards"},
      {"no-torch", staged({}), "services/ps/sluice-ps", "start sluice-ps-torch"},
  };

  for (const BadJob& bad : jobs) {
    SCOPED_TRACE(bad.name);
    JobProcesses processes(
        {.job = bad.job, .directory = NewDirectory(bad.name), .shard_program = bad.shard_program});
    ASSERT_TRUE(processes.StartAll().ok());
    const auto code = processes.WaitForExit("coordinator", absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_NE(*code, 0);
    EXPECT_THAT(LogOf(processes, "coordinator"), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace sluice::testing

// BitExact: the final parameters of a real model are identical to the bit, however many processes
// computed them and whatever happened to those processes.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/worker/models/testing/script_files.h"
#include "tests/testing/final_state.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

// Three optimizers with different state, each with a schedule that depends on the step.
void SetOptimizers(v1::OptimizerSpec* optimizer) {
  optimizer->set_name(v1::OptimizerSpec::ADAM);
  optimizer->set_learning_rate(1e-3);
  optimizer->set_beta1(0.9);
  optimizer->set_beta2(0.999);
  optimizer->set_eps(1e-8);
  v1::Schedule& schedule = *optimizer->mutable_schedule();
  schedule.set_type(v1::Schedule::SEQUENTIAL);
  schedule.add_milestones(12);
  v1::Schedule& first = *schedule.add_parts();  // as ConstantLR
  first.set_start_factor(0.25);
  first.set_total_steps(6);
  v1::Schedule& second = *schedule.add_parts();
  second.set_type(v1::Schedule::COSINE_RESTARTS);
  second.set_restart_steps(7);
  second.set_restart_multiple(2);

  auto& biases = *optimizer->add_groups();
  biases.add_patterns("*.bias");
  biases.set_name(v1::OptimizerSpec::SGD);
  biases.set_learning_rate(0.01);
  biases.set_momentum(0.9);
  v1::Schedule& cycle = *biases.mutable_schedule();
  cycle.set_type(v1::Schedule::ONE_CYCLE);
  cycle.set_total_steps(50);
  cycle.set_increasing_fraction(0.3);
  cycle.set_initial_divisor(25);
  cycle.set_final_divisor(100);
  cycle.mutable_cycle_momentum()->set_lowest(0.85);
  cycle.mutable_cycle_momentum()->set_highest(0.95);

  auto& convolutions = *optimizer->add_groups();
  convolutions.add_patterns("conv.*");
  convolutions.set_name(v1::OptimizerSpec::N_ADAM);
  convolutions.set_learning_rate(2e-3);
  convolutions.set_beta1(0.9);
  convolutions.set_beta2(0.999);
  convolutions.set_eps(1e-8);
  convolutions.set_momentum_decay(4e-3);
}

v1::JobSpec ConvnetJob(uint32_t workers, uint32_t shards) {
  v1::JobSpec job = BaseJob();
  job.mutable_model()->set_name("convnet");
  v1::DataSpec& data = *job.mutable_data();
  data.set_format(v1::DataSpec::SYNTHETIC);
  data.mutable_synthetic()->set_samples(1000);
  data.mutable_synthetic()->set_classes(10);
  for (const int64_t extent : {1, 28, 28}) data.mutable_synthetic()->add_shape(extent);
  SetOptimizers(job.mutable_optimizer());
  job.mutable_training()->set_bit_exact(true);
  job.mutable_training()->set_steps(60);
  job.mutable_worker()->set_replicas(workers);
  job.mutable_parameter_server()->set_replicas(shards);
  return job;
}

// Slow enough that a fault hits it in the middle of training.
v1::JobSpec SlowConvnetJob(uint32_t workers, uint32_t shards) {
  v1::JobSpec job = ConvnetJob(workers, shards);
  job.mutable_debug()->set_step_delay_seconds(0.05);
  return job;
}

// mnist-net has dropout, which may depend on nothing but the sample's position.
v1::JobSpec MnistNetJob(uint32_t workers, uint32_t shards) {
  v1::JobSpec job = ConvnetJob(workers, shards);
  job.mutable_model()->set_name("mnist-net");
  job.mutable_data()->mutable_synthetic()->set_samples(200);
  job.mutable_training()->set_steps(8);
  return job;
}

// A step in [first, last], different in each run and printed to the log; --gtest_random_seed=N
// gives the step of seed N.
uint64_t AnyStep(uint64_t first, uint64_t last) {
  int seed = GTEST_FLAG_GET(random_seed);
  if (seed == 0) seed = static_cast<int>(absl::ToUnixSeconds(absl::Now()) % 99999) + 1;
  std::mt19937 random(static_cast<uint32_t>(seed));
  const uint64_t step = first + random() % (last - first + 1);
  std::printf("step %llu, of --gtest_random_seed=%d\n", static_cast<unsigned long long>(step),
              seed);
  return step;
}

class BitExactTest : public ::testing::Test {
 protected:
  static std::vector<uint64_t> Finish(JobProcesses& processes) {
    const auto code = processes.WaitForExit("coordinator", absl::Seconds(120));
    EXPECT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(code.value_or(-1), 0);
    const auto hashes = FinalStateHashes(processes.checkpoints());
    EXPECT_TRUE(hashes.ok()) << hashes.status();
    return hashes.value_or(std::vector<uint64_t>());
  }

  static std::vector<uint64_t> Undisturbed(uint32_t workers, uint32_t shards) {
    const std::string directory = NewDirectory(absl::StrCat("w", workers, "s", shards));
    JobProcesses processes({.job = ConvnetJob(workers, shards), .directory = directory});
    const absl::Status status = processes.StartAll();
    EXPECT_TRUE(status.ok()) << status;
    return Finish(processes);
  }

  static const std::vector<uint64_t>& Reference() {
    static const auto* const reference = new std::vector<uint64_t>(Undisturbed(1, 1));
    return *reference;
  }

  static void WaitForStep(JobProcesses& processes, uint64_t step) {
    const auto progress = processes.WaitFor(
        [&](const v1::JobProgress& p) { return p.step() >= step; }, absl::Seconds(60));
    ASSERT_TRUE(progress.ok()) << progress.status();
  }
};

class BitExactSizesTest : public BitExactTest,
                          public ::testing::WithParamInterface<std::pair<uint32_t, uint32_t>> {};

TEST_P(BitExactSizesTest, ResultDoesNotDependOnNumberOfProcesses) {
  EXPECT_EQ(Undisturbed(GetParam().first, GetParam().second), Reference());
}

INSTANTIATE_TEST_SUITE_P(WorkersAndShards, BitExactSizesTest,
                         ::testing::Values(std::make_pair(1, 2), std::make_pair(1, 3),
                                           std::make_pair(2, 1), std::make_pair(2, 2),
                                           std::make_pair(2, 3), std::make_pair(3, 1),
                                           std::make_pair(3, 2), std::make_pair(3, 3)),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first, "WorkersAnd", info.param.second,
                                               "Shards");
                         });

TEST_F(BitExactTest, KillingWorkerAtAnyStepDoesNotChangeResult) {
  const uint64_t step = AnyStep(3, 35);
  const std::string directory = NewDirectory("killed");
  JobProcesses processes({.job = SlowConvnetJob(3, 2), .directory = directory});
  ASSERT_TRUE(processes.StartAll().ok());
  WaitForStep(processes, step);
  ASSERT_TRUE(processes.Kill("worker-1", /*report=*/true).ok());
  WaitForStep(processes, step + 8);
  ASSERT_TRUE(processes.StartWorker(1).ok());
  EXPECT_EQ(Finish(processes), Reference());
}

TEST_F(BitExactTest, ResumingWithOtherReplicaCountsDoesNotChangeResult) {
  const std::string directory = NewDirectory("resumed");
  {
    JobProcesses processes({.job = SlowConvnetJob(2, 2), .directory = directory});
    ASSERT_TRUE(processes.StartAll().ok());
    WaitForStep(processes, 15);
    v1::SetDesiredRequest suspend;
    suspend.set_workers(2);
    suspend.set_shards(2);
    suspend.set_suspend(true);
    ASSERT_TRUE(processes.SetDesired(suspend).ok());
    const auto code = processes.WaitForExit("coordinator", absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << code.status();
    ASSERT_EQ(*code, 0);
  }

  const auto manifest = FinalCheckpointIndex(absl::StrCat(directory, "/checkpoints"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_GE(manifest->checkpoint().step(), 15u);
  EXPECT_LT(manifest->checkpoint().step(), 60u);

  JobProcesses processes({.job = ConvnetJob(3, 1), .directory = directory});
  ASSERT_TRUE(processes.StartAll().ok());
  EXPECT_EQ(Finish(processes), Reference());
}

TEST_F(BitExactTest, KillingShardDoesNotChangeResult) {
  const std::string directory = NewDirectory("shard-killed");
  v1::JobSpec job = SlowConvnetJob(2, 2);
  job.mutable_checkpoint()->set_interval_steps(10);
  JobProcesses processes({.job = job, .directory = directory});
  ASSERT_TRUE(processes.StartAll().ok());
  WaitForStep(processes, 25);
  ASSERT_TRUE(processes.Kill("ps-0", /*report=*/true).ok());
  ASSERT_TRUE(processes.StartShard(0).ok());
  EXPECT_EQ(Finish(processes), Reference());
}

// Workers and shards round sums of 16-bit gradients in the same way.
TEST_F(BitExactTest, BFloat16ResultDoesNotDependOnNumberOfProcesses) {
  const auto train = [](uint32_t workers, uint32_t shards) {
    v1::JobSpec job = ConvnetJob(workers, shards);
    job.mutable_model()->set_name("mlp");
    job.mutable_model()->set_dtype(v1::BFLOAT16);
    JobProcesses processes(
        {.job = job, .directory = NewDirectory(absl::StrCat("bfloat16-w", workers, "s", shards))});
    const absl::Status status = processes.StartAll();
    EXPECT_TRUE(status.ok()) << status;
    return Finish(processes);
  };
  const std::vector<uint64_t> one = train(1, 1);
  EXPECT_EQ(train(3, 1), one);
  EXPECT_EQ(train(2, 2), one);
}

TEST_F(BitExactTest, DropoutResultDoesNotDependOnNumberOfProcesses) {
  const auto train = [](uint32_t workers, uint32_t shards) {
    JobProcesses processes(
        {.job = MnistNetJob(workers, shards),
         .directory = NewDirectory(absl::StrCat("dropout-w", workers, "s", shards))});
    const absl::Status status = processes.StartAll();
    EXPECT_TRUE(status.ok()) << status;
    return Finish(processes);
  };
  const std::vector<uint64_t> one = train(1, 1);
  EXPECT_EQ(train(3, 2), one);
}

// Beside parameters, the model has buffers (sums over microbatches) and a counter.
v1::JobSpec BatchNormJob(uint32_t workers, uint32_t shards) {
  ScriptModule module;
  module.tensors = {{"scale", ScriptTensor::kParameter, {4}, {1, 1, 1, 1}, ""},
                    {"shift", ScriptTensor::kParameter, {4}, {0, 0, 0, 0}, ""},
                    {"mean", ScriptTensor::kBuffer, {4}, {0, 0, 0, 0}, ""},
                    {"variance", ScriptTensor::kBuffer, {4}, {1, 1, 1, 1}, ""},
                    {"num_batches_tracked", ScriptTensor::kIntegerBuffer, {}, {0}, ""}};
  module.source = R"(
def forward(self, x):
    if bool(self.training):
        self.num_batches_tracked = self.num_batches_tracked + 1
    return torch.batch_norm(x, self.scale, self.shift, self.mean, self.variance, bool(self.training), 0.1, 1e-5, False)
)";
  const std::string path = absl::StrCat(NewDirectory("script"), "/model.pt");
  WriteScript(path, module);

  v1::JobSpec job = ConvnetJob(workers, shards);
  job.mutable_model()->Clear();
  job.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  job.mutable_model()->set_path(path);
  job.set_loss("crossEntropy");
  v1::DataSpec::Synthetic& data = *job.mutable_data()->mutable_synthetic();
  data.clear_shape();
  data.add_shape(4);
  data.set_classes(4);
  return job;
}

TEST_F(BitExactTest, BatchNormResultDoesNotDependOnNumberOfProcesses) {
  const auto train = [](uint32_t workers, uint32_t shards) {
    JobProcesses processes(
        {.job = BatchNormJob(workers, shards),
         .directory = NewDirectory(absl::StrCat("batch-norm-w", workers, "s", shards))});
    const absl::Status status = processes.StartAll();
    EXPECT_TRUE(status.ok()) << status;
    return Finish(processes);
  };
  const std::vector<uint64_t> one = train(1, 1);
  EXPECT_EQ(train(3, 2), one);
}

TEST_F(BitExactTest, OtherSeedChangesResult) {
  const std::string directory = NewDirectory("seed");
  v1::JobSpec job = ConvnetJob(1, 1);
  job.mutable_training()->set_seed(2);
  JobProcesses processes({.job = job, .directory = directory});
  ASSERT_TRUE(processes.StartAll().ok());
  EXPECT_NE(Finish(processes), Reference());
}

}  // namespace
}  // namespace sluice::testing

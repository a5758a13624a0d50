// Measures how many gradients per second a whole job computes and applies: a real coordinator, real
// shards and workers in their own processes; this process is the first worker.
//
//   training --model mlp --workers 2 --shards 2 --steps 2000 --data
//   /usr/share/datasets/fashion-mnist
//
// Prints one JSON line. bench/local_training.cc is the same without parameter servers.

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/first_worker.h"
#include "bench/training_jobs.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/transport/grpc_settings.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/worker_process.h"
#include "tests/testing/job_processes.h"

namespace sluice::bench {
namespace {

struct Flags {
  TrainingJobOptions job{.steps = 300};
  uint64_t warmup = 30;
  std::string programs;
};

// Records when each version is adopted, which ends a step.
class TimedEngine final : public ComputeEngine {
 public:
  explicit TimedEngine(std::unique_ptr<ComputeEngine> engine) : engine_(std::move(engine)) {}

  const v1::TensorTable& Describe() const override { return engine_->Describe(); }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t tensor) const override {
    return engine_->InitialTensor(tensor);
  }
  absl::Status SetTensorRange(Buffer buffer, uint32_t tensor, uint64_t offset,
                              const absl::Cord& bytes) override {
    return engine_->SetTensorRange(buffer, tensor, offset, bytes);
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer buffer, uint32_t tensor) const override {
    return engine_->GetTensor(buffer, tensor);
  }
  absl::Status Adopt() override {
    adopted_.push_back(absl::Now());
    return engine_->Adopt();
  }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override {
    return engine_->ComputeGradients(request, sink);
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer buffer, const Batch& batch) override {
    return engine_->Evaluate(buffer, batch);
  }

  // The seconds of the steps after the first `warmup`.
  std::vector<double> StepSeconds(uint64_t warmup) const {
    std::vector<double> seconds;
    for (size_t i = warmup + 1; i < adopted_.size(); ++i) {
      seconds.push_back(absl::ToDoubleSeconds(adopted_[i] - adopted_[i - 1]));
    }
    return seconds;
  }

 private:
  const std::unique_ptr<ComputeEngine> engine_;
  std::vector<absl::Time> adopted_;  // written by the compute thread
};

absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeEngine(const v1::JobSpec& job,
                                                          const DatasetInfo& data, int threads) {
  TorchEngineOptions options;
  options.model = job.model();
  options.loss = job.loss();
  options.seed = job.training().seed();
  options.threads = threads;
  options.sample_shape = data.sample_shape;
  options.outputs = data.outputs;
  options.tokens = data.tokens;
  return CreateTorchEngine(options);
}

absl::Status RunIn(const Flags& flags, const std::string& directory) {
  TrainingJobOptions job_options = flags.job;
  job_options.steps += flags.warmup;
  ASSIGN_OR_RETURN(const v1::JobSpec job, MakeTrainingJob(job_options));
  testing::JobProcesses processes({.job = job, .directory = directory, .programs = flags.programs});
  RETURN_IF_ERROR(processes.StartCoordinator());
  for (uint32_t i = 0; i < flags.job.shards; ++i) {
    RETURN_IF_ERROR(processes.StartShard(i));
  }
  for (uint32_t i = 1; i < flags.job.workers; ++i) {
    RETURN_IF_ERROR(processes.StartWorker(i));
  }
  TimedEngine* engine = nullptr;
  worker::WorkerProcess::Options options = FirstWorkerOptions(processes);
  options.make_engine = [&](const v1::JobSpec& spec, const DatasetInfo& data,
                            int threads) -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    ASSIGN_OR_RETURN(auto torch, MakeEngine(spec, data, threads));
    auto timed = std::make_unique<TimedEngine>(std::move(torch));
    engine = timed.get();
    return timed;
  };
  Metrics metrics(worker::WorkerMetrics(), {});
  const auto process = worker::WorkerProcess::Start(std::move(options), &metrics, Logger());
  RETURN_IF_ERROR(WaitUntilFinished(process.get()));
  const std::vector<double> seconds = engine->StepSeconds(flags.warmup);
  if (seconds.size() < flags.job.steps) {
    return absl::InternalError(absl::StrCat("only ", seconds.size(), " steps"));
  }
  const auto per_step = [&](const char* part) {
    return metrics.counter("step_time_seconds_total", {part}).Value() /
           static_cast<double>(job_options.steps);
  };
  std::cout << RateAsJson(flags.job, "training", seconds,
                          {{"data_seconds", per_step("data")},
                           {"compute_seconds", per_step("compute")},
                           {"push_seconds", per_step("push")},
                           {"wait_seconds", per_step("wait")},
                           {"pull_seconds", per_step("pull")}})
            << std::endl;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Measures the gradients per second of a synchronous job."};
  app.add_option("--model", flags.job.model)->required();
  app.add_option("--data", flags.job.data, "directory with the image models' IDX files");
  app.add_option("--workers", flags.job.workers)->capture_default_str();
  app.add_option("--shards", flags.job.shards)->capture_default_str();
  app.add_option("--partitions", flags.job.partitions)->capture_default_str();
  app.add_option("--steps", flags.job.steps, "number of measured steps")->capture_default_str();
  app.add_option("--warmup", flags.warmup, "number of steps before them")->capture_default_str();
  app.add_option("--programs", flags.programs,
                 "directory that contains services/ps/sluice-ps, ...");
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;
  ConfigureGrpcProcess({});
  const absl::Status status = InNewDirectory(
      "training", [&](const std::string& directory) { return RunIn(flags, directory); });
  return status.ok() ? 0 : ExitWith("training", status);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }

// The baseline of bench/training.cc: the same model, data, order and batches, trained in one
// process by LibTorch's own SGD, in place, without parameter servers.
//
//   local_training --model mlp --steps 2000 --data /usr/share/datasets/fashion-mnist
//
// Prints one JSON line.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/training_jobs.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/protocol/samples/sequence.h"
#include "services/worker/data/dataset.h"
#include "services/worker/models/additive.h"
#include "services/worker/models/loss.h"
#include "services/worker/models/model.h"

// OpenBLAS has its own threads.
extern "C" void openblas_set_num_threads(int threads) __attribute__((weak));

namespace sluice::bench {
namespace {

struct Flags {
  TrainingJobOptions job{.steps = 300};
  uint64_t warmup = 30;
};

class Trainer {
 public:
  static absl::StatusOr<Trainer> Open(const v1::JobSpec& job) {
    ASSIGN_OR_RETURN(std::unique_ptr<Dataset> data, OpenDataset(job.data(), Split::kTraining));
    const DatasetInfo& info = data->info();
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                     MakeBuiltinModel({.spec = job.model(),
                                       .seed = job.training().seed(),
                                       .sample_shape = info.sample_shape,
                                       .outputs = info.outputs,
                                       .tokens = info.tokens}));
    ASSIGN_OR_RETURN(auto order,
                     SampleOrder::Create({.samples = info.samples, .seed = job.training().seed()}));
    ASSIGN_OR_RETURN(auto plan,
                     StepSchedule::Create({info.samples, job.training().global_batch_size(),
                                           job.training().microbatch_size()}));
    return Trainer(std::move(data), std::move(model), order, plan, job.optimizer());
  }

  absl::Status Step(uint64_t step) {
    if (!model_->TakesData()) return AddUpdate();
    ASSIGN_OR_RETURN(Batch batch, data_->Read(order_.IndicesOf(plan_.PositionsOf(step))));
    std::vector<int64_t> shape = model_->InputShape();
    if (shape.empty()) shape = batch.shape;
    shape.insert(shape.begin(), static_cast<int64_t>(batch.samples));
    const at::Tensor input = batch.tokens.empty()
                                 ? at::from_blob(batch.features.data(), shape, at::kFloat)
                                 : at::from_blob(batch.tokens.data(), shape, at::kLong);
    optimizer_->zero_grad();
    const at::Tensor output = model_->Forward(input);
    RETURN_IF_ERROR(CheckLabels(loss_, output.sizes(), batch));
    const at::Tensor loss =
        LossSum(loss_, output, TargetTensor(batch)).div(static_cast<double>(batch.samples));
    loss.backward();
    // LibTorch's Adam does not accept the sparse gradients of an embedding.
    for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        at::Tensor& gradient = parameter.mutable_grad();
        if (gradient.is_sparse()) gradient = gradient.to_dense();
      }
    }
    optimizer_->step();
    loss_sum_ += loss.item<double>();
    return absl::OkStatus();
  }

 private:
  Trainer(std::unique_ptr<Dataset> data, std::unique_ptr<Model> model, SampleOrder order,
          StepSchedule plan, const v1::OptimizerSpec& optimizer)
      : data_(std::move(data)), model_(std::move(model)), order_(order), plan_(plan) {
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model_->tensors().size(); ++i) {
      at::Tensor value = model_->tensors()[i].value;
      value.set_data(model_->Initial(i));
      parameters.push_back(value);
    }
    update_.resize(static_cast<size_t>(parameters[0].numel()));
    if (!model_->TakesData()) return;
    loss_ = *model_->OwnLoss();
    const double learning_rate = optimizer.learning_rate();
    if (optimizer.name() == v1::OptimizerSpec::ADAM) {
      optimizer_ = std::make_unique<torch::optim::Adam>(parameters, learning_rate);
    } else {
      optimizer_ = std::make_unique<torch::optim::SGD>(parameters, learning_rate);
    }
    model_->SetTraining(true);
  }

  // The model `additive`.
  absl::Status AddUpdate() {
    at::NoGradGuard no_grad;
    at::Tensor value = model_->tensors()[0].value;
    auto* w = static_cast<float*>(value.data_ptr());
    AdditiveUpdate<float>(absl::MakeConstSpan(w, update_.size()), 1.0F, update_.data());
    for (size_t i = 0; i < update_.size(); ++i) w[i] += update_[i];
    return absl::OkStatus();
  }

  std::unique_ptr<Dataset> data_;
  std::unique_ptr<Model> model_;
  SampleOrder order_;
  StepSchedule plan_;
  LossKind loss_ = LossKind::kNone;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<float> update_;
  double loss_sum_ = 0;
};

absl::Status Run(const Flags& flags) {
  at::set_num_threads(1);
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  ASSIGN_OR_RETURN(const v1::JobSpec job, MakeTrainingJob(flags.job));
  ASSIGN_OR_RETURN(Trainer trainer, Trainer::Open(job));
  std::vector<double> seconds;
  for (uint64_t step = 0; step < flags.warmup + flags.job.steps; ++step) {
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(trainer.Step(step));
    if (step >= flags.warmup) seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  std::cout << RateAsJson(flags.job, "local_training", seconds) << std::endl;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.job.workers = 1;
  flags.job.shards = 0;
  CLI::App app{"Measures the gradients per second of training without parameter servers."};
  app.add_option("--model", flags.job.model)->required();
  app.add_option("--data", flags.job.data, "directory with the image models' IDX files");
  app.add_option("--steps", flags.job.steps, "number of measured steps")->capture_default_str();
  app.add_option("--warmup", flags.warmup, "number of steps before them")->capture_default_str();
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;
  const absl::Status status = Run(flags);
  return status.ok() ? 0 : ExitWith("local_training", status);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }

#include "services/execution/worker/remote_engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"
#include "services/execution/worker/block_references.h"
#include "services/protocol/stages.h"
#include "services/worker/compute/objective.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/compute/torch_support.h"
#include "services/worker/models/model.h"
#include "services/worker/models/stage_tensor.h"

namespace sluice {
namespace {

// Contexts whose gradients are still referred to. Kept alive by these references, after the engine
// if need be.
class LiveContexts {
 public:
  void Add(uint64_t context) {
    MutexLock lock(&mutex_);
    live_.insert(context);
  }
  void Remove(uint64_t context) {
    MutexLock lock(&mutex_);
    live_.erase(context);
  }
  std::vector<uint64_t> List() const {
    MutexLock lock(&mutex_);
    return {live_.begin(), live_.end()};
  }

 private:
  mutable Mutex mutex_;  // protects the set
  std::set<uint64_t> live_ ABSL_GUARDED_BY(mutex_);
};

// The memory of the cords of a context's gradients: the context lives until the last cord is gone.
struct ContextToken {
  ContextToken(std::shared_ptr<LiveContexts> contexts, uint64_t id)
      : live(std::move(contexts)), context(id) {
    v1::GradientReference reference;
    reference.set_context(context);
    bytes = reference.SerializeAsString();
    live->Add(context);
  }
  ~ContextToken() { live->Remove(context); }

  const std::shared_ptr<LiveContexts> live;
  const uint64_t context;
  std::string bytes;
};

absl::Cord ReferenceTo(const std::shared_ptr<ContextToken>& token) {
  return absl::MakeCordFromExternal(token->bytes, [token] {});
}

// The error of a failed call, whose code determines how the caller reacts.
absl::Status FailureOf(uint32_t stage, const std::string& address, const absl::Status& status) {
  const std::string what = absl::StrCat("stage ", stage, " on ", address, ": ", status.message());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return absl::UnavailableError(what);
    case absl::StatusCode::kUnimplemented:
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", stage, " on ", address,
                       ": the shard does not compute layers; its program should be "
                       "sluice-ps-torch"));
    default:
      return absl::Status(status.code(), what);
  }
}

class RemoteEngine final : public ComputeEngine {
 public:
  struct Stage {
    std::vector<uint32_t> tensors;
    uint64_t shard = 0;  // where it was opened; 0: not opened yet
    std::string address;
  };

  RemoteEngine(RemoteEngineOptions options, std::unique_ptr<ComputeEngine> local, LossKind loss,
               std::vector<Stage> stages)
      : options_(std::move(options)),
        local_(std::move(local)),
        objective_(loss, nullptr),
        references_(static_cast<size_t>(local_->Describe().tensors_size())),
        stages_(std::move(stages)) {
    for (int t = 0; t < Describe().tensors_size(); ++t) {
      tensor_of_[Describe().tensors(t).name()] = static_cast<uint32_t>(t);
    }
  }

  const v1::TensorTable& Describe() const override { return local_->Describe(); }
  StateDictExtras Extras() const override { return local_->Extras(); }

  ModelTraits Traits() const override { return local_->Traits(); }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t tensor) const override {
    return local_->InitialTensor(tensor);
  }
  absl::Status SetTensorRange(Buffer buffer, uint32_t tensor, uint64_t offset,
                              const absl::Cord& bytes) override {
    return references_.Set(buffer, tensor, offset, bytes);
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override {
    return absl::UnimplementedError("the parameters are on the shards");
  }
  absl::Status Adopt() override {
    references_.Swap();
    return absl::OkStatus();
  }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override;
  absl::StatusOr<BatchMetrics> Evaluate(Buffer buffer, const Batch& batch) override;

 private:
  using Names = std::set<std::string>;

  absl::Status CheckBatch(const Batch& batch) const;
  v1::StageTensor InputOf(const Batch& batch) const;
  StageChannel& ChannelTo(const std::string& address);
  absl::Status Open(uint32_t stage, const BlockReferences::Pass& pass);
  absl::StatusOr<v1::StageTensor> ForwardAll(Buffer buffer, v1::StageTensor input, uint64_t context,
                                             const GradientRequest* request);
  absl::Status BackwardAll(uint64_t context, v1::StageTensor gradient, Names* gradients,
                           Names* buffers);
  absl::Status Verify(uint64_t context);
  absl::StatusOr<BatchMetrics> RunBackward(const GradientRequest& request, GradientSink& sink);

  const RemoteEngineOptions options_;
  const std::unique_ptr<ComputeEngine> local_;  // describes the model; does not compute
  const Objective objective_;
  BlockReferences references_;
  std::vector<Stage> stages_;
  absl::flat_hash_map<std::string, uint32_t> tensor_of_;
  std::map<std::string, std::unique_ptr<StageChannel>> channels_;  // by address
  const std::shared_ptr<LiveContexts> live_ = std::make_shared<LiveContexts>();
  uint64_t last_context_ = 0;
};

absl::Status RemoteEngine::CheckBatch(const Batch& batch) const {
  uint64_t elements = 1;
  for (int64_t dimension : batch.shape) elements *= static_cast<uint64_t>(dimension);
  if (batch.samples == 0) return absl::InvalidArgumentError("the batch is empty");

  const size_t numbers = batch.tokens.empty() ? batch.features.size() : batch.tokens.size();
  if (batch.shape.empty() || numbers != batch.samples * elements) {
    return absl::InvalidArgumentError("the model takes data, and the batch has none");
  }

  // Labels are classes or numbers; one of the two must be complete.
  const bool classes =
      batch.class_width > 0 &&
      batch.classes.size() == batch.samples * static_cast<uint64_t>(batch.class_width);
  const bool targets =
      batch.target_width > 0 &&
      batch.targets.size() == batch.samples * static_cast<uint64_t>(batch.target_width);
  if (classes || targets) return absl::OkStatus();
  return absl::InvalidArgumentError("the batch has no label for each sample");
}

v1::StageTensor RemoteEngine::InputOf(const Batch& batch) const {
  v1::StageTensor input;
  input.add_shape(static_cast<int64_t>(batch.samples));
  for (int64_t dimension : batch.shape) input.add_shape(dimension);

  if (batch.tokens.empty()) {
    input.set_dtype(v1::FLOAT32);
    input.set_data(batch.features.data(), batch.features.size() * sizeof(float));
  } else {
    input.set_dtype(v1::INT64);
    input.set_data(batch.tokens.data(), batch.tokens.size() * sizeof(int64_t));
  }
  return input;
}

StageChannel& RemoteEngine::ChannelTo(const std::string& address) {
  std::unique_ptr<StageChannel>& channel = channels_[address];
  if (channel == nullptr) channel = options_.connect(address);
  return *channel;
}

absl::Status RemoteEngine::Open(uint32_t stage, const BlockReferences::Pass& pass) {
  Stage& entry = stages_[stage];
  if (entry.shard == pass.shard) return absl::OkStatus();

  // The shard that now has the stage's blocks does not know the stage yet.
  v1::OpenStageRequest request;
  request.set_worker(options_.worker);
  request.set_job(options_.job_name);
  *request.mutable_model() = options_.job.model();
  request.set_stage(stage);
  request.set_seed(options_.job.training().seed());
  for (int64_t dimension : options_.sample_shape) request.add_sample_shape(dimension);
  request.set_outputs(options_.outputs);
  request.set_tokens(options_.tokens);
  request.set_threads(options_.job.training().threads());
  request.set_trainers(options_.job.worker().replicas());

  ASSIGN_OR_RETURN(const auto opened, ChannelTo(pass.address).Open(request),
                   FailureOf(stage, pass.address, _));

  entry.shard = pass.shard;
  entry.address = pass.address;
  if (options_.on_opened) options_.on_opened(stage, pass.address, opened.device());
  return absl::OkStatus();
}

// `request` is null in evaluation.
absl::StatusOr<v1::StageTensor> RemoteEngine::ForwardAll(Buffer buffer, v1::StageTensor input,
                                                         uint64_t context,
                                                         const GradientRequest* request) {
  std::string generator;
  for (uint32_t stage = 0; stage < stages_.size(); ++stage) {
    ASSIGN_OR_RETURN(const auto pass, references_.Collect(buffer, stages_[stage].tensors));
    RETURN_IF_ERROR(Open(stage, pass));

    // The request names everything that is still in use here: the shard forgets the rest.
    v1::ForwardRequest forward;
    forward.set_worker(options_.worker);
    forward.set_stage(stage);
    forward.set_context(context);
    *forward.mutable_input() = std::move(input);
    for (uint64_t handle : pass.handles) forward.add_handles(handle);
    for (uint64_t handle : pass.live) forward.add_live_handles(handle);
    forward.set_newest_handle(pass.newest);
    for (uint64_t live : live_->List()) forward.add_live_contexts(live);

    if (request != nullptr) {
      forward.set_seed(SplitMix64At(SplitMix64At(options_.job.training().seed(), request->step),
                                    request->first_microbatch));
      forward.set_microbatches((request->batch->samples + request->microbatch_size - 1) /
                               request->microbatch_size);
    }
    forward.set_generator(generator);

    ASSIGN_OR_RETURN(auto reply, ChannelTo(pass.address).Forward(forward),
                     FailureOf(stage, pass.address, _));

    input = std::move(*reply.mutable_output());
    generator = reply.generator();
  }
  return input;
}

absl::Status RemoteEngine::BackwardAll(uint64_t context, v1::StageTensor gradient, Names* gradients,
                                       Names* buffers) {
  for (size_t stage = stages_.size(); stage-- > 0;) {
    const Stage& entry = stages_[stage];

    v1::BackwardRequest request;
    request.set_worker(options_.worker);
    request.set_stage(static_cast<uint32_t>(stage));
    request.set_context(context);
    *request.mutable_gradient() = std::move(gradient);

    ASSIGN_OR_RETURN(auto reply, ChannelTo(entry.address).Backward(request),
                     FailureOf(static_cast<uint32_t>(stage), entry.address, _));

    gradients->insert(reply.gradients().begin(), reply.gradients().end());
    buffers->insert(reply.buffers().begin(), reply.buffers().end());

    if (!reply.has_gradient()) break;  // earlier stages do not depend on parameters
    gradient = std::move(*reply.mutable_gradient());
  }
  return absl::OkStatus();
}

absl::Status RemoteEngine::Verify(uint64_t context) {
  size_t found = 0;
  for (uint32_t stage = 0; stage < stages_.size(); ++stage) {
    v1::ContextGradientsRequest request;
    request.set_worker(options_.worker);
    request.set_stage(stage);
    request.set_context(context);
    const std::string& address = stages_[stage].address;
    ASSIGN_OR_RETURN(const auto reply, ChannelTo(address).ContextGradients(request),
                     FailureOf(stage, address, _));

    for (const auto& gradient : reply.gradients()) {
      ASSIGN_OR_RETURN(const at::Tensor value, TensorOf(gradient.value()));
      ++found;
      if (value.numel() > 0 && at::isfinite(value).all().item<bool>()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("verifyGradients: the gradient of '", gradient.name(), "' in context ",
                       context, value.numel() == 0 ? " is empty" : " is not finite"));
    }
  }

  if (found > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("verifyGradients: context ", context, " has no gradients"));
}

absl::StatusOr<BatchMetrics> RemoteEngine::RunBackward(const GradientRequest& request,
                                                       GradientSink& sink) {
  const Batch& batch = *request.batch;
  const auto token = std::make_shared<ContextToken>(live_, ++last_context_);
  ASSIGN_OR_RETURN(auto forward,
                   ForwardAll(Buffer::kCurrent, InputOf(batch), token->context, &request));

  // The loss is computed here, from the last stage's output.
  ASSIGN_OR_RETURN(at::Tensor output, TensorOf(forward));
  RETURN_IF_ERROR(CheckLabels(objective_.loss(), output.sizes(), batch));
  const at::Tensor target = TargetTensor(batch);

  output.requires_grad_(true);
  const auto [objective, loss_sum] = objective_.Value(request, output, target);
  const BatchMetrics metrics = objective_.Metrics(batch, loss_sum, output, target);
  objective.backward();

  // Its gradient goes back through the stages, which keep the parameters' gradients.
  Names gradients;
  Names buffers;
  RETURN_IF_ERROR(BackwardAll(token->context, StageTensorOf(output.grad()), &gradients, &buffers));
  if (gradients.empty()) return NoGradientError();

  if (options_.job.debug().verify_gradients()) {
    RETURN_IF_ERROR(Verify(token->context));
  }

  // Every parameter is named: with a reference to its gradient, or without a gradient.
  for (const std::string& name : gradients) {
    const auto tensor = tensor_of_.find(name);
    if (tensor != tensor_of_.end()) sink.OnGradient(tensor->second, ReferenceTo(token));
  }

  for (int t = 0; t < Describe().tensors_size(); ++t) {
    const v1::TensorSpec& tensor = Describe().tensors(t);
    if (tensor.kind() != v1::PARAMETER || gradients.count(tensor.name()) > 0) continue;
    sink.OnNoGradient(static_cast<uint32_t>(t));
  }

  for (const std::string& name : buffers) {
    const auto tensor = tensor_of_.find(name);
    if (tensor != tensor_of_.end()) sink.OnBufferChange(tensor->second, ReferenceTo(token));
  }
  return metrics;
}

absl::StatusOr<BatchMetrics> RemoteEngine::ComputeGradients(const GradientRequest& request,
                                                            GradientSink& sink) {
  if (request.batch == nullptr || request.microbatch_size == 0) {
    return absl::InvalidArgumentError("a gradient needs a batch and a microbatch size");
  }
  RETURN_IF_ERROR(CheckBatch(*request.batch));
  return Catching([&] { return RunBackward(request, sink); });
}

absl::StatusOr<BatchMetrics> RemoteEngine::Evaluate(Buffer buffer, const Batch& batch) {
  if (buffer == Buffer::kIncoming) {
    return absl::InvalidArgumentError(
        "the incoming version cannot be evaluated before it is adopted");
  }
  RETURN_IF_ERROR(CheckBatch(batch));

  return Catching([&]() -> absl::StatusOr<BatchMetrics> {
    at::NoGradGuard no_grad;
    ASSIGN_OR_RETURN(auto forward, ForwardAll(buffer, InputOf(batch), 0, nullptr));
    ASSIGN_OR_RETURN(at::Tensor output, TensorOf(forward));

    RETURN_IF_ERROR(CheckLabels(objective_.loss(), output.sizes(), batch));
    const at::Tensor target = TargetTensor(batch);
    const double loss_sum = objective_.SumOfLosses(output, target).item<double>();
    return objective_.Metrics(batch, loss_sum, output, target);
  });
}

// Creates each stage once on the worker, so that errors in the cut are found before training.
absl::Status CheckStages(const ModelOptions& options) {
  for (uint32_t stage = 0; stage < StageCount(options.spec); ++stage) {
    const auto model = MakeStageModel(options, stage, at::kCPU);
    if (!model.ok()) return model.status();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeEngine>> CreateRemoteEngine(RemoteEngineOptions options) {
  TorchEngineOptions local_options = EngineOptionsOf(options.job, /*threads=*/1);
  local_options.only_describes = true;
  local_options.sample_shape = options.sample_shape;
  local_options.outputs = options.outputs;
  local_options.tokens = options.tokens;
  ASSIGN_OR_RETURN(std::unique_ptr<ComputeEngine> local, CreateTorchEngine(local_options));

  ModelOptions model_options;
  model_options.spec = options.job.model();
  model_options.seed = options.job.training().seed();
  model_options.sample_shape = options.sample_shape;
  model_options.outputs = options.outputs;
  model_options.tokens = options.tokens;

  return Catching([&]() -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    RETURN_IF_ERROR(CheckStages(model_options));
    ASSIGN_OR_RETURN(const auto model, MakeModel(model_options, at::kCPU));
    ASSIGN_OR_RETURN(const LossKind loss,
                     ChooseLoss(options.job.loss(), options.job.model(), *model));
    if (loss == LossKind::kNone || loss == LossKind::kModule || loss == LossKind::kForward) {
      return absl::InvalidArgumentError(
          "training.execution is Server, where the worker computes the loss: the model must take "
          "data, and `loss` must be nll, crossEntropy, mse or binaryCrossEntropyWithLogits");
    }

    ASSIGN_OR_RETURN(const auto stage_of, StageOfTensors(local->Describe(), options.job.model()));
    std::vector<RemoteEngine::Stage> stages(StageCount(options.job.model()));
    for (uint32_t t = 0; t < stage_of.size(); ++t) stages[stage_of[t]].tensors.push_back(t);
    return std::make_unique<RemoteEngine>(std::move(options), std::move(local), loss,
                                          std::move(stages));
  });
}

}  // namespace sluice

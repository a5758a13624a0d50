#include "services/worker/compute/torch_engine.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"
#include "services/worker/compute/carried_state.h"
#include "services/worker/compute/memory_pool.h"
#include "services/worker/compute/objective.h"
#include "services/worker/compute/row_sums.h"
#include "services/worker/compute/tensor_buffers.h"
#include "services/worker/compute/torch_kernels.h"
#include "services/worker/compute/torch_support.h"
#include "services/worker/models/additive.h"
#include "services/worker/models/buffer_change.h"
#include "services/worker/models/loss.h"
#include "services/worker/models/model.h"
#include "services/worker/models/torch_script.h"

namespace sluice {
namespace {

// The kind of pointer depends on LibTorch's version.
using NodePtr =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Takes a parameter's gradient away as soon as it is complete. If the graph uses a parameter
// several times, this runs after the last use.
class TakeGradient final : public torch::autograd::FunctionPostHook {
 public:
  using Sink = std::function<void(at::Tensor gradient)>;

  TakeGradient(at::Tensor parameter, Sink sink)
      : parameter_(std::move(parameter)), sink_(std::move(sink)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    at::Tensor gradient = std::move(parameter_.mutable_grad());
    parameter_.mutable_grad() = at::Tensor();
    if (gradient.defined()) sink_(std::move(gradient));
    return outputs;
  }

 private:
  // A weak reference would suffice: the parameter's owner also owns the node that owns the hook.
  at::Tensor parameter_;
  const Sink sink_;
};

v1::TensorTable TableOf(const Model& model) {
  v1::TensorTable table;
  for (const ModelTensor& tensor : model.tensors()) {
    v1::TensorSpec& spec = *table.add_tensors();
    spec.set_name(tensor.name);
    for (int64_t dimension : tensor.value.sizes()) spec.add_shape(dimension);
    spec.set_dtype(DataTypeOfTensor(tensor.value));
    spec.set_kind(tensor.kind);
  }
  return table;
}

ModelTraits TraitsOf(const Model& model, const TorchEngineOptions& options, at::Device device) {
  ModelTraits traits;
  traits.notes = model.Notes();
  std::vector<int64_t> shape = model.InputShape();
  if (shape.empty()) shape = options.sample_shape;
  shape.insert(shape.begin(), 1);
  const at::ScalarType type = options.tokens ? at::kLong : model.InputType();
  const at::Tensor sample = at::zeros(shape, at::TensorOptions(device).dtype(type));
  traits.smallest_batch_module = model.NeedsTwoSamples(sample);
  if (!traits.smallest_batch_module.empty()) traits.smallest_batch = 2;
  return traits;
}

class TorchEngine final : public ComputeEngine {
 public:
  TorchEngine(std::unique_ptr<Model> model, LossKind loss, at::Device device, uint64_t seed,
              ModelTraits traits)
      : model_(std::move(model)),
        traits_(std::move(traits)),
        table_(TableOf(*model_)),
        buffers_(table_),
        objective_(loss, model_.get()),
        device_(device),
        seed_(seed),
        carried_(static_cast<size_t>(model_->StateSize())),
        pool_(2 * table_.tensors_size()) {
    Bind(Buffer::kCurrent);
  }

  const v1::TensorTable& Describe() const override { return table_; }

  StateDictExtras Extras() const override { return model_->Extras(); }

  ModelTraits Traits() const override { return traits_; }

  absl::StatusOr<absl::Cord> InitialTensor(uint32_t tensor) const override {
    if (tensor >= buffers_.tensors()) {
      return absl::OutOfRangeError(absl::StrCat("tensor ", tensor, " of ", buffers_.tensors()));
    }
    return Catching(
        [&]() -> absl::StatusOr<absl::Cord> { return CordOf(model_->Initial(tensor)); });
  }

  absl::Status SetTensorRange(Buffer buffer, uint32_t tensor, uint64_t offset,
                              const absl::Cord& bytes) override {
    return buffers_.SetRange(buffer, tensor, offset, bytes);
  }

  absl::StatusOr<absl::Cord> GetTensor(Buffer buffer, uint32_t tensor) const override {
    return buffers_.Get(buffer, tensor);
  }

  absl::Status Adopt() override {
    buffers_.Swap();
    return Catching([&] {
      Bind(Buffer::kCurrent);
      return absl::OkStatus();
    });
  }

  std::vector<uint32_t> RowTensors() const override {
    const std::vector<size_t> tensors = model_->RowTensors();
    return {tensors.begin(), tensors.end()};
  }

  absl::StatusOr<RowSelections> RowsOf(const Batch& batch) const override;

  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override;

  absl::StatusOr<BatchMetrics> Evaluate(Buffer buffer, const Batch& batch) override;

 private:
  // Gives the model the memory of a buffer (on a GPU: its content).
  void Bind(Buffer buffer);

  at::Tensor HostTensor(Buffer buffer, size_t tensor);

  // Replaces everything that a forward pass may change with copies.
  void ShieldBuffers();

  // Reports the changes to the shielded tensors, `times` over.
  absl::Status ReportBufferChanges(double times, GradientSink& sink);

  void UnshieldBuffers();

  // Whether the model accepts the batch.
  absl::Status CheckBatch(const Batch& batch) const;

  at::Tensor InputOf(const Batch& batch) const;

  // In training mode, starting from the state that the batch's samples continue.
  at::Tensor TrainingForward(const Batch& batch);

  absl::StatusOr<BatchMetrics> RunBackward(const GradientRequest& request, GradientSink& sink);

  absl::Status Backward(const at::Tensor& objective, const Batch& batch, GradientSink& sink);

  // Gives the sink a parameter's gradient. `rows`: those that the batch names, found when needed.
  void Report(uint32_t tensor, at::Tensor gradient, const Batch& batch,
              std::optional<RowSelections>* rows, GradientSink& sink) const;

  BatchMetrics UpdateWithoutData(const GradientRequest& request, GradientSink& sink);

  const std::unique_ptr<Model> model_;
  const ModelTraits traits_;
  const v1::TensorTable table_;
  TensorBuffers buffers_;
  const Objective objective_;
  const at::Device device_;
  const uint64_t seed_;
  CarriedState carried_;
  MemoryPool pool_;
};

at::Tensor TorchEngine::HostTensor(Buffer buffer, size_t tensor) {
  const v1::TensorSpec& spec = table_.tensors(tensor);
  const std::vector<int64_t> shape(spec.shape().begin(), spec.shape().end());
  return at::from_blob(buffers_.data(buffer, tensor), shape, ScalarTypeOf(spec.dtype()));
}

void TorchEngine::Bind(Buffer buffer) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.tensors(); ++i) {
    at::Tensor value = model_->tensors()[i].value;
    const at::Tensor host = HostTensor(buffer, i);
    if (device_.is_cpu()) {
      value.set_data(host);
    } else {
      value.data().copy_(host);
    }
  }
}

void TorchEngine::ShieldBuffers() {
  for (size_t i = 0; i < buffers_.tensors(); ++i) {
    const ModelTensor& tensor = model_->tensors()[i];
    if (tensor.kind == v1::PARAMETER) continue;
    at::Tensor value = tensor.value;
    value.set_data(value.detach().clone());
  }
}

void TorchEngine::UnshieldBuffers() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.tensors(); ++i) {
    const ModelTensor& tensor = model_->tensors()[i];
    if (tensor.kind == v1::PARAMETER) continue;
    model_->TakeBuffer(i);
    const at::Tensor host = HostTensor(Buffer::kCurrent, i);
    at::Tensor value = tensor.value;
    value.set_data(device_.is_cpu() ? host : host.to(device_));
  }
}

absl::Status TorchEngine::ReportBufferChanges(double times, GradientSink& sink) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.tensors(); ++i) {
    if (model_->tensors()[i].kind != v1::BUFFER) continue;
    const at::Tensor before = HostTensor(Buffer::kCurrent, i);
    const at::Tensor after = model_->TakeBuffer(i).detach().to(at::kCPU);
    ASSIGN_OR_RETURN(const at::Tensor change,
                     BufferChange(model_->tensors()[i].name, before, after));
    if (change.defined()) sink.OnBufferChange(i, CordOf(change.mul(times)));
  }
  return absl::OkStatus();
}

absl::Status TorchEngine::CheckBatch(const Batch& batch) const {
  uint64_t elements = 1;
  for (int64_t dimension : batch.shape) elements *= dimension;
  if (batch.samples == 0) return absl::InvalidArgumentError("the batch is empty");
  if (!model_->TakesData()) return absl::OkStatus();

  const size_t numbers = batch.tokens.empty() ? batch.features.size() : batch.tokens.size();
  if (batch.shape.empty() || numbers != batch.samples * elements) {
    return absl::InvalidArgumentError("the model takes data, and the batch has none");
  }

  const bool classes =
      batch.class_width > 0 && batch.classes.size() == batch.samples * batch.class_width;
  const bool targets =
      batch.target_width > 0 && batch.targets.size() == batch.samples * batch.target_width;
  if (!classes && !targets) {
    return absl::InvalidArgumentError("the batch has no label for each sample");
  }

  const std::vector<int64_t> wanted = model_->InputShape();
  uint64_t wanted_elements = 1;
  for (int64_t dimension : wanted) wanted_elements *= dimension;
  if (wanted.empty() || wanted_elements == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a sample has shape ", ShapeText(batch.shape),
                                                 ", and the model takes ", ShapeText(wanted)));
}

at::Tensor TorchEngine::InputOf(const Batch& batch) const {
  std::vector<int64_t> shape = model_->InputShape();
  if (shape.empty()) shape = batch.shape;
  shape.insert(shape.begin(), static_cast<int64_t>(batch.samples));
  if (!batch.tokens.empty()) {
    return at::from_blob(const_cast<int64_t*>(batch.tokens.data()), shape, at::kLong)
        .to(device_, at::kLong, /*non_blocking=*/false, /*copy=*/true);
  }

  // from_blob takes writable memory, and the batch belongs to the caller.
  const at::Tensor view =
      at::from_blob(const_cast<float*>(batch.features.data()), shape, at::kFloat);
  return view.to(device_, model_->InputType(), /*non_blocking=*/false,
                 /*copy=*/model_->ChangesInput());
}

at::Tensor TorchEngine::TrainingForward(const Batch& batch) {
  const at::Tensor input = InputOf(batch);
  if (batch.places.size() != batch.samples || carried_.size() == 0) return model_->Forward(input);
  at::Tensor before = at::empty({input.size(0), static_cast<int64_t>(carried_.size())}, at::kFloat);
  carried_.Load(batch.places, {before.data_ptr<float>(), static_cast<size_t>(before.numel())});
  at::Tensor state = before.to(device_, model_->InputType());
  at::Tensor output = model_->ForwardFrom(input, &state);
  const at::Tensor after = state.to(at::kCPU, at::kFloat).contiguous();
  carried_.Store(batch.places, {after.data_ptr<float>(), static_cast<size_t>(after.numel())});
  return output;
}

void ReportRows(uint32_t tensor, const at::Tensor& gradient, GradientSink& sink) {
  const at::Tensor named = gradient._indices()[0].to(at::kCPU).contiguous();
  const at::Tensor values = gradient._values().to(at::kCPU).contiguous();
  RowSums sums = SumRows(DataTypeOfTensor(values),
                         {named.data_ptr<int64_t>(), static_cast<size_t>(named.numel())},
                         values.data_ptr(), static_cast<uint64_t>(gradient.size(1)));
  sink.OnRowGradient(tensor, std::move(sums.rows), std::move(sums.values));
}

absl::StatusOr<RowSelections> TorchEngine::RowsOf(const Batch& batch) const {
  RowSelections selections;
  const std::vector<size_t> tables = model_->RowTensors();
  if (tables.empty()) return selections;
  RETURN_IF_ERROR(CheckBatch(batch));

  return Catching([&]() -> absl::StatusOr<RowSelections> {
    const std::vector<at::Tensor> rows = model_->Rows(InputOf(batch));
    for (size_t i = 0; i < tables.size(); ++i) {
      const v1::TensorSpec& table = table_.tensors(static_cast<int>(tables[i]));
      const at::Tensor named = rows[i].to(at::kCPU).contiguous();
      std::vector<uint64_t>& selected = selections[static_cast<uint32_t>(tables[i])];
      for (int64_t row : absl::MakeConstSpan(named.data_ptr<int64_t>(), named.numel())) {
        if (row < 0 || row >= table.shape(0)) {
          return absl::InvalidArgumentError(
              absl::StrCat("row ", row, ", which the batch names, is not in [0, ", table.shape(0),
                           "), the rows of '", table.name(), "'"));
        }
        selected.push_back(static_cast<uint64_t>(row));
      }
      SortRows(&selected);
    }
    return selections;
  });
}

// Reports the named rows of an embedding table's dense gradient: its other rows are zeros.
void ReportRowsOfDense(uint32_t tensor, const std::vector<uint64_t>& rows,
                       const at::Tensor& gradient, GradientSink& sink) {
  const at::Tensor named = at::tensor(std::vector<int64_t>(rows.begin(), rows.end()), at::kLong);
  const at::Tensor values = gradient.index_select(0, named.to(gradient.device()));
  sink.OnRowGradient(tensor, rows, CordOf(values.to(at::kCPU)));
}

void TorchEngine::Report(uint32_t tensor, at::Tensor gradient, const Batch& batch,
                         std::optional<RowSelections>* rows, GradientSink& sink) const {
  if (gradient.is_sparse() && gradient.sparse_dim() == 1 && gradient.dim() == 2) {
    ReportRows(tensor, gradient, sink);
    return;
  }

  if (gradient.is_sparse()) gradient = gradient.to_dense();
  if (absl::c_linear_search(model_->RowTensors(), tensor)) {
    // The forward pass has read these rows, so they exist.
    if (!rows->has_value()) *rows = RowsOf(batch).value_or(RowSelections());
    const auto named = (*rows)->find(tensor);
    if (named != (*rows)->end()) {
      ReportRowsOfDense(tensor, named->second, gradient, sink);
      return;
    }
  }

  sink.OnGradient(tensor, CordOf(gradient.to(at::kCPU)));
}

absl::Status TorchEngine::Backward(const at::Tensor& objective, const Batch& batch,
                                   GradientSink& sink) {
  struct Hooked {
    uint32_t tensor;
    NodePtr node;
    uintptr_t hook;
    bool delivered = false;
  };

  std::vector<Hooked> hooked;
  hooked.reserve(buffers_.tensors());  // hooks point into it
  std::optional<RowSelections> rows;
  for (size_t i = 0; i < buffers_.tensors(); ++i) {
    const ModelTensor& tensor = model_->tensors()[i];
    if (tensor.kind != v1::PARAMETER) continue;
    Hooked& entry = hooked.emplace_back();
    entry.tensor = static_cast<uint32_t>(i);
    entry.node = torch::autograd::impl::grad_accumulator(tensor.value);
    const auto take = [this, &entry, &batch, &rows, &sink](at::Tensor gradient) {
      entry.delivered = true;
      Report(entry.tensor, std::move(gradient), batch, &rows, sink);
    };
    auto hook = std::make_unique<TakeGradient>(tensor.value, take);
    entry.hook = entry.node->add_post_hook(std::move(hook));
  }

  const auto unhook = absl::MakeCleanup([&hooked, this] {
    for (Hooked& entry : hooked) {
      entry.node->del_post_hook(entry.hook);
      // A gradient left by an exception must not be added to the next step's gradient.
      at::Tensor value = model_->tensors()[entry.tensor].value;
      value.mutable_grad() = at::Tensor();
    }
  });

  if (objective.requires_grad()) objective.backward();
  if (absl::c_none_of(hooked, [](const Hooked& entry) { return entry.delivered; })) {
    return NoGradientError();
  }
  for (const Hooked& entry : hooked) {
    if (!entry.delivered) sink.OnNoGradient(entry.tensor);
  }
  return absl::OkStatus();
}

uint64_t MicrobatchesOf(const GradientRequest& request) {
  return (request.batch->samples + request.microbatch_size - 1) / request.microbatch_size;
}

absl::StatusOr<BatchMetrics> TorchEngine::RunBackward(const GradientRequest& request,
                                                      GradientSink& sink) {
  const Batch& batch = *request.batch;

  model_->SetTraining(true);
  at::manual_seed(SplitMix64At(SplitMix64At(seed_, request.step), request.first_microbatch));
  ShieldBuffers();
  const auto unshield = absl::MakeCleanup([this] { UnshieldBuffers(); });

  const at::Tensor target = TargetTensor(batch).to(device_);

  // forward computes the loss itself.
  if (objective_.loss() == LossKind::kForward) {
    const auto [objective, loss_sum] = objective_.ValueOfForward(request, InputOf(batch), target);
    RETURN_IF_ERROR(model_->CheckUnchanged());
    RETURN_IF_ERROR(Backward(objective, batch, sink));
    // If each microbatch had its own forward pass, the change is the sum of theirs.
    const bool one_pass = request.reduction == Reduction::kSumOfSamples;
    RETURN_IF_ERROR(
        ReportBufferChanges(one_pass ? static_cast<double>(MicrobatchesOf(request)) : 1, sink));
    return BatchMetrics{loss_sum, batch.samples};
  }

  // forward gives an output, and the loss is computed from it.
  const at::Tensor output = TrainingForward(batch);
  RETURN_IF_ERROR(CheckLabels(objective_.loss(), output.sizes(), batch));
  const auto [objective, loss_sum] = objective_.Value(request, output, target);
  const BatchMetrics metrics = objective_.Metrics(batch, loss_sum, output, target);

  RETURN_IF_ERROR(model_->CheckUnchanged());
  RETURN_IF_ERROR(Backward(objective, batch, sink));
  RETURN_IF_ERROR(ReportBufferChanges(static_cast<double>(MicrobatchesOf(request)), sink));
  return metrics;
}

BatchMetrics TorchEngine::UpdateWithoutData(const GradientRequest& request, GradientSink& sink) {
  const uint64_t samples = request.batch->samples;
  const double scale = request.reduction == Reduction::kSumOfSamples
                           ? static_cast<double>(samples)
                           : static_cast<double>(MicrobatchesOf(request));

  for (size_t i = 0; i < buffers_.tensors(); ++i) {
    const uint64_t bytes = buffers_.bytes(i);
    const char* current = buffers_.data(Buffer::kCurrent, i);
    std::shared_ptr<char> update = pool_.Get(bytes);
    const auto write = [&](auto zero) {
      using T = decltype(zero);
      AdditiveUpdate<T>(absl::MakeConstSpan(reinterpret_cast<const T*>(current), bytes / sizeof(T)),
                        static_cast<T>(scale), reinterpret_cast<T*>(update.get()));
    };
    if (table_.tensors(i).dtype() == v1::FLOAT64) {
      write(double{});
    } else {
      write(float{});
    }
    const absl::string_view view(update.get(), bytes);
    sink.OnGradient(i, absl::MakeCordFromExternal(view, [update = std::move(update)] {}));
  }

  BatchMetrics metrics;
  metrics.samples = samples;
  return metrics;
}

absl::StatusOr<BatchMetrics> TorchEngine::ComputeGradients(const GradientRequest& request,
                                                           GradientSink& sink) {
  if (request.batch == nullptr || request.microbatch_size == 0) {
    return absl::InvalidArgumentError("a gradient needs a batch and a microbatch size");
  }
  RETURN_IF_ERROR(CheckBatch(*request.batch));
  return Catching([&]() -> absl::StatusOr<BatchMetrics> {
    if (!model_->TakesData()) return UpdateWithoutData(request, sink);
    return RunBackward(request, sink);
  });
}

absl::StatusOr<BatchMetrics> TorchEngine::Evaluate(Buffer buffer, const Batch& batch) {
  if (buffer == Buffer::kIncoming) {
    return absl::InvalidArgumentError(
        "the incoming version cannot be evaluated before it is adopted");
  }
  if (buffer == Buffer::kEvaluation && !buffers_.has_evaluation()) {
    return absl::FailedPreconditionError("no version to evaluate has been set");
  }
  RETURN_IF_ERROR(CheckBatch(batch));

  if (!model_->TakesData()) {
    BatchMetrics metrics;
    metrics.samples = batch.samples;
    return metrics;
  }

  return Catching([&]() -> absl::StatusOr<BatchMetrics> {
    at::NoGradGuard no_grad;
    if (buffer == Buffer::kEvaluation) Bind(buffer);
    const auto unbind = absl::MakeCleanup([&] {
      if (buffer == Buffer::kEvaluation) Bind(Buffer::kCurrent);
    });

    ShieldBuffers();
    const auto unshield = absl::MakeCleanup([this] { UnshieldBuffers(); });
    model_->SetTraining(false);

    const at::Tensor target = TargetTensor(batch).to(device_);
    if (objective_.loss() == LossKind::kForward) {
      const at::Tensor mean = model_->ForwardLoss(InputOf(batch), target);
      RETURN_IF_ERROR(model_->CheckUnchanged());
      return BatchMetrics{mean.item<double>() * static_cast<double>(batch.samples), batch.samples};
    }

    const at::Tensor output = model_->Forward(InputOf(batch));
    RETURN_IF_ERROR(CheckLabels(objective_.loss(), output.sizes(), batch));
    const double loss_sum = objective_.SumOfLosses(output, target).item<double>();
    RETURN_IF_ERROR(model_->CheckUnchanged());
    return objective_.Metrics(batch, loss_sum, output, target);
  });
}

}  // namespace

TorchEngineOptions EngineOptionsOf(const v1::JobSpec& job, int threads) {
  TorchEngineOptions options;
  options.model = job.model();
  options.loss = job.loss();
  options.seed = job.training().seed();
  options.threads = threads;
  options.training = job.training();
  return options;
}

absl::StatusOr<std::unique_ptr<ComputeEngine>> CreateTorchEngine(
    const TorchEngineOptions& options) {
  ASSIGN_OR_RETURN(
      at::Device device,
      ParseDevice("model.device", options.only_describes ? "cpu" : options.model.device()));
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, ": should be at least 1"));
  }

  if (!options.only_describes) RETURN_IF_ERROR(FixTorchKernels(options.training));
  SetTorchThreads(options.threads);

  if (options.training.bit_exact()) {
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }

  ModelOptions model_options;
  model_options.spec = options.model;
  model_options.seed = options.seed;
  model_options.sample_shape = options.sample_shape;
  model_options.outputs = options.outputs;
  model_options.tokens = options.tokens;

  return Catching([&]() -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model, MakeModel(model_options, device));
    ASSIGN_OR_RETURN(LossKind loss, ChooseLoss(options.loss, options.model, *model));
    for (const ModelTensor& tensor : model->tensors()) {
      if (tensor.value.scalar_type() != at::kHalf || device.is_cuda() || options.only_describes) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name,
                       "' is float16, in which a CPU does not compute: use bfloat16 or float32"));
    }

    ModelTraits traits = TraitsOf(*model, options, device);
    traits.environment = TorchEnvironment(options.training, options.threads);
    return std::make_unique<TorchEngine>(std::move(model), loss, device, options.seed,
                                         std::move(traits));
  });
}

std::string TorchVersion() { return LinkedTorchVersion(); }

}  // namespace sluice

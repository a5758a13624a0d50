// A stage's layers over LibTorch.
//
// Intuition. Each forward pass has its own instance of the stage's model, with the parameters that
// its worker pulled, so passes of several workers, of any versions, are independent. A parameter in
// one block is used in place; a parameter in several blocks is first copied together.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "services/common/process/processors.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"
#include "services/execution/shard/layers.h"
#include "services/worker/compute/torch_support.h"
#include "services/worker/models/buffer_change.h"
#include "services/worker/models/dropout.h"
#include "services/worker/models/model.h"
#include "services/worker/models/stage_tensor.h"

namespace sluice::stage {
namespace {

// Idle instances of the model; one more than compute at a time on most machines.
constexpr size_t kMaxIdleInstances = 16;

// The alignment that LibTorch prefers.
constexpr uintptr_t kAlignment = 16;

at::Generator GeneratorOf(const Layers::Input& input) {
  at::Generator generator = at::detail::createCPUGenerator(input.seed);
  if (!input.generator.empty()) {
    at::Tensor state = at::empty({static_cast<int64_t>(input.generator.size())}, at::kByte);
    std::memcpy(state.data_ptr(), input.generator.data(), input.generator.size());
    generator.set_state(state);
  }
  return generator;
}

std::string StateOf(const at::Generator& generator) {
  const at::Tensor state = generator.get_state().contiguous();
  return std::string(static_cast<const char*>(state.data_ptr()), state.nbytes());
}

// The stage's model with its own memory for tensors that cannot be used in place.
struct Instance {
  explicit Instance(std::unique_ptr<Model> given) : model(std::move(given)) {
    for (const ModelTensor& tensor : model->tensors()) shapes.push_back(tensor.value.sizes().vec());
    own.resize(shapes.size());
  }

  // Releases the blocks.
  void Unbind() {
    at::NoGradGuard no_grad;
    for (const ModelTensor& tensor : model->tensors()) {
      at::Tensor value = tensor.value;
      value.mutable_grad() = at::Tensor();
      if (tensor.kind == v1::PARAMETER) value.set_data(at::empty({0}, value.options()));
    }
  }

  const std::unique_ptr<Model> model;
  std::vector<std::vector<int64_t>> shapes;  // by tensor
  std::vector<at::Tensor> own;               // by tensor; undefined until needed
};

class TorchLayers;

class TorchPass final : public ForwardPass {
 public:
  TorchPass(std::shared_ptr<TorchLayers> layers, std::unique_ptr<Instance> instance,
            at::Tensor input, at::Tensor output, std::vector<TensorGradient> buffers)
      : layers_(std::move(layers)),
        instance_(std::move(instance)),
        input_(std::move(input)),
        output_(std::move(output)),
        buffers_(std::move(buffers)) {}
  ~TorchPass() override;

  absl::StatusOr<Result> Backward(const v1::StageTensor& output_gradient) override;

 private:
  void DropGraph();

  const std::shared_ptr<TorchLayers> layers_;
  std::unique_ptr<Instance> instance_;
  at::Tensor input_;
  at::Tensor output_;
  std::vector<TensorGradient> buffers_;
};

class TorchLayers final : public Layers, public std::enable_shared_from_this<TorchLayers> {
 public:
  TorchLayers(ModelOptions options, uint32_t stage, at::Device device, v1::OpenStageReply reply)
      : options_(std::move(options)), stage_(stage), device_(device), reply_(std::move(reply)) {}

  absl::Status Prepare() {
    ASSIGN_OR_RETURN(std::unique_ptr<Instance> instance, Take());
    GiveBack(std::move(instance));
    return absl::OkStatus();
  }

  absl::StatusOr<Output> Forward(const Input& input) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Instance> instance, Take());
    return Catching([&] { return Run(input, std::move(instance)); });
  }

  v1::OpenStageReply Describe() const override { return reply_; }

  void GiveBack(std::unique_ptr<Instance> instance) {
    instance->Unbind();
    MutexLock lock(&mutex_);
    if (idle_.size() < kMaxIdleInstances) idle_.push_back(std::move(instance));
  }

 private:
  absl::StatusOr<std::unique_ptr<Instance>> Take() {
    {
      MutexLock lock(&mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Instance> instance = std::move(idle_.back());
        idle_.pop_back();
        return instance;
      }
    }

    return Catching([&]() -> absl::StatusOr<std::unique_ptr<Instance>> {
      ASSIGN_OR_RETURN(std::unique_ptr<Model> model, MakeStageModel(options_, stage_, device_));
      return std::make_unique<Instance>(std::move(model));
    });
  }

  absl::StatusOr<Output> Run(const Input& input, std::unique_ptr<Instance> instance);
  absl::StatusOr<at::Tensor> ShapedInput(const Input& input, Model& model) const;
  absl::Status Bind(const std::vector<TensorPart>& parts, Instance& instance) const;
  absl::Status BindTensor(std::vector<const TensorPart*>& parts, size_t index,
                          Instance& instance) const;

  const ModelOptions options_;
  const uint32_t stage_;
  const at::Device device_;
  const v1::OpenStageReply reply_;
  Mutex mutex_;  // protects the idle instances
  std::vector<std::unique_ptr<Instance>> idle_ ABSL_GUARDED_BY(mutex_);
};

absl::Status TorchLayers::BindTensor(std::vector<const TensorPart*>& parts, size_t index,
                                     Instance& instance) const {
  const ModelTensor& tensor = instance.model->tensors()[index];
  at::Tensor value = tensor.value;
  const std::vector<int64_t>& shape = instance.shapes[index];
  const size_t element = value.element_size();
  size_t bytes = element;
  for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);

  // The parts must be the whole tensor, without gaps and overlaps.
  std::sort(parts.begin(), parts.end(),
            [](const TensorPart* a, const TensorPart* b) { return a->offset < b->offset; });
  uint64_t next = 0;
  for (const TensorPart* part : parts) {
    if (part->offset * element != next) break;
    next += part->content.size();
  }

  if (next != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' has ", bytes,
                                                   " bytes; ", next,
                                                   " of them were named to compute with"));
  }

  // A single part in contiguous memory is used in place.
  const absl::optional<absl::string_view> flat =
      parts.size() == 1 ? parts[0]->content.TryFlat() : absl::nullopt;
  // A forward pass must not write to the block itself (running statistics).
  if (flat.has_value() && tensor.kind == v1::PARAMETER && device_.is_cpu() &&
      reinterpret_cast<uintptr_t>(flat->data()) % kAlignment == 0) {
    value.set_data(at::from_blob(
        const_cast<char*>(flat->data()), shape, [held = parts[0]->content](void*) {},
        value.options().requires_grad(false)));
    return absl::OkStatus();
  }

  // Otherwise the tensor has a copy, whose memory is kept for the next pass.
  at::Tensor& own = instance.own[index];
  if (!own.defined()) own = at::empty(shape, value.options().device(at::kCPU));
  char* to = static_cast<char*>(own.data_ptr());
  for (const TensorPart* part : parts) {
    for (absl::string_view chunk : part->content.Chunks()) {
      to = std::copy(chunk.begin(), chunk.end(), to);
    }
  }
  value.set_data(device_.is_cpu() ? own : own.to(device_));
  return absl::OkStatus();
}

absl::Status TorchLayers::Bind(const std::vector<TensorPart>& parts, Instance& instance) const {
  at::NoGradGuard no_grad;
  const std::vector<ModelTensor>& tensors = instance.model->tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<const TensorPart*> of_tensor;
    for (const TensorPart& part : parts) {
      if (part.tensor == tensors[i].name) of_tensor.push_back(&part);
    }
    RETURN_IF_ERROR(BindTensor(of_tensor, i, instance));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TorchLayers::ShapedInput(const Input& input, Model& model) const {
  absl::StatusOr<at::Tensor> tensor = TensorOf(*input.value);
  if (!tensor.ok()) return tensor;
  std::vector<int64_t> shape = model.InputShape();
  if (tensor->dim() == 0 || tensor->size(0) == 0) {
    return absl::InvalidArgumentError("the batch is empty");
  }

  if (!shape.empty()) {
    shape.insert(shape.begin(), tensor->size(0));
    int64_t wanted = 1;
    for (int64_t extent : shape) wanted *= extent;
    if (wanted != tensor->numel()) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", stage_, " takes ", ShapeText(shape),
                                                     ", and is given ",
                                                     ShapeText(tensor->sizes())));
    }
    tensor = tensor->reshape(shape);
  }

  if (tensor->is_floating_point()) {
    tensor = tensor->to(device_, model.InputType());
  } else {
    tensor = tensor->to(device_);
  }

  if (input.wants_input_gradient && input.training) tensor->requires_grad_(true);
  return tensor;
}

// The changes to float buffers by a forward pass.
absl::StatusOr<std::vector<TensorGradient>> BufferChanges(const std::vector<at::Tensor>& before,
                                                          uint64_t microbatches, Model& model) {
  at::NoGradGuard no_grad;
  std::vector<TensorGradient> changes;
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    const ModelTensor& tensor = model.tensors()[i];
    if (tensor.kind == v1::PARAMETER) continue;
    const at::Tensor after = model.TakeBuffer(i).detach().to(at::kCPU);
    if (tensor.kind != v1::BUFFER) continue;
    ASSIGN_OR_RETURN(at::Tensor change, BufferChange(tensor.name, before[i], after));
    if (!change.defined()) continue;

    change = change.mul(static_cast<double>(microbatches));
    changes.push_back(
        {tensor.name, change.sizes().vec(), DataTypeOfTensor(change), true, CordOf(change)});
  }
  return changes;
}

absl::StatusOr<Layers::Output> TorchLayers::Run(const Input& input,
                                                std::unique_ptr<Instance> instance) {
  Model& model = *instance->model;
  ASSIGN_OR_RETURN(at::Tensor given, ShapedInput(input, model));
  RETURN_IF_ERROR(Bind(input.parameters, *instance));

  // The pass changes buffers; their values before it are needed to compute the changes.
  std::vector<at::Tensor> before(model.tensors().size());
  for (size_t i = 0; i < before.size(); ++i) {
    const ModelTensor& tensor = model.tensors()[i];
    if (tensor.kind != v1::PARAMETER) before[i] = tensor.value.detach().to(at::kCPU).clone();
  }

  model.SetTraining(input.training);
  at::Generator generator = GeneratorOf(input);

  Output output;
  at::Tensor result;
  {
    const ScopedDropoutGenerator scope(generator);
    at::AutoGradMode grad(input.training);
    result = model.Forward(given);
  }

  RETURN_IF_ERROR(model.CheckUnchanged());
  output.value = StageTensorOf(result);
  ASSIGN_OR_RETURN(std::vector<TensorGradient> changes,
                   BufferChanges(before, input.microbatches, model));

  // In evaluation there is no graph, and the instance is free again.
  if (!input.training) {
    result = at::Tensor();
    GiveBack(std::move(instance));
    return output;
  }

  output.generator = StateOf(generator);
  output.pass =
      std::make_unique<TorchPass>(shared_from_this(), std::move(instance), std::move(given),
                                  std::move(result), std::move(changes));
  return output;
}

TorchPass::~TorchPass() { DropGraph(); }

void TorchPass::DropGraph() {
  output_ = at::Tensor();
  input_ = at::Tensor();
  if (instance_ == nullptr) return;
  layers_->GiveBack(std::move(instance_));
}

absl::StatusOr<ForwardPass::Result> TorchPass::Backward(const v1::StageTensor& output_gradient) {
  if (instance_ == nullptr) {
    return absl::InvalidArgumentError("the backward pass of this context is over");
  }
  const auto drop = absl::MakeCleanup([this] { DropGraph(); });

  ASSIGN_OR_RETURN(at::Tensor gradient, TensorOf(output_gradient));
  if (gradient.sizes() != output_.sizes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a gradient of shape ", ShapeText(gradient.sizes()),
                     " for an output of shape ", ShapeText(output_.sizes())));
  }
  return Catching([&]() -> absl::StatusOr<Result> {
    Result result;
    if (output_.requires_grad()) {
      output_.backward(gradient.to(output_.device(), output_.scalar_type()));
    }

    for (const ModelTensor& tensor : instance_->model->tensors()) {
      if (tensor.kind != v1::PARAMETER || !tensor.value.grad().defined()) continue;
      at::Tensor found = tensor.value.grad();
      if (found.is_sparse()) found = found.to_dense();
      found = found.to(at::kCPU).contiguous();
      result.gradients.push_back(
          {tensor.name, found.sizes().vec(), DataTypeOfTensor(found), false, CordOf(found)});
    }

    if (input_.requires_grad() && input_.grad().defined()) {
      result.input_gradient = StageTensorOf(input_.grad());
    }

    for (TensorGradient& change : buffers_) result.gradients.push_back(std::move(change));
    return result;
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<Layers>> MakeTorchLayers(const v1::OpenStageRequest& request) {
  v1::OpenStageReply reply;
  const v1::ModelSpec& model = request.model();
  const int stage = static_cast<int>(request.stage());
  const bool own = stage < model.stages_size() && !model.stages(stage).device().empty();
  absl::StatusOr<at::Device> device =
      own ? ParseDevice(absl::StrCat("model.stages[", stage, "].device"),
                        model.stages(stage).device())
          : ParseDevice("model.device", model.device());
  if (absl::IsUnimplemented(device.status())) {
    reply.set_warning(
        absl::StrCat("stage ", stage, " is computed on the CPU: ", device.status().message()));
    device = at::Device(at::kCPU);
  }
  if (!device.ok()) return device.status();
  reply.set_device(device->str());

  const uint32_t cores = static_cast<uint32_t>(AvailableProcessors());
  const uint32_t share = std::max(1u, cores / std::max(1u, request.trainers()));
  SetTorchThreads(static_cast<int>(request.threads() > 0 ? request.threads() : share));

  ModelOptions options;
  options.spec = model;
  options.seed = request.seed();
  options.sample_shape.assign(request.sample_shape().begin(), request.sample_shape().end());
  options.outputs = request.outputs();
  options.tokens = request.tokens();
  auto layers =
      std::make_shared<TorchLayers>(std::move(options), request.stage(), *device, std::move(reply));
  RETURN_IF_ERROR(layers->Prepare());
  return layers;
}

}  // namespace sluice::stage

// A model as the compute engine runs it: named tensors whose memory the engine chooses, and a
// forward pass over them.
#ifndef SLUICE_SERVICES_WORKER_MODELS_MODEL_H_
#define SLUICE_SERVICES_WORKER_MODELS_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/checkpoint/state_dict_extras.h"
#include "services/worker/models/loss.h"

namespace sluice {

// A parameter, float buffer or integer counter; the rest of the state_dict is in Extras().
struct ModelTensor {
  std::string name;  // in the state_dict
  v1::TensorKind kind = v1::PARAMETER;
  // The model's own handle: set_data on it replaces the model's memory. Parameters require a
  // gradient.
  at::Tensor value;
};

// One thread at a time. LibTorch's errors leave these functions as exceptions; the compute engine
// catches them.
class Model {
 public:
  virtual ~Model() = default;

  // In state_dict order; a tensor with two names has the first. Constant except for the memory.
  virtual const std::vector<ModelTensor>& tensors() const = 0;

  // The other entries of the state_dict: second names, and buffers that never change.
  virtual StateDictExtras Extras() const { return {}; }

  // A tensor at version 0, contiguous, on the CPU. Independent of the handles' memory.
  virtual at::Tensor Initial(size_t tensor) const = 0;

  // Whether the model is trained with data; otherwise its only operation is AdditiveUpdate
  // (additive.h).
  virtual bool TakesData() const = 0;

  // Embedding tables, by place in tensors(): of each, a forward pass reads only the rows that
  // Rows() names.
  virtual std::vector<size_t> RowTensors() const { return {}; }

  // For each of RowTensors(), the rows that Forward(input) reads: int64, of any shape; rows may
  // repeat, and may not exist. Any thread.
  virtual std::vector<at::Tensor> Rows(const at::Tensor& input) const {
    return std::vector<at::Tensor>(RowTensors().size(), input);
  }

  // The shape that each sample is given; empty: as the data has it.
  virtual std::vector<int64_t> InputShape() const = 0;

  // Whether Forward may change its input's numbers.
  virtual bool ChangesInput() const { return true; }

  // The type in which Forward takes numbers; tokens are int64.
  virtual at::ScalarType InputType() const { return at::kFloat; }

  // Notes to the user before training, one sentence each.
  virtual std::vector<std::string> Notes() const { return {}; }

  // The name of a layer because of which no training pass computes `sample` alone, an input of one
  // sample; empty: it does.
  virtual std::string NeedsTwoSamples(const at::Tensor& /*sample*/) const { return ""; }

  // Takes [n, shape of a sample].
  virtual at::Tensor Forward(const at::Tensor& input) = 0;

  // Numbers of state that a sample leaves to the next sample of its stream; 0: none.
  virtual int64_t StateSize() const { return 0; }

  // Like Forward, but starting with a state other than zeros: [n, StateSize()] in
  // InputType(), which becomes the state after the samples. Only if StateSize() is not 0.
  virtual at::Tensor ForwardFrom(const at::Tensor& input, at::Tensor* /*state*/) {
    return Forward(input);
  }

  // The loss if the job names none. FailedPrecondition if the model has none.
  virtual absl::StatusOr<LossKind> OwnLoss() const = 0;

  // The mean loss by the model's own method, if OwnLoss() is kModule.
  virtual at::Tensor ModuleLoss(const at::Tensor& output, const at::Tensor& target) = 0;

  // The mean loss that forward(input, target) returns; replaces Forward if OwnLoss() is kForward.
  virtual at::Tensor ForwardLoss(const at::Tensor& /*input*/, const at::Tensor& /*target*/) {
    return at::Tensor();
  }

  // Turns dropout and the like on or off.
  virtual void SetTraining(bool training) = 0;

  // After a forward pass: FailedPrecondition names a tensor that it has changed and whose change
  // would be lost (a parameter, or a constant of Extras()).
  virtual absl::Status CheckUnchanged() { return absl::OkStatus(); }

  // The value of a tensor of kind BUFFER or COUNTER after a forward pass. A module may have
  // replaced the handle by another tensor; this restores the handle.
  virtual at::Tensor TakeBuffer(size_t tensor) = 0;
};

// The shape of the data fills the dimensions that the spec leaves open.
struct ModelOptions {
  v1::ModelSpec spec;
  uint64_t seed = 0;
  std::vector<int64_t> sample_shape;  // of the data; empty: none
  int64_t outputs = 0;                // classes, or numbers of a target; 0: none
  bool tokens = false;                // whether samples are sequences of tokens below `outputs`
};

// A built-in model on the CPU. InvalidArgument for an unknown name, dimension or dtype.
absl::StatusOr<std::unique_ptr<Model>> MakeBuiltinModel(const ModelOptions& options);

// One stage of spec.stages (server-side execution) as a model of its own, on this device: it has
// only the stage's tensors, takes the output of the stage before it and gives the input of the
// stage after it. Stage 0 of a model without stages is the whole model. InvalidArgument besides the
// errors of MakeModel: the stages are not a cut of the model (StageOfTensors of
// services/protocol/stages.h), their layers are not in the order of the forward pass (the message
// names the shapes that do not fit), or the model can only run as a whole.
absl::StatusOr<std::unique_ptr<Model>> MakeStageModel(const ModelOptions& options, uint32_t stage,
                                                      at::Device device);

// The model of a TorchScript file (see torch_script.h).
absl::StatusOr<std::unique_ptr<Model>> LoadTorchScriptModel(const std::string& path,
                                                            at::Device device);

// Moves the model's memory to another device.
void MoveTo(at::Device device, Model* model);

// A built-in model or a TorchScript file, by the spec, on this device.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelOptions& options, at::Device device);

// LibTorch's scalar type of a wire type and back; at::ScalarType::Undefined and
// DATA_TYPE_UNSPECIFIED if there is none.
at::ScalarType ScalarTypeOf(v1::DataType dtype);
v1::DataType DataTypeOfTensor(const at::Tensor& tensor);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_MODEL_H_

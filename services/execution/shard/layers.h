// The seam between the contexts of server-side execution and the library that differentiates: what
// a stage's layers can do. No LibTorch.
#ifndef SLUICE_SERVICES_EXECUTION_SHARD_LAYERS_H_
#define SLUICE_SERVICES_EXECUTION_SHARD_LAYERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/stage.pb.h"

namespace sluice::stage {

// Elements of a tensor from `offset` on; the tensor is identified by its name in the state_dict.
// The content has the dtype that the model gives the tensor.
struct TensorPart {
  std::string tensor;
  uint64_t offset = 0;
  absl::Cord content;  // its memory does not change
};

// A tensor's gradient from a backward pass, in the tensor's dtype, whole and contiguous.
struct TensorGradient {
  std::string tensor;
  std::vector<int64_t> shape;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
  bool buffer = false;  // the change of a float buffer, times the microbatches
  absl::Cord value;
};

// The graph of a forward pass in training. One thread at a time.
class ForwardPass {
 public:
  // Frees the graph if Backward was not called.
  virtual ~ForwardPass() = default;

  struct Result {
    v1::StageTensor input_gradient;  // without a shape if the input is not a tensor with a gradient
    std::vector<TensorGradient> gradients;
  };

  // Call once; the graph is gone afterwards, also on errors.
  virtual absl::StatusOr<Result> Backward(const v1::StageTensor& output_gradient) = 0;
};

// Immutable; any threads, also concurrently.
class Layers {
 public:
  virtual ~Layers() = default;

  // `value` is read only during the call.
  struct Input {
    const v1::StageTensor* value = nullptr;
    std::vector<TensorPart> parameters;  // together all tensors of the stage, each once
    bool training = false;
    bool wants_input_gradient = false;
    // Dropout's generator: its state, or if that is empty a seed.
    std::string generator;
    uint64_t seed = 0;
    uint64_t microbatches = 1;
  };
  struct Output {
    v1::StageTensor value;
    std::string generator;              // its state afterwards
    std::unique_ptr<ForwardPass> pass;  // null in evaluation
  };

  // Refers to the parameters' memory as long as the pass has its graph. INVALID_ARGUMENT names what
  // does not fit (the input's shape, a tensor that is missing); FAILED_PRECONDITION if the model
  // itself fails.
  virtual absl::StatusOr<Output> Forward(const Input& input) = 0;

  // The reply to Open: the device, and a warning if there is one.
  virtual v1::OpenStageReply Describe() const = 0;
};

// Loads the model. INVALID_ARGUMENT or FAILED_PRECONDITION: the model or the stage is wrong. Any
// thread.
using LayersFactory =
    std::function<absl::StatusOr<std::shared_ptr<Layers>>(const v1::OpenStageRequest&)>;

// Implemented with LibTorch (torch_layers.cc).
absl::StatusOr<std::shared_ptr<Layers>> MakeTorchLayers(const v1::OpenStageRequest& request);

}  // namespace sluice::stage

#endif  // SLUICE_SERVICES_EXECUTION_SHARD_LAYERS_H_

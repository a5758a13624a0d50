// A built-in model: its parameters, and its forward pass as a function of them.
#ifndef SLUICE_SERVICES_WORKER_MODELS_ARCHITECTURE_H_
#define SLUICE_SERVICES_WORKER_MODELS_ARCHITECTURE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/worker/models/initial_values.h"
#include "services/worker/models/loss.h"

namespace sluice {

// Immutable; any threads.
class Architecture {
 public:
  struct Parameter {
    std::string name;  // as in the state_dict of the same model in PyTorch
    std::vector<int64_t> shape;
    double bound;  // of the initial values
  };

  virtual ~Architecture() = default;

  // In state_dict order.
  virtual std::vector<Parameter> Parameters() const = 0;

  // The shape of one sample; a sample of another shape with as many elements is reshaped. Empty:
  // the model takes no data.
  virtual std::vector<int64_t> InputShape() const = 0;

  virtual LossKind OwnLoss() const = 0;

  // A layer, between which the model can be cut (server-side execution). It has the parameters
  // whose names begin with its name, and takes a sample of this shape.
  struct Layer {
    std::string name;
    std::vector<int64_t> input_shape;
  };

  // In the order of the forward pass; each layer includes everything up to the next. Empty: the
  // model runs as a whole.
  virtual std::vector<Layer> Layers() const { return {}; }

  // Runs layers first, ..., last on n samples; only their elements of `parameters` are used. Only
  // if Layers() is not empty.
  virtual at::Tensor ForwardLayers(absl::Span<const at::Tensor> parameters, const at::Tensor& input,
                                   size_t /*first*/, size_t /*last*/, bool training) const {
    return Forward(parameters, input, training);
  }

  // Whether the input is tokens, [n, length] of int64, instead of numbers.
  virtual bool TakesTokens() const { return false; }

  // Embedding tables, by place in Parameters(): a forward pass reads the rows that are the input's
  // tokens, and the gradient is sparse.
  virtual std::vector<size_t> RowParameters() const { return {}; }

  // Numbers of state that a sample leaves to the next sample of its stream; 0: none.
  virtual int64_t StateSize() const { return 0; }

  // On n samples. `parameters` as in Parameters(). For dropout's random numbers see dropout.h.
  virtual at::Tensor Forward(absl::Span<const at::Tensor> parameters, const at::Tensor& input,
                             bool training) const = 0;

  // Like Forward, but starting with a state other than zeros: [n, StateSize()], which becomes the
  // state after the samples, without a graph. Only if StateSize() is not 0.
  virtual at::Tensor ForwardFrom(absl::Span<const at::Tensor> parameters, const at::Tensor& input,
                                 bool training, at::Tensor* /*state*/) const {
    return Forward(parameters, input, training);
  }

  // Elements offset, offset + 1, ... of a parameter at version 0.
  virtual void FillInitial(const Parameter& parameter, uint64_t seed, uint64_t offset,
                           absl::Span<double> out) const {
    FillUniform(seed, parameter.name, parameter.bound, offset, out);
  }
};

// Sizes that a job may choose: model.dimensions, and where these are not set, what the data
// suggests.
class Dimensions {
 public:
  Dimensions(std::string model, std::map<std::string, int64_t> given)
      : model_(std::move(model)), given_(std::move(given)) {}

  // InvalidArgument if it is given and not in [1, 2^40], or not given and `otherwise` is 0.
  absl::StatusOr<int64_t> Take(const std::string& name, int64_t otherwise);

  // InvalidArgument if a given dimension was not taken.
  absl::Status CheckAllTaken() const;

 private:
  const std::string model_;
  std::map<std::string, int64_t> given_;  // not taken yet
  std::vector<std::string> known_;
};

// Sizes that the data suggests; 0: unknown.
struct DataShape {
  int64_t inputs = 0;   // numbers of one sample
  int64_t outputs = 0;  // classes, or numbers of a target
};

using ArchitectureOr = absl::StatusOr<std::unique_ptr<Architecture>>;

// One file each, which begins with the net and its dimensions.
ArchitectureOr MakeConvnet(Dimensions& dimensions, const DataShape& data);
ArchitectureOr MakeMnistNet(Dimensions& dimensions, const DataShape& data);
ArchitectureOr MakeMlp(Dimensions& dimensions, const DataShape& data);
ArchitectureOr MakeLstmLm(Dimensions& dimensions, const DataShape& data);
ArchitectureOr MakeLinear(Dimensions& dimensions, const DataShape& data);
ArchitectureOr MakeLogistic(Dimensions& dimensions, const DataShape& data);
ArchitectureOr MakeAdditive(Dimensions& dimensions, const DataShape& data);

// The architecture of this name with these sizes. InvalidArgument lists the available names.
ArchitectureOr MakeArchitecture(const std::string& name,
                                const std::map<std::string, int64_t>& dimensions,
                                const DataShape& data);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_ARCHITECTURE_H_

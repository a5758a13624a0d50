// Models that were written in Python and saved by torch.jit.
//
// Every parameter and floating-point buffer of the module and its submodules is a tensor of the
// model, in the order and under the names of the module's state_dict in PyTorch. A parameter that
// does not require a gradient is a BUFFER. Of the integer buffers, `num_batches_tracked` of a batch
// norm in training mode is a COUNTER; the others, and buffers of bool and complex64, are constants
// of the model: they keep the file's values. A tensor with several names has the first; constants
// and the other names are Extras(). Each submodule is trained in the mode of the file.
//
// `forward(input)` returns the output; `forward(input, target)` returns the mean loss.
#ifndef SLUICE_SERVICES_WORKER_MODELS_TORCH_SCRIPT_H_
#define SLUICE_SERVICES_WORKER_MODELS_TORCH_SCRIPT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/common.pb.h"

namespace sluice {

// Translates a failure of torch::jit::load for the user. InvalidArgument: the file is not
// TorchScript. Unimplemented: it needs something of a newer LibTorch; the message names the
// operator and the LibTorch version that does not have it.
absl::Status TorchScriptLoadError(const std::string& path, absl::string_view what);

// The first line of an exception's text, without the place in LibTorch that threw it.
std::string FirstLine(absl::string_view what);

// A tensor of the loaded module; its memory may be written.
struct TensorMemory {
  std::string name;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  char* memory = nullptr;  // contiguous
};

// Writes the module of `source` with other values to `target`, completely or not at all. `fill` is
// given the memory of each tensor (with the names above) and fills it; if it fails, its error is
// returned.
absl::Status RewriteTorchScript(
    const std::string& source, const std::string& target,
    const std::function<absl::Status(const std::vector<TensorMemory>& tensors)>& fill);

// The version of the linked LibTorch, e.g. "1.13.1".
std::string LinkedTorchVersion();

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_TORCH_SCRIPT_H_

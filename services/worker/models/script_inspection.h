// Inspects the code of a TorchScript module before it runs: finds code that cannot be trained as
// PyTorch would train it, and notes for the user.
//
// Intuition. Some operators compute other numbers, or other gradients, in the linked LibTorch than
// in the PyTorch that saved the file; a traced module has its mode as a constant; a forward pass
// may change a parameter, which a worker cannot pass on. None of these fails by itself.
#ifndef SLUICE_SERVICES_WORKER_MODELS_SCRIPT_INSPECTION_H_
#define SLUICE_SERVICES_WORKER_MODELS_SCRIPT_INSPECTION_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/worker/models/model.h"

namespace sluice {

struct ScriptInspection {
  std::vector<std::string> notes;  // one sentence each
  // The type in which forward takes numbers: float32, unless forward gives its input unchanged to
  // layers of another type only. Such layers take no float32.
  at::ScalarType input_type = at::kFloat;
  // A batch norm that uses the statistics of the batch in training; empty: there is none.
  std::string batch_norm;
};

// `tensors` are the module's. Unimplemented or FailedPrecondition names what cannot be trained, and
// the remedy. Reads the graphs of the methods; runs none of them.
absl::StatusOr<ScriptInspection> InspectScript(const torch::jit::Module& module,
                                               const std::vector<ModelTensor>& tensors);

// The tensors that forward assigns or writes to.
struct WrittenTensors {
  bool all = false;  // possibly: forward calls code that cannot be followed
  std::set<const at::TensorImpl*> some;

  bool contains(const at::Tensor& tensor) const {
    return all || some.count(tensor.unsafeGetTensorImpl()) > 0;
  }
};

WrittenTensors FindWrites(const torch::jit::Module& module);

// The error of a module that changes a parameter. `by`: "forward", "the operator aten::clamp_".
absl::Status ChangedParameter(const std::string& parameter, const std::string& by);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_SCRIPT_INSPECTION_H_

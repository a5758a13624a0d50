// The compute engine over LibTorch. No LibTorch type appears in this header: a file that includes
// it compiles without LibTorch.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TORCH_ENGINE_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TORCH_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/checkpoint/safetensors.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

struct TorchEngineOptions {
  v1::ModelSpec model;
  std::string loss;   // JobSpec.loss
  uint64_t seed = 0;  // of the job: initial values and dropout
  int threads = 1;    // within one operation; process-wide in LibTorch
  // The job's BitExact and kernels, which are process-wide in LibTorch.
  v1::TrainingSpec training;
  // The engine is asked for its tensors and rows, and computes nothing. It is on the CPU, whatever
  // model.device is, and the model may have a dtype in which only a GPU computes.
  bool only_describes = false;
  // The shape of the data, for dimensions that the model leaves open; empty and 0 if there is no
  // data.
  std::vector<int64_t> sample_shape;
  int64_t outputs = 0;  // classes, or numbers of a target
  bool tokens = false;  // whether samples are sequences of tokens below `outputs`
};

// The options from a job's specification; what the data looks like is left unset.
TorchEngineOptions EngineOptionsOf(const v1::JobSpec& job, int threads);

// NotFound, InvalidArgument or Unimplemented: what is wrong with the model, its file, its loss, its
// dtype, its device or the kernels.
absl::StatusOr<std::unique_ptr<ComputeEngine>> CreateTorchEngine(const TorchEngineOptions& options);

// Writes the TorchScript model of file `source` with other values to file `target`, for
// torch.jit.load. `tensors` names each tensor of the model once. InvalidArgument names the tensor
// that is missing, unknown or of another type or shape; nothing is written then.
absl::Status ExportTorchScript(const std::string& source,
                               absl::Span<const SafetensorsArray> tensors,
                               const std::string& target);

// The version of the linked LibTorch, e.g. "1.13.1".
std::string TorchVersion();

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TORCH_ENGINE_H_

// The compute engine over LibTorch. No LibTorch type appears here: who includes this compiles
// without it.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TORCH_ENGINE_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TORCH_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

struct TorchEngineOptions {
  v1::ModelSpec model;
  std::string loss;            // JobSpec.loss
  uint64_t seed = 0;           // of the job: initial values and dropout
  int threads = 1;             // within one operation; process-wide in LibTorch
  bool deterministic = false;  // on a GPU: only algorithms that give the same bits every time
  // What the data looks like, for dimensions that the model leaves open; empty and 0 where there is
  // no data.
  std::vector<int64_t> sample_shape;
  int64_t outputs = 0;  // classes, or numbers of a target
  bool tokens = false;  // whether samples are sequences of tokens below `outputs`
};

// What a job says of it; what its data looks like is left open.
TorchEngineOptions EngineOptionsOf(const v1::JobSpec& job, int threads);

// NotFound, InvalidArgument or Unimplemented with what is wrong with the model, its file, its loss,
// its dtype or its device.
absl::StatusOr<std::unique_ptr<ComputeEngine>> CreateTorchEngine(const TorchEngineOptions& options);

struct NamedBytes {
  std::string name;
  absl::Cord bytes;
};

// Writes the TorchScript model of file `source` with other values to file `target`, for
// torch.jit.load. `tensors` names each tensor of the model once. InvalidArgument names what is
// missing, unknown or of the wrong size; nothing is written then.
absl::Status ExportTorchScript(const std::string& source, absl::Span<const NamedBytes> tensors,
                               const std::string& target);

// The version of the LibTorch that is linked, e.g. "1.13.1".
std::string TorchVersion();

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TORCH_ENGINE_H_

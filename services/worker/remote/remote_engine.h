// A compute engine whose layers are computed by the shards that own them (server-side execution).
//
// Intuition. To the worker's core this is an engine like any other. What it holds in its buffers
// are references to blocks, and what it gives out as gradients are references to contexts
// (proto/stage.proto). A gradient computation runs the batch through the stages, computes the loss
// here, and runs the loss's gradient back through the stages; each of them keeps what belongs to
// its own parameters.
//
// Which block references and contexts are still in use is known here alone, and is told with every
// forward pass: a reference that no buffer holds, and a context of which the core holds no gradient
// any more, are forgotten there.
#ifndef SLUICE_SERVICES_WORKER_REMOTE_REMOTE_ENGINE_H_
#define SLUICE_SERVICES_WORKER_REMOTE_REMOTE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/remote/stage_channel.h"

namespace sluice {

struct RemoteEngineOptions {
  v1::JobSpec job;
  std::string job_name;  // "<namespace>/<name>/<uid>"
  uint64_t worker = 0;   // incarnation
  // Of the data, as in TorchEngineOptions.
  std::vector<int64_t> sample_shape;
  int64_t outputs = 0;
  bool tokens = false;
  StageConnector connect;
  // Where each stage of this worker is computed, once known, and warnings; may be null.
  std::function<void(uint32_t stage, const std::string& address, const std::string& device)>
      on_opened;
};

// INVALID_ARGUMENT or what CreateTorchEngine says: the model, its stages or its loss are wrong.
//
// ComputeGradients and Evaluate fail with UNAVAILABLE where a shard is gone, or does not know this
// worker's references any more: then the worker should begin again as a new incarnation.
// FAILED_PRECONDITION with `verify_gradients`: a context has no gradients, or some that are not
// finite. GetTensor is UNIMPLEMENTED.
absl::StatusOr<std::unique_ptr<ComputeEngine>> CreateRemoteEngine(RemoteEngineOptions options);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_REMOTE_REMOTE_ENGINE_H_

// A compute engine whose layers are computed by the shards that own them (server-side execution).
//
// Intuition. To the worker's core this is an engine like any other. Its buffers hold references to
// blocks, and the gradients that it gives out are references to contexts (proto/stage.proto). A
// gradient computation runs the batch through the stages, computes the loss here, and runs the
// loss's gradient back through the stages; each stage keeps the gradients of its own parameters.
//
// Only this engine knows which block references and contexts are still in use, and it reports them
// with every forward pass. The shard then forgets blocks that no buffer references, and contexts of
// which the core holds no gradient any more.
#ifndef SLUICE_SERVICES_EXECUTION_WORKER_REMOTE_ENGINE_H_
#define SLUICE_SERVICES_EXECUTION_WORKER_REMOTE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/execution/worker/stage_channel.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

struct RemoteEngineOptions {
  v1::JobSpec job;
  std::string job_name;  // "<namespace>/<name>/<uid>"
  uint64_t worker = 0;   // incarnation
  // The shape of the data, as in TorchEngineOptions.
  std::vector<int64_t> sample_shape;
  int64_t outputs = 0;
  bool tokens = false;
  StageConnector connect;
  // Receives the address of each stage of this worker, once known, and warnings; may be null.
  std::function<void(uint32_t stage, const std::string& address, const std::string& device)>
      on_opened;
};

// INVALID_ARGUMENT or the errors of CreateTorchEngine: the model, its stages or its loss are wrong.
//
// ComputeGradients and Evaluate fail with UNAVAILABLE if a shard is gone, or does not know this
// worker's references any more: then the worker should restart as a new incarnation.
// FAILED_PRECONDITION with `verify_gradients`: a context has no gradients, or some that are not
// finite. GetTensor is UNIMPLEMENTED.
absl::StatusOr<std::unique_ptr<ComputeEngine>> CreateRemoteEngine(RemoteEngineOptions options);

}  // namespace sluice

#endif  // SLUICE_SERVICES_EXECUTION_WORKER_REMOTE_ENGINE_H_

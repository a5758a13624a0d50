// A shard's state for the workers whose layers it computes: the blocks that they pulled, and their
// contexts.
//
// Intuition. To the shard's core, this keeps the blocks that would otherwise go to a worker, and
// provides the blocks of a worker's gradients (services/execution/references.h). To workers it is
// the service Stage. The rest is bookkeeping by worker. A block is kept from the Data that named it
// until the worker reports that it has forgotten it. A context is kept from its forward pass until
// the worker has forgotten it. Everything of a worker is dropped when a view is installed in which
// it is not a member. So nothing here needs a clock.
//
//   context:   Forward -> graph;   Backward -> gradients, no graph;   forgotten
#ifndef SLUICE_SERVICES_EXECUTION_SHARD_HOST_H_
#define SLUICE_SERVICES_EXECUTION_SHARD_HOST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/control.pb.h"
#include "proto/stage.pb.h"
#include "services/common/threads/mutex.h"
#include "services/execution/references.h"
#include "services/execution/shard/layers.h"
#include "services/ps/core/base/model.h"
#include "services/transport/security/identity.h"

namespace sluice::stage {

// Thread-safe. Open, Forward and Backward compute on the calling thread; they wait while the
// allowed number of calls are computing.
class Host final : public ps::References {
 public:
  struct Options {
    LayersFactory make_layers;
    int max_computing = 1;
    // Limits for one worker; the error of each begins with its name. A worker that exceeds them
    // does not report what it has forgotten.
    size_t max_contexts = 1024;
    size_t max_blocks = 1 << 20;
    size_t max_stages = 64;
    // Called once for each warning of a stage; any thread.
    std::function<void(const std::string& warning)> on_warning;
  };

  explicit Host(Options options) : options_(std::move(options)) {}

  // ---- ps::References

  void Begin(const v1::Register& identity) override;
  absl::Cord Hold(uint64_t worker, const ps::ShardModel& model, const ps::BlockInfo& block,
                  absl::Cord content) override;
  absl::StatusOr<absl::Cord> Find(uint64_t worker, const ps::ShardModel& model,
                                  const ps::BlockInfo& block, const absl::Cord& reference) override;
  void Retain(absl::Span<const v1::ProcessId> members) override;

  // ---- service Stage; errors as in proto/stage.proto

  // OK: the caller may act as this worker; without certificates (none), every caller may.
  // PERMISSION_DENIED: the worker is another.
  absl::Status CheckCaller(const std::optional<security::PeerIdentity>& caller,
                           uint64_t worker) const;

  absl::StatusOr<v1::OpenStageReply> Open(const v1::OpenStageRequest& request);
  absl::StatusOr<v1::ForwardReply> Forward(const v1::ForwardRequest& request);
  absl::StatusOr<v1::BackwardReply> Backward(const v1::BackwardRequest& request);
  absl::StatusOr<v1::ContextGradientsReply> ContextGradients(
      const v1::ContextGradientsRequest& request) const;

  struct Status {
    size_t workers = 0;
    size_t blocks = 0;
    size_t contexts = 0;  // passes: one for each stage of a context
  };
  Status status() const;

 private:
  // A forward pass in training whose gradients may still be requested.
  struct Context {
    Mutex running;  // held by the one backward pass; locked before mutex_, if both are
    std::unique_ptr<ForwardPass> pass ABSL_GUARDED_BY(running);
    // Written once, by the backward pass; guarded by Host::mutex_.
    bool has_gradients = false;
    std::map<std::string, TensorGradient> gradients;
  };
  using ContextKey = std::pair<uint64_t, uint32_t>;  // context, stage
  // Everything that is kept for one incarnation of a worker.
  struct Worker {
    std::map<uint64_t, TensorPart> blocks;  // by handle
    uint64_t last_handle = 0;
    std::map<uint32_t, std::shared_ptr<Layers>> stages;
    std::map<ContextKey, std::shared_ptr<Context>> contexts;
  };

  // A permission to compute; callers without one wait.
  class ComputeLock;

  // NOT_FOUND if nothing is kept for the worker.
  absl::StatusOr<Worker*> FindWorker(uint64_t incarnation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks the request, drops what its worker has forgotten, and finds the stage's layers and
  // blocks. `input` keeps the blocks alive.
  absl::StatusOr<std::shared_ptr<Layers>> BeginForward(const v1::ForwardRequest& request,
                                                       Layers::Input* input)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // NOT_FOUND if the context is not kept (any more). The result keeps it alive.
  absl::StatusOr<std::shared_ptr<Context>> FindContext(uint64_t worker, uint64_t context,
                                                       uint32_t stage) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  mutable Mutex mutex_;  // protects the members below; nothing is called with it held
  v1::Register identity_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, v1::ProcessId> members_ ABSL_GUARDED_BY(mutex_);  // by incarnation
  std::map<uint64_t, Worker> workers_ ABSL_GUARDED_BY(mutex_);
  // By the request that they were made from; workers of a job share them.
  std::map<std::string, std::weak_ptr<Layers>> layers_ ABSL_GUARDED_BY(mutex_);
  int computing_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar computing_changed_;
};

}  // namespace sluice::stage

#endif  // SLUICE_SERVICES_EXECUTION_SHARD_HOST_H_

// Keeps a shard's payloads on the shard when its workers' models are computed there (server-side
// execution, TrainingSpec.SERVER).
//
// Intuition. A worker that computes nothing itself needs the bytes of neither parameters nor
// gradients; it only has to name them. So instead of sending a block to a worker, the core hands
// the block to this class and sends the worker a *reference* of a few bytes. The worker pushes
// references too, and the core looks up the blocks behind them here.
//
// Why payloads alone differ from other jobs': docs/decisions/server-execution.md.
#ifndef SLUICE_SERVICES_EXECUTION_REFERENCES_H_
#define SLUICE_SERVICES_EXECUTION_REFERENCES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"

namespace sluice::ps {

class ShardModel;
struct BlockInfo;

// Called by the core, one call at a time. Calls return quickly. `worker` is an incarnation.
class References {
 public:
  virtual ~References() = default;

  // The first call: the shard's identity, with the address at which workers reach it.
  virtual void Begin(const v1::Register& identity) = 0;

  // Keeps the content of a block for a worker. Returns the reference that is sent to the worker
  // instead.
  virtual absl::Cord Hold(uint64_t worker, const ShardModel& model, const BlockInfo& block,
                          absl::Cord content) = 0;

  // The gradient block behind a reference of the worker. DATA_LOSS if there is none (any more);
  // INVALID_ARGUMENT if it is not a reference.
  virtual absl::StatusOr<absl::Cord> Find(uint64_t worker, const ShardModel& model,
                                          const BlockInfo& block, const absl::Cord& reference) = 0;

  // A view is being installed: drops everything held for workers that are not its members. Called
  // before anything is held for the members.
  virtual void Retain(absl::Span<const v1::ProcessId> members) = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_EXECUTION_REFERENCES_H_

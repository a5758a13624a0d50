// Where a shard's payloads stay when its workers' models are computed beside it (server-side
// execution, TrainingSpec.SERVER).
//
// Intuition. A worker that computes nothing itself needs neither the parameters' bytes nor the
// gradients'; it needs to say which are meant. So the core hands a block that goes to a worker to
// whoever computes, and sends what it gets for it: a *reference* of a few bytes. What the worker
// pushes are references too, and the core asks for what they stand for. All rules of the protocol
// are about frames, so they hold as they are.
#ifndef SLUICE_SERVICES_PS_REFERENCES_H_
#define SLUICE_SERVICES_PS_REFERENCES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/shard_model.h"

namespace sluice::ps {

// Called by the core, one call at a time, never for long. `worker` is an incarnation.
class References {
 public:
  virtual ~References() = default;

  // First of all: who the shard is, with the address that workers reach it by.
  virtual void Begin(const v1::Register& identity) = 0;

  // Keeps the content of a block for a worker. What is returned goes to the worker in its place.
  virtual absl::Cord Hold(uint64_t worker, const ShardModel& model, const BlockInfo& block,
                          absl::Cord content) = 0;

  // What a reference of the worker's stands for: the block of a gradient. DATA_LOSS if there is no
  // such thing (any more); INVALID_ARGUMENT if it is no reference.
  virtual absl::StatusOr<absl::Cord> Find(uint64_t worker, const ShardModel& model,
                                          const BlockInfo& block, const absl::Cord& reference) = 0;

  // A view is being installed: what belongs to workers that are not its members is dropped. Before
  // anything is held for them.
  virtual void Retain(absl::Span<const v1::ProcessId> members) = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_REFERENCES_H_

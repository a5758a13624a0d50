// Decodes a received block.
#ifndef SLUICE_SERVICES_WORKER_STORE_BLOCK_H_
#define SLUICE_SERVICES_WORKER_STORE_BLOCK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/model.pb.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/core/base/actions.h"

namespace sluice::worker {

// ComputeEngine::SetTensorRange, or another function that does the same.
using SetRange = absl::FunctionRef<absl::Status(ComputeEngine::Buffer buffer, uint32_t tensor,
                                                uint64_t offset, const absl::Cord& bytes)>;

// Passes the elements of a block of these tensors to `set`. INVALID_ARGUMENT, OUT_OF_RANGE: the
// payload does not fit the block. Pieces before the error have been written.
absl::Status StoreInto(const v1::TensorTable& table, const StoreBlock& block, SetRange set);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_STORE_BLOCK_H_

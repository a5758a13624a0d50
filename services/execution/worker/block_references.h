// The references in a remote engine's buffers: which shard's block each part of a tensor is.
#ifndef SLUICE_SERVICES_EXECUTION_WORKER_BLOCK_REFERENCES_H_
#define SLUICE_SERVICES_EXECUTION_WORKER_BLOCK_REFERENCES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/stage.pb.h"
#include "services/common/threads/mutex.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

// Thread-safe. Buffers as of ComputeEngine: two versions, of which one is current, and one for
// evaluations.
class BlockReferences {
 public:
  using Buffer = ComputeEngine::Buffer;

  explicit BlockReferences(size_t tensors);

  // Like ComputeEngine::SetTensorRange; the bytes are a BlockReference. INVALID_ARGUMENT if they
  // are not, or if the buffer is the current one. OUT_OF_RANGE: there is no such tensor.
  absl::Status Set(Buffer buffer, uint32_t tensor, uint64_t offset, const absl::Cord& bytes);
  // The incoming version becomes the current one, and the former current one the next to be filled.
  void Swap();

  // The references of a pass over some tensors.
  struct Pass {
    uint64_t shard = 0;  // that holds all of the tensors
    std::string address;
    std::vector<uint64_t> handles;
    std::vector<uint64_t> live;  // on that shard, in all buffers
    uint64_t newest = 0;         // on that shard, ever seen
  };
  // FAILED_PRECONDITION: a tensor was not set, or they are of several shards.
  absl::StatusOr<Pass> Collect(Buffer buffer, absl::Span<const uint32_t> tensors) const;

 private:
  using Parts = std::map<uint64_t, v1::BlockReference>;  // parts of a tensor, by offset
  using Tensors = std::vector<Parts>;

  const Tensors& Find(Buffer buffer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;  // protects the members below
  std::array<Tensors, 2> versions_ ABSL_GUARDED_BY(mutex_);
  Tensors evaluation_ ABSL_GUARDED_BY(mutex_);
  int current_ ABSL_GUARDED_BY(mutex_) = 0;                      // index into versions_
  std::map<uint64_t, uint64_t> newest_ ABSL_GUARDED_BY(mutex_);  // by shard
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_EXECUTION_WORKER_BLOCK_REFERENCES_H_

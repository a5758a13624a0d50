// The memory of a model's tensors, in up to three buffers, and a fourth where a reader holds a
// version that is no longer current. No LibTorch.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TENSOR_BUFFERS_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TENSOR_BUFFERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/model.pb.h"
#include "services/common/bulk_memory.h"
#include "services/common/threads/mutex.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

// Threads as for SetTensorRange and Adopt of ComputeEngine. Addresses never change, only which
// buffer is current.
class TensorBuffers {
 public:
  using Buffer = ComputeEngine::Buffer;

  // Allocates kCurrent and kIncoming at once, as zeros. `table` must outlive it and be valid: known
  // dtypes, no negative dimension.
  explicit TensorBuffers(const v1::TensorTable& table);

  size_t tensors() const { return bytes_.size(); }
  uint64_t bytes(size_t tensor) const { return bytes_[tensor]; }

  // The memory of a tensor, aligned to 64 bytes. The first call for kEvaluation allocates it.
  char* data(Buffer buffer, size_t tensor);

  // Whether kEvaluation was ever written.
  bool has_evaluation() const { return Find(Buffer::kEvaluation, 0) != nullptr; }

  // As in ComputeEngine. On an error, SetRange has written nothing.
  absl::Status SetRange(Buffer buffer, uint32_t tensor, uint64_t offset, const absl::Cord& bytes);
  absl::StatusOr<absl::Cord> Get(Buffer buffer, uint32_t tensor) const;

  // Adopts the incoming version.
  void Swap();

  // Until Release, neither the network nor Swap changes the memory that is current now, which stays
  // readable as `held`; a version that arrives meanwhile gets memory of its own. Any thread. One
  // reader at a time: a second Hold without Release replaces the first.
  void Hold();
  void Release();
  const char* held(size_t tensor) const;

 private:
  std::vector<BulkMemory> Allocate() const;
  // Null: kEvaluation, or kIncoming after Swap, has no memory yet.
  const char* Find(Buffer buffer, size_t tensor) const;

  const v1::TensorTable& table_;
  std::vector<uint64_t> element_bytes_;
  std::vector<uint64_t> bytes_;

  // Guards the lists, not the memory that they refer to.
  mutable Mutex mutex_;
  std::array<std::vector<BulkMemory>, 3> versions_ ABSL_GUARDED_BY(mutex_);  // the third: on demand
  // Indices of versions_; kNone: no version is held, or incoming has no memory yet.
  static constexpr int kNone = -1;
  int current_ ABSL_GUARDED_BY(mutex_) = 0;
  int incoming_ ABSL_GUARDED_BY(mutex_) = 1;
  int held_ ABSL_GUARDED_BY(mutex_) = kNone;
  std::vector<BulkMemory> evaluation_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TENSOR_BUFFERS_H_

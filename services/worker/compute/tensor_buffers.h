// The memory of a model's tensors, in up to three buffers. No LibTorch.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TENSOR_BUFFERS_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TENSOR_BUFFERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/model.pb.h"
#include "services/common/mutex.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice {

// Threads as for SetTensorRange and Adopt of ComputeEngine. Addresses never change, only which of
// the two buffers is current.
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

  // As in ComputeEngine.
  absl::Status SetRange(Buffer buffer, uint32_t tensor, uint64_t offset, const absl::Cord& bytes);
  absl::StatusOr<absl::Cord> Get(Buffer buffer, uint32_t tensor) const;

  void Swap() { current_ = 1 - current_; }

 private:
  struct FreeDeleter {
    void operator()(char* memory) const;
  };
  using Memory = std::unique_ptr<char, FreeDeleter>;

  std::vector<Memory> Allocate() const;
  const char* Find(Buffer buffer, size_t tensor) const;

  const v1::TensorTable& table_;
  std::vector<uint64_t> element_bytes_;
  std::vector<uint64_t> bytes_;
  std::array<std::vector<Memory>, 2> versions_;
  int current_ = 0;  // index into versions_
  // Guards the list, not the memory that the list refers to.
  mutable Mutex evaluation_mutex_;
  std::vector<Memory> evaluation_ ABSL_GUARDED_BY(evaluation_mutex_);
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TENSOR_BUFFERS_H_

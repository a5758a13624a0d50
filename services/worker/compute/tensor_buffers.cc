#include "services/worker/compute/tensor_buffers.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/protocol/elements.h"

namespace sluice {

TensorBuffers::TensorBuffers(const v1::TensorTable& table) : table_(table) {
  for (const v1::TensorSpec& tensor : table.tensors()) {
    uint64_t elements = 1;
    for (int64_t dimension : tensor.shape()) elements *= dimension;
    element_bytes_.push_back(ElementBytes(tensor.dtype()));
    bytes_.push_back(elements * element_bytes_.back());
  }
  MutexLock lock(&mutex_);
  for (int version : {current_, incoming_}) versions_[version] = Allocate();
}

std::vector<BulkMemory> TensorBuffers::Allocate() const {
  std::vector<BulkMemory> memory;
  for (uint64_t bytes : bytes_) {
    memory.push_back(AllocateBulk(bytes));
    std::memset(memory.back().get(), 0, bytes);
  }
  return memory;
}

char* TensorBuffers::data(Buffer buffer, size_t tensor) {
  MutexLock lock(&mutex_);
  switch (buffer) {
    case Buffer::kCurrent:
      return versions_[current_][tensor].get();
    case Buffer::kIncoming:
      for (int i = 0; incoming_ == kNone; ++i) {
        if (i != current_ && i != held_) incoming_ = i;
      }
      if (versions_[incoming_].empty()) versions_[incoming_] = Allocate();
      return versions_[incoming_][tensor].get();
    case Buffer::kEvaluation:
      break;
  }

  if (evaluation_.empty()) evaluation_ = Allocate();
  return evaluation_[tensor].get();
}

void TensorBuffers::Swap() {
  MutexLock lock(&mutex_);
  if (incoming_ == kNone) return;  // nothing arrived: the version has no tensors
  std::swap(current_, incoming_);
  if (incoming_ == held_) incoming_ = kNone;
}

void TensorBuffers::Hold() {
  MutexLock lock(&mutex_);
  held_ = current_;
}

void TensorBuffers::Release() {
  MutexLock lock(&mutex_);
  held_ = kNone;
}

const char* TensorBuffers::held(size_t tensor) const {
  MutexLock lock(&mutex_);
  return versions_[held_ == kNone ? current_ : held_][tensor].get();
}

const char* TensorBuffers::Find(Buffer buffer, size_t tensor) const {
  MutexLock lock(&mutex_);
  switch (buffer) {
    case Buffer::kCurrent:
      return versions_[current_][tensor].get();
    case Buffer::kIncoming:
      return incoming_ == kNone || versions_[incoming_].empty()
                 ? nullptr
                 : versions_[incoming_][tensor].get();
    case Buffer::kEvaluation:
      break;
  }

  return evaluation_.empty() ? nullptr : evaluation_[tensor].get();
}

absl::Status TensorBuffers::SetRange(Buffer buffer, uint32_t tensor, uint64_t offset,
                                     const absl::Cord& bytes) {
  if (buffer == Buffer::kCurrent) {
    return absl::InvalidArgumentError("only Adopt writes the current version");
  }
  if (tensor >= tensors()) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", tensor, " of ", tensors()));
  }

  const uint64_t element = element_bytes_[tensor];
  if (bytes.size() % element != 0) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes for tensor '",
                                                   table_.tensors(tensor).name(),
                                                   "' are not whole elements of ", element));
  }

  const uint64_t elements = bytes_[tensor] / element;
  const uint64_t count = bytes.size() / element;
  if (offset > elements || count > elements - offset) {
    return absl::OutOfRangeError(absl::StrCat(count, " elements from ", offset, " on in tensor '",
                                              table_.tensors(tensor).name(), "' of ", elements));
  }

  char* out = data(buffer, tensor) + offset * element;
  for (absl::string_view chunk : bytes.Chunks()) {
    std::memcpy(out, chunk.data(), chunk.size());
    out += chunk.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Cord> TensorBuffers::Get(Buffer buffer, uint32_t tensor) const {
  if (tensor >= tensors()) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", tensor, " of ", tensors()));
  }
  const char* memory = Find(buffer, tensor);
  if (memory == nullptr) {
    return absl::FailedPreconditionError("no version has been set");
  }
  // The cord takes over the string without another copy.
  return absl::Cord(std::string(memory, bytes_[tensor]));
}

}  // namespace sluice

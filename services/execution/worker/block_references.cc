#include "services/execution/worker/block_references.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

BlockReferences::BlockReferences(size_t tensors)
    : versions_{Tensors(tensors), Tensors(tensors)}, evaluation_(tensors) {}

const BlockReferences::Tensors& BlockReferences::Find(Buffer buffer) const {
  if (buffer == Buffer::kEvaluation) return evaluation_;
  return versions_[static_cast<size_t>(buffer == Buffer::kCurrent ? current_ : 1 - current_)];
}

absl::Status BlockReferences::Set(Buffer buffer, uint32_t tensor, uint64_t offset,
                                  const absl::Cord& bytes) {
  v1::BlockReference reference;
  if (!reference.ParseFromString(std::string(bytes)) || reference.handle() == 0 ||
      reference.address().empty()) {
    return absl::InvalidArgumentError("a block is not a reference");
  }
  if (buffer == Buffer::kCurrent) {
    return absl::InvalidArgumentError("only Adopt writes the current version");
  }

  MutexLock lock(&mutex_);
  auto& tensors = const_cast<Tensors&>(Find(buffer));
  if (tensor >= tensors.size()) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", tensor, " of ", tensors.size()));
  }

  uint64_t& newest = newest_[reference.shard()];
  newest = std::max(newest, reference.handle());
  tensors[tensor][offset] = std::move(reference);
  return absl::OkStatus();
}

void BlockReferences::Swap() {
  MutexLock lock(&mutex_);
  current_ = 1 - current_;
}

absl::StatusOr<BlockReferences::Pass> BlockReferences::Collect(
    Buffer buffer, absl::Span<const uint32_t> tensors) const {
  Pass pass;
  MutexLock lock(&mutex_);

  // The named tensors, which one shard must hold.
  const Tensors& wanted = Find(buffer);
  for (uint32_t tensor : tensors) {
    if (wanted[tensor].empty()) {
      return absl::FailedPreconditionError(absl::StrCat("tensor ", tensor, " has not been pulled"));
    }
    for (const auto& [offset, reference] : wanted[tensor]) {
      if (pass.shard == 0) {
        pass.shard = reference.shard();
        pass.address = reference.address();
      }
      if (pass.shard != reference.shard()) {
        return absl::FailedPreconditionError(
            absl::StrCat("a stage is on two shards, ", pass.address, " and ", reference.address(),
                         ": it must be wholly on one"));
      }
      pass.handles.push_back(reference.handle());
    }
  }

  // Everything else of that shard is in use as long as any buffer names it.
  for (const Tensors* tensors_of : {&versions_[0], &versions_[1], &evaluation_}) {
    for (const Parts& parts : *tensors_of) {
      for (const auto& [offset, reference] : parts) {
        if (reference.shard() == pass.shard) pass.live.push_back(reference.handle());
      }
    }
  }

  const auto newest = newest_.find(pass.shard);
  if (newest != newest_.end()) pass.newest = newest->second;
  return pass;
}

}  // namespace sluice

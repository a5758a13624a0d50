#include "services/ps/core/block.h"

#include <utility>

#include "absl/strings/string_view.h"

namespace sluice::ps {

MutableBlockRef WritableIfOwned(const BlockRef& block) {
  if (block.use_count() != 1) return nullptr;
  // Other references may have been dropped on other threads. Dropping one more orders their reads
  // before our writes.
  BlockRef(block).reset();
  return std::const_pointer_cast<Block>(block);
}

absl::Cord CordOver(BlockRef block) {
  const absl::string_view bytes(block->bytes().data(), block->size());
  if (bytes.empty()) return absl::Cord();
  return absl::MakeCordFromExternal(bytes, [block = std::move(block)] {});
}

std::shared_ptr<BlockPool> BlockPool::Create(size_t max_idle_bytes) {
  return std::shared_ptr<BlockPool>(new BlockPool(max_idle_bytes));
}

MutableBlockRef BlockPool::Take(size_t size) {
  std::unique_ptr<Block> block;
  {
    MutexLock lock(&mutex_);
    const auto idle = idle_.find(size);
    if (idle != idle_.end() && !idle->second.empty()) {
      block = std::move(idle->second.back());
      idle->second.pop_back();
      idle_bytes_ -= size;
    } else {
      ++allocated_;
    }
  }

  if (block == nullptr) block.reset(new Block(size));
  return MutableBlockRef(block.release(), [pool = shared_from_this()](Block* returned) {
    pool->GiveBack(std::unique_ptr<Block>(returned));
  });
}

void BlockPool::GiveBack(std::unique_ptr<Block> block) {
  MutexLock lock(&mutex_);
  const size_t size = block->size();
  if (idle_bytes_ + size > max_idle_bytes_) return;  // freed after the lock is released
  idle_bytes_ += size;
  idle_[size].push_back(std::move(block));
}

void BlockPool::Trim() {
  std::map<size_t, std::vector<std::unique_ptr<Block>>> idle;
  MutexLock lock(&mutex_);
  idle.swap(idle_);
  idle_bytes_ = 0;
}

size_t BlockPool::allocated() const {
  MutexLock lock(&mutex_);
  return allocated_;
}

size_t BlockPool::idle_bytes() const {
  MutexLock lock(&mutex_);
  return idle_bytes_;
}

}  // namespace sluice::ps

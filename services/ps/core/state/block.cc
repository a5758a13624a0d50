#include "services/ps/core/state/block.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "services/common/bulk_memory.h"
#include "services/common/check.h"

namespace sluice::ps {
namespace {

// `idle`: lists of blocks by their size.
template <typename Lists>
size_t BytesOf(const Lists& idle) {
  size_t bytes = 0;
  for (const auto& [size, blocks] : idle) bytes += size * blocks.size();
  return bytes;
}

constexpr size_t kAlignment = 64;

// The number of blocks that are allocated together: as many as fill a huge page, but for an eighth
// of it. Small blocks are allocated one by one, or a small model would have much idle memory.
size_t BlocksTogether(size_t size) {
  constexpr size_t kSmall = 64 << 10;
  if (size < kSmall || size > kHugePageBytes / 2) return 1;
  const size_t stride = (size + kAlignment - 1) / kAlignment * kAlignment;
  const size_t count = kHugePageBytes / stride;
  return count * stride >= kHugePageBytes / 8 * 7 ? count : 1;
}

}  // namespace

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
      SLUICE_DCHECK(block->size() == size, "idle blocks are kept by their size");
      SLUICE_DCHECK(idle_bytes_ >= size, "idle bytes are counted");
      idle_bytes_ -= size;
    }
  }

  if (block == nullptr) block = Allocate(size);
  return MutableBlockRef(block.release(), [pool = shared_from_this()](Block* returned) {
    pool->GiveBack(std::unique_ptr<Block>(returned));
  });
}

// Returns one of the blocks that are allocated together; the others are idle.
std::unique_ptr<Block> BlockPool::Allocate(size_t size) {
  const size_t count = BlocksTogether(size);
  const size_t stride = count == 1 ? size : kHugePageBytes / count / kAlignment * kAlignment;
  const std::shared_ptr<char> memory = AllocateBulk(count == 1 ? size : kHugePageBytes);

  MutexLock lock(&mutex_);
  allocated_ += count;
  for (size_t i = 1; i < count; ++i) {
    const std::shared_ptr<char> part(memory, memory.get() + i * stride);
    idle_[size].push_back(std::unique_ptr<Block>(new Block(size, part)));
    idle_bytes_ += size;
  }
  return std::unique_ptr<Block>(new Block(size, memory));
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
  SLUICE_DCHECK(BytesOf(idle) == idle_bytes_, "idle bytes are those of the idle blocks");
  idle_bytes_ = 0;
}

size_t BlockPool::allocated() const {
  MutexLock lock(&mutex_);
  return allocated_;
}

}  // namespace sluice::ps

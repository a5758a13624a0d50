#include "services/worker/compute/memory_pool.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "services/common/bulk_memory.h"

namespace sluice {
namespace {

struct Block {
  size_t bytes = 0;
  BulkMemory memory;
};

}  // namespace

struct MemoryPool::State {
  explicit State(size_t max) : max_free(max) {}

  // The smallest free block that is at most twice as large as requested; an empty block if there is
  // none.
  Block Take(size_t bytes) {
    MutexLock lock(&mutex);
    auto best = free.end();
    for (auto it = free.begin(); it != free.end(); ++it) {
      if (it->bytes < bytes || it->bytes / 2 > bytes) continue;
      if (best == free.end() || it->bytes < best->bytes) best = it;
    }
    if (best == free.end()) return Block();
    Block block = std::move(*best);
    free.erase(best);
    return block;
  }

  void Give(Block block) {
    Block dropped;  // freed after the lock is released
    MutexLock lock(&mutex);
    if (free.size() == max_free) {
      dropped = std::move(free.front());
      free.erase(free.begin());
    }
    free.push_back(std::move(block));
  }

  const size_t max_free;
  Mutex mutex;  // protects the list; leaf
  std::vector<Block> free ABSL_GUARDED_BY(mutex);
};

MemoryPool::MemoryPool(size_t max_free)
    : state_(std::make_shared<State>(std::max<size_t>(max_free, 1))) {}

std::shared_ptr<char> MemoryPool::Get(size_t bytes) {
  Block block = state_->Take(bytes);
  if (block.memory == nullptr) block = {bytes, AllocateBulk(bytes)};

  char* const memory = block.memory.get();
  auto held = std::make_shared<Block>(std::move(block));
  return std::shared_ptr<char>(
      memory, [state = state_, held = std::move(held)](char*) { state->Give(std::move(*held)); });
}

}  // namespace sluice

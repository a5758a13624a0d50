#include "services/worker/compute/memory_pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace sluice {
namespace {

struct FreeDeleter {
  void operator()(char* memory) const { std::free(memory); }
};

struct Block {
  size_t bytes = 0;
  std::unique_ptr<char, FreeDeleter> memory;
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
  constexpr size_t kAlignment = 64;
  Block block = state_->Take(bytes);
  if (block.memory == nullptr) {
    block.bytes = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    block.memory.reset(static_cast<char*>(std::aligned_alloc(kAlignment, block.bytes)));
    if (block.memory == nullptr) throw std::bad_alloc();
  }

  const size_t block_bytes = block.bytes;
  char* memory = block.memory.get();
  std::shared_ptr<char> shared(memory, [state = state_, block_bytes](char* released) {
    Block back;
    back.bytes = block_bytes;
    back.memory.reset(released);
    state->Give(std::move(back));
  });
  static_cast<void>(block.memory.release());
  return shared;
}

}  // namespace sluice

// Memory for parameters, optimizer state and accumulators.
//
// Intuition. A block is never written while anything refers to it: a reply being sent, a snapshot
// being written and the undo copy all share it. An update writes into another block, one without
// references. Blocks without references return to the pool and are reused, so that a shard in its
// steady state takes no fresh pages from the system (fresh pages cost four times the copy itself).
#ifndef SLUICE_SERVICES_PS_CORE_STATE_BLOCK_H_
#define SLUICE_SERVICES_PS_CORE_STATE_BLOCK_H_

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "services/common/threads/mutex.h"

namespace sluice::ps {

// Bytes of a fixed size, aligned to 64. Made by a BlockPool.
class Block {
 public:
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // ---- bytes, and the same memory as elements of T. The size is a multiple of sizeof(T).
  size_t size() const { return size_; }
  absl::Span<const char> bytes() const { return {data_.get(), size_}; }
  absl::Span<char> mutable_bytes() { return {data_.get(), size_}; }

  template <typename T>
  absl::Span<const T> As() const {
    return {reinterpret_cast<const T*>(data_.get()), size_ / sizeof(T)};
  }
  template <typename T>
  absl::Span<T> MutableAs() {
    return {reinterpret_cast<T*>(data_.get()), size_ / sizeof(T)};
  }

 private:
  friend class BlockPool;
  Block(size_t size, std::shared_ptr<char> data) : size_(size), data_(std::move(data)) {}

  const size_t size_;
  const std::shared_ptr<char> data_;  // may be part of memory that other blocks share
};

// Being filled, by one owner.
using MutableBlockRef = std::shared_ptr<Block>;
// Filled: immutable from here on.
using BlockRef = std::shared_ptr<const Block>;

// The block for writing, if `block` is its only reference, so that it has no other reader, now or
// later. Null otherwise. `block` sees what is written.
MutableBlockRef WritableIfOwned(const BlockRef& block);

// The block's bytes without a copy; the Cord keeps the block alive and may be destroyed on any
// thread.
absl::Cord CordOver(BlockRef block);

// Hands out blocks and takes them back when their last reference is gone.
//
// Thread-safe (references may be dropped on any thread). Blocks may outlive the pool's owner: they
// keep the pool alive. Bounded: at most `max_idle_bytes` are kept idle; blocks returned beyond that
// are freed. Blocks of which several fill a huge page (AllocateBulk) are allocated together, and
// those that are not taken yet are idle, too.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  static std::shared_ptr<BlockPool> Create(size_t max_idle_bytes);

  // A block of exactly `size` bytes with undefined content.
  MutableBlockRef Take(size_t size) ABSL_LOCKS_EXCLUDED(mutex_);

  // Frees all idle blocks.
  void Trim() ABSL_LOCKS_EXCLUDED(mutex_);

  // Number of blocks ever allocated from the system; constant in a steady state.
  size_t allocated() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit BlockPool(size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  // Takes memory from the system: for several blocks if they fill a huge page; the others are idle.
  std::unique_ptr<Block> Allocate(size_t size) ABSL_LOCKS_EXCLUDED(mutex_);
  // The deleter of a MutableBlockRef.
  void GiveBack(std::unique_ptr<Block> block) ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t max_idle_bytes_;
  mutable Mutex mutex_;  // protects the idle lists; no callback runs with it held
  std::map<size_t, std::vector<std::unique_ptr<Block>>> idle_ ABSL_GUARDED_BY(mutex_);
  size_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_BLOCK_H_

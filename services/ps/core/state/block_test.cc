#include "services/ps/core/state/block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::ps {
namespace {

TEST(BlockPoolTest, ReusesBlockAfterItsLastReferenceEnds) {
  const auto pool = BlockPool::Create(1 << 20);
  MutableBlockRef block = pool->Take(4096);
  const Block* const address = block.get();
  BlockRef other = block;
  block.reset();
  EXPECT_NE(pool->Take(4096).get(), address) << "the block still has a reference";
  other.reset();
  const MutableBlockRef first = pool->Take(4096);
  const MutableBlockRef second = pool->Take(4096);
  EXPECT_TRUE(first.get() == address || second.get() == address);
  EXPECT_EQ(pool->allocated(), 2);
}

TEST(BlockPoolTest, AllocatesNothingInSteadyState) {
  const auto pool = BlockPool::Create(1 << 20);
  BlockRef current = pool->Take(1000);
  for (int step = 0; step < 1000; ++step) current = pool->Take(1000);
  EXPECT_EQ(pool->allocated(), 2);
}

TEST(BlockPoolTest, ReusesOnlyBlocksOfTheSameSize) {
  const auto pool = BlockPool::Create(1 << 20);
  pool->Take(100).reset();
  EXPECT_EQ(pool->Take(200)->size(), 200);
  EXPECT_EQ(pool->Take(100)->size(), 100);
}

TEST(BlockPoolTest, BoundsIdleBytes) {
  const auto pool = BlockPool::Create(250);
  std::vector<MutableBlockRef> blocks;
  const auto take = [&] { blocks.push_back(pool->Take(100)); };
  for (int i = 0; i < 10; ++i) take();
  blocks.clear();
  for (int i = 0; i < 3; ++i) take();
  EXPECT_EQ(pool->allocated(), 11) << "two of ten blocks were kept";
  blocks.clear();
  pool->Trim();
  take();
  EXPECT_EQ(pool->allocated(), 12) << "no block was kept";
}

TEST(BlockPoolTest, BlocksShareAHugePage) {
  const auto pool = BlockPool::Create(1 << 20);
  const MutableBlockRef one = pool->Take(1 << 20);
  EXPECT_EQ(pool->allocated(), 2);
  MutableBlockRef other = pool->Take(1 << 20);
  EXPECT_EQ(pool->allocated(), 2);
  EXPECT_EQ(std::abs(one->bytes().data() - other->bytes().data()), 1 << 20);

  std::memset(one->mutable_bytes().data(), 1, one->size());
  std::memset(other->mutable_bytes().data(), 2, other->size());
  EXPECT_EQ(one->bytes().back(), 1);
  EXPECT_EQ(other->bytes().front(), 2);
  pool->Trim();
  other.reset();
  pool->Trim();
  EXPECT_EQ(one->bytes().front(), 1) << "the memory of one block is freed with the other";
}

TEST(BlockPoolTest, BlocksThatWouldLeaveMuchOfAHugePageUnusedAreAllocatedAlone) {
  const auto pool = BlockPool::Create(1 << 20);
  for (size_t size : {(1 << 20) + 64, 800 << 10, 60 << 10, 3 << 20}) {
    SCOPED_TRACE(size);
    const size_t before = pool->allocated();
    const MutableBlockRef block = pool->Take(size);
    EXPECT_EQ(pool->allocated(), before + 1);
  }
}

TEST(BlockPoolTest, BlocksAreAlignedForVectorInstructions) {
  const auto pool = BlockPool::Create(1 << 20);
  for (size_t size : {0, 1, 12, 100, 4096}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->Take(size)->bytes().data()) % 64, 0) << size;
  }
}

TEST(BlockPoolTest, CordKeepsItsBlockAndCopiesNothing) {
  auto pool = BlockPool::Create(1 << 20);
  MutableBlockRef block = pool->Take(10000);
  std::fill(block->mutable_bytes().begin(), block->mutable_bytes().end(), 'x');
  const char* const data = block->bytes().data();
  absl::Cord cord = CordOver(std::move(block));
  EXPECT_NE(pool->Take(10000)->bytes().data(), data);
  EXPECT_EQ(cord, std::string(10000, 'x'));
  EXPECT_EQ(cord.TryFlat()->data(), data);
  cord.Clear();
  const MutableBlockRef one = pool->Take(10000);
  const MutableBlockRef other = pool->Take(10000);
  EXPECT_EQ(pool->allocated(), 2) << "the cord has given its block back";
}

TEST(BlockPoolTest, ReferencesMayEndOnAnyThreadAndOutliveThePool) {
  auto pool = BlockPool::Create(1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([block = pool->Take(64), pool]() mutable {
      for (int i = 0; i < 1000; ++i) block = pool->Take(64);
    });
  }
  absl::Cord late = CordOver(pool->Take(64));
  pool.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(late.size(), 64);
}

}  // namespace
}  // namespace sluice::ps

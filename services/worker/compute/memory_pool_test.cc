#include "services/worker/compute/memory_pool.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(MemoryPoolTest, ReusesReleasedBlock) {
  MemoryPool pool(4);
  std::shared_ptr<char> block = pool.Get(1000);
  const char* address = block.get();
  block.reset();
  EXPECT_EQ(pool.Get(1000).get(), address);
}

TEST(MemoryPoolTest, DoesNotReuseBlockInUse) {
  MemoryPool pool(4);
  const std::shared_ptr<char> first = pool.Get(1000);
  const std::shared_ptr<char> second = pool.Get(1000);
  EXPECT_NE(first.get(), second.get());
  std::memset(first.get(), 1, 1000);
  std::memset(second.get(), 2, 1000);
  EXPECT_EQ(first.get()[999], 1);
}

TEST(MemoryPoolTest, ReusesTheSmallestBlockThatFitsUnlessFarTooLarge) {
  MemoryPool pool(4);
  std::shared_ptr<char> large = pool.Get(10'000);
  std::shared_ptr<char> small = pool.Get(6'000);
  const char* large_address = large.get();
  const char* small_address = small.get();
  large.reset();
  small.reset();
  const std::shared_ptr<char> tiny = pool.Get(100);
  EXPECT_NE(tiny.get(), large_address);
  EXPECT_NE(tiny.get(), small_address);
  EXPECT_EQ(pool.Get(5'500).get(), small_address);
}

TEST(MemoryPoolTest, BlocksAreAlignedAndMayBeEmpty) {
  MemoryPool pool(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.Get(1).get()) % 64, 0u);
  EXPECT_NE(pool.Get(0), nullptr);
}

TEST(MemoryPoolTest, BlocksOutliveThePool) {
  std::optional<MemoryPool> pool(1);
  const std::shared_ptr<char> first = pool->Get(100);
  const std::shared_ptr<char> second = pool->Get(100);
  pool.reset();
  std::memset(first.get(), 1, 100);
  std::memset(second.get(), 1, 100);
  EXPECT_EQ(first.get()[99], second.get()[99]);
}

}  // namespace
}  // namespace sluice

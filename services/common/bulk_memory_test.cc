#include "services/common/bulk_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

namespace sluice {
namespace {

uintptr_t Address(const BulkMemory& memory) { return reinterpret_cast<uintptr_t>(memory.get()); }

// KiB of the mapping that contains `address`, by its entry in smaps. -1: there is no such mapping.
int64_t FromMappings(uintptr_t address, const std::string& entry) {
  std::ifstream mappings("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(mappings, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      inside = begin <= address && address < end;
    if (inside && line.rfind(entry + ":", 0) == 0) return std::stoll(line.substr(entry.size() + 1));
  }
  return -1;
}

bool SystemHasHugePages() {
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), setting);
  return setting.find("[madvise]") != std::string::npos ||
         setting.find("[always]") != std::string::npos;
}

TEST(BulkMemoryTest, HasTheSizeAndTheAlignment) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100000}, kHugePageBytes - 1, kHugePageBytes,
                       3 * kHugePageBytes + 7}) {
    SCOPED_TRACE(bytes);
    const BulkMemory memory = AllocateBulk(bytes);
    std::memset(memory.get(), 1, bytes);
    EXPECT_EQ(Address(memory) % 64, 0);
  }
}

TEST(BulkMemoryTest, LargeMemoryConsistsOfHugePages) {
  if (!SystemHasHugePages()) GTEST_SKIP() << "the system has no transparent huge pages";
  const size_t bytes = 16 * kHugePageBytes;
  const BulkMemory memory = AllocateBulk(bytes);
  EXPECT_EQ(Address(memory) % kHugePageBytes, 0);
  std::memset(memory.get(), 1, bytes);
  // Not all of it where the machine's memory is fragmented.
  EXPECT_GT(FromMappings(Address(memory), "AnonHugePages"), 0);
}

TEST(BulkMemoryTest, LargeMemoryIsReturnedToTheSystem) {
  BulkMemory memory = AllocateBulk(64 * kHugePageBytes);
  const uintptr_t address = Address(memory) + 32 * kHugePageBytes;
  EXPECT_GT(FromMappings(address, "Size"), 0);
  memory.reset();
  EXPECT_EQ(FromMappings(address, "Size"), -1);
}

TEST(BulkMemoryTest, TouchedPagesAreThere) {
  const size_t bytes = 8 * kHugePageBytes;
  const BulkMemory memory = AllocateBulk(bytes);
  EXPECT_EQ(FromMappings(Address(memory), "Rss"), 0);
  TouchPages({memory.get(), bytes});
  EXPECT_EQ(FromMappings(Address(memory), "Rss"), bytes / 1024);
}

TEST(BulkMemoryTest, ThrowsWithoutAddresses) {
  EXPECT_THROW(AllocateBulk(size_t{1} << 60), std::bad_alloc);
}

}  // namespace
}  // namespace sluice

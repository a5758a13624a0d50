#include "services/common/bulk_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace sluice {
namespace {

constexpr std::align_val_t kHeapAlignment{64};
constexpr size_t kSmallestPageBytes = 4096;

// AddressSanitizer checks accesses to the heap only.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHeapOnly = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kHeapOnly = true;
#else
constexpr bool kHeapOnly = false;
#endif
#else
constexpr bool kHeapOnly = false;
#endif

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

void BulkDeleter::operator()(char* memory) const {
  if (mapped_bytes_ == 0) {
    operator delete(memory, kHeapAlignment);
  } else {
    munmap(memory, mapped_bytes_);
  }
}

void TouchPages(absl::Span<char> memory) {
  for (size_t offset = 0; offset < memory.size(); offset += kSmallestPageBytes) {
    // volatile, or the compiler leaves out writes that it thinks are never read.
    static_cast<volatile char&>(memory[offset]) = 0;
  }
}

BulkMemory AllocateBulk(size_t bytes) {
  if (bytes < kHugePageBytes || kHeapOnly) {
    return BulkMemory(static_cast<char*>(operator new(std::max<size_t>(bytes, 1), kHeapAlignment)));
  }

  // The system need not align a mapping to huge pages: what is before and after the aligned part is
  // returned.
  const size_t mapped = RoundUp(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  void* const all = mmap(nullptr, mapped + kHugePageBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  char* const begin = static_cast<char*>(all);
  const size_t before = RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                        reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (before < kHugePageBytes) munmap(begin + before + mapped, kHugePageBytes - before);

  // Without huge pages the memory is as good, and slower.
  madvise(begin + before, mapped, MADV_HUGEPAGE);
  return BulkMemory(begin + before, BulkDeleter(mapped));
}

}  // namespace sluice

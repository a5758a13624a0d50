// Memory for parameters, gradients and optimizer state.
//
// Intuition. The death of a process is visible to its peers when the kernel has freed its memory.
// That takes 150 ms for 512 MiB of ordinary pages and 5 ms for huge pages, and fresh huge pages
// take a quarter of the time of ordinary ones.
#ifndef SLUICE_SERVICES_COMMON_BULK_MEMORY_H_
#define SLUICE_SERVICES_COMMON_BULK_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/types/span.h"

namespace sluice {

// The huge pages of x86-64, and of AArch64 with pages of 4 KiB.
inline constexpr size_t kHugePageBytes = 2 << 20;

// Frees memory of AllocateBulk, which is either mapped or from the heap.
class BulkDeleter {
 public:
  BulkDeleter() = default;
  explicit BulkDeleter(size_t mapped_bytes) : mapped_bytes_(mapped_bytes) {}
  void operator()(char* memory) const;

 private:
  size_t mapped_bytes_ = 0;  // 0: from the heap
};
using BulkMemory = std::unique_ptr<char, BulkDeleter>;

// Memory of `bytes` bytes with undefined content, aligned to 64. From kHugePageBytes on it is
// aligned to huge pages and consists of them, unless the system has none
// (/sys/kernel/mm/transparent_hugepage/enabled: "never"). Throws std::bad_alloc.
BulkMemory AllocateBulk(size_t bytes);

// Writes to each page, so that the system provides it now and not at its first use. Destroys the
// content.
void TouchPages(absl::Span<char> memory);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_BULK_MEMORY_H_

#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_CORD_READER_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_CORD_READER_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "services/common/arithmetic/half.h"

namespace sluice {

// Reads elements from a received payload in place.
//
// A payload is a chain of chunks (~64 KiB, as the transport received them), whose boundaries and
// addresses need not be aligned to elements. A chunk whose elements happen to be aligned is visited
// in place; others are copied, a few KiB at a time, to a scratch buffer that fits in the L1 cache;
// an element that two chunks share is reassembled. The payload is never copied as a whole.

// Calls `visit` with runs of the payload's elements, in order and without gaps; `offset` is the
// index of the run's first element. Runs are aligned for T, not empty, and valid only during the
// call. INVALID_ARGUMENT, before any call, if the payload is not a whole number of elements.
//
// T: float, double, BFloat16, Float16, int64_t. The payload is little endian.
template <typename T>
absl::Status ForEachRun(const absl::Cord& payload,
                        absl::FunctionRef<void(size_t offset, absl::Span<const T> run)> visit);

// Adds the payload's elements to the accumulator. INVALID_ARGUMENT, with nothing added, unless the
// payload has exactly as many elements.
template <typename T>
absl::Status AddPayload(const absl::Cord& payload, absl::Span<ComputeType<T>> accumulator);

// Copies the payload's elements, of whatever type, to `to`. INVALID_ARGUMENT, with nothing written,
// unless the payload has exactly that many bytes.
absl::Status CopyPayload(const absl::Cord& payload, absl::Span<char> to);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_CORD_READER_H_

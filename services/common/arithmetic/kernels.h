#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_KERNELS_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_KERNELS_H_

#include <cstddef>
#include <optional>

#include "absl/types/span.h"
#include "services/common/arithmetic/half.h"

namespace sluice {

// Loops over contiguous elements, compiled for several instruction sets; the machine's best one is
// chosen at run time. The result has the same bits for each of them: elementwise kernels do not
// fuse multiplication and addition, and sums have a fixed order.
//
// All calls are thread-safe (they touch only their arguments) and never block. The spans of one
// call must have equal sizes, or the process ends. An output may be exactly an input of the same
// type; otherwise it must not overlap one.

// accumulator += values.
void Add(absl::Span<const float> values, absl::Span<float> accumulator);
void Add(absl::Span<const double> values, absl::Span<double> accumulator);
// Widens the values first, which is exact.
void Add(absl::Span<const BFloat16> values, absl::Span<float> accumulator);
void Add(absl::Span<const Float16> values, absl::Span<float> accumulator);
void Add(absl::Span<const BFloat16> values, absl::Span<double> accumulator);
void Add(absl::Span<const Float16> values, absl::Span<double> accumulator);

// accumulator += factor * values, with the product rounded first.
void AddScaled(float factor, absl::Span<const float> values, absl::Span<float> accumulator);
void AddScaled(double factor, absl::Span<const double> values, absl::Span<double> accumulator);

// The sum of squares, in double. The order depends only on the span's size, so a sum over two
// halves may differ in the last bits from the sum over the whole: split the same data at the same
// places.
double SquareSum(absl::Span<const float> values);
double SquareSum(absl::Span<const double> values);

// Index of the first NaN or infinity; nullopt: all are finite.
std::optional<size_t> FirstNonFinite(absl::Span<const float> values);
std::optional<size_t> FirstNonFinite(absl::Span<const double> values);
std::optional<size_t> FirstNonFinite(absl::Span<const BFloat16> values);
std::optional<size_t> FirstNonFinite(absl::Span<const Float16> values);

// Element by element, rounded to nearest, ties to even (see half.h).
void Convert(absl::Span<const float> from, absl::Span<BFloat16> to);
void Convert(absl::Span<const float> from, absl::Span<Float16> to);
void Convert(absl::Span<const double> from, absl::Span<BFloat16> to);
void Convert(absl::Span<const double> from, absl::Span<Float16> to);
void Convert(absl::Span<const BFloat16> from, absl::Span<float> to);
void Convert(absl::Span<const Float16> from, absl::Span<float> to);
void Convert(absl::Span<const BFloat16> from, absl::Span<double> to);
void Convert(absl::Span<const Float16> from, absl::Span<double> to);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_KERNELS_H_

#include "services/common/arithmetic/kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/vectorize.h"
#include "services/common/check.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "services/common/arithmetic/kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace {

inline float Widen(float value) { return value; }
inline double Widen(double value) { return value; }
inline float Widen(BFloat16 value) { return ToFloat(value); }
inline float Widen(Float16 value) { return ToFloat(value); }

template <typename T, typename A>
void AddLoop(const T* values, size_t count, A* accumulator) {
  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) accumulator[i] += static_cast<A>(Widen(values[i]));
}

template <typename T>
void AddScaledLoop(T factor, const T* values, size_t count, T* accumulator) {
  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) accumulator[i] += factor * values[i];
}

// Lane j sums the elements j, j + 16, j + 32, ...; then the lanes are summed pairwise by halves. So
// the order is the same for vectors of any width.
template <typename T>
double SquareSumLoop(const T* values, size_t count) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const double value = static_cast<double>(values[i + j]);
      lanes[j] += value * value;
    }
  }

  for (size_t j = 0; i + j < count; ++j) {
    const double value = static_cast<double>(values[i + j]);
    lanes[j] += value * value;
  }

  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

inline uint32_t BitsOf(float value) { return arithmetic_internal::BitCast<uint32_t>(value); }
inline uint64_t BitsOf(double value) { return arithmetic_internal::BitCast<uint64_t>(value); }
inline uint16_t BitsOf(BFloat16 value) { return value.bits; }
inline uint16_t BitsOf(Float16 value) { return value.bits; }

// A value with an exponent of all ones is an infinity or a NaN. Returns `count` if there is none.
template <typename T, typename Bits>
size_t FirstNonFiniteLoop(const T* values, size_t count, Bits exponent) {
  constexpr size_t kStride = 4096 / sizeof(T);
  for (size_t begin = 0; begin < count; begin += kStride) {
    const size_t end = std::min(count, begin + kStride);
    Bits found = 0;
    for (size_t i = begin; i < end; ++i) {
      found |= static_cast<Bits>((BitsOf(values[i]) & exponent) == exponent ? 1 : 0);
    }

    // Only a stride that has one is searched again, for its place.
    if (found == 0) continue;
    for (size_t i = begin; i < end; ++i) {
      if ((BitsOf(values[i]) & exponent) == exponent) return i;
    }
  }
  return count;
}

inline void Narrow(float from, BFloat16& to) { to = ToBFloat16(from); }
inline void Narrow(float from, Float16& to) { to = ToFloat16(from); }
inline void Narrow(double from, BFloat16& to) { to = ToBFloat16(from); }
inline void Narrow(double from, Float16& to) { to = ToFloat16(from); }
inline void Narrow(BFloat16 from, float& to) { to = ToFloat(from); }
inline void Narrow(Float16 from, float& to) { to = ToFloat(from); }
inline void Narrow(BFloat16 from, double& to) { to = static_cast<double>(ToFloat(from)); }
inline void Narrow(Float16 from, double& to) { to = static_cast<double>(ToFloat(from)); }

template <typename From, typename To>
void ConvertLoop(const From* from, size_t count, To* to) {
  SLUICE_VECTORIZE
  for (size_t i = 0; i < count; ++i) Narrow(from[i], to[i]);
}

}  // namespace

// Highway's tables contain plain functions, so each combination of types gets a name here.
void AddF32(const float* v, size_t n, float* a) { AddLoop(v, n, a); }
void AddF64(const double* v, size_t n, double* a) { AddLoop(v, n, a); }
void AddBF16ToF32(const BFloat16* v, size_t n, float* a) { AddLoop(v, n, a); }
void AddBF16ToF64(const BFloat16* v, size_t n, double* a) { AddLoop(v, n, a); }
void AddF16ToF32(const Float16* v, size_t n, float* a) { AddLoop(v, n, a); }
void AddF16ToF64(const Float16* v, size_t n, double* a) { AddLoop(v, n, a); }

void AddScaledF32(float f, const float* v, size_t n, float* a) { AddScaledLoop(f, v, n, a); }
void AddScaledF64(double f, const double* v, size_t n, double* a) { AddScaledLoop(f, v, n, a); }

double SquareSumF32(const float* v, size_t n) { return SquareSumLoop(v, n); }
double SquareSumF64(const double* v, size_t n) { return SquareSumLoop(v, n); }

size_t FirstNonFiniteF32(const float* v, size_t n) {
  return FirstNonFiniteLoop<float, uint32_t>(v, n, 0x7f800000u);
}
size_t FirstNonFiniteF64(const double* v, size_t n) {
  return FirstNonFiniteLoop<double, uint64_t>(v, n, 0x7ff0000000000000u);
}
size_t FirstNonFiniteBF16(const BFloat16* v, size_t n) {
  return FirstNonFiniteLoop<BFloat16, uint16_t>(v, n, 0x7f80u);
}
size_t FirstNonFiniteF16(const Float16* v, size_t n) {
  return FirstNonFiniteLoop<Float16, uint16_t>(v, n, 0x7c00u);
}

void F32ToBF16(const float* f, size_t n, BFloat16* t) { ConvertLoop(f, n, t); }
void F32ToF16(const float* f, size_t n, Float16* t) { ConvertLoop(f, n, t); }
void F64ToBF16(const double* f, size_t n, BFloat16* t) { ConvertLoop(f, n, t); }
void F64ToF16(const double* f, size_t n, Float16* t) { ConvertLoop(f, n, t); }
void BF16ToF32(const BFloat16* f, size_t n, float* t) { ConvertLoop(f, n, t); }
void F16ToF32(const Float16* f, size_t n, float* t) { ConvertLoop(f, n, t); }
void BF16ToF64(const BFloat16* f, size_t n, double* t) { ConvertLoop(f, n, t); }
void F16ToF64(const Float16* f, size_t n, double* t) { ConvertLoop(f, n, t); }

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(AddF32);
HWY_EXPORT(AddF64);
HWY_EXPORT(AddBF16ToF32);
HWY_EXPORT(AddBF16ToF64);
HWY_EXPORT(AddF16ToF32);
HWY_EXPORT(AddF16ToF64);
HWY_EXPORT(AddScaledF32);
HWY_EXPORT(AddScaledF64);
HWY_EXPORT(SquareSumF32);
HWY_EXPORT(SquareSumF64);
HWY_EXPORT(FirstNonFiniteF32);
HWY_EXPORT(FirstNonFiniteF64);
HWY_EXPORT(FirstNonFiniteBF16);
HWY_EXPORT(FirstNonFiniteF16);
HWY_EXPORT(F32ToBF16);
HWY_EXPORT(F32ToF16);
HWY_EXPORT(F64ToBF16);
HWY_EXPORT(F64ToF16);
HWY_EXPORT(BF16ToF32);
HWY_EXPORT(F16ToF32);
HWY_EXPORT(BF16ToF64);
HWY_EXPORT(F16ToF64);

namespace {

// Calls a kernel of (pointer, count, pointer) on two spans.
template <typename Kernel, typename From, typename To>
void Apply(Kernel kernel, absl::Span<const From> from, absl::Span<To> to) {
  SLUICE_CHECK(from.size() == to.size(), "spans of one call have equal sizes");
  kernel(from.data(), from.size(), to.data());
}

std::optional<size_t> IndexBelow(size_t count, size_t index) {
  return index < count ? std::optional<size_t>(index) : std::nullopt;
}

}  // namespace

void Add(absl::Span<const float> values, absl::Span<float> accumulator) {
  Apply(HWY_DYNAMIC_DISPATCH(AddF32), values, accumulator);
}
void Add(absl::Span<const double> values, absl::Span<double> accumulator) {
  Apply(HWY_DYNAMIC_DISPATCH(AddF64), values, accumulator);
}
void Add(absl::Span<const BFloat16> values, absl::Span<float> accumulator) {
  Apply(HWY_DYNAMIC_DISPATCH(AddBF16ToF32), values, accumulator);
}
void Add(absl::Span<const Float16> values, absl::Span<float> accumulator) {
  Apply(HWY_DYNAMIC_DISPATCH(AddF16ToF32), values, accumulator);
}
void Add(absl::Span<const BFloat16> values, absl::Span<double> accumulator) {
  Apply(HWY_DYNAMIC_DISPATCH(AddBF16ToF64), values, accumulator);
}
void Add(absl::Span<const Float16> values, absl::Span<double> accumulator) {
  Apply(HWY_DYNAMIC_DISPATCH(AddF16ToF64), values, accumulator);
}

void AddScaled(float factor, absl::Span<const float> values, absl::Span<float> accumulator) {
  SLUICE_CHECK(values.size() == accumulator.size(), "spans of one call have equal sizes");
  HWY_DYNAMIC_DISPATCH(AddScaledF32)(factor, values.data(), values.size(), accumulator.data());
}
void AddScaled(double factor, absl::Span<const double> values, absl::Span<double> accumulator) {
  SLUICE_CHECK(values.size() == accumulator.size(), "spans of one call have equal sizes");
  HWY_DYNAMIC_DISPATCH(AddScaledF64)(factor, values.data(), values.size(), accumulator.data());
}

double SquareSum(absl::Span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(SquareSumF32)(values.data(), values.size());
}
double SquareSum(absl::Span<const double> values) {
  return HWY_DYNAMIC_DISPATCH(SquareSumF64)(values.data(), values.size());
}

std::optional<size_t> FirstNonFinite(absl::Span<const float> values) {
  return IndexBelow(values.size(),
                    HWY_DYNAMIC_DISPATCH(FirstNonFiniteF32)(values.data(), values.size()));
}
std::optional<size_t> FirstNonFinite(absl::Span<const double> values) {
  return IndexBelow(values.size(),
                    HWY_DYNAMIC_DISPATCH(FirstNonFiniteF64)(values.data(), values.size()));
}
std::optional<size_t> FirstNonFinite(absl::Span<const BFloat16> values) {
  return IndexBelow(values.size(),
                    HWY_DYNAMIC_DISPATCH(FirstNonFiniteBF16)(values.data(), values.size()));
}
std::optional<size_t> FirstNonFinite(absl::Span<const Float16> values) {
  return IndexBelow(values.size(),
                    HWY_DYNAMIC_DISPATCH(FirstNonFiniteF16)(values.data(), values.size()));
}

void Convert(absl::Span<const float> from, absl::Span<BFloat16> to) {
  Apply(HWY_DYNAMIC_DISPATCH(F32ToBF16), from, to);
}
void Convert(absl::Span<const float> from, absl::Span<Float16> to) {
  Apply(HWY_DYNAMIC_DISPATCH(F32ToF16), from, to);
}
void Convert(absl::Span<const double> from, absl::Span<BFloat16> to) {
  Apply(HWY_DYNAMIC_DISPATCH(F64ToBF16), from, to);
}
void Convert(absl::Span<const double> from, absl::Span<Float16> to) {
  Apply(HWY_DYNAMIC_DISPATCH(F64ToF16), from, to);
}
void Convert(absl::Span<const BFloat16> from, absl::Span<float> to) {
  Apply(HWY_DYNAMIC_DISPATCH(BF16ToF32), from, to);
}
void Convert(absl::Span<const Float16> from, absl::Span<float> to) {
  Apply(HWY_DYNAMIC_DISPATCH(F16ToF32), from, to);
}
void Convert(absl::Span<const BFloat16> from, absl::Span<double> to) {
  Apply(HWY_DYNAMIC_DISPATCH(BF16ToF64), from, to);
}
void Convert(absl::Span<const Float16> from, absl::Span<double> to) {
  Apply(HWY_DYNAMIC_DISPATCH(F16ToF64), from, to);
}

}  // namespace sluice
#endif  // HWY_ONCE

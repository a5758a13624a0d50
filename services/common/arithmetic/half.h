#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_HALF_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_HALF_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sluice {

// The two 16-bit floating-point formats, as storage: values are converted to float, computed on,
// and rounded back. Nothing here branches, so that loops over these functions become vector code.
//
// Rounding is to nearest, ties to even, also from double (one rounding, not two). Overflow becomes
// infinity; subnormals are kept; a NaN becomes a quiet NaN of the same sign.

// The upper half of a float: its range, 8 bits of precision.
struct BFloat16 {
  uint16_t bits;
};

// IEEE 754 binary16: 11 bits of precision, largest value 65504, smallest 2^-24.
struct Float16 {
  uint16_t bits;
};

// Comparisons of bits, not of numbers: +0 and -0 differ, and a NaN equals itself.
inline bool operator==(BFloat16 a, BFloat16 b) { return a.bits == b.bits; }
inline bool operator==(Float16 a, Float16 b) { return a.bits == b.bits; }

namespace arithmetic_internal {

// The bits of `from` as a To; C++20's std::bit_cast.
template <typename To, typename From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "BitCast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The float next to `value` towards zero, with its last bit set if the conversion was inexact
// ("round to odd"). Rounding the result again, to at least two bits less, equals rounding `value`
// itself once.
inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  const uint32_t bits = BitCast<uint32_t>(nearest);
  const uint32_t away = std::fabs(back) > std::fabs(value) ? 1u : 0u;
  const uint32_t odd = back != value && value == value ? 1u : 0u;
  return BitCast<float>((bits - away) | odd);
}

}  // namespace arithmetic_internal

// Exact: every 16-bit value is a float.
inline float ToFloat(BFloat16 value) {
  return arithmetic_internal::BitCast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = arithmetic_internal::BitCast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

inline BFloat16 ToBFloat16(double value) {
  return ToBFloat16(arithmetic_internal::RoundToOdd(value));
}

inline float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  // Reads the bits as a float's exponent and mantissa; the product corrects the bias, also for
  // subnormals.
  const float scaled = arithmetic_internal::BitCast<float>(magnitude) * 0x1p112f;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return arithmetic_internal::BitCast<float>(arithmetic_internal::BitCast<uint32_t>(scaled) |
                                             special | sign);
}

inline Float16 ToFloat16(float value) {
  const uint32_t bits = arithmetic_internal::BitCast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: correct the exponent's bias and round the lower 13 bits away; a carry goes into
  // the exponent, and from the largest one into infinity, as it should.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: after adding 0.5 their bits, rounded by the addition, are at the end of the
  // mantissa.
  const uint32_t subnormal = arithmetic_internal::BitCast<uint32_t>(
                                 arithmetic_internal::BitCast<float>(magnitude) + 0.5f) -
                             arithmetic_internal::BitCast<uint32_t>(0.5f);
  const uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t bounded = magnitude >= (143u << 23) ? 0x7c00u : finite;
  return {static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? quiet_nan : bounded))};
}

inline Float16 ToFloat16(double value) { return ToFloat16(arithmetic_internal::RoundToOdd(value)); }

// The type used to compute and sum values of storage type T, and for their optimizer state.
template <typename T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_HALF_H_

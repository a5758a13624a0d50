#include "services/common/arithmetic/half.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace sluice {
namespace {

using arithmetic_internal::BitCast;

// The formats by their definition: sign, exponent bits, mantissa bits.
struct Format {
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kBFloat16{8, 7};
constexpr Format kFloat16{5, 10};

// The value of a finite magnitude (sign bit 0), computed from the definition.
double Value(Format format, uint16_t magnitude) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  return std::ldexp((1 << format.mantissa_bits) + mantissa, exponent - bias - format.mantissa_bits);
}

uint16_t Infinity(Format format) {
  return static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
}

template <typename Half>
class HalfTest : public testing::Test {};

struct BFloat16Case {
  using Type = BFloat16;
  static constexpr Format kFormat = kBFloat16;
  static BFloat16 From(float value) { return ToBFloat16(value); }
  static BFloat16 From(double value) { return ToBFloat16(value); }
};
struct Float16Case {
  using Type = Float16;
  static constexpr Format kFormat = kFloat16;
  static Float16 From(float value) { return ToFloat16(value); }
  static Float16 From(double value) { return ToFloat16(value); }
};
using Cases = testing::Types<BFloat16Case, Float16Case>;
TYPED_TEST_SUITE(HalfTest, Cases);

TYPED_TEST(HalfTest, EveryFiniteValueWidensAsDefinedAndConvertsBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto magnitude = static_cast<uint16_t>(bits & 0x7fff);
    if (magnitude >= Infinity(TypeParam::kFormat)) continue;
    const double sign = bits & 0x8000 ? -1 : 1;
    const typename TypeParam::Type half{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(half);
    ASSERT_EQ(wide, sign * Value(TypeParam::kFormat, magnitude)) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(TypeParam::From(wide), half) << bits;
    ASSERT_EQ(TypeParam::From(static_cast<double>(wide)), half) << bits;
  }
}

// Between two neighbours, values below the middle round down, values above it up, and the middle
// rounds to the even one. The middle above the largest finite value rounds to infinity (its
// neighbour in bits).
TYPED_TEST(HalfTest, RoundsToNearestAndTiesToEven) {
  for (uint16_t lower = 0; lower < Infinity(TypeParam::kFormat); ++lower) {
    const auto upper = static_cast<uint16_t>(lower + 1);
    const uint16_t even = lower % 2 == 0 ? lower : upper;
    const double middle = (Value(TypeParam::kFormat, lower) + Value(TypeParam::kFormat, upper)) / 2;
    for (const double sign : {1.0, -1.0}) {
      const uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
      const auto expect = [&](uint16_t magnitude, auto value) {
        ASSERT_EQ(TypeParam::From(value).bits, magnitude | sign_bit)
            << std::hexfloat << value << " between " << lower << " and " << upper;
      };
      expect(even, sign * middle);
      expect(lower, sign * std::nextafter(middle, 0.0));
      expect(upper, sign * std::nextafter(middle, HUGE_VAL));
      const auto narrow = static_cast<float>(middle);
      if (narrow != middle) continue;  // between the smallest bfloat16 values there is no float
      expect(even, static_cast<float>(sign) * narrow);
      expect(lower, static_cast<float>(sign) * std::nextafter(narrow, 0.0f));
      expect(upper, static_cast<float>(sign) * std::nextafter(narrow, HUGE_VALF));
    }
  }
}

TYPED_TEST(HalfTest, InfinityIsKeptAndLargeValuesBecomeInfinity) {
  const uint16_t infinity = Infinity(TypeParam::kFormat);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam::From(inf).bits, infinity);
  EXPECT_EQ(TypeParam::From(-inf).bits, infinity | 0x8000);
  EXPECT_EQ(TypeParam::From(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(TypeParam::From(std::numeric_limits<double>::max()).bits, infinity);
  EXPECT_EQ(TypeParam::From(std::numeric_limits<double>::lowest()).bits, infinity | 0x8000);
  EXPECT_EQ(ToFloat(typename TypeParam::Type{infinity}), inf);
  EXPECT_EQ(ToFloat(typename TypeParam::Type{static_cast<uint16_t>(infinity | 0x8000)}), -inf);
}

TYPED_TEST(HalfTest, EveryNanStaysNanOfSameSign) {
  const uint16_t infinity = Infinity(TypeParam::kFormat);
  for (uint32_t magnitude = infinity + 1u; magnitude < 0x8000; ++magnitude) {
    EXPECT_TRUE(std::isnan(ToFloat(typename TypeParam::Type{static_cast<uint16_t>(magnitude)})));
  }
  // The payload is in the lowest bits, which are dropped; quiet and signalling.
  for (const uint32_t bits : {0x7f800001u, 0x7fc00001u, 0x7fffffffu, 0x7fc00000u, 0x7f80ffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto value = BitCast<float>(bits | sign);
      const typename TypeParam::Type half = TypeParam::From(value);
      EXPECT_GT(half.bits & 0x7fff, infinity) << std::hex << bits;
      EXPECT_EQ(half.bits >> 15, sign >> 31) << std::hex << bits;
    }
  }
  const typename TypeParam::Type half = TypeParam::From(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(ToFloat(half)));
}

TYPED_TEST(HalfTest, TinyDoublesKeepTheirSign) {
  EXPECT_EQ(TypeParam::From(-1e-300).bits, 0x8000);
  EXPECT_EQ(TypeParam::From(1e-300).bits, 0);
  EXPECT_EQ(TypeParam::From(-0.0).bits, 0x8000);
}

}  // namespace
}  // namespace sluice

#include "services/common/arithmetic/kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "services/common/arithmetic/testing/instruction_sets.h"

namespace sluice {
namespace {

// Sizes around the widths of vectors and of unrolled loops, and beyond the strides of blocked
// loops.
constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1023, 4097};

// Elements that start `shift` elements after a vector's alignment.
template <typename T>
class Shifted {
 public:
  Shifted(size_t size, size_t shift) : storage_(size + shift), shift_(shift) {}
  absl::Span<T> span() { return absl::MakeSpan(storage_).subspan(shift_); }
  absl::Span<const T> view() const { return absl::MakeConstSpan(storage_).subspan(shift_); }

 private:
  std::vector<T> storage_;
  size_t shift_;
};

float RandomValue(std::mt19937_64& random) {
  return std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random),
                    std::uniform_int_distribution<int>(-30, 14)(random));
}

void Assign(float value, float& to) { to = value; }
void Assign(float value, double& to) { to = value / 3.0; }
void Assign(float value, BFloat16& to) { to = ToBFloat16(value); }
void Assign(float value, Float16& to) { to = ToFloat16(value); }

template <typename T>
void Fill(absl::Span<T> values, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (T& value : values) Assign(RandomValue(random), value);
}

double Wide(float value) { return value; }
double Wide(double value) { return value; }
double Wide(BFloat16 value) { return ToFloat(value); }
double Wide(Float16 value) { return ToFloat(value); }

template <typename T>
bool SameBits(absl::Span<const T> a, absl::Span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Calls `check(size, shift)` for all sizes, some shifts, on all instruction sets.
template <typename Check>
void ForEachCase(Check check) {
  ForEachInstructionSet([&] {
    for (const size_t size : kSizes) {
      for (const size_t shift : {0, 1, 3}) check(size, shift);
    }
  });
}

template <typename T, typename A>
void CheckAdd() {
  ForEachCase([](size_t size, size_t shift) {
    Shifted<T> values(size, shift);
    Shifted<A> sums(size, shift + 1);
    Fill(values.span(), 1);
    Fill(sums.span(), 2);
    std::vector<A> expected(sums.view().begin(), sums.view().end());
    for (size_t i = 0; i < size; ++i) expected[i] += static_cast<A>(Wide(values.view()[i]));
    Add(values.view(), sums.span());
    ASSERT_TRUE(SameBits<A>(sums.view(), expected)) << size << " elements at " << shift;
  });
}

TEST(Kernels, AddIsElementwiseForEveryType) {
  CheckAdd<float, float>();
  CheckAdd<double, double>();
  CheckAdd<BFloat16, float>();
  CheckAdd<Float16, float>();
  CheckAdd<BFloat16, double>();
  CheckAdd<Float16, double>();
}

template <typename T>
void CheckAddScaled() {
  const T factor = static_cast<T>(-1) / 7;
  ForEachCase([factor](size_t size, size_t shift) {
    Shifted<T> values(size, shift);
    Shifted<T> sums(size, shift + 1);
    Fill(values.span(), 3);
    Fill(sums.span(), 4);
    std::vector<T> expected(sums.view().begin(), sums.view().end());
    for (size_t i = 0; i < size; ++i) {
      volatile T product = factor * values.view()[i];  // rounded before the sum
      expected[i] += product;
    }
    AddScaled(factor, values.view(), sums.span());
    ASSERT_TRUE(SameBits<T>(sums.view(), expected)) << size << " elements at " << shift;
  });
}

TEST(Kernels, AddScaledRoundsTheProductFirst) {
  CheckAddScaled<float>();
  CheckAddScaled<double>();
}

TEST(Kernels, AddScaledMayAddArrayToItself) {
  std::vector<float> values(1001);
  Fill(absl::MakeSpan(values), 5);
  const std::vector<float> before = values;
  AddScaled(2.0f, values, absl::MakeSpan(values));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], before[i] + 2 * before[i]);
}

TEST(Kernels, SpansOfUnequalSizeEndProcess) {
  std::vector<float> values(4), sums(3);
  EXPECT_DEATH(Add(absl::MakeConstSpan(values), absl::MakeSpan(sums)), "equal sizes");
}

template <typename T>
void CheckSquareSum() {
  for (const size_t size : kSizes) {
    std::vector<double> results;
    ForEachInstructionSet([&] {
      for (const size_t shift : {0, 1, 3}) {
        Shifted<T> values(size, shift);
        Fill(values.span(), 6);
        long double exact = 0;
        for (const T value : values.view()) exact += static_cast<long double>(value) * value;
        const double sum = SquareSum(values.view());
        ASSERT_NEAR(sum, static_cast<double>(exact), 1e-14 * static_cast<double>(exact));
        results.push_back(sum);
      }
    });
    for (const double result : results) EXPECT_EQ(result, results[0]) << size << " elements";
  }
}

TEST(Kernels, SquareSumHasTheSameBitsOnEveryInstructionSetAndAtEveryAlignment) {
  CheckSquareSum<float>();
  CheckSquareSum<double>();
}

TEST(Kernels, SquareSumOfFloatsDoesNotOverflowFloat) {
  const std::vector<float> values(3, 3e38f);
  EXPECT_DOUBLE_EQ(SquareSum(absl::MakeConstSpan(values)),
                   3 * static_cast<double>(3e38f) * static_cast<double>(3e38f));
}

template <typename T>
void CheckFirstNonFinite(T infinity, T nan) {
  ForEachInstructionSet([&] {
    for (const size_t size : kSizes) {
      Shifted<T> values(size, 1);
      Fill(values.span(), 7);
      ASSERT_EQ(FirstNonFinite(values.view()), std::nullopt);
      if (size == 0) continue;
      for (const size_t place : {size_t{0}, size / 2, size - 1}) {
        const T kept = values.span()[place];
        const T last = values.span()[size - 1];
        values.span()[size - 1] = infinity;  // a later one does not matter
        values.span()[place] = nan;
        ASSERT_EQ(FirstNonFinite(values.view()), place) << size;
        values.span()[place] = infinity;
        ASSERT_EQ(FirstNonFinite(values.view()), place) << size;
        values.span()[size - 1] = last;
        values.span()[place] = kept;
      }
    }
  });
}

TEST(Kernels, FirstNonFiniteFindsTheFirstNanOrInfinity) {
  constexpr auto kInf = std::numeric_limits<float>::infinity();
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  CheckFirstNonFinite<float>(-kInf, kNan);
  CheckFirstNonFinite<double>(kInf, -std::numeric_limits<double>::quiet_NaN());
  CheckFirstNonFinite<BFloat16>(ToBFloat16(kInf), ToBFloat16(kNan));
  CheckFirstNonFinite<Float16>(ToFloat16(-kInf), ToFloat16(kNan));
}

TEST(Kernels, TreatsLargestFiniteValuesAsFinite) {
  const std::vector<float> floats(100, std::numeric_limits<float>::max());
  const std::vector<double> doubles(100, std::numeric_limits<double>::lowest());
  const std::vector<Float16> halves(100, ToFloat16(65504.0f));
  EXPECT_EQ(FirstNonFinite(absl::MakeConstSpan(floats)), std::nullopt);
  EXPECT_EQ(FirstNonFinite(absl::MakeConstSpan(doubles)), std::nullopt);
  EXPECT_EQ(FirstNonFinite(absl::MakeConstSpan(halves)), std::nullopt);
}

BFloat16 Scalar(float value, BFloat16) { return ToBFloat16(value); }
BFloat16 Scalar(double value, BFloat16) { return ToBFloat16(value); }
Float16 Scalar(float value, Float16) { return ToFloat16(value); }
Float16 Scalar(double value, Float16) { return ToFloat16(value); }

// half_test.cc checks the scalar functions. This test checks that the vector code agrees with them,
// also for infinities, NaNs and values out of range.
template <typename Wider, typename Half>
void CheckConversions() {
  std::vector<Wider> special = {0,
                                -0.0,
                                std::numeric_limits<Wider>::infinity(),
                                -std::numeric_limits<Wider>::infinity(),
                                std::numeric_limits<Wider>::quiet_NaN(),
                                std::numeric_limits<Wider>::denorm_min(),
                                std::numeric_limits<Wider>::max(),
                                static_cast<Wider>(65519.99),
                                static_cast<Wider>(65520),
                                static_cast<Wider>(5.9604644775390625e-08),
                                static_cast<Wider>(2.98023223876953125e-08),
                                static_cast<Wider>(1e-40)};
  ForEachCase([&](size_t size, size_t shift) {
    Shifted<Wider> wide(size, shift);
    Shifted<Half> half(size, shift + 1);
    Shifted<Wider> back(size, shift);
    Fill(wide.span(), 8);
    for (size_t i = 0; i < size; i += 3) wide.span()[i] = special[i / 3 % special.size()];
    Convert(wide.view(), half.span());
    Convert(half.view(), back.span());
    for (size_t i = 0; i < size; ++i) {
      ASSERT_EQ(half.view()[i], Scalar(wide.view()[i], Half{})) << wide.view()[i];
      const Wider expected = ToFloat(half.view()[i]);
      ASSERT_EQ(std::memcmp(&back.view()[i], &expected, sizeof(Wider)), 0) << wide.view()[i];
    }
  });
}

TEST(Kernels, ConversionsAgreeWithTheScalarFunctions) {
  CheckConversions<float, BFloat16>();
  CheckConversions<float, Float16>();
  CheckConversions<double, BFloat16>();
  CheckConversions<double, Float16>();
}

}  // namespace
}  // namespace sluice

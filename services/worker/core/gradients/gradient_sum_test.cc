#include "services/worker/core/gradients/gradient_sum.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/common/arithmetic/half.h"

namespace sluice::worker {
namespace {

template <typename T>
absl::Cord Bytes(const std::vector<T>& values) {
  return absl::Cord(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

TEST(AddGradientsTest, AddsElementByElement) {
  auto sum = AddGradients(v1::FLOAT32, Bytes<float>({1, 2, 3}), Bytes<float>({10, 20, 30}));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, Bytes<float>({11, 22, 33}));
}

TEST(AddGradientsTest, ChunksMayBeCutAnywhere) {
  std::vector<double> left(10000);
  std::vector<double> right(10000);
  std::vector<double> expected(10000);
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<double>(i);
    right[i] = 0.5;
    expected[i] = left[i] + right[i];
  }
  absl::Cord pieces;
  const std::string bytes(Bytes(right));
  for (size_t at = 0; at < bytes.size(); at += 1237) {
    absl::Cord piece(bytes.substr(at, 1237));
    pieces.Append(piece);
  }
  auto sum = AddGradients(v1::FLOAT64, Bytes(left), pieces);
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, Bytes(expected));
}

TEST(AddGradientsTest, HalfPrecisionIsRoundedOncePerSum) {
  auto sum = AddGradients(v1::BFLOAT16, Bytes<BFloat16>({ToBFloat16(256.0f)}),
                          Bytes<BFloat16>({ToBFloat16(1.0f)}));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, Bytes<BFloat16>({ToBFloat16(257.0f)}));
}

TEST(AddGradientsTest, RejectsDifferentSizesAndIntegers) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      AddGradients(v1::FLOAT32, Bytes<float>({1}), Bytes<float>({1, 2})).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      AddGradients(v1::INT64, Bytes<int64_t>({1}), Bytes<int64_t>({2})).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      AddGradients(v1::FLOAT32, absl::Cord("abc"), absl::Cord("def")).status()));
}

}  // namespace
}  // namespace sluice::worker

#include "services/worker/models/initial_values.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

std::vector<double> Uniform(uint64_t seed, const char* name, uint64_t offset, size_t count) {
  std::vector<double> values(count);
  FillUniform(seed, name, 0.5, offset, absl::MakeSpan(values));
  return values;
}

std::vector<double> Normal(uint64_t seed, const char* name, uint64_t offset, size_t count) {
  std::vector<double> values(count);
  FillNormal(seed, name, offset, absl::MakeSpan(values));
  return values;
}

TEST(FillUniformTest, ElementDependsOnlyOnSeedNameAndIndex) {
  const std::vector<double> whole = Uniform(1, "fc.weight", 0, 100);
  EXPECT_EQ(Uniform(1, "fc.weight", 40, 20),
            std::vector<double>(whole.begin() + 40, whole.begin() + 60));
  EXPECT_NE(Uniform(2, "fc.weight", 0, 100), whole);
  EXPECT_NE(Uniform(1, "fc.bias", 0, 100), whole);
}

TEST(FillUniformTest, ValuesFillTheIntervalEvenly) {
  const std::vector<double> values = Uniform(7, "w", 0, 100'000);
  double sum = 0;
  double squares = 0;
  for (double value : values) {
    sum += value;
    squares += value * value;
  }
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -0.5);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 0.5);
  EXPECT_NEAR(sum / values.size(), 0, 0.005);
  EXPECT_NEAR(squares / values.size(), 1.0 / 12, 0.001);
}

TEST(FillUniformTest, FirstValuesNeverChange) {
  // Computed by a second implementation, in Python, from the header's text.
  const std::vector<double> values = Uniform(42, "fc1.weight", 0, 2);
  EXPECT_EQ(values[0], -0.3954127503715553);
  EXPECT_EQ(values[1], 0.31808855357818033);
}

TEST(FillNormalTest, ElementDependsOnlyOnSeedNameAndIndex) {
  const std::vector<double> whole = Normal(1, "embedding.weight", 0, 100);
  EXPECT_EQ(Normal(1, "embedding.weight", 40, 20),
            std::vector<double>(whole.begin() + 40, whole.begin() + 60));
  EXPECT_NE(Normal(2, "embedding.weight", 0, 100), whole);
}

TEST(FillNormalTest, ValuesAreNormal) {
  const std::vector<double> values = Normal(7, "w", 0, 100'000);
  double sum = 0;
  double squares = 0;
  int within_one = 0;
  for (double value : values) {
    sum += value;
    squares += value * value;
    within_one += std::abs(value) < 1 ? 1 : 0;
  }
  EXPECT_NEAR(sum / values.size(), 0, 0.015);
  EXPECT_NEAR(squares / values.size(), 1, 0.02);
  EXPECT_NEAR(within_one / 100'000.0, 0.6827, 0.006);
}

TEST(UniformBoundTest, IsPyTorchsForLinearAndConvolutionalLayers) {
  EXPECT_EQ(UniformBound(64), 0.125);
}

}  // namespace
}  // namespace sluice

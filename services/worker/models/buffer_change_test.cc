#include "services/worker/models/buffer_change.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

at::Tensor Of(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

void ExpectRefused(const at::Tensor& before, const at::Tensor& after, const std::string& message) {
  const auto change = BufferChange("low", before, after);
  EXPECT_EQ(change.status().code(), absl::StatusCode::kFailedPrecondition) << change.status();
  EXPECT_THAT(std::string(change.status().message()), HasSubstr("buffer 'low' "));
  EXPECT_THAT(std::string(change.status().message()), HasSubstr(message));
}

TEST(BufferChangeTest, IsTheDifference) {
  EXPECT_TRUE(BufferChange("b", Of({1, 2}), Of({1, 5}))->equal(Of({0, 3})));
  EXPECT_FALSE(BufferChange("b", Of({1, 2}), Of({1, 2}))->defined());
}

TEST(BufferChangeTest, NumbersThatAreNotFiniteAreEqualToThemselves) {
  const at::Tensor before = Of({kNaN, -kInfinity, 1});
  EXPECT_FALSE(BufferChange("b", before, before.clone())->defined());
  EXPECT_TRUE(BufferChange("b", before, Of({kNaN, -kInfinity, 3}))->equal(Of({0, 0, 2})));
}

TEST(BufferChangeTest, NumberThatWasNotFiniteMustNotBecomeAnother) {
  ExpectRefused(Of({kInfinity, 1}), Of({2, 1}), "begin with a finite one");
  ExpectRefused(Of({kNaN}), Of({0}), "begin with a finite one");
  ExpectRefused(Of({kInfinity}), Of({-kInfinity}), "begin with a finite one");
}

// The shard reports these, or skips the step (training.nonFinite).
TEST(BufferChangeTest, NumberThatBecomesInfiniteIsAChange) {
  EXPECT_TRUE(BufferChange("b", Of({1, 2}), Of({1, kInfinity}))->equal(Of({0, kInfinity})));
}

TEST(BufferChangeTest, ShapeAndTypeMustNotChange) {
  ExpectRefused(at::ones({2, 4}), at::ones({3, 4}), "makes it Float [3, 4]");
  ExpectRefused(at::ones({2}), at::ones({2}, at::kDouble), "makes it Double [2]");
}

}  // namespace
}  // namespace sluice

#include "services/protocol/desired_number.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

constexpr uint64_t kMicros = 1'800'000'000'000'000;
const absl::Time kNow = absl::FromUnixMicros(kMicros);

TEST(DesiredNumbers, AreTimesThatRise) {
  DesiredNumbers numbers;
  EXPECT_EQ(numbers.Next(kNow), kMicros);
  EXPECT_EQ(numbers.Next(kNow), kMicros + 1);
  EXPECT_EQ(numbers.Next(kNow - absl::Seconds(5)), kMicros + 2) << "the clock was set back";
  EXPECT_EQ(numbers.Next(kNow + absl::Seconds(1)), kMicros + 1'000'000);
  EXPECT_GT(DesiredNumbers().Next(absl::InfinitePast()), 0u);
}

TEST(DesiredNumbers, ContinueAboveTheHighestNumberOfTheCoordinator) {
  DesiredNumbers numbers;
  const uint64_t sent = numbers.Next(kNow);
  EXPECT_FALSE(numbers.Ignored(sent, sent));
  EXPECT_FALSE(numbers.Ignored(sent, 0)) << "the reply of a coordinator that gives no number";
  EXPECT_TRUE(numbers.Ignored(sent, sent + 7'000'000));
  EXPECT_EQ(numbers.Next(kNow), sent + 7'000'001);
  EXPECT_TRUE(numbers.Ignored(sent, UINT64_MAX));
  EXPECT_EQ(numbers.Next(kNow), kMaxDesiredNumber + 1);
}

}  // namespace
}  // namespace sluice

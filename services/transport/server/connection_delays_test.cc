#include "services/transport/server/connection_delays.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr absl::Duration kNone = absl::ZeroDuration();

class ConnectionDelaysTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  ConnectionDelays delays_;
};

TEST_F(ConnectionDelaysTest, DoublesUpToTheLongestDelayAndForgetsAfterAMinute) {
  EXPECT_EQ(delays_.DelayOf("a", now_), kNone);
  EXPECT_FALSE(delays_.Any(now_));
  absl::Duration expected = kFirstDelay;
  for (int i = 0; i < 10; ++i) {
    delays_.OnFlood("a", now_);
    EXPECT_EQ(delays_.DelayOf("a", now_), expected);
    now_ += expected;
    expected = std::min(2 * expected, kLongestDelay);
  }
  EXPECT_EQ(delays_.DelayOf("b", now_), kNone);
  EXPECT_TRUE(delays_.Any(now_));
  now_ += kDelayMemory;
  EXPECT_EQ(delays_.DelayOf("a", now_), kNone);
  EXPECT_FALSE(delays_.Any(now_));
  delays_.OnFlood("a", now_);
  EXPECT_EQ(delays_.DelayOf("a", now_), kFirstDelay);
}

TEST_F(ConnectionDelaysTest, CountsSimultaneousFloodsOnce) {
  for (int i = 0; i < 100; ++i) delays_.OnFlood("a", now_ + absl::Milliseconds(i));
  EXPECT_EQ(delays_.DelayOf("a", now_), kFirstDelay);
}

TEST_F(ConnectionDelaysTest, DelaysAddressWhoseConnectionsKeepEndingWithoutACall) {
  for (int i = 0; i < kEndsAtOnce; ++i) delays_.OnSuspectEnd("a", now_);
  EXPECT_EQ(delays_.DelayOf("a", now_), kNone);
  delays_.OnSuspectEnd("a", now_);
  EXPECT_EQ(delays_.DelayOf("a", now_), kFirstDelay);
}

TEST_F(ConnectionDelaysTest, DoesNotDelayAddressThatRetriesWithPauses) {
  for (int i = 0; i < 1000; ++i) {
    delays_.OnSuspectEnd("a", now_);
    now_ += absl::Seconds(1 / kEndsPerSecond);
  }
  EXPECT_EQ(delays_.DelayOf("a", now_), kNone);
}

TEST_F(ConnectionDelaysTest, RemembersBoundedNumberOfAddresses) {
  for (size_t i = 0; i < 3 * kMaxRememberedAddresses; ++i) {
    delays_.OnFlood(absl::StrCat(i), now_);
  }
  EXPECT_EQ(delays_.DelayOf(absl::StrCat(3 * kMaxRememberedAddresses - 1), now_), kFirstDelay);
  EXPECT_EQ(delays_.DelayOf("0", now_), kNone);
}

}  // namespace
}  // namespace sluice

#include "services/shell/received_bytes.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace sluice {
namespace {

class ReceivedBytesTest : public ::testing::Test {
 protected:
  ReceivedBytesTest() {
    received_.Open(1);
    received_.Open(2);
  }

  std::vector<std::pair<uint64_t, uint64_t>> exceeded_;  // stream, bytes
  ReceivedBytes received_{
      100, [this](uint64_t stream, uint64_t bytes) { exceeded_.emplace_back(stream, bytes); }};
};

TEST_F(ReceivedBytesTest, CountsUntilReleasedOrDestroyed) {
  std::optional<ReceivedBytes::Receipt> first = received_.Add(1, 60);
  ReceivedBytes::Receipt second = received_.Add(1, 40);
  EXPECT_TRUE(*first);
  EXPECT_TRUE(second);
  EXPECT_EQ(received_.Largest(), 100);
  first.reset();
  EXPECT_EQ(received_.Largest(), 40);
  second.Release();
  EXPECT_EQ(received_.Largest(), 0);
}

TEST_F(ReceivedBytesTest, MovedReceiptCountsOnce) {
  ReceivedBytes::Receipt first = received_.Add(1, 60);
  {
    const ReceivedBytes::Receipt second = std::move(first);
    EXPECT_EQ(received_.Largest(), 60);
  }
  EXPECT_EQ(received_.Largest(), 0);
}

TEST_F(ReceivedBytesTest, AcceptsAnyMessageAlone) {
  EXPECT_TRUE(received_.Add(1, 1000));
  EXPECT_TRUE(exceeded_.empty());
}

TEST_F(ReceivedBytesTest, ReportsStreamThatExceedsLimitOnce) {
  const ReceivedBytes::Receipt first = received_.Add(1, 60);
  EXPECT_FALSE(received_.Add(1, 41));
  EXPECT_FALSE(received_.Add(1, 1));
  EXPECT_EQ(exceeded_, (std::vector<std::pair<uint64_t, uint64_t>>{{1, 101}}));
  EXPECT_EQ(received_.exceeded(), 1);
}

TEST_F(ReceivedBytesTest, StreamsHaveRoomOfTheirOwn) {
  const ReceivedBytes::Receipt first = received_.Add(1, 100);
  EXPECT_TRUE(received_.Add(2, 100));
  EXPECT_TRUE(exceeded_.empty());
}

TEST_F(ReceivedBytesTest, AcceptsNothingOfClosedStream) {
  ReceivedBytes::Receipt first = received_.Add(1, 60);
  received_.Close(1);
  EXPECT_FALSE(received_.Add(1, 1));
  EXPECT_TRUE(exceeded_.empty());
  first.Release();  // of a stream that is gone
}

}  // namespace
}  // namespace sluice

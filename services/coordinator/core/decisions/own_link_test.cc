#include "services/coordinator/core/decisions/own_link.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

class OwnLinkTest : public ::testing::Test {
 protected:
  OwnLinkTest() { link_.SetConnected(true); }
  // Calls once a second.
  void Call(int from, int until) {
    for (int second = from; second <= until; ++second) link_.OnCall(At(second));
  }

  OwnLink link_{/*heartbeat=*/absl::Seconds(0.5), /*heartbeat_timeout=*/absl::Seconds(5)};
};

TEST_F(OwnLinkTest, JudgesAtTheLimitWhileMessagesCome) {
  for (int second = 0; second <= 4; ++second) {
    EXPECT_EQ(link_.OnMessage(At(second)), absl::ZeroDuration()) << second;
  }
  EXPECT_EQ(link_.JudgedAt(At(5)), At(5));
}

TEST_F(OwnLinkTest, JudgesNoProcessWhileNoMessageComes) {
  (void)link_.OnMessage(At(0));
  EXPECT_EQ(link_.JudgedAt(At(5)), absl::InfiniteFuture());
  EXPECT_EQ(link_.OnMessage(At(5.8)), absl::Seconds(5.8)) << "it counts against no process";
  EXPECT_EQ(link_.JudgedAt(At(6)), At(6));
}

TEST_F(OwnLinkTest, JudgesNoProcessWhileAllStreamsAreBroken) {
  (void)link_.OnMessage(At(0));
  link_.SetConnected(false);
  EXPECT_EQ(link_.JudgedAt(At(1)), absl::InfiniteFuture());
  EXPECT_EQ(link_.OnMessage(At(1.2)), absl::Seconds(1.2));
  link_.SetConnected(true);
  EXPECT_EQ(link_.JudgedAt(At(2)), At(2));
}

TEST_F(OwnLinkTest, ProcessesThatAreSilentWhileTheParentCallsAreFrozen) {
  (void)link_.OnMessage(At(0));
  Call(0, 24);
  EXPECT_EQ(link_.JudgedAt(At(5)), absl::InfiniteFuture());
  Call(25, 25);
  EXPECT_EQ(link_.JudgedAt(At(5)), At(25));
}

TEST_F(OwnLinkTest, TimeInWhichTheParentDoesNotCallDoesNotCount) {
  (void)link_.OnMessage(At(0));
  Call(0, 2);
  Call(30, 33);  // the network is whole again, and the members' messages are late
  EXPECT_EQ(link_.JudgedAt(At(5)), absl::InfiniteFuture());
  Call(34, 55);
  EXPECT_EQ(link_.JudgedAt(At(5)), At(55));
}

TEST_F(OwnLinkTest, FirstMessageIsNoSignOfACut) {
  OwnLink link(absl::Seconds(0.5), absl::Seconds(5));
  EXPECT_EQ(link.OnMessage(At(100)), absl::ZeroDuration());
}

// A heartbeat may be as rare as half of the timeout.
TEST_F(OwnLinkTest, RareHeartbeatsAreNoSignOfACut) {
  OwnLink link(absl::Seconds(2.5), absl::Seconds(5));
  link.SetConnected(true);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(link.OnMessage(At(i * 2.6)), absl::ZeroDuration()) << i;
  }
}

}  // namespace
}  // namespace sluice::coordinator

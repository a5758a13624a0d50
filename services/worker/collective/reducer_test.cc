#include "services/worker/collective/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace sluice::worker {
namespace {

using ::testing::HasSubstr;

TEST(ReducerTest, RouteToThisMachineStartsAtItsOwnAddress) {
  EXPECT_EQ(*AddressTowards("127.0.0.1:29500"), "127.0.0.1");
  EXPECT_EQ(*AddressTowards("127.0.0.1"), "127.0.0.1");
}

TEST(ReducerTest, NamesUnknownHost) {
  const auto address = AddressTowards("no-such-host.invalid:29500");
  EXPECT_TRUE(absl::IsUnavailable(address.status())) << address.status();
  EXPECT_THAT(address.status().message(), HasSubstr("no-such-host.invalid"));
}

TEST(ReducerTest, WithoutGroupReduceAndLeaveDoNothing) {
  Reducer reducer({.coordinator = "127.0.0.1:1", .process = {}, .done = nullptr});
  reducer.Leave();
  reducer.Reduce(1, {});
  EXPECT_EQ(reducer.sent_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::worker

#include "services/transport/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(EndpointTest, FlagOverridesEnvironment) {
  EXPECT_EQ(*ResolveCoordinator("a:1", "b", "2"), "a:1");
}

TEST(EndpointTest, UsesDefaultPortIfMissing) {
  EXPECT_EQ(*ResolveCoordinator("a", nullptr, nullptr), "a:29500");
  EXPECT_EQ(*ResolveCoordinator("[::1]", nullptr, nullptr), "[::1]:29500");
  EXPECT_EQ(*ResolveCoordinator("", "b", nullptr), "b:29500");
}

TEST(EndpointTest, ReadsEnvironmentOfPyTorchLaunchers) {
  EXPECT_EQ(*ResolveCoordinator("", "b", "2"), "b:2");
}

TEST(EndpointTest, NamesMissingOrMalformedValue) {
  EXPECT_THAT(ResolveCoordinator("", nullptr, "2").status().message(), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(ResolveCoordinator("", "b", "x").status().message(), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(ResolveCoordinator("a:0", nullptr, nullptr).status().message(), HasSubstr("'0'"));
  EXPECT_THAT(ResolveCoordinator(":80", nullptr, nullptr).status().message(),
              HasSubstr("without a host"));
}

TEST(EndpointTest, RejectsMasterAddressThatIsNotJustAHost) {
  EXPECT_EQ(*ResolveCoordinator("", "::1", "2"), "[::1]:2");
  EXPECT_EQ(*ResolveCoordinator("", "[::1]", "2"), "[::1]:2");
  for (const char* wrong : {"b:1", "http://b", "b c"}) {
    EXPECT_THAT(ResolveCoordinator("", wrong, "2").status().message(),
                HasSubstr(absl::StrCat("MASTER_ADDR is '", wrong, "'")));
  }
}

TEST(EndpointTest, CoordinatorListensAtAddressOfEnvironment) {
  EXPECT_EQ(*ResolveListenAddress("a:1", "b", "2"), "a:1");
  EXPECT_EQ(*ResolveListenAddress("", "b", "2"), "b:2");
  EXPECT_EQ(*ResolveListenAddress("", "b", nullptr), "b:29500");
  EXPECT_EQ(*ResolveListenAddress("", nullptr, nullptr), "127.0.0.1:0");
  EXPECT_THAT(ResolveListenAddress("", "b", "x").status().message(), HasSubstr("MASTER_PORT"));
}

TEST(EndpointTest, HostIsThePartBeforeThePort) {
  EXPECT_EQ(HostOfEndpoint("10.0.0.1:80"), "10.0.0.1");
  EXPECT_EQ(HostOfEndpoint("[::1]:80"), "[::1]");
  EXPECT_EQ(HostOfEndpoint("name"), "name");
}

}  // namespace
}  // namespace sluice

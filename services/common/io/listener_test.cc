#include "services/common/io/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

bool Connects(const char* host, int port) {
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = htons(static_cast<in_port_t>(port));
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_port = four.sin_port;
  const bool is_four = inet_pton(AF_INET, host, &four.sin_addr) == 1;
  inet_pton(AF_INET6, host, &six.sin6_addr);
  const Fd client(socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(client.get(),
                 is_four ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six),
                 is_four ? sizeof(four) : sizeof(six)) == 0;
}

TEST(ListenOnTest, ListensAtAddressesOfHostOnOnePort) {
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0", "[::]", ""}) {
    const auto listeners = ListenOn(absl::StrCat(host, ":0"));
    ASSERT_TRUE(listeners.ok()) << host << ": " << listeners.status();
    const int port = LocalPort(listeners->front().get());
    EXPECT_GT(port, 0);
    for (const Fd& listener : *listeners) EXPECT_EQ(LocalPort(listener.get()), port);
    EXPECT_TRUE(Connects("127.0.0.1", port)) << host;
  }
}

TEST(ListenOnTest, ServesIPv4AndIPv6OnWildcardAddress) {
  if (!ListenOn("[::1]:0").ok()) GTEST_SKIP() << "this machine has no IPv6";
  for (const char* host : {"0.0.0.0", "[::]", ""}) {
    const auto listeners = ListenOn(absl::StrCat(host, ":0"));
    ASSERT_TRUE(listeners.ok()) << host << ": " << listeners.status();
    const int port = LocalPort(listeners->front().get());
    EXPECT_TRUE(Connects("::1", port)) << host;
    EXPECT_TRUE(Connects("127.0.0.1", port)) << host;
  }
}

TEST(ListenOnTest, NamesAddressInUse) {
  const auto first = ListenOn("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  ASSERT_THAT(*first, Not(IsEmpty()));
  const std::string taken = absl::StrCat("127.0.0.1:", LocalPort(first->front().get()));
  const absl::Status status = ListenOn(taken).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(taken));
  EXPECT_EQ(ListenOn("nowhere").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice

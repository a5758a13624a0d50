#include "services/common/io/page_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience = {30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Client() {
    if (fd_ >= 0) close(fd_);
  }

  void Send(const std::string& text) const {
    (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Reads until the server ends the connection; "timeout" if it does not.
  std::string ReadAll() const {
    std::string all;
    char buffer[4096];
    while (true) {
      const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
      if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return "timeout";
      if (size <= 0) return all;
      all.append(buffer, static_cast<size_t>(size));
    }
  }

 private:
  int fd_;
};

class PageServerTest : public ::testing::Test {
 protected:
  void Start(PageServer::Options options) {
    auto server = PageServer::Start(std::move(options),
                                    {{"/healthz",
                                      [] {
                                        return PageServer::Answer{200, "ok\n"};
                                      }},
                                     {"/large", [] {
                                        return PageServer::Answer{200, std::string(8 << 20, 'x')};
                                      }}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::string Ask(const std::string& request) const {
    const Client client(server_->port());
    client.Send(request);
    return client.ReadAll();
  }
  std::string Probe() const { return Ask("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); }

  std::unique_ptr<PageServer> server_;
};

constexpr char kOk[] = "HTTP/1.1 200 OK\r\n";

TEST_F(PageServerTest, AnswersRequests) {
  Start({});
  EXPECT_THAT(Probe(), StartsWith(kOk));
  EXPECT_THAT(Probe(), HasSubstr("\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"));
  EXPECT_THAT(Ask("GET /healthz?verbose HTTP/1.0\r\n\r\n"), StartsWith(kOk));
  EXPECT_THAT(Ask("HEAD /healthz HTTP/1.1\r\n\r\n"), ::testing::EndsWith("close\r\n\r\n"));
  EXPECT_THAT(Ask("GET /elsewhere HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(Ask("GET /large HTTP/1.1\r\n\r\n").size() >> 20, 8u);
}

constexpr char kReady[] = "GET /ready?period=10 HTTP/1.1\r\n\r\n";

class ProbeTest : public PageServerTest {
 protected:
  void Start(absl::Duration wait) {
    auto server = PageServer::Start(
        {},
        {{"/ready",
          [this] {
            return ready_ ? PageServer::Answer{200, "ok\n"} : PageServer::Answer{503, "not yet\n"};
          },
          wait}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Ready(const char* query = "") const {
    return Ask(absl::StrCat("GET /ready", query, " HTTP/1.1\r\n\r\n"));
  }
  absl::Duration Awaits(absl::Duration quiet) const {
    const absl::Time start = absl::Now();
    server_->AwaitProbes(quiet, [this] { return hurry_.load(); });
    return absl::Now() - start;
  }

  std::atomic<bool> ready_{false};
  std::atomic<bool> hurry_{false};
};

TEST_F(ProbeTest, AClientWithAPeriodWaitsUntilThePageIsReadyForTheFirstTime) {
  Start(absl::Minutes(10));
  EXPECT_THAT(Ready(), HasSubstr("503")) << "others do not wait";
  const Client probe(server_->port());
  probe.Send(kReady);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_THAT(Ready("?period=x"), HasSubstr("503"));
  ready_ = true;
  EXPECT_THAT(probe.ReadAll(), StartsWith(kOk));
  ready_ = false;
  EXPECT_THAT(Ready("?period=10"), HasSubstr("503")) << "it was ready, and is not any more";
}

TEST_F(ProbeTest, AClientDoesNotWaitForLongerThanThePageAllows) {
  Start(absl::Milliseconds(200));
  EXPECT_THAT(Ready("?period=10"), HasSubstr("503"));
}

TEST_F(ProbeTest, SilentConnectionsDoNotReplaceAClientThatWaits) {
  Start(absl::Minutes(10));
  const Client probe(server_->port());
  probe.Send(kReady);
  EXPECT_THAT(Ready(), HasSubstr("503")) << "the probe's request has arrived before";
  std::vector<Client> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(server_->port());
  EXPECT_THAT(Ready(), HasSubstr("503"));
  ready_ = true;
  EXPECT_THAT(probe.ReadAll(), StartsWith(kOk));
}

TEST_F(ProbeTest, ClientsThatWaitGetAnAnswerAtTheEnd) {
  Start(absl::Minutes(10));
  const Client gone(server_->port());
  gone.Send(kReady);
  const Client probe(server_->port());
  probe.Send(kReady);
  absl::SleepFor(absl::Milliseconds(200));
  ready_ = true;
  server_.reset();
  EXPECT_THAT(probe.ReadAll(), StartsWith(kOk));
}

TEST_F(ProbeTest, TheEndWaitsForAProbeThatIsDueAndForNoOther) {
  ready_ = true;
  Start(absl::ZeroDuration());
  EXPECT_THAT(Ready(), StartsWith(kOk));
  EXPECT_LT(Awaits(absl::Seconds(100)), absl::Milliseconds(80)) << "no client has a period";
  EXPECT_THAT(Ready("?period=60"), StartsWith(kOk));
  EXPECT_LT(Awaits(absl::Seconds(3)), absl::Milliseconds(80)) << "due much later";

  EXPECT_THAT(Ready("?period=2"), StartsWith(kOk));
  absl::SleepFor(absl::Milliseconds(200));
  std::thread kubelet([this] {
    absl::SleepFor(absl::Milliseconds(700));
    EXPECT_THAT(Ready("?period=2"), StartsWith(kOk));
  });
  const absl::Duration waited = Awaits(absl::Milliseconds(1900));
  kubelet.join();
  EXPECT_GT(waited, absl::Milliseconds(600)) << "due in less than that";
  EXPECT_LT(waited, absl::Milliseconds(1900)) << "it has come";

  EXPECT_THAT(Ready("?period=1"), StartsWith(kOk));
  EXPECT_LT(Awaits(absl::Seconds(3)), absl::Milliseconds(80)) << "too often to end between two";
}

TEST_F(ProbeTest, TheEndDoesNotWaitLongForAClientThatStaysAway) {
  ready_ = true;
  Start(absl::ZeroDuration());
  EXPECT_THAT(Ready("?period=1"), StartsWith(kOk));
  absl::SleepFor(absl::Milliseconds(200));
  hurry_ = true;
  EXPECT_LT(Awaits(absl::Milliseconds(900)), absl::Milliseconds(80));
  hurry_ = false;
  const absl::Duration waited = Awaits(absl::Milliseconds(900));
  EXPECT_GT(waited, absl::Milliseconds(1500));
  EXPECT_LT(waited, absl::Seconds(4));
}

TEST_F(PageServerTest, RefusesRequestsThatAreTooLong) {
  Start({.max_request_bytes = 1000});
  const std::string header(990, 'x');
  EXPECT_THAT(Ask(absl::StrCat("GET /healthz HTTP/1.1\r\na: ", header, "\r\n\r\n")),
              HasSubstr("431 Request Header Fields Too Large"));
  EXPECT_THAT(Ask(absl::StrCat("GET /healthz HTTP/1.1\r\na: ", header)),
              HasSubstr("a request has at most 1000 bytes (max_request_bytes)"));
  EXPECT_THAT(Probe(), StartsWith(kOk));
}

// More connections than there are places stay silent, and open as long as the server lets them.
// With a server of two threads every probe would wait for them.
TEST_F(PageServerTest, AnswersProbesWhileAThousandConnectionsAreSilent) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  Start({.patience = absl::Minutes(10)});
  std::vector<Client> silent;
  for (int i = 0; i < 1000; ++i) {
    silent.emplace_back(server_->port());
    if (i % 3 == 0) silent.back().Send("GET /healthz HT");
  }
  const absl::Time start = absl::Now();
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Probe(), StartsWith(kOk));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(PageServerTest, ClosesConnectionsThatSendNoRequest) {
  Start({.patience = absl::Milliseconds(50)});
  const Client silent(server_->port());
  const Client slow(server_->port());
  slow.Send("GET /heal");
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_EQ(slow.ReadAll(), "");
}

TEST_F(PageServerTest, ClosesConnectionsThatDoNotReadTheirAnswer) {
  Start({.max_connections = 2, .patience = absl::Milliseconds(50)});
  const Client first(server_->port());
  first.Send("GET /large HTTP/1.1\r\n\r\n");
  const Client second(server_->port());
  second.Send("GET /large HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Probe(), StartsWith(kOk));
}

TEST_F(PageServerTest, ServesIPv4AndIPv6) {
  Start({.address = "[::]:0"});
  EXPECT_THAT(Probe(), StartsWith(kOk));
}

TEST_F(PageServerTest, RefusesAddressesThatItCannotListenOn) {
  Start({});
  for (const std::string& address : {absl::StrCat("127.0.0.1:", server_->port()),
                                     std::string("192.0.2.1:0"), std::string("127.0.0.1:http-")}) {
    const auto refused = PageServer::Start({.address = address}, {});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(address));
  }
  EXPECT_EQ(PageServer::Start({.address = "nonsense"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice

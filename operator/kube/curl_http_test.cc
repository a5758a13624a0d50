#include "operator/kube/curl_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/http_front.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"
#include "services/common/io/fake_file_system.h"
#include "services/common/threads/notification.h"

namespace sluice::kube {
namespace {

using ::testing::HasSubstr;

// The real HTTP client against a real HTTP server on the loopback device.
class CurlTransportTest : public ::testing::Test {
 protected:
  void Start(FakeApiServer::Options server_options, HttpFront::Options front_options) {
    server_ = std::make_unique<FakeApiServer>(&clock_, server_options);
    RegisterTestTypes(server_.get());
    auto front = HttpFront::Start(server_.get(), std::move(front_options));
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = *std::move(front);
    ClientConfig config;
    config.server = front_->url();
    Connect(config, absl::Seconds(30));
  }

  void Connect(const ClientConfig& config, absl::Duration timeout) {
    CurlTransport::Options options;
    options.config = config;
    options.max_body_bytes = 1 << 20;
    auto transport = CurlTransport::Make(options, &files_, &clock_);
    ASSERT_TRUE(transport.ok());
    transport_ = *std::move(transport);
    HttpClient::Options client_options;
    client_options.sleep = [](absl::Duration) {};
    client_options.timeout = timeout;
    client_options.retry.max_tries = 1;
    client_ = std::make_unique<HttpClient>(transport_.get(), client_options);
  }

  void WriteToken(const std::string& token) {
    auto file = files_.Create("/token", false);
    ASSERT_TRUE(file.ok() && (*file)->Append(token).ok());
  }

  RealClock clock_;
  FakeFileSystem files_;
  std::unique_ptr<FakeApiServer> server_;
  std::unique_ptr<HttpFront> front_;
  std::unique_ptr<CurlTransport> transport_;
  std::unique_ptr<HttpClient> client_;
};

TEST_F(CurlTransportTest, CreatesUpdatesAndDeletesOverARealConnection) {
  Start({}, {});
  Json map = Named("a");
  map["data"]["text"] = std::string(100000, 'x') + "ö";
  const auto created = client_->Create(ConfigMaps(), "ns", map, {});
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(*client_->Get(ConfigMaps(), {"ns", "a"}, Subresource::kNone), *created);
  ASSERT_TRUE(
      client_
          ->Patch(ConfigMaps(), {"ns", "a"}, PatchKind::kMerge, {{"data", {{"text", nullptr}}}}, {})
          .ok());
  WriteOptions apply;
  apply.field_manager = "me";
  ASSERT_TRUE(
      client_->Patch(ConfigMaps(), {"ns", "a"}, PatchKind::kApply, {{"data", {{"k", "v"}}}}, apply)
          .ok());
  DeleteOptions options;
  options.uid = UidOf(*created);
  ASSERT_TRUE(client_->Delete(ConfigMaps(), {"ns", "a"}, options).ok());
  EXPECT_TRUE(
      absl::IsNotFound(client_->Get(ConfigMaps(), {"ns", "a"}, Subresource::kNone).status()));
}

TEST_F(CurlTransportTest, SupportsConcurrentCalls) {
  Start({}, {});
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        if (client_->Create(ConfigMaps(), "ns", Named(absl::StrCat("m", t, "-", i)), {}).ok()) {
          ++made;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 60);
}

TEST_F(CurlTransportTest, ReadsARotatedTokenAgainAfterARefusal) {
  HttpFront::Options options;
  options.token = "first";
  Start({}, options);
  ClientConfig config;
  config.server = front_->url();
  config.token_file = "/token";
  WriteToken("first\n");
  Connect(config, absl::Seconds(30));
  EXPECT_TRUE(client_->List(ConfigMaps(), {}).ok());
  front_->SetToken("second");
  EXPECT_TRUE(absl::IsUnauthenticated(client_->List(ConfigMaps(), {}).status()));
  WriteToken("second\n");
  EXPECT_TRUE(client_->List(ConfigMaps(), {}).ok());
}

TEST_F(CurlTransportTest, ALateAnswerIsDeadlineExceeded) {
  HttpFront::Options options;
  options.delay = absl::Minutes(5);
  Start({}, options);
  ClientConfig config;
  config.server = front_->url();
  Connect(config, absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(client_->List(ConfigMaps(), {}).status()));
}

TEST_F(CurlTransportTest, RejectsAnAnswerThatIsTooLong) {
  Start({}, {});
  for (int i = 0; i < 3; ++i) {
    Json map = Named(absl::StrCat("m", i));
    map["data"]["text"] = std::string(500000, 'x');
    ASSERT_TRUE(client_->Create(ConfigMaps(), "ns", map, {}).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(client_->List(ConfigMaps(), {}).status()));
}

TEST_F(CurlTransportTest, ConnectionRefusedIsUnavailableAndNamesTheServer) {
  ClientConfig config;
  config.server = "http://127.0.0.1:1";
  Connect(config, absl::Seconds(30));
  const absl::Status status = client_->List(ConfigMaps(), {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1"));
}

TEST_F(CurlTransportTest, AWatchDeliversEventsUntilItIsCancelled) {
  FakeApiServer::Options options;
  options.end_watches_when_drained = false;
  options.piece_bytes = 11;
  Start(options, {});
  Notification seen;
  Cancellation cancellation;
  absl::Status ended;
  std::thread watcher([&] {
    WatchOptions watch;
    watch.send_initial_events = true;
    ended = client_->Watch(
        ConfigMaps(), watch,
        [&](const WatchEvent& event) {
          if (KeyOf(event.object).name == "a") seen.Notify();
          return absl::OkStatus();
        },
        &cancellation);
  });
  ASSERT_TRUE(client_->Create(ConfigMaps(), "ns", Named("a"), {}).ok());
  EXPECT_TRUE(seen.WaitWithTimeout(absl::Seconds(60)));
  cancellation.Cancel();
  watcher.join();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
}

TEST_F(CurlTransportTest, AWatchThatTheServerEndsReturnsOk) {
  Start({}, {});
  Cancellation cancellation;
  WatchOptions watch;
  watch.send_initial_events = true;
  const absl::Status ended = client_->Watch(
      ConfigMaps(), watch, [](const WatchEvent&) { return absl::OkStatus(); }, &cancellation);
  EXPECT_TRUE(ended.ok()) << ended;
}

TEST_F(CurlTransportTest, AWatchFromAForgottenVersionIsOutOfRange) {
  for (const bool as_event : {true, false}) {
    FakeApiServer::Options options;
    options.gone_as_event = as_event;
    Start(options, {});
    Cancellation cancellation;
    WatchOptions watch;
    watch.resource_version = "3";
    const absl::Status ended = client_->Watch(
        ConfigMaps(), watch, [](const WatchEvent&) { return absl::OkStatus(); }, &cancellation);
    EXPECT_TRUE(absl::IsOutOfRange(ended)) << ended;
  }
}

// The kernel's settings of this process's connections to a port.
std::vector<std::vector<int>> SettingsOfConnectionsTo(int port, const std::vector<int>& names) {
  std::vector<std::vector<int>> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
        peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) {
      continue;
    }
    std::vector<int>& values = found.emplace_back();
    for (const int name : names) {
      values.push_back(-1);
      socklen_t length = sizeof(values.back());
      (void)getsockopt(fd, IPPROTO_TCP, name, &values.back(), &length);
    }
  }
  return found;
}

TEST_F(CurlTransportTest, TheKernelDetectsALostPeerWithin45Seconds) {
  FakeApiServer::Options options;
  options.end_watches_when_drained = false;
  Start(options, {});
  const std::string url = front_->url();
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  Cancellation cancellation;
  WatchOptions watch;
  watch.send_initial_events = true;
  std::vector<std::vector<int>> settings;
  const absl::Status ended = client_->Watch(
      ConfigMaps(), watch,
      [&](const WatchEvent&) {
        settings = SettingsOfConnectionsTo(port, {TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_USER_TIMEOUT});
        return absl::CancelledError("seen");
      },
      &cancellation);
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_THAT(settings, ::testing::ElementsAre(::testing::ElementsAre(15, 10, 45000)));
}

TEST_F(CurlTransportTest, GivesUpASilentConnection) {
  FakeApiServer::Options options;
  options.end_watches_when_drained = false;
  Start(options, {});
  Cancellation cancellation;
  WatchOptions watch;
  watch.send_initial_events = true;
  watch.idle_timeout = absl::Milliseconds(200);
  const absl::Status ended = client_->Watch(
      ConfigMaps(), watch, [](const WatchEvent&) { return absl::OkStatus(); }, &cancellation);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended)) << ended;
}

}  // namespace
}  // namespace sluice::kube

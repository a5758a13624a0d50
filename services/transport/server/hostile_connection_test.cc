// Tests a server against one connection that breaks the protocol: sends hand-made HTTP/2 frames to
// a StreamServer over loopback.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/socket.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/frame.grpc.pb.h"
#include "services/common/threads/mutex.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/connection_guard.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/stream_server.h"
#include "services/transport/testing/watched.h"

#ifdef SLUICE_THREAD_SANITIZER
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

// Types and flags of HTTP/2 (RFC 9113, section 6).
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kContinuation = 9;
constexpr uint8_t kAck = 1, kEndHeaders = 4;
constexpr size_t kBufferBytes = size_t{64} << 20;
constexpr char kExchange[] = "/sluice.v1.ParameterServer/Exchange";

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(value >> shift));
  }
  return text;
}

std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), BigEndian(type, 1),
                      BigEndian(flags, 1), BigEndian(stream, 4), payload);
}

// A header field in HPACK (RFC 7541, section 6.2.2) without compression.
std::string Field(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'), BigEndian(static_cast<uint32_t>(name.size()), 1), name,
                      BigEndian(static_cast<uint32_t>(value.size()), 1), value);
}

std::string CallHeaders() {
  return absl::StrCat(Field(":method", "POST"), Field(":scheme", "http"), Field(":path", kExchange),
                      Field(":authority", "x"), Field("te", "trailers"),
                      Field("content-type", "application/grpc"));
}

// A connection that sends the bytes that the test gives it, and discards the answers.
class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  // The server's limits apply once the client has confirmed its settings, which have arrived by
  // then.
  void Begin() {
    EXPECT_TRUE(
        Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Http2Frame(kSettings, 0, 0, ""))));
    pollfd wait = {fd_, POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, 30'000), 1);
    EXPECT_TRUE(Send(Http2Frame(kSettings, kAck, 0, "")));
  }

  // False: the server has ended the connection.
  bool Send(absl::string_view text) {
    while (!text.empty()) {
      pollfd wait = {fd_, POLLIN | POLLOUT, 0};
      if (poll(&wait, 1, 30'000) <= 0) return false;
      if ((wait.revents & POLLIN) != 0 && !ReadSome()) return false;
      if ((wait.revents & POLLOUT) == 0) continue;
      const ssize_t size = send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (size < 0 && errno != EAGAIN) return false;
      if (size > 0) text.remove_prefix(static_cast<size_t>(size));
    }
    return true;
  }

  // Which buffer sizes are locked at the server's end of the connection, which is in this process.
  // Less than 0: the connection has ended, or the kernel does not say.
  int ServersBufferLocks() const {
    for (int fd = 0; fd < 1024; ++fd) {
      if (fd == fd_ || PortOf(fd, getpeername) != PortOf(fd_, getsockname)) continue;
      int locks = -1;
      socklen_t size = sizeof(locks);
      getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, &size);
      return locks;
    }
    return -1;
  }

  // True: the server has ended the connection within this time.
  bool WaitForEnd(absl::Duration patience) {
    const absl::Time deadline = absl::Now() + patience;
    while (true) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
      pollfd wait = {fd_, POLLIN, 0};
      if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) < 0) return false;
      if (wait.revents != 0 && !ReadSome()) return true;
    }
  }

 private:
  static int PortOf(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    const bool known = name(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    return known && address.sin_family == AF_INET ? ntohs(address.sin_port) : -1;
  }

  bool ReadSome() {
    char buffer[65536];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
    return size > 0 || (size < 0 && errno == EAGAIN);
  }

  int fd_;
};

// The memory of this process. ThreadSanitizer stores what each thread has accessed, which can be
// far more than the server's memory: with it, only the program's own allocations count.
size_t UsedMiB() {
#ifdef SLUICE_THREAD_SANITIZER
  return __sanitizer_get_current_allocated_bytes() >> 20;
#else
  std::ifstream file("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  file >> total >> resident;
  return (resident * static_cast<size_t>(sysconf(_SC_PAGESIZE))) >> 20;
#endif
}

class HostileConnectionTest : public ::testing::Test, public StreamHandler {
 protected:
  HostileConnectionTest() : streams_({.reader_threads = 2}, this) {}

  // The server calls this object only while it is complete.
  void SetUp() override {
    auto server = GrpcServer::Start(
        {.credentials = security::ServerCredentialsOf(
             nullptr, [this](const security::CallRefusal&) { ++refused_; }),
         .max_buffer_bytes = kBufferBytes,
         .guard = {.on_disconnected =
                       [this](const Disconnection& disconnection) {
                         disconnected_.Change([&](auto* all) { all->push_back(disconnection); });
                       },
                   .on_delayed = [this] { ++delayed_; }},
         .grace = absl::Milliseconds(200)},
        {&streams_});
    if (!server.ok()) ADD_FAILURE() << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override { server_->Stop(); }

  void OnOpen(StreamId, const std::string&) override {
    opened_.Change([](int* opened) { ++*opened; });
  }
  void OnFrames(StreamId, std::vector<DecodedFrame>) override {
    received_.Change([](int* received) { ++*received; });
  }
  void OnClosed(StreamId, const absl::Status&) override {
    closed_.Change([](int* closed) { ++*closed; });
  }

  // A peer that follows the protocol is served, and soon; if its connection ends, or is not
  // answered, it opens another one, as every client does. (It does not use gRPC, because gRPC's
  // threads, shared in one process, would also work for the server.)
  void ExpectServes() {
    const int before = received_.Now();
    v1::Frame frame;
    frame.mutable_header()->mutable_pull();
    const std::string message = frame.SerializeAsString();
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      RawConnection peer(server_->port());
      peer.Begin();
      peer.Send(absl::StrCat(
          Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()),
          Http2Frame(kData, 0, 1,
                     absl::StrCat(BigEndian(0, 1),
                                  BigEndian(static_cast<uint32_t>(message.size()), 4), message))));
      const absl::Time again = absl::Now() + absl::Seconds(5);
      while (absl::Now() < again && !peer.WaitForEnd(absl::Milliseconds(20))) {
        if (received_.Now() > before) return;
      }
    }
    ADD_FAILURE() << "the server served no peer for 30 s";
  }

  // Waits until the server has ended the connection.
  void FloodWithoutACall() {
    RawConnection connection(server_->port());
    connection.Begin();
    std::string burst;
    for (int i = 0; i < 1000; ++i) burst += Http2Frame(kSettings, 0, 0, "");
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    bool open = true;
    while (open && absl::Now() < deadline) open = connection.Send(burst);
    EXPECT_FALSE(open);
  }

  Watched<int> opened_;
  Watched<int> received_;
  Watched<int> closed_;
  std::atomic<int> refused_{0};
  std::atomic<int> delayed_{0};
  Watched<std::vector<Disconnection>> disconnected_;
  StreamServer streams_;
  std::unique_ptr<GrpcServer> server_;
};

// HTTP/2 rapid reset: CVE-2023-44487. Each stream that reached the server would occupy a place in a
// queue for a long time.
TEST_F(HostileConnectionTest, DisconnectsClientThatResetsStreamsAtOnce) {
  const size_t before = UsedMiB();
  RawConnection connection(server_->port());
  connection.Begin();
  // An admitted call that stays open does not protect it.
  connection.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  opened_.WaitFor([](int opened) { return opened == 1; });
  const absl::Time start = absl::Now();
  uint32_t stream = 3;
  bool open = true;
  while (open && absl::Now() < start + absl::Seconds(60)) {
    std::string burst;
    for (int k = 0; k < 100; ++k, stream += 2) {
      absl::StrAppend(&burst, Http2Frame(kHeaders, kEndHeaders, stream, CallHeaders()),
                      Http2Frame(kReset, 0, stream, BigEndian(8, 4)));
    }
    open = connection.Send(burst);
  }
  EXPECT_FALSE(open);
  EXPECT_GE(refused_, security::kRefusalRate.at_once);
  const auto disconnected =
      disconnected_.WaitFor([](const auto& disconnected) { return !disconnected.empty(); });
  EXPECT_EQ(disconnected[0].reason, "refused_calls");
  EXPECT_THAT(disconnected[0].text, HasSubstr("from ipv4:127.0.0.1:"));
  EXPECT_EQ(disconnected[0].to_log, 1);
  closed_.WaitFor([this](int closed) { return closed == opened_.Now(); });  // gRPC has seen it
  const double allowed =
      security::kStreamRate.at_once +
      security::kStreamRate.per_second * absl::ToDoubleSeconds(absl::Now() - start) + 1;
  EXPECT_LE(opened_.Now(), allowed);
  EXPECT_THAT(UsedMiB(), Le(before + 64));
  ExpectServes();
}

TEST_F(HostileConnectionTest, DisconnectsClientThatSendsMuchWithoutACall) {
  FloodWithoutACall();
  const auto disconnected =
      disconnected_.WaitFor([](const auto& disconnected) { return !disconnected.empty(); });
  EXPECT_EQ(disconnected[0].reason, "no_call");
  EXPECT_THAT(disconnected[0].text,
              AllOf(HasSubstr("from ipv4:127.0.0.1:"), HasSubstr("without an admitted call")));
  ExpectServes();
}

TEST_F(HostileConnectionTest, KeepsClientThatSendsMuchAfterACall) {
  RawConnection connection(server_->port());
  connection.Begin();
  connection.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  opened_.WaitFor([](int opened) { return opened == 1; });
  std::string settings;
  while (settings.size() < 2 * kMaxBytesBeforeCall) {
    settings += Http2Frame(kSettings, 0, 0, "");
  }
  ASSERT_TRUE(connection.Send(settings));
  // The guard sees both connections in its next sweep.
  for (int i = 0; i < 2; ++i) FloodWithoutACall();
  disconnected_.WaitFor([](const auto& disconnected) { return disconnected.size() == 2; });
  EXPECT_TRUE(connection.Send(settings));
  EXPECT_EQ(closed_.Now(), 0);
}

TEST_F(HostileConnectionTest, DisconnectsClientThatSendsFramesWithoutContentAfterACall) {
  RawConnection connection(server_->port());
  connection.Begin();
  connection.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  opened_.WaitFor([](int opened) { return opened == 1; });
  std::string burst;
  for (int i = 0; i < 10000; ++i) burst += Http2Frame(kData, 0, 1, "");
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  bool open = true;
  while (open && absl::Now() < deadline) open = connection.Send(burst);
  EXPECT_FALSE(open);
  const auto disconnected =
      disconnected_.WaitFor([](const auto& disconnected) { return !disconnected.empty(); });
  EXPECT_EQ(disconnected[0].reason, "frames");
  ExpectServes();
}

TEST_F(HostileConnectionTest, KeepsClientThatSendsManyMessages) {
  const auto stub = v1::ParameterServer::NewStub(MakeChannel(
      {.address = absl::StrCat("127.0.0.1:", server_->port()), .kind = ChannelKind::kBulk}));
  v1::Frame small;
  small.mutable_header()->mutable_pull();
  v1::Frame large;
  large.mutable_header()->mutable_push()->add_blocks()->set_payload_bytes(1 << 20);
  large.set_payload(std::string(size_t{1} << 20, 'x'));
  grpc::ClientContext context;
  const auto stream = stub->Exchange(&context);
  constexpr int kLarge = 100;
  constexpr int kSmall = 100000;
  for (int i = 0; i < kLarge; ++i) ASSERT_TRUE(stream->Write(large)) << i;
  for (int i = 0; i < kSmall; ++i) ASSERT_TRUE(stream->Write(small)) << i;
  received_.WaitFor([](int received) { return received == kLarge + kSmall; });
  EXPECT_THAT(disconnected_.Now(), IsEmpty());
  context.TryCancel();
}

TEST_F(HostileConnectionTest, KeepsClientsThatSendLittle) {
  std::vector<RawConnection> quiet;
  for (int i = 0; i < 20; ++i) {
    quiet.emplace_back(server_->port());
    if (i % 2 == 0) quiet.back().Begin();
  }
  FloodWithoutACall();
  disconnected_.WaitFor([](const auto& disconnected) { return disconnected.size() == 1; });
  for (int i = 0; i < 20; ++i) {
    if (i % 2 != 0) quiet[i].Begin();
    quiet[i].Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  }
  opened_.WaitFor([](int opened) { return opened == 20; });
}

TEST_F(HostileConnectionTest, DelaysNewConnectionsFromAddressAndKeepsOpenOnes) {
  RawConnection open(server_->port());
  open.Begin();
  FloodWithoutACall();
  disconnected_.WaitFor([](const auto& disconnected) { return disconnected.size() == 1; });
  EXPECT_EQ(delayed_, 0);
  open.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  opened_.WaitFor([](int opened) { return opened == 1; });
  EXPECT_EQ(delayed_, 0);
  const absl::Time start = absl::Now();
  RawConnection later(server_->port());
  later.Begin();
  later.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  opened_.WaitFor([](int opened) { return opened == 2; });
  EXPECT_GE(absl::Now() - start, kFirstDelay);
  EXPECT_EQ(delayed_, 1);
}

TEST_F(HostileConnectionTest, DelaysAddressWhoseConnectionsKeepEndingWithoutACall) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (delayed_ == 0 && absl::Now() < deadline) {
    RawConnection connection(server_->port());
    connection.Send("GET / HTTP/1.1\r\n\r\n");
    connection.WaitForEnd(absl::Seconds(30));
  }
  EXPECT_GT(delayed_, 0);
  ExpectServes();
}

TEST_F(HostileConnectionTest, DisconnectsClientWithTooManyExhaustedStreams) {
  RawConnection connection(server_->port());
  connection.Begin();
  for (uint32_t stream = 0; stream < kEndsAtOnce + 2; ++stream) {
    connection.Send(Http2Frame(kHeaders, kEndHeaders, 2 * stream + 1, CallHeaders()));
  }
  opened_.WaitFor([](int opened) { return opened == kEndsAtOnce + 2; });
  for (StreamId stream = 1; stream <= kEndsAtOnce + 2; ++stream) {
    streams_.Close(stream, absl::ResourceExhaustedError("max_waiting_frames: too many"));
  }
  EXPECT_TRUE(connection.WaitForEnd(absl::Seconds(30)));
  const std::vector<Disconnection> disconnected =
      disconnected_.WaitFor([](const auto& disconnected) { return !disconnected.empty(); });
  EXPECT_EQ(disconnected.at(0).reason, "exhausted");
  ExpectServes();
}

// The workers of a job may all have the address of one machine.
TEST_F(HostileConnectionTest, DoesNotDelayManyPeersThatComeAndGoAtOnce) {
  for (int round = 1; round <= 3; ++round) {
    std::vector<RawConnection> peers;
    for (int i = 0; i < 200; ++i) peers.emplace_back(server_->port());
    for (RawConnection& peer : peers) {
      peer.Begin();
      peer.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
    }
    opened_.WaitFor([&](int opened) { return opened == 200 * round; });
  }
  closed_.WaitFor([](int closed) { return closed == 600; });
  ExpectServes();
  EXPECT_EQ(delayed_, 0);
  EXPECT_THAT(disconnected_.Now(), IsEmpty());
}

TEST_F(HostileConnectionTest, ClosesConnectionWithTooManyStreams) {
  RawConnection connection(server_->port());
  connection.Begin();
  std::string burst;
  for (uint32_t i = 0; i <= kMaxStreamsPerConnection; ++i) {
    absl::StrAppend(&burst, Http2Frame(kHeaders, kEndHeaders, 1 + 2 * i, CallHeaders()));
  }
  connection.Send(burst);
  EXPECT_TRUE(connection.WaitForEnd(absl::Seconds(30)));
  ExpectServes();
}

// Headers without an end: CVE-2024-27316 and its kind. gRPC 1.51 bounds the frames one by one, and
// all of them only by the server's buffers; a client without a call is disconnected before.
TEST_F(HostileConnectionTest, ServerBuffersBoundEndlessHeaders) {
  const size_t before = UsedMiB();
  for (const size_t fields : {1, 20, 500}) {
    RawConnection connection(server_->port());
    connection.Begin();
    connection.Send(Http2Frame(kHeaders, 0, 1, CallHeaders()));
    std::string block;
    for (size_t i = 0; i < fields; ++i) block += Field(absl::StrCat("x", i), std::string(16, 'y'));
    std::string burst;
    while (burst.size() < (size_t{1} << 20)) burst += Http2Frame(kContinuation, 0, 1, block);
    // Sends as much as the server accepts: where it counts the fields, it disconnects.
    for (int mebibyte = 0; mebibyte < 400 && connection.Send(burst); ++mebibyte) {
    }
    EXPECT_THAT(UsedMiB(), Le(before + 4 * (kBufferBytes >> 20))) << fields << " in a frame";
  }
  ExpectServes();
}

// gRPC parses all that it reads at once before anything can end the connection.
TEST_F(HostileConnectionTest, ReceiveBufferGrowsOnlyAfterACall) {
  RawConnection connection(server_->port());
  connection.Begin();
  const int locks = connection.ServersBufferLocks();
  if (locks < 0) GTEST_SKIP() << "this kernel has no SO_BUF_LOCK";
  EXPECT_EQ(locks, SOCK_RCVBUF_LOCK);
  connection.Send(Http2Frame(kHeaders, kEndHeaders, 1, CallHeaders()));
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (connection.ServersBufferLocks() != 0 && absl::Now() < deadline) {
    connection.WaitForEnd(absl::Milliseconds(10));
  }
  EXPECT_EQ(connection.ServersBufferLocks(), 0);
}

TEST_F(HostileConnectionTest, DisconnectsPeerThatPingsEndlessly) {
  RawConnection connection(server_->port());
  connection.Begin();
  std::string burst;
  for (int i = 0; i < 1000; ++i) burst += Http2Frame(kPing, 0, 0, std::string(8, 'p'));
  bool open = true;
  for (int i = 0; i < 1000 && open; ++i) open = connection.Send(burst);
  EXPECT_TRUE(!open || connection.WaitForEnd(absl::Seconds(30)));
  ExpectServes();
}

TEST_F(HostileConnectionTest, DisconnectsSilentPeerAndServesOthers) {
  std::vector<RawConnection> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(server_->port());
  RawConnection slow(server_->port());
  slow.Send("PRI * HT");
  ExpectServes();
  EXPECT_TRUE(silent.front().WaitForEnd(kHandshakeTimeout + absl::Seconds(30)));
  EXPECT_TRUE(silent.back().WaitForEnd(absl::Seconds(30)));
  EXPECT_TRUE(slow.WaitForEnd(absl::Seconds(30)));
}

// An unfinished message keeps the bytes that have arrived; the limit of streams bounds that for
// each connection.
TEST_F(HostileConnectionTest, BoundsUnfinishedMessagesOfConnection) {
  const size_t before = UsedMiB();
  RawConnection connection(server_->port());
  connection.Begin();
  // Opens as many streams as are allowed, each of which announces the largest frame and sends as
  // much of it as the server's first window allows.
  for (uint32_t i = 0; i < kMaxStreamsPerConnection; ++i) {
    const uint32_t stream = 1 + 2 * i;
    std::string burst = Http2Frame(kHeaders, kEndHeaders, stream, CallHeaders());
    absl::StrAppend(&burst, Http2Frame(kData, 0, stream,
                                       absl::StrCat(BigEndian(0, 1), BigEndian(2 << 20, 4),
                                                    std::string(1000, 'x'))));
    if (!connection.Send(burst)) break;
  }
  opened_.WaitFor([](int opened) { return opened == kMaxStreamsPerConnection; });
  EXPECT_THAT(UsedMiB(), Le(before + kMaxStreamsPerConnection * 2));
  ExpectServes();
}

TEST(GrpcPeerNameTest, MatchesNameInGrpc) {
  sockaddr_storage address = {};
  auto& four = reinterpret_cast<sockaddr_in&>(address);
  four.sin_family = AF_INET;
  four.sin_port = htons(80);
  inet_pton(AF_INET, "10.0.0.1", &four.sin_addr);
  EXPECT_EQ(GrpcPeerName(address), "ipv4:10.0.0.1:80");
  address = {};
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(80);
  inet_pton(AF_INET6, "::ffff:10.0.0.1", &six.sin6_addr);
  EXPECT_EQ(GrpcPeerName(address), "ipv4:10.0.0.1:80");
  inet_pton(AF_INET6, "fd00::1", &six.sin6_addr);
  EXPECT_EQ(GrpcPeerName(address), "ipv6:[fd00::1]:80");
  six.sin6_scope_id = 2;
  EXPECT_THAT(GrpcPeerName(address), IsEmpty());
}

TEST(ServerBufferTest, IsBoundedByMemoryOfProcess) {
  EXPECT_GE(MaxServerBufferBytes(), size_t{512} << 20);
  EXPECT_LE(MaxServerBufferBytes(), size_t{2} << 30);
}

}  // namespace
}  // namespace sluice

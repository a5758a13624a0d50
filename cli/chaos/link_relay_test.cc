#include "cli/chaos/link_relay.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/chaos/socket_owner.h"
#include "services/common/listener.h"
#include "services/common/mutex.h"

namespace sluice::chaos {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(20);

int PortOf(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(parts.at(1), &port));
  return port;
}

Fd Connect(int port) {
  Fd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// A file like the one to which a shard writes its port.
std::string PortFile(int port) {
  std::string file = ::testing::TempDir() + "link_relay_test.port";
  std::ofstream(file) << port << "\n";
  return file;
}

bool Readable(int fd, absl::Duration limit) {
  pollfd polled = {fd, POLLIN, 0};
  return poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) == 1;
}

void Send(int fd, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t put = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (put <= 0) return;
    sent += static_cast<size_t>(put);
  }
}

// Returns `count` bytes, or fewer if the peer closes.
std::string Receive(int fd, size_t count) {
  std::string bytes;
  while (bytes.size() < count && Readable(fd, kPatience)) {
    std::string part(count - bytes.size(), '\0');
    const ssize_t got = recv(fd, part.data(), part.size(), 0);
    if (got <= 0) break;
    bytes += part.substr(0, static_cast<size_t>(got));
  }
  return bytes;
}

// A process of its own group that returns every byte it receives, one connection at a time.
class EchoProcess {
 public:
  EchoProcess() {
    Fd listener = std::move(ListenOn("127.0.0.1:0")->front());
    port_ = LocalPort(listener.get());
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      Serve(listener.get());
    }
    setpgid(pid_, pid_);
  }
  ~EchoProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int port() const { return port_; }
  pid_t pid() const { return pid_; }

 private:
  [[noreturn]] static void Serve(int listener) {
    while (true) {
      pollfd polled = {listener, POLLIN, 0};
      poll(&polled, 1, -1);
      const int fd = accept(listener, nullptr, nullptr);
      if (fd < 0) continue;
      char buffer[4096];
      for (ssize_t got = 0; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
        for (ssize_t sent = 0; sent < got;) {
          const ssize_t put =
              send(fd, buffer + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
          if (put <= 0) break;
          sent += put;
        }
      }
      close(fd);
    }
  }

  int port_ = 0;
  pid_t pid_ = 0;
};

class LinkRelayTest : public ::testing::Test {
 protected:
  Fd ConnectToEcho() { return Connect(PortOf(*relay_->CoordinatorAddress(echo_.port()))); }

  EchoProcess echo_;
  const std::unique_ptr<LinkRelay> relay_ = *LinkRelay::Start();
};

TEST_F(LinkRelayTest, FindsTheProcessesAtBothEnds) {
  const Fd client = Connect(echo_.port());
  const int port = LocalPort(client.get());
  EXPECT_THAT(
      GroupsWith({{echo_.port()}, {1}, {port, echo_.port()}, {port, 1}, {port, echo_.port()}}),
      ElementsAre(echo_.pid(), 0, getpgid(0), 0, getpgid(0)));
}

// Finding the ends of a connection can take long.
TEST_F(LinkRelayTest, SearchForTheEndsOfNewConnectionsStopsNoOther) {
  Mutex mutex;
  CondVar changed;
  bool open = true;
  std::vector<size_t> batches;
  const std::unique_ptr<LinkRelay> relay =
      *LinkRelay::Start([&](const std::vector<TcpSocket>& sockets) {
        MutexLock lock(&mutex);
        batches.push_back(sockets.size());
        changed.SignalAll();
        while (!open) changed.Wait(&mutex);
        return GroupsWith(sockets);
      });
  const int port = PortOf(*relay->CoordinatorAddress(echo_.port()));
  EchoProcess other;
  const Fd client = Connect(PortOf(*relay->ShardAddress(0, PortFile(other.port()))));
  Send(client.get(), "one");
  EXPECT_EQ(Receive(client.get(), 3), "one");

  // The search for the first of these does not end. The others are more than one turn accepts.
  {
    MutexLock lock(&mutex);
    open = false;
  }
  std::vector<Fd> late;
  for (int i = 0; i < 40; ++i) {
    late.push_back(Connect(port));
    Send(late.back().get(), "x");
    if (i > 0) continue;
    MutexLock lock(&mutex);
    while (batches.size() < 2) changed.Wait(&mutex);
  }
  Send(client.get(), "two");
  EXPECT_EQ(Receive(client.get(), 3), "two");
  EXPECT_FALSE(Readable(late.front().get(), absl::ZeroDuration()));

  {
    MutexLock lock(&mutex);
    open = true;
    changed.SignalAll();
  }
  for (Fd& fd : late) {
    EXPECT_EQ(Receive(fd.get(), 1), "x");
    fd = Fd();
  }
  MutexLock lock(&mutex);
  EXPECT_LT(batches.size(), 40u) << "connections that wait are searched for together";
}

// A server that is frozen closes nothing, and its clients connect again and again.
TEST_F(LinkRelayTest, ConnectionWhoseClientHasGoneEndsAlthoughItsServerIsFrozen) {
  const Fd listener = std::move(ListenOn("127.0.0.1:0")->front());
  Fd client = Connect(PortOf(*relay_->CoordinatorAddress(LocalPort(listener.get()))));
  Send(client.get(), "hello");
  ASSERT_TRUE(Readable(listener.get(), kPatience));
  const Fd server(accept(listener.get(), nullptr, nullptr));
  EXPECT_EQ(Receive(server.get(), 5), "hello");
  client = Fd();
  EXPECT_EQ(Receive(server.get(), 1), "") << "the end";
  // What the server sends now meets a closed socket.
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline && send(server.get(), "x", 1, MSG_NOSIGNAL) == 1) {
  }
  EXPECT_EQ(send(server.get(), "x", 1, MSG_NOSIGNAL), -1);
}

TEST_F(LinkRelayTest, ForwardsBytesAndTheirEnd) {
  const Fd client = ConnectToEcho();
  std::string bytes(300000, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  Send(client.get(), bytes);
  EXPECT_TRUE(Receive(client.get(), bytes.size()) == bytes);
  shutdown(client.get(), SHUT_WR);
  ASSERT_TRUE(Readable(client.get(), kPatience));
  EXPECT_EQ(Receive(client.get(), 1), "");
}

TEST_F(LinkRelayTest, NoByteAndNoEndPassesACutLink) {
  const Fd client = ConnectToEcho();
  Send(client.get(), "before");
  EXPECT_EQ(Receive(client.get(), 6), "before");
  for (const pid_t group : {echo_.pid(), getpgid(0)}) {
    relay_->Disturb(group, {.cut = true});
    Send(client.get(), "during");
    EXPECT_FALSE(Readable(client.get(), absl::Milliseconds(300)));
    relay_->Restore(group);
    EXPECT_EQ(Receive(client.get(), 6), "during") << "TCP sends again what was lost";
  }

  relay_->Disturb(echo_.pid(), {.cut = true});
  kill(echo_.pid(), SIGKILL);
  EXPECT_FALSE(Readable(client.get(), absl::Milliseconds(300)));
  relay_->Restore(echo_.pid());
  ASSERT_TRUE(Readable(client.get(), kPatience));
  EXPECT_EQ(Receive(client.get(), 1), "");
}

TEST_F(LinkRelayTest, ConnectionThatBeginsWhileItsProcessIsCutWaits) {
  relay_->Disturb(echo_.pid(), {.cut = true});
  const Fd client = ConnectToEcho();
  Send(client.get(), "hello");
  EXPECT_FALSE(Readable(client.get(), absl::Milliseconds(300)));
  relay_->Restore(echo_.pid());
  EXPECT_EQ(Receive(client.get(), 5), "hello");
}

TEST_F(LinkRelayTest, OtherProcessesAreNotCut) {
  EchoProcess other;
  const Fd client = ConnectToEcho();
  relay_->Disturb(other.pid(), {.cut = true});
  Send(client.get(), "hello");
  EXPECT_EQ(Receive(client.get(), 5), "hello");
}

TEST_F(LinkRelayTest, SlowLinkDelaysAndLimits) {
  const Fd client = ConnectToEcho();
  relay_->Disturb(echo_.pid(), {.delay = absl::Milliseconds(100)});
  absl::Time begin = absl::Now();
  Send(client.get(), "ping");
  EXPECT_EQ(Receive(client.get(), 4), "ping");
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(200)) << "in each direction";

  relay_->Disturb(echo_.pid(), {.bytes_per_second = 1e6});
  begin = absl::Now();
  const std::string bytes(200000, 'y');
  Send(client.get(), bytes);
  EXPECT_TRUE(Receive(client.get(), bytes.size()) == bytes);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(200));
  relay_->Restore(echo_.pid());
  Send(client.get(), "ping");
  EXPECT_EQ(Receive(client.get(), 4), "ping");
}

TEST_F(LinkRelayTest, ShardIsReachedAtThePortInItsFile) {
  const std::string file = PortFile(0);
  unlink(file.c_str());
  const int port = PortOf(*relay_->ShardAddress(0, file));
  const Fd early = Connect(port);
  ASSERT_TRUE(Readable(early.get(), kPatience));
  EXPECT_EQ(Receive(early.get(), 1), "") << "the shard does not listen yet";
  std::ofstream(file) << echo_.port() << "\n";
  const Fd client = Connect(port);
  Send(client.get(), "hello");
  EXPECT_EQ(Receive(client.get(), 5), "hello");
}

}  // namespace
}  // namespace sluice::chaos

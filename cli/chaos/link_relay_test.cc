#include "cli/chaos/link_relay.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/chaos/socket_owner.h"
#include "services/common/io/listener.h"
#include "services/common/threads/notification.h"

namespace sluice::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(20);

int PortOf(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(parts.at(1), &port));
  return port;
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Fd Connect(int port) {
  Fd fd(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
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

// A process that holds connections with itself, or as many as the system permits.
class IdleConnections {
 public:
  explicit IdleConnections(int count) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      Hold(count);
      (void)!write(ready[1], "x", 1);
      while (true) pause();
    }
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~IdleConnections() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  static void Hold(int count) {
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0) return;
    listen(listener, 16);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0) return;
      if (accept(listener, nullptr, nullptr) < 0) return;
    }
  }

  pid_t pid_ = 0;
};

std::string FileWith(int port) {
  std::string file = absl::StrCat(::testing::TempDir(), "/port-", port);
  std::ofstream(file) << port << "\n";
  return file;
}

size_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// Whether a file of /proc, in which the relay looks processes up, has a number below this.
bool ReadsProcessesBelow(int end) {
  for (int number = 0; number < end; ++number) {
    char target[64] = {};
    const std::string link = absl::StrCat("/proc/self/fd/", number);
    if (readlink(link.c_str(), target, sizeof(target) - 1) < 0) continue;
    if (absl::StartsWith(target, "/proc/")) return true;
  }
  return false;
}

class LinkRelayTest : public ::testing::Test {
 protected:
  Fd ConnectToEcho() { return Connect(PortOf(*relay_->CoordinatorAddress(echo_.port()))); }

  EchoProcess echo_;
  const std::unique_ptr<LinkRelay> relay_ = *LinkRelay::Start();
};

TEST_F(LinkRelayTest, FindsTheProcessesAtBothEnds) {
  const EchoProcess other;
  const Fd client = Connect(echo_.port());
  const int port = LocalPort(client.get());
  EXPECT_THAT(GroupsThatHave({{echo_.port(), 0},
                              {1, 0},
                              {port, echo_.port()},
                              {port, 1},
                              {other.port(), 0},
                              {echo_.port(), 0}}),
              ElementsAre(echo_.pid(), 0, getpgid(0), 0, other.pid(), echo_.pid()));
  EXPECT_THAT(GroupsThatHave({}), IsEmpty());
}

// Regression: each accepted connection was looked up by the thread that serves all of them, in all
// sockets of the machine. On one with thousands, no heartbeat passed while connections were opened,
// so processes were expelled and opened more.
TEST(LinkRelayLookupTest, ServesOtherConnectionsWhileProcessesAreLookedUp) {
  const EchoProcess echo;
  const EchoProcess other;
  Notification looks;
  Notification release;
  std::atomic<int> lookups = 0;
  std::atomic<size_t> sockets = 0;
  const auto relay = *LinkRelay::Start([&](const std::vector<SocketPorts>& wanted) {
    if (++lookups == 2) {
      looks.Notify();
      release.Wait();
    }
    sockets += wanted.size();
    return GroupsThatHave(wanted);
  });
  const int port = PortOf(*relay->CoordinatorAddress(echo.port()));
  const Fd early = Connect(port);
  Send(early.get(), "early");
  EXPECT_EQ(Receive(early.get(), 5), "early");

  const int other_port = PortOf(*relay->ShardAddress(0, FileWith(other.port())));
  std::vector<Fd> late;
  late.push_back(Connect(other_port));
  looks.Wait();
  for (int i = 1; i < 100; ++i) late.push_back(Connect(other_port));
  Send(late[0].get(), "late");
  for (int i = 0; i < 1000; ++i) {
    Send(early.get(), "early");
    ASSERT_EQ(Receive(early.get(), 5), "early");
  }
  EXPECT_FALSE(Readable(late[0].get(), absl::ZeroDuration())) << "its processes are not known yet";

  release.Notify();
  for (Fd& client : late) {  // the process serves one after the other
    Send(client.get(), "late");
    EXPECT_EQ(Receive(client.get(), 4), "late");
    client = Fd();
  }
  EXPECT_EQ(sockets, 2u * 101);
  EXPECT_LE(lookups, 2 + 3) << "many connections are looked up at once";
}

TEST(LinkRelayLookupTest, ServesManyConnectionsOnMachineWithThousandsOfSockets) {
  const IdleConnections idle(3000);
  const EchoProcess echo;
  std::atomic<int> lookups = 0;
  const auto relay = *LinkRelay::Start([&](const std::vector<SocketPorts>& wanted) {
    ++lookups;
    return GroupsThatHave(wanted);
  });
  const int port = PortOf(*relay->CoordinatorAddress(echo.port()));
  std::vector<Fd> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(Connect(port));
  relay->Disturb(echo.pid(), {.cut = true});
  Send(clients[0].get(), "hello");
  EXPECT_FALSE(Readable(clients[0].get(), absl::Milliseconds(300)));
  relay->Restore(echo.pid());
  for (Fd& client : clients) {
    if (client.get() != clients[0].get()) Send(client.get(), "hello");
    EXPECT_EQ(Receive(client.get(), 5), "hello");
    client = Fd();
  }
  EXPECT_LE(lookups, 50);
}

TEST_F(LinkRelayTest, ClosesBothEndsOfConnectionWhoseClientHasGone) {
  const Fd listener = std::move(ListenOn("127.0.0.1:0")->front());
  const int port = PortOf(*relay_->CoordinatorAddress(LocalPort(listener.get())));
  const size_t before = OpenFiles();
  {
    const Fd client = Connect(port);
    Send(client.get(), "bye");
  }
  ASSERT_TRUE(Readable(listener.get(), kPatience));
  const Fd server(accept(listener.get(), nullptr, nullptr));
  EXPECT_EQ(Receive(server.get(), 4), "bye");  // and the end
  // The server, which may be frozen, closes nothing.
  const absl::Time deadline = absl::Now() + kPatience;
  while (OpenFiles() > before + 1 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(OpenFiles(), before + 1) << "its own end";
}

TEST_F(LinkRelayTest, WaitsForRoomWithoutSpinning) {
  const int port = PortOf(*relay_->CoordinatorAddress(echo_.port()));
  Fd client(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(files.rlim_cur, files.rlim_max);
  const int first_free = dup(0);
  close(first_free);
  const rlimit none = {static_cast<rlim_t>(first_free), files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  // Descriptors below the limit that the relay's other thread closes are free again.
  const absl::Time deadline = absl::Now() + kPatience;
  while (ReadsProcessesBelow(first_free) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::vector<Fd> taken;
  for (int room = dup(0); room >= 0; room = dup(0)) taken.emplace_back(room);
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  Send(client.get(), "hello");

  const std::clock_t begin = std::clock();  // of all threads, while they compute
  EXPECT_FALSE(Readable(client.get(), absl::Milliseconds(500)));
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 4);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(Receive(client.get(), 5), "hello");
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
  const std::string file = ::testing::TempDir() + "link_relay_test.port";
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

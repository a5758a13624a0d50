#include "services/transport/connection_guard.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "services/transport/security/gated_credentials.h"

namespace sluice {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);
// Until the second look at a connection that sent too much.
constexpr absl::Duration kConfirmation = absl::Milliseconds(20);
// However many sockets there are, the thread rests so many times as long as a sweep takes; less
// while there is a flood.
constexpr int kLeastPause = 20;
constexpr int kLeastPauseInFlood = 10;
// A service that has not seen an admitted call after so many sweeps will not see it: the client has
// reset it, or no service has the method.
constexpr int kMaxSweepsWithoutPeer = 20;

std::vector<int> OpenFiles() {
  std::vector<int> files;
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return files;
  while (const dirent* entry = readdir(directory)) {
    int fd = 0;
    if (absl::SimpleAtoi(entry->d_name, &fd)) files.push_back(fd);
  }
  closedir(directory);
  return files;
}

int PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

// Empty: the file is no connection that the server on this port accepted.
std::string PeerOfServersConnection(int fd, int port) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      PortOf(address) != port) {
    return "";
  }
  size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return GrpcPeerName(address);
}

// What this process has taken of what the connection received.
uint64_t ReadBytes(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  int unread = 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      ioctl(fd, SIOCINQ, &unread) != 0) {
    return 0;
  }
  return info.tcpi_bytes_received - std::min<uint64_t>(info.tcpi_bytes_received, unread);
}

// Ends the connection, and drops what it received and nothing has read: a flood of some MiB may
// wait there. False: the file is no longer this peer's connection.
bool Abort(int fd, int port, const std::string& peer) {
  // gRPC may close the file at any time, and another one get its number; not that of a duplicate.
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return false;
  const auto close_own = absl::MakeCleanup([own] { close(own); });
  if (PeerOfServersConnection(own, port) != peer) return false;
  sockaddr none = {};
  none.sa_family = AF_UNSPEC;
  if (connect(own, &none, sizeof(none)) != 0) shutdown(own, SHUT_RDWR);
  return true;
}

}  // namespace

std::string GrpcPeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const int port = PortOf(address);
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    inet_ntop(AF_INET, &six.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  if (six.sin6_scope_id != 0) return "";
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:[", text, "]:", port);
}

ConnectionGuard::ConnectionGuard(std::function<void(const Disconnection&)> on_disconnected)
    : on_disconnected_(std::move(on_disconnected)) {}

ConnectionGuard::~ConnectionGuard() { Stop(); }

void ConnectionGuard::Start(int port) {
  port_ = port;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "connections");
    Loop();
  });
}

void ConnectionGuard::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ConnectionGuard::OnAdmitted(uint64_t connection) {
  MutexLock lock(&mutex_);
  connections_.emplace(connection, Connection());
}

void ConnectionGuard::OnFlood(uint64_t connection) {
  MutexLock lock(&mutex_);
  // Without an admitted call it is ended by its bytes.
  const auto found = connections_.find(connection);
  if (found == connections_.end() || found->second.flooding) return;
  found->second.flooding = true;
  if (found->second.peer.empty()) return;
  flood_found_ = true;
  wake_.SignalAll();
}

void ConnectionGuard::OnCall(const grpc::ServerContextBase& context) {
  const uint64_t number = security::ConnectionOf(*context.auth_context());
  if (number == 0) return;
  {
    MutexLock lock(&mutex_);
    if (!connections_[number].peer.empty()) return;
  }
  std::string peer = absl::StrReplaceAll(context.peer(), {{"%5B", "["}, {"%5D", "]"}});
  MutexLock lock(&mutex_);
  Connection& connection = connections_[number];
  connection.peer = std::move(peer);
  if (!connection.flooding) return;
  flood_found_ = true;
  wake_.SignalAll();
}

void ConnectionGuard::Loop() {
  absl::Duration took;
  while (WaitForSweep(kLeastPauseInFlood * took,
                      suspects_.empty() ? std::max(kInterval, kLeastPause * took)
                                        : std::max(kConfirmation, kLeastPauseInFlood * took))) {
    const absl::Time start = absl::Now();
    Sweep();
    took = absl::Now() - start;
  }
}

bool ConnectionGuard::WaitForSweep(absl::Duration least, absl::Duration most) {
  const absl::Time now = absl::Now();
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (wake_.WaitWithDeadline(&mutex_, now + (flood_found_ ? least : most))) break;
    if (flood_found_ && absl::Now() >= now + least) break;
  }
  flood_found_ = false;
  return !stopping_;
}

ConnectionGuard::Known ConnectionGuard::Look() {
  Known known;
  MutexLock lock(&mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = it->second;
    if (!connection.peer.empty()) {
      known.flooding[connection.peer] |= connection.flooding;
    } else if (++connection.sweeps > kMaxSweepsWithoutPeer) {
      it = connections_.erase(it);
      continue;
    } else if (!connection.flooding) {
      known.complete = false;
    }
    ++it;
  }
  return known;
}

void ConnectionGuard::Sweep() {
  const Known known = Look();
  const absl::Time now = absl::Now();
  std::map<std::string, bool> open;  // by peer: of those known, whether one is there
  std::map<std::string, Suspect> suspects;
  for (const int fd : OpenFiles()) {
    const std::string peer = PeerOfServersConnection(fd, port_);
    if (peer.empty()) continue;
    const auto flooding = known.flooding.find(peer);
    if (flooding != known.flooding.end()) {
      open[peer] = true;
      if (flooding->second) {
        Disconnect(fd, peer, "refused_calls",
                   "made more calls that were refused than a connection may");
      }
      continue;
    }
    const uint64_t bytes = ReadBytes(fd);
    if (bytes <= kMaxBytesBeforeCall) continue;
    // gRPC reads again when it has worked off what it read before. So a second look that finds more
    // is sure that no admitted call was among the first bytes.
    const auto before = suspects_.find(peer);
    const bool again = before != suspects_.end();
    if (!again || bytes <= before->second.read_bytes || !known.complete ||
        now - before->second.seen < kConfirmation / 2) {
      suspects.emplace(peer, again ? before->second : Suspect{bytes, now});
      continue;
    }
    Disconnect(fd, peer, "no_call",
               absl::StrCat("sent ", bytes, " bytes without an admitted call"));
  }
  suspects_ = std::move(suspects);
  MutexLock lock(&mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    const std::string& peer = it->second.peer;
    // One that has begun since the look is kept.
    const bool gone = known.flooding.count(peer) > 0 && open.count(peer) == 0;
    it = gone ? connections_.erase(it) : std::next(it);
  }
}

void ConnectionGuard::Disconnect(int fd, const std::string& peer, absl::string_view reason,
                                 absl::string_view why) {
  if (!Abort(fd, port_, peer) || !on_disconnected_) return;
  Disconnection disconnection;
  disconnection.reason = reason;
  disconnection.text = absl::StrCat("the connection from ", peer, " ", why);
  disconnection.to_log = log_.Count(absl::Now());
  on_disconnected_(disconnection);
}

}  // namespace sluice

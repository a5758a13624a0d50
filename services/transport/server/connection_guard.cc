#include "services/transport/server/connection_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/socket.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "services/common/status_macros.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/gated_credentials.h"

namespace sluice {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(50);
// The time until the second check of a connection that sent too much, and between checks while an
// address has a delay.
constexpr absl::Duration kConfirmation = absl::Milliseconds(20);
// However many sockets there are, the thread pauses for this many times the processor time of a
// sweep; less during a flood. (The time of day would include the thread's waits for the lock of a
// socket that gRPC is reading, which are long during a flood.)
constexpr int kLeastPause = 20;
constexpr int kLeastPauseInFlood = 10;
// A service that has not seen an admitted call after this many sweeps will not see it: the client
// has reset it, or no service has the method.
constexpr int kMaxSweepsWithoutPeer = 20;
// When the process has no file descriptors left, connections wait this long to be accepted.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// The connection to a peer that acknowledges nothing for this long is lost. gRPC's own listeners
// derive this from the keepalive timeout (grpc_settings.cc).
constexpr int kMostUnacknowledgedMs = 10000;
// Threads that hand connections to gRPC. gRPC begins to read within that call, and does not return
// as long as there is something to read: a flood occupies the thread until it is disconnected.
constexpr int kHandOverThreads = 4;
// Connections accepted in one round, so that open connections get their turn.
constexpr int kAcceptsInRound = 64;

int PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

// Empty: the file is not a connection that the server on this port accepted.
std::string PeerOfServersConnection(int fd, int port) {
  if (LocalPort(fd) != port) return "";
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return GrpcPeerName(address);
}

// The address in a peer's name, which ends with its port.
std::string AddressOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

struct Bytes {
  uint64_t read = 0;   // what this process has taken of what the connection received
  uint64_t acked = 0;  // what the peer has received of what this process sent
};

Bytes BytesOf(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  int unread = 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      ioctl(fd, SIOCINQ, &unread) != 0) {
    return {};
  }

  return {info.tcpi_bytes_received - std::min<uint64_t>(info.tcpi_bytes_received, unread),
          info.tcpi_bytes_acked};
}

// The processor time that the calling thread has used.
absl::Duration ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Whether the kernel may give the connection a larger receive buffer than that of a new connection.
// Kernels before 5.14 always may.
void LetReceiveBufferGrow(int fd, bool may) {
  const int locks = may ? 0 : SOCK_RCVBUF_LOCK;
  (void)setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof(locks));
}

// Ends the connection, and drops what it received but was not read: a flood of some MiB may wait
// there. False: the file is no longer this peer's connection.
bool Abort(int fd, int port, const std::string& peer) {
  // gRPC may close the file at any time, and its number may be reused; a duplicate's number may
  // not.
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

ConnectionGuard::ConnectionGuard(Options options) : options_(std::move(options)) {}

ConnectionGuard::~ConnectionGuard() { Stop(); }

absl::StatusOr<int> ConnectionGuard::Listen(const std::string& address) {
  ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenOn(address));
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_.get() < 0) return absl::ErrnoToStatus(errno, "eventfd");
  listeners_ = std::move(listeners);
  port_ = LocalPort(listeners_[0].get());
  return port_;
}

void ConnectionGuard::Start(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server) {
  server_ = std::move(server);
  for (int i = 0; i < kHandOverThreads; ++i) {
    givers_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "new-connections");
      HandOverQueued();
    });
  }

  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "connections");
    Loop();
  });
}

void ConnectionGuard::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_giving_ = true;
    to_give_.clear();
    given_.SignalAll();
  }
  // The other thread disconnects what may hold them.
  for (std::thread& giver : givers_) giver.join();
  givers_.clear();
  server_ = nullptr;  // its credentials own this guard, their observer
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }

  Wake();
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
  delayed_.clear();
}

void ConnectionGuard::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void ConnectionGuard::OnAdmitted(uint64_t connection) {
  MutexLock lock(&mutex_);
  connections_.emplace(connection, Connection());
}

void ConnectionGuard::OnFlood(uint64_t connection) {
  MutexLock lock(&mutex_);
  // A connection without an admitted call is ended by the rule about its bytes.
  const auto found = connections_.find(connection);
  if (found == connections_.end() || found->second.flooding) return;

  found->second.flooding = true;
  if (found->second.peer.empty()) return;
  flood_found_ = true;
  Wake();
}

std::shared_ptr<ConnectionGuard::Account> ConnectionGuard::OnCall(
    const grpc::ServerContextBase& context) {
  const uint64_t number = security::ConnectionOf(*context.auth_context());
  if (number == 0) return std::make_shared<Account>();

  {
    MutexLock lock(&mutex_);
    const Connection& connection = connections_[number];
    if (!connection.peer.empty()) return connection.account;
  }

  std::string peer = absl::StrReplaceAll(context.peer(), {{"%5B", "["}, {"%5D", "]"}});
  MutexLock lock(&mutex_);
  Connection& connection = connections_[number];
  connection.peer = std::move(peer);

  if (connection.flooding) {
    flood_found_ = true;
    Wake();
  }
  return connection.account;
}

void ConnectionGuard::Loop() {
  while (Wait()) {
    GiveDelayed(absl::Now());
    Accept();
    if (absl::Now() < sweep_at_) continue;

    const absl::Duration before = ThreadTime();
    Sweep();
    const absl::Duration cost = ThreadTime() - before;
    const absl::Time end = absl::Now();
    flood_sweep_at_ = end + kLeastPauseInFlood * cost;

    if (suspects_.empty()) {
      const absl::Duration interval = delays_.Any(end) ? kConfirmation : kInterval;
      sweep_at_ = end + std::max(interval, kLeastPause * cost);
    } else {
      sweep_at_ = std::max(end + kConfirmation, flood_sweep_at_);
    }
  }
}

bool ConnectionGuard::Wait() {
  absl::Time until = sweep_at_;
  for (const Delayed& delayed : delayed_) until = std::min(until, delayed.until);
  std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};

  if (absl::Now() >= accept_at_) {
    for (const Fd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
  } else {
    until = std::min(until, accept_at_);
  }

  const absl::Duration left = std::max(until - absl::Now(), absl::ZeroDuration());
  poll(waits.data(), waits.size(),
       static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));

  uint64_t woken = 0;
  (void)!read(wake_.get(), &woken, sizeof(woken));

  MutexLock lock(&mutex_);
  if (std::exchange(flood_found_, false)) sweep_at_ = std::min(sweep_at_, flood_sweep_at_);
  return !stopping_;
}

void ConnectionGuard::Accept() {
  for (const Fd& listener : listeners_) {
    for (int i = 0; i < kAcceptsInRound; ++i) {
      sockaddr_storage address = {};
      socklen_t size = sizeof(address);
      Fd socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &size,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        const bool none = errno == EAGAIN || errno == EWOULDBLOCK;
        if (!none) accept_at_ = absl::Now() + kAcceptPause;
        break;
      }

      const std::string peer = GrpcPeerName(address);
      const absl::Time now = absl::Now();
      const absl::Duration delay = delays_.DelayOf(AddressOf(peer), now);
      if (delay == absl::ZeroDuration()) {
        HandOver(std::move(socket), peer);
      } else if (delayed_.size() < kMaxDelayedConnections) {
        delayed_.push_back({std::move(socket), peer, now + delay});
        if (options_.on_delayed) options_.on_delayed();
      }
    }
  }
}

void ConnectionGuard::GiveDelayed(absl::Time now) {
  for (auto it = delayed_.begin(); it != delayed_.end();) {
    if (now < it->until) {
      ++it;
      continue;
    }
    HandOver(std::move(it->socket), it->peer);
    it = delayed_.erase(it);
  }
}

void ConnectionGuard::HandOver(Fd socket, const std::string& peer) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kMostUnacknowledgedMs,
             sizeof(kMostUnacknowledgedMs));

  if (const auto closed = sockets_.find(socket.get()); closed != sockets_.end()) {
    replaced_.push_back(std::move(closed->second.peer));
    sockets_.erase(closed);
  }

  if (!peer.empty()) {
    LetReceiveBufferGrow(socket.get(), false);
    sockets_.emplace(socket.get(), Socket{peer});
  }

  MutexLock lock(&mutex_);
  if (stopping_giving_) return;
  to_give_.push_back(std::move(socket));
  given_.Signal();
}

void ConnectionGuard::HandOverQueued() {
  while (true) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    {
      MutexLock lock(&mutex_);
      while (to_give_.empty() && !stopping_giving_) given_.Wait(&mutex_);
      if (stopping_giving_) return;
      connection.fd = to_give_.front().Release();
      to_give_.pop_front();
    }
    server_->HandleNewConnection(&connection);
  }
}

ConnectionGuard::Known ConnectionGuard::ReadKnown() {
  Known known;
  MutexLock lock(&mutex_);

  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = it->second;
    if (!connection.peer.empty()) {
      Admitted& admitted = known.admitted[connection.peer];
      admitted.flooding |= connection.flooding;
      admitted.explained += connection.account->explained_.load(std::memory_order_relaxed);
      admitted.exhausted += connection.account->exhausted_.exchange(0, std::memory_order_relaxed);
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
  const Known known = ReadKnown();
  const absl::Time now = absl::Now();
  std::map<std::string, bool> open;  // known peers with an open connection
  std::map<std::string, Suspect> suspects;
  std::vector<std::string> ended = std::exchange(replaced_, {});

  for (auto it = sockets_.begin(); it != sockets_.end();) {
    const int fd = it->first;
    Socket& socket = it->second;
    const std::string& peer = socket.peer;
    if (PeerOfServersConnection(fd, port_) != peer) {
      ended.push_back(std::move(socket.peer));
      it = sockets_.erase(it);
      continue;
    }
    ++it;

    const auto admitted = known.admitted.find(peer);
    if (admitted != known.admitted.end()) {
      open[peer] = true;
      if (!std::exchange(socket.admitted, true)) LetReceiveBufferGrow(fd, true);
      if (admitted->second.flooding) {
        Disconnect(fd, peer, "refused_calls",
                   "made more calls that were refused than a connection may");
      } else if (Exhausts(peer, admitted->second.exhausted, now)) {
        Disconnect(fd, peer, "exhausted", "had more streams refused than its address may");
      } else if (SentTooMuch(fd, admitted->second.explained, now, &traffic_[peer])) {
        Disconnect(fd, peer, "frames", "sent more frames without content than a connection may");
      }
      continue;
    }

    const uint64_t bytes = BytesOf(fd).read;
    if (bytes <= kMaxBytesBeforeCall) continue;
    // gRPC reads again only when it has processed what it read before. So when a second check finds
    // more bytes, no admitted call was among the first ones.
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
  for (auto it = traffic_.begin(); it != traffic_.end();) {
    it = open.count(it->first) == 0 ? traffic_.erase(it) : std::next(it);
  }

  for (const std::string& peer : ended) {
    if (known.admitted.count(peer) == 0) delays_.OnSuspectEnd(AddressOf(peer), now);
  }

  MutexLock lock(&mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    const std::string& peer = it->second.peer;
    // A connection that began after ReadKnown is kept.
    const bool gone = known.admitted.count(peer) > 0 && open.count(peer) == 0;
    it = gone ? connections_.erase(it) : std::next(it);
  }
}

bool ConnectionGuard::Exhausts(const std::string& peer, int streams, absl::Time now) {
  bool too_many = false;
  for (; streams > 0; --streams) too_many |= delays_.OnSuspectEnd(AddressOf(peer), now);
  return too_many;
}

bool ConnectionGuard::SentTooMuch(int fd, uint64_t explained, absl::Time now,
                                  Traffic* traffic) const {
  const Bytes bytes = BytesOf(fd);
  // A peer answers what it receives: WINDOW_UPDATE, pings, settings.
  explained += bytes.acked / 8;
  const uint64_t unexplained = bytes.read - std::min(bytes.read, explained);
  const double more = static_cast<double>(unexplained) - static_cast<double>(traffic->unexplained);

  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - traffic->seen));
  traffic->level = std::max(0.0, traffic->level + more - seconds * kUnexplainedRate.per_second);
  traffic->unexplained = unexplained;
  traffic->seen = now;

  const uint64_t window = std::min<uint64_t>(explained, kMaxBulkWindowBytes);
  return traffic->level >
         kUnexplainedRate.at_once + static_cast<double>(window + options_.max_message_bytes);
}

void ConnectionGuard::Disconnect(int fd, const std::string& peer, absl::string_view reason,
                                 absl::string_view why) {
  if (!Abort(fd, port_, peer)) return;
  delays_.OnFlood(AddressOf(peer), absl::Now());

  if (!options_.on_disconnected) return;
  Disconnection disconnection;
  disconnection.reason = reason;
  disconnection.text = absl::StrCat("the connection from ", peer, " ", why);
  disconnection.to_log = log_.Count(absl::Now());
  options_.on_disconnected(disconnection);
}

}  // namespace sluice

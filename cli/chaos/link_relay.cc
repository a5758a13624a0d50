#include "cli/chaos/link_relay.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice::chaos {
namespace {

// Of one direction of a connection; the sender waits when it is full.
constexpr size_t kMaxWaiting = size_t{1} << 20;
constexpr size_t kReadBytes = size_t{256} << 10;

// Of one door, in one turn of the relay's thread.
constexpr int kMaxAccepted = 16;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int PeerPort(int fd) {
  sockaddr_in peer = {};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return 0;
  return ntohs(peer.sin_port);
}

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int PortIn(const std::string& file) {
  int port = 0;
  std::ifstream(file) >> port;
  return port;
}

// Bytes on their way from one socket to the other.
class Direction {
 public:
  Direction(int from, int to) : from_(from), to_(to) {}

  bool Reads() const { return !ended_ && waiting_ < kMaxWaiting; }
  bool Writes(absl::Time now) const { return !chunks_.empty() && chunks_.front().due <= now; }
  absl::Time NextDue() const {
    return chunks_.empty() ? absl::InfiniteFuture() : chunks_.front().due;
  }
  bool finished() const { return shut_; }
  bool empty() const { return chunks_.empty(); }

  // Both return false if the connection is broken.
  bool Read(const LinkFault& fault, std::string* buffer, absl::Time now) {
    const ssize_t got = recv(from_, buffer->data(), buffer->size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) {
      ended_ = true;
      return true;
    }
    const auto bytes = static_cast<size_t>(got);
    absl::Time sent = now;
    if (fault.bytes_per_second > 0) {
      sent = std::max(sent, free_at_) +
             absl::Seconds(static_cast<double>(bytes) / fault.bytes_per_second);
      free_at_ = sent;
    }
    newest_due_ = std::max(newest_due_, sent + fault.delay);  // bytes stay in order
    chunks_.push_back({newest_due_, buffer->substr(0, bytes), 0});
    waiting_ += bytes;
    return true;
  }

  bool Write(absl::Time now) {
    while (Writes(now)) {
      Chunk& chunk = chunks_.front();
      const ssize_t put =
          send(to_, chunk.bytes.data() + chunk.sent, chunk.bytes.size() - chunk.sent, MSG_NOSIGNAL);
      if (put < 0) return errno == EAGAIN || errno == EINTR;
      chunk.sent += static_cast<size_t>(put);
      waiting_ -= static_cast<size_t>(put);
      if (chunk.sent == chunk.bytes.size()) chunks_.pop_front();
    }
    if (ended_ && chunks_.empty() && !shut_) {
      shutdown(to_, SHUT_WR);
      shut_ = true;
    }
    return true;
  }

 private:
  struct Chunk {
    absl::Time due;
    std::string bytes;
    size_t sent = 0;
  };

  const int from_;
  const int to_;
  std::deque<Chunk> chunks_;
  size_t waiting_ = 0;  // bytes of the chunks
  absl::Time newest_due_ = absl::InfinitePast();
  absl::Time free_at_ = absl::InfinitePast();  // when the slow link has sent all that it was given
  bool ended_ = false;                         // the sender has closed
  bool shut_ = false;                          // and the relay has closed that side
};

}  // namespace

class LinkRelay::Connection {
 public:
  Connection(Fd client, Fd server, std::shared_ptr<const Ends> both)
      : ends(std::move(both)),
        client_(std::move(client)),
        server_(std::move(server)),
        up_(client_.get(), server_.get()),
        down_(server_.get(), client_.get()) {}

  const std::shared_ptr<const Ends> ends;  // guarded by the relay's mutex

  // What to wait for. A socket from which nothing is wanted is left out: poll would return at once
  // for one whose peer has closed.
  void AddTo(std::vector<pollfd>* polled, absl::Time now) const {
    const auto add = [&](int fd, bool reads, bool writes) {
      const auto events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
      polled->push_back({events == 0 ? -1 : fd, events, 0});
    };
    add(client_.get(), connected_ && up_.Reads(), down_.Writes(now));
    add(server_.get(), connected_ && down_.Reads(), !connected_ || up_.Writes(now));
  }

  absl::Time NextDue() const { return std::min(up_.NextDue(), down_.NextDue()); }

  // False if the connection has ended.
  bool Forward(const pollfd& client, const pollfd& server, const LinkFault& fault,
               std::string* buffer, absl::Time now) {
    if (!connected_) {
      if (server.revents == 0) return true;
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(server_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      connected_ = error == 0;
      return connected_;
    }
    const auto readable = [](const pollfd& polled) {
      return (polled.events & POLLIN) != 0 && polled.revents != 0;
    };
    if (readable(client) && !up_.Read(fault, buffer, now)) return false;
    if (readable(server) && !down_.Read(fault, buffer, now)) return false;
    if (!up_.Write(now) || !down_.Write(now)) return false;
    // No process of a job closes one direction alone. A server that is frozen would never close the
    // other one, and its clients connect again and again.
    return !(up_.finished() && down_.empty()) && !(down_.finished() && up_.empty());
  }

 private:
  const Fd client_;
  const Fd server_;
  Direction up_;
  Direction down_;
  bool connected_ = false;
};

absl::StatusOr<std::unique_ptr<LinkRelay>> LinkRelay::Start(FindGroups find) {
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return absl::ErrnoToStatus(errno, "eventfd");
  std::unique_ptr<LinkRelay> relay(new LinkRelay(std::move(wake), std::move(find)));
  relay->finder_ = std::thread([raw = relay.get()] { raw->FindLoop(); });
  relay->thread_ = std::thread([raw = relay.get()] { raw->Loop(); });
  return relay;
}

LinkRelay::LinkRelay(Fd wake, FindGroups find) : wake_(std::move(wake)), find_(std::move(find)) {}

LinkRelay::~LinkRelay() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    find_something_.Signal();
  }
  Wake();
  thread_.join();
  finder_.join();
}

void LinkRelay::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // fails only if it is awake already
}

absl::StatusOr<std::string> LinkRelay::Open(const std::string& name,
                                            std::function<int()> target_port) {
  ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenOn("127.0.0.1:0"));
  auto door = std::make_shared<Door>();
  door->listener = std::move(listeners.front());
  door->target_port = std::move(target_port);
  const std::string address = absl::StrCat("127.0.0.1:", LocalPort(door->listener.get()));
  {
    MutexLock lock(&mutex_);
    doors_[name] = std::move(door);
  }
  Wake();
  return address;
}

absl::StatusOr<std::string> LinkRelay::CoordinatorAddress(int port) {
  return Open("coordinator", [port] { return port; });
}

absl::StatusOr<std::string> LinkRelay::ShardAddress(uint32_t index, const std::string& port_file) {
  return Open(absl::StrCat("ps-", index), [port_file] { return PortIn(port_file); });
}

void LinkRelay::Disturb(pid_t group, const LinkFault& fault) {
  {
    MutexLock lock(&mutex_);
    faults_[group] = fault;
  }
  Wake();
}

void LinkRelay::Restore(pid_t group) {
  {
    MutexLock lock(&mutex_);
    faults_.erase(group);
  }
  Wake();
}

LinkFault LinkRelay::FaultOf(const Connection& connection) const {
  LinkFault both;
  MutexLock lock(&mutex_);
  if (!connection.ends->found) return {.cut = true};
  for (const pid_t group : connection.ends->groups) {
    const auto found = faults_.find(group);
    if (group == 0 || found == faults_.end()) continue;
    const LinkFault& fault = found->second;
    both.cut = both.cut || fault.cut;
    both.delay += fault.delay;
    if (both.bytes_per_second == 0 ||
        (fault.bytes_per_second > 0 && fault.bytes_per_second < both.bytes_per_second)) {
      both.bytes_per_second = fault.bytes_per_second;
    }
  }
  return both;
}

void LinkRelay::Accept(const Door& door) {
  for (int i = 0; i < kMaxAccepted; ++i) {
    Fd client(accept4(door.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.get() < 0) return;
    const int port = door.target_port();
    Fd server(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(port);
    if (port == 0 || server.get() < 0 ||
        (connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
         errno != EINPROGRESS)) {
      continue;
    }
    SendAtOnce(client.get());
    SendAtOnce(server.get());
    const TcpSocket from = {PeerPort(client.get()), LocalPort(door.listener.get())};
    const auto ends = std::make_shared<Ends>(Ends{{from, {.port = port}}});
    connections_.push_back(
        std::make_unique<Connection>(std::move(client), std::move(server), ends));
    MutexLock lock(&mutex_);
    unknown_.push_back(ends);
    find_something_.Signal();
  }
}

void LinkRelay::FindLoop() {
  while (true) {
    std::vector<std::shared_ptr<Ends>> batch;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && unknown_.empty()) find_something_.Wait(&mutex_);
      if (stopping_) return;
      batch.swap(unknown_);
    }
    std::vector<TcpSocket> sockets;
    for (const auto& ends : batch) {
      sockets.insert(sockets.end(), ends->sockets.begin(), ends->sockets.end());
    }
    const std::vector<pid_t> groups = find_(sockets);
    {
      MutexLock lock(&mutex_);
      auto group = groups.begin();
      for (const auto& ends : batch) {
        ends->groups.assign(group, group + static_cast<ptrdiff_t>(ends->sockets.size()));
        group += static_cast<ptrdiff_t>(ends->sockets.size());
        ends->found = true;
      }
    }
    Wake();
  }
}

void LinkRelay::Loop() {
  struct Open {
    std::list<std::unique_ptr<Connection>>::iterator connection;
    LinkFault fault;
  };
  std::string buffer(kReadBytes, '\0');
  while (true) {
    std::vector<std::shared_ptr<Door>> doors;
    {
      MutexLock lock(&mutex_);
      if (stopping_) break;
      for (const auto& [name, door] : doors_) doors.push_back(door);
    }
    absl::Time now = absl::Now();
    absl::Time next = absl::InfiniteFuture();
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    for (const auto& door : doors) polled.push_back({door->listener.get(), POLLIN, 0});
    std::vector<Open> open;  // cut connections are left out
    for (auto it = connections_.begin(); it != connections_.end(); ++it) {
      const LinkFault fault = FaultOf(**it);
      if (fault.cut) continue;
      open.push_back({it, fault});
      (*it)->AddTo(&polled, now);
      if (const absl::Time due = (*it)->NextDue(); due > now) next = std::min(next, due);
    }

    int timeout_ms = -1;
    if (next != absl::InfiniteFuture()) {
      timeout_ms = static_cast<int>(std::ceil(absl::ToDoubleMilliseconds(next - now)));
    }
    if (poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) break;
    now = absl::Now();
    uint64_t wakes = 0;
    (void)!read(wake_.get(), &wakes, sizeof(wakes));
    const size_t first = 1 + doors.size();
    for (size_t i = 0; i < open.size(); ++i) {
      Connection& connection = **open[i].connection;
      const pollfd& client = polled[first + 2 * i];
      if (!connection.Forward(client, polled[first + 2 * i + 1], open[i].fault, &buffer, now)) {
        connections_.erase(open[i].connection);
      }
    }
    for (size_t i = 0; i < doors.size(); ++i) {
      if (polled[1 + i].revents != 0) Accept(*doors[i]);
    }
  }
  connections_.clear();
}

}  // namespace sluice::chaos

#include "cli/chaos/link_relay.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <deque>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice::chaos {
namespace {

// The buffer of one direction of a connection; when it is full, the sender waits.
constexpr size_t kMaxWaiting = size_t{1} << 20;
constexpr size_t kReadBytes = size_t{256} << 10;
// Accepts at one door before the other connections are served again.
constexpr int kMaxAcceptsAtOnce = 16;
// After the system had no room for another connection.
constexpr absl::Duration kPauseWithoutRoom = absl::Milliseconds(100);

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
  Connection(Fd client, Fd server)
      : client_(std::move(client)),
        server_(std::move(server)),
        up_(client_.get(), server_.get()),
        down_(server_.get(), client_.get()) {}

  // The processes at its ends; 0: not found. No byte passes before they have been looked up.
  pid_t groups[2] = {0, 0};
  bool looked_up = false;

  // Adds the sockets to wait for. A socket from which nothing is wanted is left out: poll would
  // return at once for one whose peer has closed.
  void AddTo(std::vector<pollfd>* polled, absl::Time now) const {
    const auto add = [&](int fd, bool reads, bool writes) {
      const auto events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
      polled->push_back({events == 0 ? -1 : fd, events, 0});
    };
    if (!connected_) {
      polled->push_back({client_.get(), POLLRDHUP, 0});
    } else {
      add(client_.get(), up_.Reads(), down_.Writes(now));
    }
    add(server_.get(), connected_ && down_.Reads(), !connected_ || up_.Writes(now));
  }

  absl::Time NextDue() const { return std::min(up_.NextDue(), down_.NextDue()); }

  // False if the connection has ended.
  bool Forward(const pollfd& client, const pollfd& server, const LinkFault& fault,
               std::string* buffer, absl::Time now) {
    if (!connected_) {
      // A connection whose client has gone before the server accepts ends here.
      if (server.revents == 0) return client.revents == 0;

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
    return !up_.finished();
  }

 private:
  const Fd client_;
  const Fd server_;
  Direction up_;
  Direction down_;
  bool connected_ = false;
};

absl::StatusOr<std::unique_ptr<LinkRelay>> LinkRelay::Start(OwnerLookup lookup) {
  // Each connection takes two.
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }

  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return absl::ErrnoToStatus(errno, "eventfd");

  std::unique_ptr<LinkRelay> relay(new LinkRelay(std::move(wake), std::move(lookup)));
  relay->thread_ = std::thread([raw = relay.get()] { raw->Loop(); });
  relay->lookups_ = std::thread([raw = relay.get()] { raw->LookUp(); });
  return relay;
}

LinkRelay::LinkRelay(Fd wake, OwnerLookup lookup)
    : wake_(std::move(wake)), lookup_(std::move(lookup)) {}

LinkRelay::~LinkRelay() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wanted_changed_.SignalAll();
  }
  Wake();
  thread_.join();
  lookups_.join();
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
  for (const pid_t group : connection.groups) {
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

void LinkRelay::LookUp() {
  while (true) {
    std::vector<Lookup> wanted;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && wanted_.empty()) wanted_changed_.Wait(&mutex_);
      if (stopping_) return;
      wanted.swap(wanted_);
    }

    std::vector<SocketPorts> sockets;
    for (const Lookup& lookup : wanted) {
      sockets.insert(sockets.end(), std::begin(lookup.sockets), std::end(lookup.sockets));
    }

    const std::vector<pid_t> groups = lookup_(sockets);
    {
      MutexLock lock(&mutex_);
      for (size_t i = 0; i < wanted.size(); ++i) {
        found_.push_back({wanted[i].connection, {groups[2 * i], groups[2 * i + 1]}});
      }
    }
    Wake();
  }
}

void LinkRelay::NoteOwners() {
  std::vector<Owners> found;
  {
    MutexLock lock(&mutex_);
    found.swap(found_);
  }
  for (const Owners& owners : found) {
    Connection& connection = *connections_.at(owners.connection);
    std::copy(std::begin(owners.groups), std::end(owners.groups), connection.groups);
    connection.looked_up = true;
  }
}

bool LinkRelay::Accept(const Door& door) {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    Fd client(accept4(door.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.get() < 0) {
      return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    }

    const int port = door.target_port();
    Fd server(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(port);
    if (server.get() < 0) return false;
    if (port == 0 ||
        (connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
         errno != EINPROGRESS)) {
      continue;
    }

    SendAtOnce(client.get());
    SendAtOnce(server.get());

    const SocketPorts from = {PeerPort(client.get()), LocalPort(door.listener.get())};
    connections_[++last_connection_] =
        std::make_unique<Connection>(std::move(client), std::move(server));

    MutexLock lock(&mutex_);
    wanted_.push_back({last_connection_, {from, {port, 0}}});
    wanted_changed_.SignalAll();
  }
  return true;
}

void LinkRelay::Loop() {
  struct Open {
    uint64_t id;
    LinkFault fault;
  };
  std::string buffer(kReadBytes, '\0');
  absl::Time accepts_from = absl::InfinitePast();
  while (true) {
    std::vector<std::shared_ptr<Door>> doors;
    {
      MutexLock lock(&mutex_);
      if (stopping_) break;
      for (const auto& [name, door] : doors_) doors.push_back(door);
    }

    NoteOwners();
    absl::Time now = absl::Now();
    const bool accepts = now >= accepts_from;
    absl::Time next = accepts ? absl::InfiniteFuture() : accepts_from;

    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    for (const auto& door : doors) {
      polled.push_back({accepts ? door->listener.get() : -1, POLLIN, 0});
    }

    std::vector<Open> open;  // cut connections are left out
    for (const auto& [id, connection] : connections_) {
      if (!connection->looked_up) continue;
      const LinkFault fault = FaultOf(*connection);
      if (fault.cut) continue;
      open.push_back({id, fault});
      connection->AddTo(&polled, now);
      if (const absl::Time due = connection->NextDue(); due > now) next = std::min(next, due);
    }

    int timeout_ms = -1;
    if (next != absl::InfiniteFuture()) {
      timeout_ms = static_cast<int>(std::ceil(absl::ToDoubleMilliseconds(next - now)));
    }
    if (poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) break;

    now = absl::Now();
    if (polled[0].revents != 0) {
      uint64_t wakes = 0;
      (void)!read(wake_.get(), &wakes, sizeof(wakes));
      continue;  // a disturbance that has begun must hold for what has arrived since
    }

    const size_t first = 1 + doors.size();
    for (size_t i = 0; i < open.size(); ++i) {
      Connection& connection = *connections_.at(open[i].id);
      const pollfd& client = polled[first + 2 * i];
      if (!connection.Forward(client, polled[first + 2 * i + 1], open[i].fault, &buffer, now)) {
        connections_.erase(open[i].id);
      }
    }

    for (size_t i = 0; i < doors.size(); ++i) {
      if (polled[1 + i].revents != 0 && !Accept(*doors[i])) accepts_from = now + kPauseWithoutRoom;
    }
  }
  connections_.clear();
}

}  // namespace sluice::chaos

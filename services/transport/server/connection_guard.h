// Accepts a server's connections, and disconnects the clients that flood it below gRPC's calls.
//
// Intuition. gRPC 1.51 lets a client open and reset streams, or send headers without end, as fast
// as it can. Its calls are refused (security/call_gate.h) one by one, and everything else that the
// process receives, heartbeats included, waits behind them. gRPC has no means to end such a
// connection. So the guard accepts connections itself and hands them to gRPC. Its thread checks
// their sockets several times a second and aborts the connections that
//
//   - sent more than kMaxBytesBeforeCall without a call that the gate admitted: a process of a job
//     begins with such a call; or
//   - made more refused calls than kRefusalRate allows; or
//   - had more streams refused with RESOURCE_EXHAUSTED than its address may (connection_delays.h);
//     or
//   - sent more bytes than kUnexplainedRate allows that belong to no message, call or answer, that
//     is, frames without content (settings, empty DATA, headers without end).
//
// gRPC 1.51 keeps the header fields of an incomplete call, in about ten times their size, and reads
// everything that has arrived at once. So the receive buffer of a connection stays as small as that
// of a new one until a call is admitted: less is read between two checks.
//
// A flooding client would connect again at once. So the guard hands new connections from its
// address to gRPC only after a delay (connection_delays.h). Nothing reads them before.
//
// The gate knows a connection by a number, and admits its first call before anything behind that
// call is read; the peer's address, by which the guard finds the socket, is known a moment later,
// when a service sees the call. Until then the first rule is not applied to any connection.
#ifndef SLUICE_SERVICES_TRANSPORT_SERVER_CONNECTION_GUARD_H_
#define SLUICE_SERVICES_TRANSPORT_SERVER_CONNECTION_GUARD_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <netinet/in.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/common/io/listener.h"
#include "services/common/threads/mutex.h"
#include "services/transport/security/call_gate.h"
#include "services/transport/server/connection_delays.h"

namespace sluice {

inline constexpr uint64_t kMaxBytesBeforeCall = uint64_t{256} << 10;
// Bytes of a connection with an admitted call that belong to no message that the server has
// received. `at_once` comes on top of the largest message and of what gRPC reads ahead of the
// service: a window of at most kMaxBulkWindowBytes, which is never larger than all messages before
// it. `per_second` allows for the bytes lost when streams break off.
struct UnexplainedRate {
  double at_once = 8 << 20;
  double per_second = 2 << 20;
};
inline constexpr UnexplainedRate kUnexplainedRate;

// How many connections may wait at the same time; further ones from delayed addresses are closed.
inline constexpr size_t kMaxDelayedConnections = 1024;

// A connection that the guard has aborted.
struct Disconnection {
  // "no_call", "refused_calls", "exhausted" or "frames". For a metric's label.
  absl::string_view reason;
  std::string text;  // names the peer
  // As CallRefusal::to_log.
  uint64_t to_log = 0;
};

class ConnectionGuard final : public security::CallObserver {
 public:
  struct Options {
    // Called on the guard's thread; must not block. Null: nothing is called.
    std::function<void(const Disconnection&)> on_disconnected;
    std::function<void()> on_delayed;  // for each connection that is delayed
    // The largest message that the server receives.
    size_t max_message_bytes = 0;
  };
  // How many of the bytes that a connection sent are explained by its messages. Any thread. The
  // guard subtracts them from what the socket has received.
  class Account {
   public:
    // A message of this size has arrived; an eighth more is allowed for framing and TLS.
    void OnMessage(size_t bytes) {
      explained_.fetch_add(bytes + bytes / 8 + kFrameBytes, std::memory_order_relaxed);
    }
    // The service refused a stream with RESOURCE_EXHAUSTED.
    void OnExhausted() { exhausted_.fetch_add(1, std::memory_order_relaxed); }

   private:
    friend class ConnectionGuard;
    static constexpr size_t kFrameBytes = 128;  // headers of frames and of TLS' records
    std::atomic<uint64_t> explained_{0};
    std::atomic<int> exhausted_{0};  // that the guard has not seen
  };
  explicit ConnectionGuard(Options options);
  ~ConnectionGuard() override;

  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  // Listens and returns the port. Clients can connect, and wait until Start. Call once. Errors as
  // ListenOn.
  absl::StatusOr<int> Listen(const std::string& address);
  // Starts to hand connections to the server, which must have started. Call once, after Listen.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server);
  // Afterwards no connection is accepted or disconnected any more. May be called again.
  void Stop();

  // Any thread; these do not block.
  void OnAdmitted(uint64_t connection) override;
  void OnFlood(uint64_t connection) override;
  // To be called when a service sees a call, whose context is then complete. Returns the account of
  // its connection, in which the service enters each message that it receives; never null.
  std::shared_ptr<Account> OnCall(const grpc::ServerContextBase& context);

 private:
  // A connection that had a call admitted.
  struct Connection {
    std::string peer;       // empty: not yet known
    int sweeps = 0;         // during which the peer was not known
    bool flooding = false;  // to be disconnected
    std::shared_ptr<Account> account = std::make_shared<Account>();
  };
  // A connection that gRPC has, or has closed since.
  struct Socket {
    std::string peer;
    bool admitted = false;  // as the thread knows; its receive buffer may grow
  };
  // The thread's record of a socket that sent more than it should.
  struct Suspect {
    uint64_t read_bytes = 0;
    absl::Time seen;
  };
  // The thread's record of a connection that had a call admitted.
  struct Traffic {
    uint64_t unexplained = 0;  // bytes, in all
    double level = 0;          // of them, beyond kUnexplainedRate.per_second
    absl::Time seen = absl::InfiniteFuture();
  };
  // The sum over the connections of one peer with an admitted call.
  struct Admitted {
    bool flooding = false;
    uint64_t explained = 0;  // bytes
    int exhausted = 0;       // streams, since the last check
  };
  // The known peers when a sweep begins.
  struct Known {
    std::map<std::string, Admitted> admitted;  // by peer: those with an admitted call
    bool complete = true;                      // the peer of each connection is known
  };

  // An accepted connection that gRPC does not have yet.
  struct Delayed {
    Fd socket;
    std::string peer;
    absl::Time until;
  };

  // The body of the guard's thread: accepts, hands over, and checks sockets.
  void Loop();
  // Waits for a connection or for the next due time. False: the guard stops.
  bool Wait();
  // Ends a Wait of the guard's thread. Any thread.
  void Wake();
  // Accepts the connections that wait at the listeners; hands over, delays or closes each.
  void Accept();
  // Hands over the connections whose delay is over.
  void GiveDelayed(absl::Time now);
  // Queues the connection for gRPC. Its receive buffer may not grow until a call is admitted.
  void HandOver(Fd socket, const std::string& peer);
  // Until they are stopped, gives gRPC what HandOver has queued.
  void HandOverQueued();
  // Copies the state of the known peers, so that sockets are checked without the lock.
  Known ReadKnown();
  // Whether the connection sent more unexplained bytes than it may.
  bool SentTooMuch(int fd, uint64_t explained, absl::Time now, Traffic* traffic) const;
  // Whether the address has more of such streams than it may.
  bool Exhausts(const std::string& peer, int streams, absl::Time now);
  // Checks every socket against the rules at the head of this file.
  void Sweep();
  // Aborts the connection and reports why; further ones from its address are delayed.
  void Disconnect(int fd, const std::string& peer, absl::string_view reason, absl::string_view why);

  const Options options_;
  std::vector<Fd> listeners_;
  Fd wake_;
  int port_ = 0;
  Mutex mutex_;  // protects what follows; not held while sockets are checked
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool flood_found_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_giving_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Fd> to_give_ ABSL_GUARDED_BY(mutex_);
  CondVar given_;  // with mutex_: to_give_ or stopping_giving_ has changed
  // The open connections, and those that came within the last kMaxSweepsWithoutPeer sweeps.
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  std::vector<std::thread> givers_;

  // Used only by the thread.
  std::map<int, Socket> sockets_;      // by descriptor, of sockets handed to gRPC
  std::vector<std::string> replaced_;  // peers whose descriptor was reused
  std::list<Delayed> delayed_;         // in the order of acceptance
  ConnectionDelays delays_;
  absl::Time accept_at_ = absl::InfinitePast();
  absl::Time sweep_at_ = absl::InfinitePast();
  absl::Time flood_sweep_at_ = absl::InfinitePast();  // the earliest, if a flood was found
  std::map<std::string, Suspect> suspects_;           // by peer
  std::map<std::string, Traffic> traffic_;            // by peer
  security::LogLimit log_;
  std::thread thread_;
};

// The address as gRPC writes it; empty: it is neither IPv4 nor IPv6, or is link-local.
std::string GrpcPeerName(const sockaddr_storage& address);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_SERVER_CONNECTION_GUARD_H_

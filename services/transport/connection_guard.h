// Accepts a server's connections, and disconnects the clients that flood it below gRPC's calls.
//
// Intuition. gRPC 1.51 lets a client open and reset streams, or send headers without end, as fast
// as it can. Its calls are refused (security/call_gate.h) one by one, and everything else that the
// process receives waits behind them, heartbeats too. gRPC has no means to end such a connection.
// So this process accepts connections itself and gives them to gRPC. A thread looks at their
// sockets several times a second and aborts the connections that
//
//   - sent more than kMaxBytesBeforeCall without a call that the gate admitted: a process of a job
//     begins with such a call; or
//   - made more refused calls than kRefusalRate allows; or
//   - had more streams refused with RESOURCE_EXHAUSTED than its address may (connection_delays.h);
//     or
//   - sent more bytes than kUnexplainedRate allows that belong to no message, call or answer:
//     frames without content (settings, empty DATA, headers without end).
//
// gRPC 1.51 keeps the header fields of a call that is not complete, in some ten times their size,
// and reads all that has come at once. So the receive buffer of a connection stays as small as that
// of a new one until a call is admitted: between two looks at it, less is read.
//
// A flooding client would connect again at once. So new connections of its address are given to
// gRPC only after a delay (connection_delays.h). Nothing reads them before.
//
// The gate knows a connection by a number, and admits its first call before anything behind that
// call is read; the peer's address, by which a socket is found, is known a moment later, when a
// service sees the call. Until then no connection is judged by the first rule.
#ifndef SLUICE_SERVICES_TRANSPORT_CONNECTION_GUARD_H_
#define SLUICE_SERVICES_TRANSPORT_CONNECTION_GUARD_H_

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
#include "services/common/listener.h"
#include "services/common/mutex.h"
#include "services/transport/connection_delays.h"
#include "services/transport/security/call_gate.h"

namespace sluice {

inline constexpr uint64_t kMaxBytesBeforeCall = uint64_t{256} << 10;
// Bytes of a connection with an admitted call that belong to no message that the server has
// received. At once, beside the largest message and what gRPC reads ahead of the service: a window
// of at most kMaxBulkWindowBytes, which is never larger than what the messages had before. In the
// long run: what is lost when streams break off.
struct UnexplainedRate {
  double at_once = 8 << 20;
  double per_second = 2 << 20;
};
inline constexpr UnexplainedRate kUnexplainedRate;

// Connections that wait at the same time; further ones of delayed addresses are closed.
inline constexpr size_t kMaxDelayedConnections = 1024;

struct Disconnection {
  // Why: "no_call", "refused_calls", "exhausted" or "frames". For a metric's label.
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
    std::function<void()> on_delayed;  // for each connection that waits
    // The largest that the server receives.
    size_t max_message_bytes = 0;
  };
  // What a connection's messages explain of the bytes that it sent. Any thread.
  class Account {
   public:
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

  // Listens; returns the port. Clients can connect, and wait until Start. Once. Errors as ListenOn.
  absl::StatusOr<int> Listen(const std::string& address);
  // Gives the connections to the server, which has started. Once, after Listen.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server);
  // Returns when no connection will be accepted or disconnected any more. Repeatable.
  void Stop();

  // Any thread; these do not block.
  void OnAdmitted(uint64_t connection) override;
  void OnFlood(uint64_t connection) override;
  // A service sees a call, whose context is complete. Returns the account of its connection, where
  // the service enters each message that it receives; never null.
  std::shared_ptr<Account> OnCall(const grpc::ServerContextBase& context);

 private:
  // A connection that had a call admitted.
  struct Connection {
    std::string peer;       // empty: not known yet
    int sweeps = 0;         // for which it was not known
    bool flooding = false;  // it is to be disconnected
    std::shared_ptr<Account> account = std::make_shared<Account>();
  };
  // A connection that gRPC has, or has closed since.
  struct Socket {
    std::string peer;
    bool admitted = false;  // as the thread knows; its receive buffer may grow
  };
  // What the thread has seen of a socket that sent more than it should.
  struct Suspect {
    uint64_t read_bytes = 0;
    absl::Time seen;
  };
  // What the thread has seen of a connection that had a call admitted.
  struct Traffic {
    uint64_t unexplained = 0;  // bytes, in all
    double level = 0;          // of them, beyond kUnexplainedRate.per_second
    absl::Time seen = absl::InfiniteFuture();
  };
  struct Admitted {
    bool flooding = false;
    uint64_t explained = 0;  // bytes
    int exhausted = 0;       // streams, since the last look
  };
  // What is known of peers when a sweep begins.
  struct Known {
    std::map<std::string, Admitted> admitted;  // by peer, of those that had a call admitted
    bool complete = true;                      // there is no connection whose peer is not known yet
  };

  // An accepted connection that gRPC does not have yet.
  struct Delayed {
    Fd socket;
    std::string peer;
    absl::Time until;
  };

  void Loop();
  // Waits for a connection or until something is due. False: the guard stops.
  bool Wait();
  void Wake();
  void Accept();
  void GiveDelayed(absl::Time now);
  void Give(Fd socket, const std::string& peer);
  // Until they are stopped, gives gRPC what Give has queued.
  void GiveAll();
  Known Look();
  // Whether the connection sent more unexplained bytes than it may.
  bool SentTooMuch(int fd, uint64_t explained, absl::Time now, Traffic* traffic) const;
  // Whether the address has more of such streams than it may.
  bool Exhausts(const std::string& peer, int streams, absl::Time now);
  void Sweep();
  void Disconnect(int fd, const std::string& peer, absl::string_view reason, absl::string_view why);

  const Options options_;
  std::vector<Fd> listeners_;
  Fd wake_;
  int port_ = 0;
  Mutex mutex_;  // protects what follows; not held while sockets are looked at
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool flood_found_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_giving_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Fd> to_give_ ABSL_GUARDED_BY(mutex_);
  CondVar given_;  // with mutex_: to_give_ or stopping_giving_ has changed
  // As many as are open, and those that came within the last kMaxSweepsWithoutPeer sweeps.
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  std::vector<std::thread> givers_;

  // The thread's.
  std::map<int, Socket> sockets_;      // by file descriptor
  std::vector<std::string> replaced_;  // peers of those whose descriptor has another one now
  std::list<Delayed> delayed_;         // in the order of their coming
  ConnectionDelays delays_;
  absl::Time accept_at_ = absl::InfinitePast();
  absl::Time sweep_at_ = absl::InfinitePast();
  absl::Time flood_sweep_at_ = absl::InfinitePast();  // where a flood was found
  std::map<std::string, Suspect> suspects_;           // by peer
  std::map<std::string, Traffic> traffic_;            // by peer
  security::LogLimit log_;
  std::thread thread_;
};

// As gRPC names the address; empty: it is neither IPv4 nor IPv6, or of one link only.
std::string GrpcPeerName(const sockaddr_storage& address);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_CONNECTION_GUARD_H_

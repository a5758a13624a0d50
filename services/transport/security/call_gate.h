// Decides whether a new call is served, before any message of the caller is parsed.
//
// Intuition. gRPC asks the gate once for each call (a stream is one call), when its headers have
// arrived and before the server sees it. So the checks that hold for every rpc are here: the caller
// has the run's secret, or a certificate of this job and of a role that may call the method; and a
// connection does not begin calls faster than a process of a job ever would. A call refused here
// costs no memory once gRPC has answered it, however fast such calls come: a client that opens and
// resets streams without end (HTTP/2 rapid reset) fills no queue.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_CALL_GATE_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_CALL_GATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/common/threads/mutex.h"
#include "services/transport/security/identity.h"

namespace sluice::security {

// How many calls of a kind a connection may begin in a burst, and per second in the long run. A
// process of a job keeps one stream to each of the others, and reopens it with backoff.
struct CallRate {
  double at_once = 0;
  double per_second = 0;
};
inline constexpr CallRate kStreamRate = {64, 16};     // Join and Exchange
inline constexpr CallRate kStageRate = {4000, 4000};  // a call for each layer and batch
inline constexpr CallRate kCallRate = {400, 200};     // everything else

// How many refused calls a connection may make; more are a flood, for which it is disconnected. A
// process that is refused retries with backoff.
inline constexpr CallRate kRefusalRate = {200, 20};

// How many connections' rates are remembered. Beyond that the quiet ones are forgotten, and if none
// is quiet, all: a forgotten connection may begin as many calls as a new one.
inline constexpr size_t kMaxRememberedConnections = 4096;

// Allows one log line every kRefusalLogInterval, for any number of events. Not thread-safe.
inline constexpr absl::Duration kRefusalLogInterval = absl::Seconds(10);
class LogLimit {
 public:
  // Counts an event. Returns the number of events since the last line if this one is to be logged;
  // else 0.
  uint64_t Count(absl::Time now);

 private:
  uint64_t not_logged_ = 0;
  absl::Time last_logged_ = absl::InfinitePast();
};

// A call that was refused, as its observer sees it.
struct CallRefusal {
  // "secret", "certificate", "job", "role" or "call_rate". For a metric's label.
  absl::string_view reason;
  std::string text;
  // How many calls were refused since the last logged refusal; 0: do not log this one (LogLimit).
  uint64_t to_log = 0;
};

// Called with a gate's decisions, on gRPC's threads; must not block.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // The gate admitted a call of this connection.
  virtual void OnAdmitted(uint64_t connection) = 0;
  // The connection passed kRefusalRate.
  virtual void OnFlood(uint64_t connection) = 0;
};

// Any thread; does not block.
class CallGate {
 public:
  struct Options {
    // The run's secret, and its file's name for the error; empty: no secret is required.
    std::string secret;
    std::string secret_file;
    // namespace/name: callers must show certificates of this job. None: no certificates are
    // required.
    std::optional<std::string> job;
    // Called for each refused call, on gRPC's threads; must not block. May be null.
    std::function<void(const CallRefusal&)> on_refused;
    // May be null.
    std::shared_ptr<CallObserver> observer;
  };

  // A new call, as gRPC knows it before any message has been read.
  struct Call {
    uint64_t connection = 0;   // the same for all calls of a connection
    absl::string_view method;  // "/sluice.v1.JobControl/SetDesired"
    std::optional<absl::string_view> secret;
    std::optional<PeerIdentity> peer;  // from its certificate
  };

  explicit CallGate(Options options) : options_(std::move(options)) {}

  // UNAUTHENTICATED: no secret or a wrong one, or a certificate that names no process or a process
  // of another job. PERMISSION_DENIED: RpcRules. RESOURCE_EXHAUSTED: too many calls.
  absl::Status Admit(const Call& call, absl::Time now);

  // For tests: how many rates are kept.
  size_t remembered_connections() const {
    MutexLock lock(&mutex_);
    return allowances_.size();
  }

 private:
  // A connection's allowance for one kind of call: a token bucket.
  struct Allowance {
    double calls = 0;
    absl::Time counted;
  };

  // Admit, without counting refusals.
  absl::Status Judge(const Call& call, absl::Time now, absl::string_view* reason);
  // Checks the caller's secret, certificate and role, as far as the options require them.
  absl::Status CheckCaller(const Call& call, absl::string_view* reason) const;
  // Takes one call from the connection's allowance of this rate. False: there is none left.
  bool TakeAllowance(uint64_t connection, const CallRate& rate, absl::Time now);
  // Drops the allowances that are full again, or all if none is.
  void ForgetQuietConnections(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;  // protects what follows; not held while calling out
  std::map<std::pair<uint64_t, const CallRate*>, Allowance> allowances_ ABSL_GUARDED_BY(mutex_);
  LogLimit log_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_CALL_GATE_H_

// How long new connections from an address wait before the server reads from them.
//
// Intuition. A client whose connection is aborted connects again at once, and each new connection
// may flood until the guard (connection_guard.h) has noticed. So from then on every new connection
// from that address waits before it is read, longer each time. An honest process at the same
// address is served a moment later; connections that are open are not touched.
#ifndef SLUICE_SERVICES_TRANSPORT_SERVER_CONNECTION_DELAYS_H_
#define SLUICE_SERVICES_TRANSPORT_SERVER_CONNECTION_DELAYS_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace sluice {

inline constexpr absl::Duration kFirstDelay = absl::Milliseconds(500);
// A gRPC client waits 5 s for a connection.
inline constexpr absl::Duration kLongestDelay = absl::Seconds(2);
// After this long without another flood, an address is no longer delayed.
inline constexpr absl::Duration kDelayMemory = absl::Minutes(1);
// How many suspect ends an address may have, in a burst and per second: of connections without an
// admitted call (a client that gRPC itself disconnects, for hasty pings or a failed handshake,
// floods by connecting again and again), and of streams that were refused with RESOURCE_EXHAUSTED.
inline constexpr double kEndsAtOnce = 5;
inline constexpr double kEndsPerSecond = 2;
inline constexpr size_t kMaxRememberedAddresses = 4096;

// Not thread-safe.
class ConnectionDelays {
 public:
  // Zero unless the address has flooded within kDelayMemory.
  absl::Duration DelayOf(const std::string& address, absl::Time now) const;
  // A connection from the address was aborted. The delay doubles at most once within its own
  // length, so connections that flood at the same time count once.
  void OnFlood(const std::string& address, absl::Time now);
  // A connection or stream from the address has ended in such a way. Returns true if it was one too
  // many, which counts as a flood.
  bool OnSuspectEnd(const std::string& address, absl::Time now);
  // Whether any address has a delay.
  bool Any(absl::Time now) const { return now < any_until_; }

 private:
  // The history of an address. RecordOf drops records when there are too many.
  struct Record {
    absl::Duration delay;
    absl::Time flooded = absl::InfinitePast();
    double ends = kEndsAtOnce;  // suspect ends that the address may still have
    absl::Time counted = absl::InfinitePast();
  };

  // Finds or makes the record. At kMaxRememberedAddresses, drops the records without an event in
  // kDelayMemory, or all if there is none.
  Record& RecordOf(const std::string& address, absl::Time now);

  std::map<std::string, Record> records_;  // by address
  absl::Time any_until_ = absl::InfinitePast();
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_SERVER_CONNECTION_DELAYS_H_

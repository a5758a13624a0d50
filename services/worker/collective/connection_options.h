// What gloo does not set on its connections.
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_CONNECTION_OPTIONS_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_CONNECTION_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice::worker {

// By the addresses at which its two sides listened, as gloo gives them (a sockaddr_storage first):
// one of them has connected to the other.
struct Connection {
  std::string own;
  std::string peer;
};

// Has the system break each of these connections when its other side acknowledges nothing for so
// long, in the middle of a transfer or not: a network that drops what it is given says nothing by
// itself, and gloo waits. Finds them among the process's open sockets. UNAVAILABLE: one was not
// found there, or could not be set.
absl::Status EndWhenSilent(const std::vector<Connection>& connections, absl::Duration silence);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_CONNECTION_OPTIONS_H_

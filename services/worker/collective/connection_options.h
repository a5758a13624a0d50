// Socket options that gloo does not set on its connections.
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_CONNECTION_OPTIONS_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_CONNECTION_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice::worker {

// Identified by the addresses on which its two sides listened, as gloo gives them (a
// sockaddr_storage first): one side has connected to the other.
struct Connection {
  std::string own;
  std::string peer;
};

// Makes the system break each of these connections when its peer acknowledges nothing for so long,
// during a transfer or not: a network that drops packets reports nothing, and gloo waits. Finds the
// connections among the process's open sockets. UNAVAILABLE: one was not found there, or could not
// be set.
absl::Status EndWhenSilent(const std::vector<Connection>& connections, absl::Duration idle_timeout);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_CONNECTION_OPTIONS_H_

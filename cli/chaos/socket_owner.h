// Which processes have TCP sockets.
#ifndef SLUICE_CLI_CHAOS_SOCKET_OWNER_H_
#define SLUICE_CLI_CHAOS_SOCKET_OWNER_H_

#include <sys/types.h>

#include <vector>

namespace sluice::chaos {

// A socket at the IPv4 loopback address: connected to `peer_port`; 0: a listening one.
struct SocketPorts {
  int port = 0;
  int peer_port = 0;
};

// For each of the sockets, the process group of a process of this session that has it. 0: there is
// none, or it belongs to another user. Reads /proc, without any privilege: its sockets and the
// session's processes once for all of the sockets. On a busy machine with thousands of sockets this
// takes more than 100 ms.
std::vector<pid_t> GroupsThatHave(const std::vector<SocketPorts>& sockets);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_SOCKET_OWNER_H_

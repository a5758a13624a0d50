// Which process has a TCP socket.
#ifndef SLUICE_CLI_CHAOS_SOCKET_OWNER_H_
#define SLUICE_CLI_CHAOS_SOCKET_OWNER_H_

#include <sys/types.h>

namespace sluice::chaos {

// The process group of a process that has a socket with this local port, at the IPv4 loopback
// address: a listening one, or one that is connected to `peer_port`. 0 if there is none, or if it
// belongs to another user. Reads /proc, without any privilege.
pid_t GroupThatListens(int port);
pid_t GroupThatConnects(int port, int peer_port);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_SOCKET_OWNER_H_

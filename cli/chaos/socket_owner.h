// Which processes have TCP sockets.
#ifndef SLUICE_CLI_CHAOS_SOCKET_OWNER_H_
#define SLUICE_CLI_CHAOS_SOCKET_OWNER_H_

#include <sys/types.h>

#include <vector>

namespace sluice::chaos {

// A socket at the IPv4 loopback address.
struct TcpSocket {
  int port = 0;
  int peer_port = 0;  // to which it is connected; 0: it listens
};

// For each socket the process group of a process of this session that has it; 0 if there is none.
// Reads /proc, without any privilege: the tables of all sockets once, and the descriptors of each
// process of the session once, however many sockets are asked for. So it takes long on a machine
// with many sockets.
std::vector<pid_t> GroupsWith(const std::vector<TcpSocket>& sockets);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_SOCKET_OWNER_H_

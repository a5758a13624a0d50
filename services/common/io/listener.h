// TCP sockets that accept connections.
#ifndef SLUICE_SERVICES_COMMON_IO_LISTENER_H_
#define SLUICE_SERVICES_COMMON_IO_LISTENER_H_

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// Owns a file descriptor; -1: none.
class Fd {
 public:
  // Takes ownership.
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  // For a call of the system; this object still owns it.
  int get() const { return fd_; }
  // The caller closes it.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Listens at host:port (IPv6 in brackets; port 0: any free one), at each address of the host, on
// one port. "0.0.0.0", "::" and an empty host all mean every address of this machine, IPv6 and
// IPv4. The sockets do not block. INVALID_ARGUMENT: not host:port. UNAVAILABLE: the host is
// unknown, the port is in use, or the address is not one of this machine.
absl::StatusOr<std::vector<Fd>> ListenOn(const std::string& address);

// The local port of a socket; 0: it has none.
int LocalPort(int fd);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_IO_LISTENER_H_

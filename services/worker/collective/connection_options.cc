#include "services/worker/collective/connection_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::worker {
namespace {

// Family, address and port, as far as they distinguish two sockets; empty for other families.
std::string KeyOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &address, sizeof(in));
    return std::string(reinterpret_cast<const char*>(&in.sin_addr), sizeof(in.sin_addr)) +
           std::to_string(in.sin_port);
  }

  if (address.ss_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, &address, sizeof(in));
    return std::string(reinterpret_cast<const char*>(&in.sin6_addr), sizeof(in.sin6_addr)) +
           std::to_string(in.sin6_port);
  }
  return "";
}

std::string KeyOf(const std::string& bytes) {
  sockaddr_storage address = {};
  std::memcpy(&address, bytes.data(), std::min(bytes.size(), sizeof(address)));
  return KeyOf(address);
}

template <typename GetName>
std::string NameOf(int socket, GetName get) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return KeyOf(address);
}

bool Set(int socket, int level, int option, int64_t value) {
  const auto number = static_cast<int>(std::max<int64_t>(1, value));
  return setsockopt(socket, level, option, &number, sizeof(number)) == 0;
}

bool Bound(int socket, absl::Duration idle_timeout) {
  return Set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, absl::ToInt64Milliseconds(idle_timeout)) &&
         Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1) &&
         Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, absl::ToInt64Seconds(idle_timeout / 4)) &&
         Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, absl::ToInt64Seconds(idle_timeout / 4));
}

}  // namespace

absl::Status EndWhenSilent(const std::vector<Connection>& connections,
                           absl::Duration idle_timeout) {
  std::vector<bool> bound(connections.size(), false);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int socket = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &socket)) continue;
    const std::string peer = NameOf(socket, getpeername);
    if (peer.empty()) continue;
    const std::string own = NameOf(socket, getsockname);

    for (size_t i = 0; i < connections.size(); ++i) {
      if (own != KeyOf(connections[i].own) && peer != KeyOf(connections[i].peer)) continue;
      if (!Bound(socket, idle_timeout)) {
        return absl::ErrnoToStatus(errno, "a connection among workers cannot be set up");
      }
      bound[i] = true;
    }
  }

  if (error) {
    return absl::UnavailableError(absl::StrCat("/proc/self/fd: ", error.message()));
  }

  if (!absl::c_linear_search(bound, false)) return absl::OkStatus();
  return absl::UnavailableError("a connection among workers is not among the open sockets");
}

}  // namespace sluice::worker

#include "services/common/io/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

absl::StatusOr<Fd> ListenOn(const addrinfo& where) {
  Fd fd(socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, "socket");

  // A restarted process gets its port at once; an IPv6 socket also accepts IPv4 connections.
  const int on = 1;
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (where.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }

  if (bind(fd.get(), where.ai_addr, where.ai_addrlen) != 0) {
    return absl::ErrnoToStatus(errno, "bind");
  }
  if (listen(fd.get(), SOMAXCONN) != 0) return absl::ErrnoToStatus(errno, "listen");
  return fd;
}

// Listens at each address of the host; skips those where that is not possible, unless it is not
// possible at any.
absl::StatusOr<std::vector<Fd>> ListenOn(const std::string& host, std::string port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;

  std::vector<Fd> listeners;
  absl::Status problem;

  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const auto free_found = absl::MakeCleanup([found] { freeaddrinfo(found); });

  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    addrinfo where = *each;
    if (!listeners.empty()) {
      // For port 0 further addresses use the port that the first one got.
      const auto bound = static_cast<in_port_t>(htons(LocalPort(listeners[0].get())));
      if (where.ai_family == AF_INET) {
        reinterpret_cast<sockaddr_in*>(where.ai_addr)->sin_port = bound;
      } else if (where.ai_family == AF_INET6) {
        reinterpret_cast<sockaddr_in6*>(where.ai_addr)->sin6_port = bound;
      }
    }
    absl::StatusOr<Fd> listener = ListenOn(where);
    if (listener.ok()) {
      listeners.push_back(*std::move(listener));
    } else {
      problem.Update(listener.status());
    }
  }

  if (listeners.empty()) return problem;
  return listeners;
}

}  // namespace

absl::StatusOr<std::vector<Fd>> ListenOn(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address to listen on must be host:port, not \"", address, "\""));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }

  const std::string port = address.substr(colon + 1);
  const bool everywhere = host.empty() || host == "::" || host == "0.0.0.0";
  absl::StatusOr<std::vector<Fd>> listeners = ListenOn(everywhere ? "::" : host, port);
  // If the kernel has no IPv6, every address means every IPv4 address.
  if (!listeners.ok() && everywhere) listeners = ListenOn("0.0.0.0", port);

  if (listeners.ok()) return listeners;
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address,
                   ": the port is in use, or the address is not one of this machine (",
                   listeners.status().message(), ")"));
}

int LocalPort(int fd) {
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) return 0;
  if (own.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port);
  return own.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port) : 0;
}

}  // namespace sluice

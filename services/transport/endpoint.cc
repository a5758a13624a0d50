#include "services/transport/endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

// The position of the colon before the port; npos: there is none. Colons inside brackets belong to
// an IPv6 address.
size_t PortColon(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  const size_t bracket = endpoint.rfind(']');
  if (colon == absl::string_view::npos) return colon;
  if (bracket != absl::string_view::npos && bracket > colon) return absl::string_view::npos;
  return colon;
}

absl::Status CheckPort(absl::string_view text, absl::string_view source) {
  int port = 0;
  if (absl::SimpleAtoi(text, &port) && port >= 1 && port <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": '", text, "' is not a port from 1 to 65535"));
}

// Puts an IPv6 address in brackets.
absl::StatusOr<std::string> MasterHost(absl::string_view address) {
  const bool bracketed = absl::StartsWith(address, "[") && absl::EndsWith(address, "]");
  const auto colons = std::count(address.begin(), address.end(), ':');
  if (colons >= 2 && !bracketed && !absl::StrContains(address, ']')) {
    return absl::StrCat("[", address, "]");
  }

  if ((colons > 0 && !bracketed) || address.find_first_of("/ ") != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("MASTER_ADDR is '", address,
                     "'; it must be a host's name or address, and MASTER_PORT the port"));
  }
  return std::string(address);
}

}  // namespace

absl::StatusOr<std::string> ResolveCoordinator(absl::string_view flag, const char* master_address,
                                               const char* master_port) {
  if (!flag.empty()) {
    const size_t colon = PortColon(flag);
    if (colon == absl::string_view::npos) return absl::StrCat(flag, ":", kDefaultCoordinatorPort);
    if (colon == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--coordinator is '", flag, "' without a host; give host:port"));
    }
    RETURN_IF_ERROR(CheckPort(flag.substr(colon + 1), "--coordinator"));
    return std::string(flag);
  }

  if (master_address == nullptr || *master_address == '\0') {
    return absl::InvalidArgumentError(
        "no coordinator: give --coordinator host:port, or set MASTER_ADDR (and MASTER_PORT)");
  }

  ASSIGN_OR_RETURN(const std::string host, MasterHost(master_address));
  if (master_port == nullptr || *master_port == '\0') {
    return absl::StrCat(host, ":", kDefaultCoordinatorPort);
  }
  RETURN_IF_ERROR(CheckPort(master_port, "MASTER_PORT"));
  return absl::StrCat(host, ":", master_port);
}

absl::StatusOr<std::string> ResolveListenAddress(absl::string_view flag, const char* master_address,
                                                 const char* master_port) {
  if (!flag.empty()) return std::string(flag);
  if (master_address == nullptr || *master_address == '\0') return "127.0.0.1:0";
  return ResolveCoordinator("", master_address, master_port);
}

absl::StatusOr<std::string> CoordinatorListenAddress(absl::string_view flag) {
  return ResolveListenAddress(flag, std::getenv("MASTER_ADDR"), std::getenv("MASTER_PORT"));
}

absl::StatusOr<std::string> CoordinatorEndpoint(absl::string_view flag) {
  return ResolveCoordinator(flag, std::getenv("MASTER_ADDR"), std::getenv("MASTER_PORT"));
}

std::string HostOfEndpoint(absl::string_view endpoint) {
  return std::string(endpoint.substr(0, PortColon(endpoint)));
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

}  // namespace sluice

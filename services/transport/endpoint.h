// Addresses as users write them: host:port.

#ifndef SLUICE_SERVICES_TRANSPORT_ENDPOINT_H_
#define SLUICE_SERVICES_TRANSPORT_ENDPOINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The port where a coordinator listens by default.
inline constexpr int kDefaultCoordinatorPort = 29500;

// The coordinator's host:port: the flag's value if there is one (its port is optional), else
// MASTER_ADDR and MASTER_PORT of the environment, as PyTorch's launchers set them. INVALID_ARGUMENT
// says what is missing or malformed. For main only.
absl::StatusOr<std::string> CoordinatorEndpoint(absl::string_view flag);

// The same from given values of the flag and the two variables (null: unset).
absl::StatusOr<std::string> ResolveCoordinator(absl::string_view flag, const char* master_address,
                                               const char* master_port);

// Where a coordinator listens: the flag's value if there is one, else the address in the two
// variables (null: unset), else any port of the loopback interface. INVALID_ARGUMENT as above.
absl::StatusOr<std::string> ResolveListenAddress(absl::string_view flag, const char* master_address,
                                                 const char* master_port);
absl::StatusOr<std::string> CoordinatorListenAddress(absl::string_view flag);

// "10.0.0.1" of "10.0.0.1:80", "[::1]" of "[::1]:80".
std::string HostOfEndpoint(absl::string_view endpoint);

// This machine's name.
std::string HostName();

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_ENDPOINT_H_

// The gRPC server of a role.

#ifndef SLUICE_SERVICES_SHELL_ROLE_SERVER_H_
#define SLUICE_SERVICES_SHELL_ROLE_SERVER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/common/logging.h"
#include "services/common/metrics.h"
#include "services/transport/grpc_server.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/transport_security.h"

namespace sluice {

struct RoleServerOptions {
  std::string address;  // host:port; port 0: any
  // Null: plain text.
  std::shared_ptr<const security::TransportSecurity> security;
  size_t max_buffer_bytes = MaxServerBufferBytes();
};

// As GrpcServer::Start. Refused calls and aborted connections are logged, and counted in
// calls_refused_total, connections_aborted_total and connections_delayed_total, which the role's
// table of metrics must have. `metrics` must outlive the server.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartRoleServer(
    const RoleServerOptions& options, std::vector<GrpcServer::Service*> services, Metrics* metrics,
    const Logger& logger);

}  // namespace sluice

#endif  // SLUICE_SERVICES_SHELL_ROLE_SERVER_H_

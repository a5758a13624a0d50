// The gRPC server of a role.

#ifndef SLUICE_SERVICES_SHELL_ROLE_SERVER_H_
#define SLUICE_SERVICES_SHELL_ROLE_SERVER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/grpc_server.h"

namespace sluice {

// As GrpcServer::Start. Refused calls and aborted connections are logged, and counted in
// calls_refused_total, connections_aborted_total and connections_delayed_total, which the role's
// table of metrics must have. Sets `credentials` and `guard` of the options. Null `security`: plain
// text. `metrics` must outlive the server.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartRoleServer(
    GrpcServer::Options options, const std::shared_ptr<const security::TransportSecurity>& security,
    std::vector<GrpcServer::Service*> services, Metrics* metrics, const Logger& logger);

}  // namespace sluice

#endif  // SLUICE_SERVICES_SHELL_ROLE_SERVER_H_

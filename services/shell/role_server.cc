#include "services/shell/role_server.h"

#include <string>
#include <utility>

namespace sluice {

absl::StatusOr<std::unique_ptr<GrpcServer>> StartRoleServer(
    GrpcServer::Options options, const std::shared_ptr<const security::TransportSecurity>& security,
    std::vector<GrpcServer::Service*> services, Metrics* metrics, const Logger& logger) {
  // On gRPC's threads.
  auto on_refused = [metrics, logger](const security::CallRefusal& refusal) {
    metrics->counter("calls_refused_total", {std::string(refusal.reason)}).Increment();
    if (refusal.to_log == 0) return;
    logger.Warning("Calls refused", {{"calls", refusal.to_log}, {"why", refusal.text}});
  };

  // On the guard's thread.
  auto on_disconnected = [metrics, logger](const Disconnection& disconnection) {
    metrics->counter("connections_aborted_total", {std::string(disconnection.reason)}).Increment();
    if (disconnection.to_log == 0) return;
    logger.Warning("Connections aborted",
                   {{"connections", disconnection.to_log}, {"why", disconnection.text}});
  };

  options.credentials = security::ServerCredentialsOf(security, std::move(on_refused));
  options.guard.on_disconnected = std::move(on_disconnected);
  options.guard.on_delayed = [metrics] {
    metrics->counter("connections_delayed_total").Increment();
  };
  return GrpcServer::Start(std::move(options), std::move(services));
}

}  // namespace sluice

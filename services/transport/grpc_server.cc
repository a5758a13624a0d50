#include "services/transport/grpc_server.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/transport/grpc_settings.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Options options,
                                                              std::vector<Service*> services) {
  if (options.address.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address to listen on must be host:port, not \"", options.address, "\""));
  }
  if (options.credentials == nullptr) options.credentials = grpc::InsecureServerCredentials();
  auto server =
      std::unique_ptr<GrpcServer>(new GrpcServer(std::move(options), std::move(services)));

  grpc::ServerBuilder builder;
  size_t max_message_bytes = 0;
  for (const Service* service : server->services_) {
    max_message_bytes = std::max(max_message_bytes, service->max_message_bytes());
  }
  ApplyServerSettings(max_message_bytes, server->options_.max_buffer_bytes, &builder);
  builder.AddListeningPort(server->options_.address, server->options_.credentials, &server->port_);
  for (Service* service : server->services_) service->Register(&builder);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    for (Service* service : server->services_) service->Stopped();
    server->server_ = nullptr;
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", server->options_.address,
                     ": the port is in use, or the address is not one of this machine"));
  }
  for (Service* service : server->services_) service->Started(server->server_.get());
  return server;
}

GrpcServer::GrpcServer(Options options, std::vector<Service*> services)
    : options_(std::move(options)), services_(std::move(services)) {}

GrpcServer::~GrpcServer() { Stop(); }

void GrpcServer::Stop() {
  if (server_ == nullptr) return;
  for (Service* service : services_) service->Stopping();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + options_.grace));
  for (Service* service : services_) service->Stopped();
  server_ = nullptr;
}

}  // namespace sluice

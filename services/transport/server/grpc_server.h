#ifndef SLUICE_SERVICES_TRANSPORT_SERVER_GRPC_SERVER_H_
#define SLUICE_SERVICES_TRANSPORT_SERVER_GRPC_SERVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/server/connection_guard.h"

namespace sluice {

// Starts a gRPC server on a port, or returns an error that says why not, and stops it in order.
// Where its credentials have a gate (ServerCredentialsOf), a ConnectionGuard accepts its
// connections and disconnects the clients that flood it.
class GrpcServer {
 public:
  // A service of the server. The thread that starts and stops the server calls these, in this
  // order.
  class Service {
   public:
    virtual ~Service() = default;
    // The largest message that this service receives; the server's limit is the largest of its
    // services'.
    virtual size_t max_message_bytes() const { return kMaxControlMessageBytes; }
    // kBulk: clients send much data. One such service is enough to make the server's connections
    // measure their bandwidth.
    virtual ChannelKind kind() const { return ChannelKind::kControl; }
    // Registers the service (and completion queues) with the builder.
    virtual void Register(grpc::ServerBuilder* builder) = 0;
    // The server listens. A service with Exchange reports each stream that begins to the guard,
    // which outlives the streams; null: there is no guard.
    virtual void Started(ConnectionGuard*) {}
    // No new calls come; the service ends its long-lived calls.
    virtual void Stopping() {}
    // All calls have ended, or the server could not start; the service joins its threads.
    virtual void Stopped() {}
  };

  struct Options {
    std::string address = "127.0.0.1:0";  // host:port; port 0: any
    // Null: plain text.
    std::shared_ptr<grpc::ServerCredentials> credentials;
    // Limit for all connections together (MaxServerBufferBytes).
    size_t max_buffer_bytes = MaxServerBufferBytes();
    ConnectionGuard::Options guard;
    // How long calls may continue once the server stops; then they are cancelled.
    absl::Duration grace = absl::Seconds(2);
  };

  // The services must outlive the server. INVALID_ARGUMENT: the address is malformed. UNAVAILABLE:
  // it is in use or not one of this machine. Both name the address.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(Options options,
                                                           std::vector<Service*> services);

  // Calls Stop().
  ~GrpcServer();

  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // The port that it listens on.
  int port() const { return port_; }

  // Ends every call within the grace period and waits for that. Must not be called from a call's
  // own thread. May be called again.
  void Stop();

 private:
  GrpcServer(Options options, std::vector<Service*> services);

  const Options options_;
  const std::vector<Service*> services_;
  std::shared_ptr<ConnectionGuard> guard_;  // null: the credentials have no gate
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// A generated service without more to do: its calls are unary, or reactors that end by themselves.
class GeneratedService final : public GrpcServer::Service {
 public:
  explicit GeneratedService(grpc::Service* service) : service_(service) {}
  void Register(grpc::ServerBuilder* builder) override { builder->RegisterService(service_); }

 private:
  grpc::Service* const service_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_SERVER_GRPC_SERVER_H_

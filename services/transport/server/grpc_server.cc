#include "services/transport/server/grpc_server.h"

#include <google/protobuf/message.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/status_macros.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/gated_credentials.h"

namespace sluice {
namespace {

// Reports a call to the guard when its context is complete (from the first hook on), and then its
// messages.
class ReportCall final : public grpc::experimental::Interceptor {
 public:
  ReportCall(ConnectionGuard* guard, grpc::ServerContextBase* context)
      : guard_(guard), context_(context) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      account_ = guard_->OnCall(*context_);
      account_->OnMessage(kMaxMetadataBytes);
    }

    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      // The messages of all services except that of Exchange are Protobuf, or begin with such a
      // message (Bounded). Null: the client has sent its last message.
      const void* const message = methods->GetRecvMessage();
      if (account_ != nullptr && message != nullptr) {
        account_->OnMessage(static_cast<const google::protobuf::Message*>(message)->ByteSizeLong());
      }
    }
    methods->Proceed();
  }

 private:
  ConnectionGuard* const guard_;
  grpc::ServerContextBase* const context_;
  std::shared_ptr<ConnectionGuard::Account> account_;
};

class ReportCallFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReportCallFactory(std::shared_ptr<ConnectionGuard> guard) : guard_(std::move(guard)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    // Gradients and parameters pass through no interceptor: StreamServer reports its streams.
    if (absl::EndsWith(info->method(), "/Exchange")) return nullptr;
    return new ReportCall(guard_.get(), info->server_context());
  }

 private:
  const std::shared_ptr<ConnectionGuard> guard_;
};

}  // namespace

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
  ChannelKind kind = ChannelKind::kControl;
  size_t max_message_bytes = 0;
  for (const Service* service : server->services_) {
    if (service->kind() == ChannelKind::kBulk) kind = ChannelKind::kBulk;
    max_message_bytes = std::max(max_message_bytes, service->max_message_bytes());
  }
  ApplyServerSettings(kind, max_message_bytes, server->options_.max_buffer_bytes, &builder);

  ConnectionGuard::Options guard_options = server->options_.guard;
  guard_options.max_message_bytes = max_message_bytes;
  auto guard = std::make_shared<ConnectionGuard>(std::move(guard_options));

  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  if (security::Observe(server->options_.credentials.get(), guard)) {
    ASSIGN_OR_RETURN(int port, guard->Listen(server->options_.address));
    server->guard_ = guard;
    server->port_ = port;
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
    factories.push_back(std::make_unique<ReportCallFactory>(guard));
    builder.experimental().SetInterceptorCreators(std::move(factories));
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        server->options_.credentials);
  } else {
    builder.AddListeningPort(server->options_.address, server->options_.credentials,
                             &server->port_);
  }

  for (Service* service : server->services_) service->Register(&builder);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    for (Service* service : server->services_) service->Stopped();
    server->server_ = nullptr;
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", server->options_.address,
                     ": the port is in use, or the address is not one of this machine"));
  }

  if (server->guard_ != nullptr) server->guard_->Start(std::move(acceptor));
  for (Service* service : server->services_) service->Started(server->guard_.get());
  return server;
}

GrpcServer::GrpcServer(Options options, std::vector<Service*> services)
    : options_(std::move(options)), services_(std::move(services)) {}

GrpcServer::~GrpcServer() { Stop(); }

void GrpcServer::Stop() {
  if (server_ == nullptr) return;
  if (guard_ != nullptr) guard_->Stop();
  for (Service* service : services_) service->Stopping();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + options_.grace));
  for (Service* service : services_) service->Stopped();
  server_ = nullptr;
}

}  // namespace sluice

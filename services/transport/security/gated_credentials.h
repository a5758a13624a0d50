// gRPC credentials under which a CallGate is asked about every call, and those of clients that show
// a run's secret.
//
// gRPC asks an application about new calls only under TLS, by its C++ interface. Its C interface
// does so for every kind of connection; this is that.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_GATED_CREDENTIALS_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_GATED_CREDENTIALS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "services/transport/security/call_gate.h"

namespace sluice::security {

// Each port gets credentials of its own from `make`, whose ownership passes on. `options.observer`
// is that of Observe.
std::shared_ptr<grpc::ServerCredentials> GatedServerCredentials(
    std::function<grpc_server_credentials*()> make, CallGate::Options options);

// The observer of the gates of ports that are added from now on. False, and nothing: these
// credentials have no gate.
bool Observe(grpc::ServerCredentials* credentials, std::shared_ptr<CallObserver> observer);

// The number by which the gate and its observer know the connection of a call; 0: it has no gate.
uint64_t ConnectionOf(const grpc::AuthContext& context);

// Plain text; each call shows the secret.
std::shared_ptr<grpc::ChannelCredentials> SecretChannelCredentials(std::string secret);

// Whether they are for TLS; null, and those of a secret, are for plain text.
bool SpeaksTls(const std::shared_ptr<grpc::ChannelCredentials>& credentials);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_GATED_CREDENTIALS_H_

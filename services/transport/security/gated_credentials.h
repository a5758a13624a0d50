// gRPC credentials of servers that ask a CallGate about every call, and of clients that show a
// run's secret.
//
// gRPC's C++ interface asks an application about new calls only under TLS. Its C interface does so
// for every kind of connection, so this uses the C interface.
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

// Each port gets its own credentials from `make`, and owns them. Observe sets `options.observer`.
std::shared_ptr<grpc::ServerCredentials> GatedServerCredentials(
    std::function<grpc_server_credentials*()> make, CallGate::Options options);

// Sets the observer for the gates of ports that are added from now on. False: these credentials
// have no gate.
bool Observe(grpc::ServerCredentials* credentials, std::shared_ptr<CallObserver> observer);

// The number that identifies a call's connection to the gate and its observer; 0: there is no gate.
uint64_t ConnectionOf(const grpc::AuthContext& context);

// Plain text; each call shows the secret.
std::shared_ptr<grpc::ChannelCredentials> SecretChannelCredentials(std::string secret);

// Whether the credentials are for TLS; null, and those with a secret, are for plain text.
bool SpeaksTls(const std::shared_ptr<grpc::ChannelCredentials>& credentials);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_GATED_CREDENTIALS_H_

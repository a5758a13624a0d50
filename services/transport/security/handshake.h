// Explains a broken connection in terms of TLS, so that users need not understand BoringSSL's or
// OpenSSL's errors.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_HANDSHAKE_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_HANDSHAKE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::security {

// A known cause, in words for the user.
struct HandshakeProblem {
  std::string fact;  // "the other side uses plain text, and this side uses TLS"
  std::string help;  // for processes with --tls-directory
};

// For a connection that broke before anything arrived from the other side; `tls`: this side speaks
// TLS. None: there was another cause.
std::optional<HandshakeProblem> FindHandshakeProblem(const absl::Status& status, bool tls);

// Appends the fact and the help to the status's message, where there is such a problem. `help`,
// unless empty, replaces the problem's own.
absl::Status ExplainHandshake(const absl::Status& status, bool tls, absl::string_view help);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_HANDSHAKE_H_

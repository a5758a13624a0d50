// What a connection that breaks says of TLS: whoever runs a job reads this, and not BoringSSL's or
// OpenSSL's words alone.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_HANDSHAKE_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_HANDSHAKE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::security {

struct HandshakeTrouble {
  std::string fact;  // "the other side speaks plain text, and this one TLS"
  std::string help;  // for processes with --tls-directory
};

// Of a connection that broke before anything was heard from the other side; `tls`: this side speaks
// TLS. None: it was something else.
std::optional<HandshakeTrouble> FindHandshakeTrouble(const absl::Status& status, bool tls);

// The status with the fact and what helps behind its own words, where there is such a trouble.
// `help` says what helps instead, unless it is empty.
absl::Status ExplainHandshake(const absl::Status& status, bool tls, absl::string_view help);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_HANDSHAKE_H_

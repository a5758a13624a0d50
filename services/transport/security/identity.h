// The identity of a process in its certificate: job, role and index.
//
// A certificate carries the identity as its only URI, in the form of SPIFFE IDs:
//
//   spiffe://sluice/<namespace>/<job>/<role>/<index>
//
// and, because pods are dialled by addresses that are not known in advance, the role as a DNS name
// ("ps.sluice.internal"), which clients require in place of the host's. Each job has its own
// authority, so the issuer of a certificate also identifies the job.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_IDENTITY_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/common.pb.h"
#include "services/common/tls/certificates.h"

namespace sluice::security {

// A process of a job, as its certificate names it.
struct PeerIdentity {
  std::string job;  // namespace/name
  v1::Role role = v1::ROLE_UNSPECIFIED;
  uint32_t index = 0;  // among its role; 0 where there is only one

  std::string ToString() const;  // "worker 3 of default/mnist"
};

// "coordinator", "ps", "worker", "reader", "operator".
absl::string_view NameOf(v1::Role role);
// ROLE_UNSPECIFIED: there is no such role.
v1::Role RoleOfName(absl::string_view name);

// The URI of the form above.
std::string UriOf(const PeerIdentity& identity);
// INVALID_ARGUMENT: not of that form.
absl::StatusOr<PeerIdentity> ParseUri(absl::string_view uri);

// The DNS name that clients require of a server in this role.
std::string ServerName(v1::Role role);

// For tls::Issue.
tls::Subject SubjectOf(const PeerIdentity& identity);

// The identity in a certificate. UNAUTHENTICATED: it has none, or several.
absl::StatusOr<PeerIdentity> IdentityOf(const tls::Certificate& certificate);

// OK: the peer is the process that it claims to be, or there are no certificates (none).
// PERMISSION_DENIED names both processes.
absl::Status CheckClaim(const std::optional<PeerIdentity>& peer, const v1::ProcessId& claimed);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_IDENTITY_H_

#include "services/transport/security/identity.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sluice::security {
namespace {

constexpr char kPrefix[] = "spiffe://sluice/";

constexpr std::pair<v1::Role, const char*> kRoles[] = {{v1::COORDINATOR, "coordinator"},
                                                       {v1::SHARD, "ps"},
                                                       {v1::WORKER, "worker"},
                                                       {v1::READER, "reader"},
                                                       {v1::OPERATOR, "operator"}};

}  // namespace

absl::string_view NameOf(v1::Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  return "unknown";
}

v1::Role RoleOfName(absl::string_view name) {
  for (const auto& [role, known] : kRoles) {
    if (known == name) return role;
  }
  return v1::ROLE_UNSPECIFIED;
}

std::string PeerIdentity::ToString() const {
  const bool numbered = role == v1::SHARD || role == v1::WORKER;
  return absl::StrCat(NameOf(role), numbered ? absl::StrCat(" ", index) : "", " of ", job);
}

std::string UriOf(const PeerIdentity& identity) {
  return absl::StrCat(kPrefix, identity.job, "/", NameOf(identity.role), "/", identity.index);
}

absl::StatusOr<PeerIdentity> ParseUri(absl::string_view uri) {
  const std::string original(uri);
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", original, "' is not ", kPrefix, "<namespace>/<job>/<role>/<index>"));
  };

  if (!absl::ConsumePrefix(&uri, kPrefix)) return wrong();
  const std::vector<absl::string_view> parts = absl::StrSplit(uri, '/');
  PeerIdentity identity;
  if (parts.size() != 4 || parts[0].empty() || parts[1].empty() ||
      !absl::SimpleAtoi(parts[3], &identity.index)) {
    return wrong();
  }

  identity.job = absl::StrCat(parts[0], "/", parts[1]);
  identity.role = RoleOfName(parts[2]);
  if (identity.role == v1::ROLE_UNSPECIFIED) return wrong();
  return identity;
}

std::string ServerName(v1::Role role) { return absl::StrCat(NameOf(role), ".sluice.internal"); }

tls::Subject SubjectOf(const PeerIdentity& identity) {
  return {absl::StrCat(NameOf(identity.role), "-", identity.index),
          {ServerName(identity.role)},
          UriOf(identity)};
}

absl::StatusOr<PeerIdentity> IdentityOf(const tls::Certificate& certificate) {
  if (certificate.uris.size() != 1) {
    return absl::UnauthenticatedError(
        absl::StrCat(certificate.subject, " does not name its process in exactly one URI"));
  }

  absl::StatusOr<PeerIdentity> identity = ParseUri(certificate.uris[0]);
  if (identity.ok()) return identity;
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate of ", certificate.subject,
                   " is not a Sluice certificate: ", identity.status().message()));
}

absl::Status CheckClaim(const std::optional<PeerIdentity>& peer, const v1::ProcessId& claimed) {
  if (!peer.has_value()) return absl::OkStatus();
  // A job may have many readers, and they are not numbered.
  if (claimed.role() == peer->role &&
      (claimed.index() == peer->index || peer->role == v1::READER)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the peer claims to be ", NameOf(claimed.role()), " ", claimed.index(),
                   ", but its certificate is that of ", peer->ToString(),
                   "; give it the certificate of its own role and index"));
}

}  // namespace sluice::security

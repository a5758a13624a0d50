// X.509 certificates (RFC 5280): makes authorities, issues certificates and checks them.
//
// Everything is PEM text, as in files and Secrets. Keys are ECDSA on P-256. Pure except for the
// kernel's random numbers: the time is an argument. Any thread.
#ifndef SLUICE_SERVICES_COMMON_TLS_CERTIFICATES_H_
#define SLUICE_SERVICES_COMMON_TLS_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::tls {

// A certificate and its private key, each one PEM block.
struct KeyPair {
  std::string certificate;
  std::string private_key;  // PKCS #8
};

// Certificates have whole seconds.
struct Validity {
  absl::Time from;
  absl::Time until;
};

// A self-signed authority that issues leaf certificates and no further authorities. Its subject
// begins with `name` and is unique.
absl::StatusOr<KeyPair> MakeAuthority(absl::string_view name, const Validity& validity);

// The holder of a leaf certificate.
struct Subject {
  std::string common_name;  // for users; at most 64 bytes are kept
  std::vector<std::string> dns_names;
  std::string uri;  // empty: none
};

// A certificate for servers and clients, with a new key. It expires with its authority at the
// latest. INVALID_ARGUMENT: the authority is not an authority, or the key is not its key.
absl::StatusOr<KeyPair> Issue(const KeyPair& authority, const Subject& subject,
                              const Validity& validity);

// A certificate's content, not checked for trust.
struct Certificate {
  std::string subject;  // one line
  std::vector<std::string> dns_names;
  std::vector<std::string> uris;
  Validity validity;
  bool is_authority = false;
};

// The first certificate in a text. INVALID_ARGUMENT: there is none.
absl::StatusOr<Certificate> ReadCertificate(absl::string_view pem);

// Every certificate in a text, one by one. INVALID_ARGUMENT: there is none.
absl::StatusOr<std::vector<std::string>> SplitBundle(absl::string_view pem);

// OK: the key belongs to the certificate. Else INVALID_ARGUMENT.
absl::Status CheckKey(const KeyPair& pair);

// OK: one of the authorities in `bundle` issued the certificate, and both are valid at `now`. Else
// UNAUTHENTICATED with the reason ("expired on ...", "no authority of the bundle issued ...").
absl::Status CheckTrusted(absl::string_view certificate, absl::string_view bundle, absl::Time now);

}  // namespace sluice::tls

#endif  // SLUICE_SERVICES_COMMON_TLS_CERTIFICATES_H_

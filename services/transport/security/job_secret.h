// The secret of a run, which the processes of a job on one machine know and other users of that
// machine do not.
//
// `sluice run` makes a new secret each time and keeps it in a file that only its own user may read.
// Callers of the run's processes show it; a caller without it is refused before any of its messages
// is parsed. The secret travels in plain text, so it is for the loopback interface only. Across
// machines, use certificates (transport_security.h).
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_JOB_SECRET_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_JOB_SECRET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/common/io/file_util.h"

namespace sluice::security {

// The metadata key of the secret in a call.
inline constexpr char kSecretMetadata[] = "sluice-secret";
// A secret's length in characters; they are printable ASCII without spaces.
inline constexpr size_t kMinSecretLength = 32;
inline constexpr size_t kMaxSecretLength = 256;

// 256 random bits from the kernel, as text.
std::string MakeSecret();

// Writes the secret to a new file of mode 0600, which replaces an existing one. Blocks for the
// disk.
absl::Status WriteSecretFile(const std::string& path, absl::string_view secret);

// Errors name the file: NOT_FOUND, PERMISSION_DENIED, or INVALID_ARGUMENT (it contains no secret,
// or other users may read it).
absl::StatusOr<std::string> ReadSecretFile(FileSystem* files, const std::string& path);

// Takes the same time for every guess of the same length.
bool SameSecret(absl::string_view secret, absl::string_view guess);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_JOB_SECRET_H_

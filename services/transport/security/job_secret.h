// The secret of a run: what the processes of a job on one machine know and other users of that
// machine do not.
//
// `sluice run` makes a new secret each time and keeps it in a file that its own user alone may
// read. Whoever calls a process of the run shows it; a caller without it is refused before anything
// of the call is parsed. The secret travels in plain text: it is for the loopback interface. Across
// machines, certificates do its work (transport_security.h).
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_JOB_SECRET_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_JOB_SECRET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/common/file_util.h"

namespace sluice::security {

// The name under which a call carries the secret in its metadata.
inline constexpr char kSecretMetadata[] = "sluice-secret";
// Of a secret, in characters: printable ASCII without spaces.
inline constexpr size_t kMinSecretLength = 32;
inline constexpr size_t kMaxSecretLength = 256;

// 256 random bits of the kernel, as text.
std::string MakeSecret();

// Makes a file of mode 0600 with the secret, in place of one that is there. Blocks for the disk.
absl::Status WriteSecretFile(const std::string& path, absl::string_view secret);

// Errors name the file: NOT_FOUND, PERMISSION_DENIED, or INVALID_ARGUMENT (it holds no secret, or
// other users may read it).
absl::StatusOr<std::string> ReadSecretFile(FileSystem* files, const std::string& path);

// Takes the same time for every guess of the same length.
bool SameSecret(absl::string_view secret, absl::string_view guess);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_JOB_SECRET_H_

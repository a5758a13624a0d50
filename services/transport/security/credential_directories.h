// Directories of credentials for processes that are started by hand, with their own authority.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_CREDENTIAL_DIRECTORIES_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_CREDENTIAL_DIRECTORIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/common/io/file_util.h"
#include "services/transport/security/identity.h"

namespace sluice::security {

// The processes that get a directory each, and for how long their certificates are valid.
struct CredentialDirectoriesOptions {
  std::string job;  // namespace/name
  uint32_t shards = 1;
  uint32_t workers = 1;
  absl::Duration valid = absl::Hours(24 * 90);
  absl::Duration authority_valid = absl::Hours(24 * 365);
};

// Writes `directory`/coordinator, /ps-0, ..., /worker-0, ..., /reader and /operator, each with
// ca.crt, tls.crt and tls.key, and the authority itself in /ca (ca.crt, ca.key), which no process
// needs. An existing authority is used again if it is valid for as long as the certificates, so
// that certificates can be renewed while processes run; one that expires earlier is an error. Only
// their owner can read the keys. Returns the directories. Blocks for the disk.
absl::StatusOr<std::vector<std::string>> WriteCredentialDirectories(
    FileSystem* files, const std::string& directory, const CredentialDirectoriesOptions& options,
    absl::Time now);

// Writes one such directory: `bundle` (the authorities that the process trusts), the key, and last
// the certificate. An existing directory keeps its other files.
absl::Status WriteCredentialDirectory(FileSystem* files, const std::string& target,
                                      const std::string& bundle, const tls::KeyPair& pair);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_CREDENTIAL_DIRECTORIES_H_

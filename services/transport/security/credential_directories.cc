#include "services/transport/security/credential_directories.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/common/tls/certificates.h"
#include "services/transport/security/transport_security.h"

namespace sluice::security {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr char kAuthorityKeyFile[] = "ca.key";
// For clocks that differ a little between machines.
constexpr absl::Duration kSkew = absl::Minutes(5);

// To be called before anything is written into the directory.
absl::Status MakePrivateDirectory(FileSystem* files, const std::string& target) {
  RETURN_IF_ERROR(files->CreateDirectories(target));
  std::error_code error;
  std::filesystem::permissions(target, std::filesystem::perms::owner_all, error);
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(target, ": cannot restrict its permissions to the owner: ", error.message()));
}

absl::Status Write(FileSystem* files, const std::string& target, const char* name,
                   const std::string& content) {
  return AtomicWriteFile(files, JoinPath(target, name), absl::Cord(content), "new");
}

absl::StatusOr<tls::KeyPair> FindOrMakeAuthority(FileSystem* files, const std::string& target,
                                                 const CredentialDirectoriesOptions& options,
                                                 absl::Time now) {
  const std::string path = JoinPath(target, kAuthorityFile);
  const absl::StatusOr<std::string> certificate = files->Read(path, kMaxFileBytes);
  if (absl::IsNotFound(certificate.status())) {
    absl::StatusOr<tls::KeyPair> made = tls::MakeAuthority(
        absl::StrCat("sluice ", options.job), {now - kSkew, now + options.authority_valid});
    if (!made.ok()) return made;
    RETURN_IF_ERROR(MakePrivateDirectory(files, target));
    RETURN_IF_ERROR(Write(files, target, kAuthorityKeyFile, made->private_key));
    RETURN_IF_ERROR(Write(files, target, kAuthorityFile, made->certificate));
    return made;
  }

  RETURN_IF_ERROR(certificate.status());
  ASSIGN_OR_RETURN(const std::string key,
                   files->Read(JoinPath(target, kAuthorityKeyFile), kMaxFileBytes));
  ASSIGN_OR_RETURN(const tls::Certificate read, tls::ReadCertificate(*certificate),
                   absl::Status(_.code(), absl::StrCat(path, ": ", _.message())));
  if (read.validity.until < now + options.valid) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": the authority ends on ",
                     absl::FormatTime("%Y-%m-%d", read.validity.until, absl::UTCTimeZone()),
                     ", before the certificates would; make a new one in another directory, or ask "
                     "for fewer days"));
  }
  return tls::KeyPair{*certificate, key};
}

}  // namespace

absl::Status WriteCredentialDirectory(FileSystem* files, const std::string& target,
                                      const std::string& bundle, const tls::KeyPair& pair) {
  RETURN_IF_ERROR(MakePrivateDirectory(files, target));
  RETURN_IF_ERROR(Write(files, target, kAuthorityFile, bundle));
  RETURN_IF_ERROR(Write(files, target, kKeyFile, pair.private_key));
  return Write(files, target, kCertificateFile, pair.certificate);
}

absl::StatusOr<std::vector<std::string>> WriteCredentialDirectories(
    FileSystem* files, const std::string& directory, const CredentialDirectoriesOptions& options,
    absl::Time now) {
  ASSIGN_OR_RETURN(const tls::KeyPair authority,
                   FindOrMakeAuthority(files, JoinPath(directory, "ca"), options, now));

  std::vector<PeerIdentity> identities = {{options.job, v1::COORDINATOR, 0},
                                          {options.job, v1::READER, 0},
                                          {options.job, v1::OPERATOR, 0}};
  for (uint32_t i = 0; i < options.shards; ++i) identities.push_back({options.job, v1::SHARD, i});
  for (uint32_t i = 0; i < options.workers; ++i) identities.push_back({options.job, v1::WORKER, i});

  std::vector<std::string> directories;
  for (const PeerIdentity& identity : identities) {
    const bool numbered = identity.role == v1::SHARD || identity.role == v1::WORKER;
    const std::string target = JoinPath(
        directory,
        absl::StrCat(NameOf(identity.role), numbered ? absl::StrCat("-", identity.index) : ""));
    ASSIGN_OR_RETURN(const tls::KeyPair pair, tls::Issue(authority, SubjectOf(identity),
                                                         {now - kSkew, now + options.valid}));
    RETURN_IF_ERROR(WriteCredentialDirectory(files, target, authority.certificate, pair));
    directories.push_back(target);
  }
  return directories;
}

}  // namespace sluice::security

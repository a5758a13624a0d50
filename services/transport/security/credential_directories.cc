#include "services/transport/security/credential_directories.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
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
  if (absl::Status status = files->CreateDirectories(target); !status.ok()) return status;
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
    if (absl::Status status = MakePrivateDirectory(files, target); !status.ok()) return status;
    if (absl::Status s = Write(files, target, kAuthorityKeyFile, made->private_key); !s.ok()) {
      return s;
    }
    if (absl::Status s = Write(files, target, kAuthorityFile, made->certificate); !s.ok()) return s;
    return made;
  }
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<std::string> key =
      files->Read(JoinPath(target, kAuthorityKeyFile), kMaxFileBytes);
  if (!key.ok()) return key.status();
  const absl::StatusOr<tls::Certificate> read = tls::ReadCertificate(*certificate);
  if (!read.ok()) {
    return absl::Status(read.status().code(), absl::StrCat(path, ": ", read.status().message()));
  }
  if (read->validity.until < now + options.valid) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": the authority ends on ",
                     absl::FormatTime("%Y-%m-%d", read->validity.until, absl::UTCTimeZone()),
                     ", before the certificates would; make a new one in another directory, or ask "
                     "for fewer days"));
  }
  return tls::KeyPair{*certificate, *key};
}

}  // namespace

absl::Status WriteCredentialDirectory(FileSystem* files, const std::string& target,
                                      const std::string& bundle, const tls::KeyPair& pair) {
  if (absl::Status status = MakePrivateDirectory(files, target); !status.ok()) return status;
  if (absl::Status status = Write(files, target, kAuthorityFile, bundle); !status.ok()) {
    return status;
  }
  if (absl::Status status = Write(files, target, kKeyFile, pair.private_key); !status.ok()) {
    return status;
  }
  return Write(files, target, kCertificateFile, pair.certificate);
}

absl::StatusOr<std::vector<std::string>> WriteCredentialDirectories(
    FileSystem* files, const std::string& directory, const CredentialDirectoriesOptions& options,
    absl::Time now) {
  const absl::StatusOr<tls::KeyPair> authority =
      FindOrMakeAuthority(files, JoinPath(directory, "ca"), options, now);
  if (!authority.ok()) return authority.status();

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
    const absl::StatusOr<tls::KeyPair> pair =
        tls::Issue(*authority, SubjectOf(identity), {now - kSkew, now + options.valid});
    if (!pair.ok()) return pair.status();
    absl::Status status = WriteCredentialDirectory(files, target, authority->certificate, *pair);
    if (!status.ok()) return status;
    directories.push_back(target);
  }
  return directories;
}

}  // namespace sluice::security

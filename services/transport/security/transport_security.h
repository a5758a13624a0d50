// How a process authenticates itself to the other processes of its job, and they to it: by mutual
// TLS (RFC 8446) with certificates of the job, or, on one machine and in plain text, by the secret
// of the run (job_secret.h).
//
// A certificate names its process's job, and each side refuses certificates of other jobs, even if
// one authority has issued both.
//
// Changed certificate files are read again, so that certificates can be renewed while processes
// run: open connections stay, new ones use the new files. Replace all files of a directory at once,
// by pointing a symbolic link at a new directory (as a Secret's volume does).
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_TRANSPORT_SECURITY_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_TRANSPORT_SECURITY_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "services/common/io/file_util.h"
#include "services/common/tls/certificates.h"
#include "services/transport/security/call_gate.h"
#include "services/transport/security/identity.h"

namespace grpc {
class AuthContext;
}  // namespace grpc

namespace sluice::security {

// Names of the files in a directory of credentials.
inline constexpr char kAuthorityFile[] = "ca.crt";  // one or more authorities
inline constexpr char kCertificateFile[] = "tls.crt";
inline constexpr char kKeyFile[] = "tls.key";

// Help of the programs' flag --tls-directory, and its environment variable.
inline constexpr char kDirectoryHelp[] =
    "use TLS with the job's other processes: a directory with ca.crt, tls.crt and tls.key, as "
    "`sluice certificates` makes them; changed files are read again";
inline constexpr char kDirectoryVariable[] = "SLUICE_TLS_DIRECTORY";
// The same for their flag --secret-file.
inline constexpr char kSecretHelp[] =
    "speak plain text, show the secret in this file to the job's other processes and require it of "
    "every caller: for processes of one machine; only its owner may read the file";
inline constexpr char kSecretVariable[] = "SLUICE_SECRET_FILE";
// Help of their flag --insecure.
inline constexpr char kInsecureHelp[] =
    "speak plain text and serve every caller: only where the network keeps other processes out";

// Any thread; shared by all connections of a process.
class TransportSecurity {
 public:
  // At most one of directory, secret_file and insecure.
  struct Options {
    std::string directory;    // of certificates
    std::string secret_file;  // of the run's secret
    bool insecure = false;
    // The process to which the certificate must belong. An empty job (namespace/name),
    // ROLE_UNSPECIFIED or no index: any.
    std::string job;
    v1::Role role = v1::ROLE_UNSPECIFIED;
    std::optional<uint32_t> index;
    // How often the files are checked for changes.
    absl::Duration refresh = absl::Seconds(10);
  };

  // Checks the files as they are now: each exists, the key is the certificate's, its authority is
  // in the bundle, it is valid at `now`, and it belongs to this process. Errors name the file, the
  // problem and the remedy: INVALID_ARGUMENT, NOT_FOUND or PERMISSION_DENIED. With a secret file:
  // as ReadSecretFile.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> Open(FileSystem* files,
                                                                       const Options& options,
                                                                       absl::Time now);

  // The same for a program: INVALID_ARGUMENT, naming the flags, unless exactly one of directory,
  // secret_file and insecure is given; insecure: null.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> OpenChosen(FileSystem* files,
                                                                             const Options& options,
                                                                             absl::Time now);

  // The same, or null if the options name neither a directory nor a file: plain text, no secret.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> OpenIfAny(FileSystem* files,
                                                                            const Options& options,
                                                                            absl::Time now);

  // From memory; never renewed. Nothing is checked.
  static std::shared_ptr<const TransportSecurity> FromMemory(const std::string& bundle,
                                                             const tls::KeyPair& pair);

  // True: TLS. False: plain text with a secret.
  bool tls() const { return provider_ != nullptr; }

  // For MakeChannel. Under TLS the other side must be of this job, and of the role that the
  // channel's kind asks for.
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials() const { return channel_; }

  // For GrpcServer: a CallGate decides on every call, by RpcRules and job, or by the secret. Makes
  // new credentials each time, for one server. `on_refused`: see CallGate::Options.
  std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
      std::function<void(const CallRefusal&)> on_refused = nullptr) const;

 private:
  class Provider;
  TransportSecurity(std::shared_ptr<Provider> provider, std::string job);
  TransportSecurity(std::string secret, std::string secret_file);

  const std::shared_ptr<Provider> provider_;  // null: plain text
  const std::string job_;                     // of the certificate
  const std::string secret_;
  const std::string secret_file_;
  std::shared_ptr<grpc::ChannelCredentials> channel_;
};

// Null security is plain text without a secret: for clients null credentials, as MakeChannel takes
// them; for servers credentials that limit the call rate of a connection and admit every caller.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security);
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security,
    std::function<void(const CallRefusal&)> on_refused = nullptr);

// The identity of a call's peer; none: plain text.
std::optional<PeerIdentity> PeerOf(const grpc::AuthContext& context);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_TRANSPORT_SECURITY_H_

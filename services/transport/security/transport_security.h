// What a process shows and asks for when it speaks to others of its job: mutual TLS (RFC 8446) by
// certificates of the job's own authority.
//
// The files are read again as they change, so that certificates are renewed while processes run:
// connections that are open stay, new ones go by the new files. Replace a folder's files at once
// (a Secret's volume does): a new folder behind a symbolic link.
#ifndef SLUICE_SERVICES_TRANSPORT_SECURITY_TRANSPORT_SECURITY_H_
#define SLUICE_SERVICES_TRANSPORT_SECURITY_TRANSPORT_SECURITY_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "services/common/file_util.h"
#include "services/common/tls/certificates.h"
#include "services/transport/security/identity.h"

namespace grpc {
class AuthContext;
}  // namespace grpc

namespace sluice::security {

// Names of the files in a folder of credentials.
inline constexpr char kAuthorityFile[] = "ca.crt";  // one or more authorities
inline constexpr char kCertificateFile[] = "tls.crt";
inline constexpr char kKeyFile[] = "tls.key";

// Of the programs' flag --tls-directory.
inline constexpr char kDirectoryHelp[] =
    "speak TLS with the job's other processes: a folder with ca.crt, tls.crt and tls.key, as "
    "`sluice certificates` makes them; they are read again as they change (default: plain text)";
inline constexpr char kDirectoryVariable[] = "SLUICE_TLS_DIRECTORY";

// Any thread; shared by all connections of a process.
class TransportSecurity {
 public:
  struct Options {
    std::string directory;
    // Who the certificate must be; index none: any.
    v1::Role role = v1::ROLE_UNSPECIFIED;
    std::optional<uint32_t> index;
    // How often the files are looked at.
    absl::Duration refresh = absl::Seconds(10);
  };

  // Checks the files as they are now: each is there, the key is the certificate's, its authority is
  // in the bundle, it is valid at `now`, and it is this process's own. Errors name the file, what
  // is wrong, and what helps: INVALID_ARGUMENT, or NOT_FOUND.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> Open(FileSystem* files,
                                                                       const Options& options,
                                                                       absl::Time now);

  // The same, or null if the options name no directory: plain text.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> OpenIfAny(FileSystem* files,
                                                                            const Options& options,
                                                                            absl::Time now);

  // From memory; not renewed. Nothing is checked.
  static std::shared_ptr<const TransportSecurity> FromMemory(const std::string& bundle,
                                                             const tls::KeyPair& pair);

  // For MakeChannel. The peer's role is asked for by the channel's kind.
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials() const { return channel_; }

  // For GrpcServer: clients must show a certificate, and every rpc is refused to whom RpcRules do
  // not name, before anything of it is read. A server takes them once; each call makes new ones.
  std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials() const;

 private:
  class Provider;
  explicit TransportSecurity(std::shared_ptr<Provider> provider);

  const std::shared_ptr<Provider> provider_;
  std::shared_ptr<grpc::ChannelCredentials> channel_;
};

// Null security is plain text: null credentials, as MakeChannel and GrpcServer take them.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security);
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security);

// Of the peer of a call; none: plain text.
std::optional<PeerIdentity> PeerOf(const grpc::AuthContext& context);

}  // namespace sluice::security

#endif  // SLUICE_SERVICES_TRANSPORT_SECURITY_TRANSPORT_SECURITY_H_

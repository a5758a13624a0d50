#include "services/transport/security/transport_security.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/transport/grpc_status.h"
#include "services/transport/security/rules.h"

namespace sluice::security {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// Refuses calls by RpcRules, whatever service and kind of rpc it is.
class RoleCheck final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::optional<PeerIdentity> peer = PeerOf(*context);
    if (path == metadata.end() || !peer.has_value()) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "the certificate does not say which process of the job it belongs to; make it by "
              "`sluice certificates`, or have the operator make it"};
    }
    return ToGrpcStatus(
        MayCall(*peer, absl::string_view(path->second.data(), path->second.size())));
  }
};

absl::Status Wrong(const std::string& path, const absl::Status& why, absl::string_view help) {
  const absl::StatusCode code =
      absl::IsNotFound(why) ? why.code() : absl::StatusCode::kInvalidArgument;
  return absl::Status(code, absl::StrCat(path, ": ", why.message(), "; ", help));
}

constexpr char kRenew[] =
    "renew it (`sluice certificates` makes new ones; on a cluster, delete the job's Secret of the "
    "role and the operator does)";

absl::Status CheckIdentity(const std::string& path, const std::string& certificate,
                           const TransportSecurity::Options& options) {
  const absl::StatusOr<tls::Certificate> read = tls::ReadCertificate(certificate);
  if (!read.ok()) return Wrong(path, read.status(), kRenew);
  const absl::StatusOr<PeerIdentity> identity = IdentityOf(*read);
  if (!identity.ok()) return Wrong(path, identity.status(), kRenew);
  const bool right_role = options.role == v1::ROLE_UNSPECIFIED || options.role == identity->role;
  if (right_role && (!options.index.has_value() || *options.index == identity->index)) {
    return absl::OkStatus();
  }
  std::string self(NameOf(options.role));
  if (options.index.has_value()) absl::StrAppend(&self, " ", *options.index);
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the certificate is that of ", identity->ToString(), ", but this is ",
                   self, "; give --tls-directory the folder of its own certificate"));
}

}  // namespace

class TransportSecurity::Provider {
 public:
  explicit Provider(std::shared_ptr<grpc::experimental::CertificateProviderInterface> certificates)
      : certificates_(std::move(certificates)) {}

  std::shared_ptr<grpc::experimental::CertificateProviderInterface> certificates() const {
    return certificates_;
  }

 private:
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> certificates_;
};

absl::StatusOr<std::shared_ptr<const TransportSecurity>> TransportSecurity::Open(
    FileSystem* files, const Options& options, absl::Time now) {
  const auto read = [&](const char* name) -> absl::StatusOr<std::string> {
    const std::string path = JoinPath(options.directory, name);
    absl::StatusOr<std::string> text = files->Read(path, kMaxFileBytes);
    if (text.ok()) return text;
    return absl::Status(
        text.status().code(),
        absl::StrCat(text.status().message(), "; the folder of --tls-directory must hold ",
                     kAuthorityFile, ", ", kCertificateFile, " and ", kKeyFile));
  };
  const absl::StatusOr<std::string> bundle = read(kAuthorityFile);
  if (!bundle.ok()) return bundle.status();
  const absl::StatusOr<std::string> certificate = read(kCertificateFile);
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<std::string> key = read(kKeyFile);
  if (!key.ok()) return key.status();

  if (const auto split = tls::SplitBundle(*bundle); !split.ok()) {
    return Wrong(JoinPath(options.directory, kAuthorityFile), split.status(),
                 "it must hold the job's authority");
  }
  const std::string path = JoinPath(options.directory, kCertificateFile);
  if (absl::Status status = CheckIdentity(path, *certificate, options); !status.ok()) return status;
  if (absl::Status status = tls::CheckKey({*certificate, *key}); !status.ok()) {
    return Wrong(JoinPath(options.directory, kKeyFile), status, kRenew);
  }
  if (absl::Status status = tls::CheckTrusted(*certificate, *bundle, now); !status.ok()) {
    return Wrong(path, status, kRenew);
  }
  const auto seconds =
      static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(options.refresh)));
  return std::shared_ptr<const TransportSecurity>(new TransportSecurity(std::make_shared<Provider>(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          JoinPath(options.directory, kKeyFile), path, JoinPath(options.directory, kAuthorityFile),
          seconds))));
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> TransportSecurity::OpenIfAny(
    FileSystem* files, const Options& options, absl::Time now) {
  if (options.directory.empty()) return std::shared_ptr<const TransportSecurity>();
  return Open(files, options, now);
}

std::shared_ptr<const TransportSecurity> TransportSecurity::FromMemory(const std::string& bundle,
                                                                       const tls::KeyPair& pair) {
  return std::shared_ptr<const TransportSecurity>(new TransportSecurity(std::make_shared<Provider>(
      std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
          bundle, std::vector<grpc::experimental::IdentityKeyCertPair>{
                      {pair.private_key, pair.certificate}}))));
}

TransportSecurity::TransportSecurity(std::shared_ptr<Provider> provider)
    : provider_(std::move(provider)) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_->certificates());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  channel_ = grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> TransportSecurity::MakeServerCredentials() const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_->certificates());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<RoleCheck>());
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security) {
  return security == nullptr ? nullptr : security->channel_credentials();
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security) {
  return security == nullptr ? nullptr : security->MakeServerCredentials();
}

std::optional<PeerIdentity> PeerOf(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> uris =
      context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME);
  if (uris.size() != 1) return std::nullopt;
  absl::StatusOr<PeerIdentity> identity =
      ParseUri(absl::string_view(uris[0].data(), uris[0].size()));
  if (!identity.ok()) return std::nullopt;
  return *std::move(identity);
}

}  // namespace sluice::security

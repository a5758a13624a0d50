#include "services/transport/security/transport_security.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/common/threads/tsan.h"
#include "services/transport/security/gated_credentials.h"
#include "services/transport/security/job_secret.h"

namespace sluice::security {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// For a client: checks that the server shows the name of its role, as the default verifier does,
// and belongs to this job.
class ServerCheck final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit ServerCheck(std::string job) : job_(std::move(job)) { internal::BeforeGrpc(this); }
  ~ServerCheck() override { internal::AfterGrpc(this); }

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>, grpc::Status* status) override {
    internal::AfterGrpc(this);
    Check(request, status);
    internal::BeforeGrpc(this);
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  void Check(grpc::experimental::TlsCustomVerificationCheckRequest* request, grpc::Status* status) {
    if (!host_name_.Verify(request, nullptr, status) || !status->ok()) return;

    const std::vector<grpc::string_ref> uris = request->uri_names();
    absl::StatusOr<PeerIdentity> server = absl::InvalidArgumentError("none");
    if (uris.size() == 1) server = ParseUri(absl::string_view(uris[0].data(), uris[0].size()));

    if (server.ok() && server->job == job_) return;
    *status = {grpc::StatusCode::UNAUTHENTICATED,
               absl::StrCat("the server's certificate is not one of job ", job_,
                            server.ok() ? absl::StrCat(", but that of ", server->ToString()) : "")};
  }

  const std::string job_;
  grpc::experimental::HostNameCertificateVerifier host_name_;
};

absl::Status Wrong(const std::string& path, const absl::Status& why, absl::string_view help) {
  const absl::StatusCode code =
      absl::IsNotFound(why) ? why.code() : absl::StatusCode::kInvalidArgument;
  return absl::Status(code, absl::StrCat(path, ": ", why.message(), "; ", help));
}

constexpr char kRenew[] =
    "renew it (`sluice certificates` makes new ones; on a cluster, delete the job's Secret of the "
    "role and the operator does)";

// The certificate's identity, if it is the one in the options.
absl::StatusOr<PeerIdentity> CheckIdentity(const std::string& path, const std::string& certificate,
                                           const TransportSecurity::Options& options) {
  ASSIGN_OR_RETURN(const tls::Certificate read, tls::ReadCertificate(certificate),
                   Wrong(path, _, kRenew));
  ASSIGN_OR_RETURN(PeerIdentity identity, IdentityOf(read), Wrong(path, _, kRenew));

  const bool right_role = options.role == v1::ROLE_UNSPECIFIED || options.role == identity.role;
  const bool right_job = options.job.empty() || options.job == identity.job;
  if (right_role && right_job && (!options.index.has_value() || *options.index == identity.index)) {
    return identity;
  }

  std::string self(NameOf(options.role));
  if (options.index.has_value()) absl::StrAppend(&self, " ", *options.index);
  if (!options.job.empty()) absl::StrAppend(&self, " of ", options.job);

  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the certificate is that of ", identity.ToString(), ", but this is ",
                   self, "; give --tls-directory the directory of its own certificate"));
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
  if (!options.secret_file.empty()) {
    ASSIGN_OR_RETURN(std::string secret, ReadSecretFile(files, options.secret_file));
    return std::shared_ptr<const TransportSecurity>(
        new TransportSecurity(std::move(secret), options.secret_file));
  }

  const auto read = [&](const char* name) -> absl::StatusOr<std::string> {
    const std::string path = JoinPath(options.directory, name);
    absl::StatusOr<std::string> text = files->Read(path, kMaxFileBytes);
    if (text.ok()) return text;
    return absl::Status(
        text.status().code(),
        absl::StrCat(text.status().message(), "; the directory of --tls-directory must hold ",
                     kAuthorityFile, ", ", kCertificateFile, " and ", kKeyFile));
  };
  ASSIGN_OR_RETURN(const std::string bundle, read(kAuthorityFile));
  ASSIGN_OR_RETURN(const std::string certificate, read(kCertificateFile));
  ASSIGN_OR_RETURN(const std::string key, read(kKeyFile));

  if (const auto split = tls::SplitBundle(bundle); !split.ok()) {
    return Wrong(JoinPath(options.directory, kAuthorityFile), split.status(),
                 "it must hold the job's authority");
  }

  const std::string path = JoinPath(options.directory, kCertificateFile);
  ASSIGN_OR_RETURN(const PeerIdentity identity, CheckIdentity(path, certificate, options));
  RETURN_IF_ERROR(tls::CheckKey({certificate, key}),
                  Wrong(JoinPath(options.directory, kKeyFile), _, kRenew));
  RETURN_IF_ERROR(tls::CheckTrusted(certificate, bundle, now), Wrong(path, _, kRenew));

  const auto seconds =
      static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(options.refresh)));
  return std::shared_ptr<const TransportSecurity>(new TransportSecurity(
      std::make_shared<Provider>(
          std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
              JoinPath(options.directory, kKeyFile), path,
              JoinPath(options.directory, kAuthorityFile), seconds)),
      identity.job));
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> TransportSecurity::OpenChosen(
    FileSystem* files, const Options& options, absl::Time now) {
  const int chosen = !options.directory.empty() + !options.secret_file.empty() + options.insecure;
  if (chosen != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        chosen == 0
            ? "no security is chosen, so any process that reaches the port could control this one"
            : "more than one kind of security is chosen",
        ": give one of --tls-directory (certificates; across machines), --secret-file (the run's "
        "secret; on one machine), or --insecure (",
        kInsecureHelp, ")"));
  }
  return OpenIfAny(files, options, now);
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> TransportSecurity::OpenIfAny(
    FileSystem* files, const Options& options, absl::Time now) {
  if (options.directory.empty() && options.secret_file.empty()) {
    return std::shared_ptr<const TransportSecurity>();
  }
  return Open(files, options, now);
}

std::shared_ptr<const TransportSecurity> TransportSecurity::FromMemory(const std::string& bundle,
                                                                       const tls::KeyPair& pair) {
  absl::StatusOr<PeerIdentity> identity = absl::UnknownError("");
  const absl::StatusOr<tls::Certificate> certificate = tls::ReadCertificate(pair.certificate);
  if (certificate.ok()) identity = IdentityOf(*certificate);
  return std::shared_ptr<const TransportSecurity>(new TransportSecurity(
      std::make_shared<Provider>(
          std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
              bundle, std::vector<grpc::experimental::IdentityKeyCertPair>{{pair.private_key,
                                                                            pair.certificate}})),
      identity.ok() ? identity->job : ""));
}

TransportSecurity::TransportSecurity(std::shared_ptr<Provider> provider, std::string job)
    : provider_(std::move(provider)), job_(std::move(job)) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_->certificates());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<ServerCheck>(job_));
  channel_ = grpc::experimental::TlsCredentials(options);
}

TransportSecurity::TransportSecurity(std::string secret, std::string secret_file)
    : secret_(std::move(secret)),
      secret_file_(std::move(secret_file)),
      channel_(SecretChannelCredentials(secret_)) {}

std::shared_ptr<grpc::ServerCredentials> TransportSecurity::MakeServerCredentials(
    std::function<void(const CallRefusal&)> on_refused) const {
  CallGate::Options gate;
  gate.on_refused = std::move(on_refused);

  if (!tls()) {
    gate.secret = secret_;
    gate.secret_file = secret_file_;
    return GatedServerCredentials(grpc_insecure_server_credentials_create, std::move(gate));
  }

  gate.job = job_;
  return GatedServerCredentials(
      [provider = provider_] {
        grpc::experimental::TlsServerCredentialsOptions options(provider->certificates());
        options.watch_root_certs();
        options.watch_identity_key_cert_pairs();
        options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
        return grpc_tls_server_credentials_create(options.c_credentials_options());
      },
      std::move(gate));
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security) {
  return security == nullptr ? nullptr : security->channel_credentials();
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<const TransportSecurity>& security,
    std::function<void(const CallRefusal&)> on_refused) {
  if (security != nullptr) return security->MakeServerCredentials(std::move(on_refused));
  CallGate::Options gate;
  gate.on_refused = std::move(on_refused);
  return GatedServerCredentials(grpc_insecure_server_credentials_create, std::move(gate));
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

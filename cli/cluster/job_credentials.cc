#include "cli/cluster/job_credentials.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"
#include "operator/reconciler/job_tls.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/observed_job.h"
#include "services/transport/security/transport_security.h"

namespace sluice::cli {
namespace {

using kube::Json;

absl::Status MayNotRead(const kube::ObjectKey& job, const std::string& secret,
                        const absl::Status& status) {
  const std::optional<kube::ApiError> error = kube::ApiErrorOf(status);
  const std::string role = absl::StrCat(job.name, "-reader");
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.name, " uses TLS, and you may not read the certificate for its readers, Secret ",
      secret, ": ", error.has_value() ? error->message : std::string(status.message()),
      ". The role edit of namespace ", job.ns,
      " is enough; or ask for access to this one Secret:\n  kubectl create role ", role, " -n ",
      job.ns, " --verb=get --resource=secrets --resource-name=", secret,
      "\n  kubectl create rolebinding ", role, " -n ", job.ns, " --role=", role, " --user=<you>"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ReaderCredentials(
    const Connection& connection, const Json& job, absl::Time now) {
  if (!reconciler::SpeaksTls(job)) return std::shared_ptr<grpc::ChannelCredentials>();
  const kube::ObjectKey key = kube::KeyOf(job);
  const std::string name = reconciler::TlsSecretName(key.name, v1::READER, 0);

  const absl::StatusOr<Json> secret =
      connection.client->Get(reconciler::Secrets(), {key.ns, name}, kube::Subresource::kNone);
  if (absl::IsPermissionDenied(secret.status())) return MayNotRead(key, name, secret.status());

  if (absl::IsNotFound(secret.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", key.name, " uses TLS, and Secret ", name,
                     ", the certificate for its readers, does not exist (yet): the operator "
                     "creates it when the job starts. To see what delays it: kubectl describe stj ",
                     key.name, " -n ", key.ns));
  }
  if (!secret.ok()) return Explain(secret.status(), connection);

  const absl::StatusOr<reconciler::ProcessCredentials> credentials =
      reconciler::CredentialsIn(*secret, 0, now);
  if (!credentials.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Secret ", name, ": ", credentials.status().message(),
                     "; to have the operator create a new one, run kubectl delete secret ", name,
                     " -n ", key.ns));
  }

  return security::TransportSecurity::FromMemory(credentials->bundle, credentials->pair)
      ->channel_credentials();
}

}  // namespace sluice::cli

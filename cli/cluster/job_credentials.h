// The credentials that `sluice` presents to the processes of a job on a cluster: the reader
// certificate, which the operator keeps in the Secret `<job>-tls-reader`.
#ifndef SLUICE_CLI_CLUSTER_JOB_CREDENTIALS_H_
#define SLUICE_CLI_CLUSTER_JOB_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/cluster/connection.h"
#include "operator/kube/object.h"

namespace sluice::cli {

// Null: the job uses plain text. Makes one request to the API server. FAILED_PRECONDITION: the
// Secret may not be read, does not exist, or its certificate is invalid or expired; each message
// gives a remedy.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ReaderCredentials(
    const Connection& connection, const kube::Json& job, absl::Time now);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_JOB_CREDENTIALS_H_

// What `sluice` shows the processes of a job of a cluster: the certificate for people who look,
// which the operator keeps in the Secret `<job>-tls-reader`.
#ifndef SLUICE_SERVICES_CLI_CLUSTER_JOB_CREDENTIALS_H_
#define SLUICE_SERVICES_CLI_CLUSTER_JOB_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "services/cli/cluster/connection.h"

namespace sluice::cli {

// Null: the job speaks plain text. Asks the API server once. FAILED_PRECONDITION: the Secret may
// not be read, is not there, or what it holds is worth nothing (any more); each with what to do.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ReaderCredentials(
    const Connection& connection, const kube::Json& job, absl::Time now);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_CLUSTER_JOB_CREDENTIALS_H_

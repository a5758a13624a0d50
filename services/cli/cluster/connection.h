// The API server that a command speaks with.
#ifndef SLUICE_SERVICES_CLI_CLUSTER_CONNECTION_H_
#define SLUICE_SERVICES_CLI_CLUSTER_CONNECTION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/http.h"
#include "services/cli/environment.h"

namespace sluice::cli {

// What a command's flags say of the cluster.
struct ClusterFlags {
  bool cluster = false;
  std::string context;
  std::string ns;
  std::string kubeconfig;

  // Each of the flags alone says that a cluster is meant.
  bool wanted() const { return cluster || !context.empty() || !ns.empty() || !kubeconfig.empty(); }
  // The flags again, for commands that are proposed: " --cluster --namespace team".
  std::string Text() const;
};

// Flags of kubectl that select the same cluster: "--context here --kubeconfig file".
std::vector<std::string> KubectlFlags(const ClusterFlags& flags);

// Whose fields they are that `sluice` applies.
constexpr char kCliFieldManager[] = "sluice";

struct Connection {
  kube::ClientConfig config;
  std::unique_ptr<kube::HttpTransport> transport;
  std::unique_ptr<kube::Client> client;
  std::string ns;  // the flag's, or the context's
};

// Finds the kubeconfig as kubectl does (--kubeconfig, $KUBECONFIG, ~/.kube/config, and the service
// account inside of a pod); sends nothing yet. FAILED_PRECONDITION: there is none. INVALID_ARGUMENT
// names the file and the place in it.
absl::StatusOr<Connection> Connect(const Environment& environment, const ClusterFlags& flags);

// An API server's refusal for a user: what it said, and what can be done about it. The code is
// FAILED_PRECONDITION for whatever the server refused (exit code 2), UNAVAILABLE if it could not be
// reached. OK stays OK.
absl::Status Explain(const absl::Status& status, const Connection& connection);

// The server does not know TrainingJobs at all.
bool IsUnknownType(const absl::Status& status);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_CLUSTER_CONNECTION_H_

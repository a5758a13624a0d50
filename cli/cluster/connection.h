// The API server that a command uses.
#ifndef SLUICE_CLI_CLUSTER_CONNECTION_H_
#define SLUICE_CLI_CLUSTER_CONNECTION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/common/environment.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/http.h"

namespace sluice::cli {

// The flags of a command that select the cluster.
struct ClusterFlags {
  // --cluster: the kubeconfig's current context. The other flags imply it.
  bool cluster = false;
  std::string context;
  std::string ns;
  std::string kubeconfig;

  // Any one of the flags selects a cluster.
  bool wanted() const { return cluster || !context.empty() || !ns.empty() || !kubeconfig.empty(); }
  // The flags as text, for proposed commands: " --cluster --namespace team".
  std::string Text() const;
};

// Flags of kubectl that select the same cluster: "--context here --kubeconfig file".
std::vector<std::string> KubectlFlags(const ClusterFlags& flags);

// The field manager of the fields that `sluice` applies.
constexpr char kCliFieldManager[] = "sluice";

// Everything that a command needs to call one API server. Explain makes messages of `client`'s
// errors.
struct Connection {
  kube::ClientConfig config;
  std::unique_ptr<kube::HttpTransport> transport;
  std::unique_ptr<kube::Client> client;
  std::string ns;  // the flag's, or the context's
};

// Finds the kubeconfig as kubectl does (--kubeconfig, $KUBECONFIG, ~/.kube/config, and the service
// account inside a pod); sends nothing yet. FAILED_PRECONDITION: there is none. INVALID_ARGUMENT
// names the file and the position in it.
absl::StatusOr<Connection> Connect(const Environment& environment, const ClusterFlags& flags);

// Turns an API server's error into a message for the user: the server's text, and what can be done
// about it. The code is FAILED_PRECONDITION for a refusal (exit code 2), UNAVAILABLE if the server
// could not be reached. OK stays OK.
absl::Status Explain(const absl::Status& status, const Connection& connection);

// Whether the server has no type TrainingJob: the CustomResourceDefinition is not installed.
bool IsUnknownType(const absl::Status& status);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_CONNECTION_H_

#include "cli/cluster/connection.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/cluster/credential_plugin.h"
#include "operator/kube/api_error.h"
#include "operator/kube/http_client.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxKubeconfig = 1 << 20;
constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

std::vector<std::string> KubeconfigFiles(const ClusterAccess& access, const ClusterFlags& flags) {
  if (!flags.kubeconfig.empty()) return {flags.kubeconfig};
  std::vector<std::string> files = kube::SplitKubeconfigPath(access.kubeconfig);
  if (files.empty() && !access.home.empty()) files = {JoinPath(access.home, ".kube/config")};
  return files;
}

absl::StatusOr<kube::ClientConfig> InCluster(const Environment& environment) {
  const ClusterAccess& access = environment.cluster;
  const auto ns = environment.files->Read(JoinPath(kServiceAccount, "namespace"), kMaxKubeconfig);
  return kube::InClusterConfig(access.service_host, access.service_port, kServiceAccount,
                               ns.ok() ? *ns : "");
}

absl::StatusOr<kube::ClientConfig> FindConfig(const Environment& environment,
                                              const ClusterFlags& flags) {
  const std::vector<std::string> paths = KubeconfigFiles(environment.cluster, flags);
  std::vector<kube::KubeconfigFile> files;
  for (const std::string& path : paths) {
    absl::StatusOr<std::string> text = environment.files->Read(path, kMaxKubeconfig);
    // Like kubectl, skips files of $KUBECONFIG that do not exist.
    if (absl::IsNotFound(text.status()) && flags.kubeconfig.empty()) continue;

    if (!text.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the kubeconfig cannot be read: ", text.status().message()));
    }

    const std::string directory = DirectoryOf(path);
    files.push_back({*std::move(text), directory.empty() ? "." : directory});
  }

  if (files.empty()) {
    absl::StatusOr<kube::ClientConfig> config = InCluster(environment);
    if (config.ok()) return config;
    return absl::FailedPreconditionError(
        absl::StrCat("no cluster is configured: there is no kubeconfig (looked for ",
                     paths.empty() ? "$KUBECONFIG" : absl::StrJoin(paths, ", "),
                     "). Name one with --kubeconfig, or create it with your cluster's tool"));
  }

  absl::StatusOr<kube::ClientConfig> config =
      kube::ParseKubeconfigs(files, flags.context, kube::Plugins::kRead);
  if (config.ok()) return config;
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(paths, ":"), ": ", config.status().message()));
}

std::string Server(const Connection& connection) {
  return absl::StrCat("the API server ", connection.config.server, " (context ",
                      connection.config.context, ")");
}

}  // namespace

std::string ClusterFlags::Text() const {
  std::string text = " --cluster";
  if (!ns.empty()) absl::StrAppend(&text, " --namespace ", ns);
  if (!context.empty()) absl::StrAppend(&text, " --context ", context);
  if (!kubeconfig.empty()) absl::StrAppend(&text, " --kubeconfig ", kubeconfig);
  return text;
}

std::vector<std::string> KubectlFlags(const ClusterFlags& flags) {
  std::vector<std::string> arguments;
  if (!flags.context.empty()) arguments.insert(arguments.end(), {"--context", flags.context});
  if (!flags.kubeconfig.empty()) {
    arguments.insert(arguments.end(), {"--kubeconfig", flags.kubeconfig});
  }
  return arguments;
}

absl::StatusOr<Connection> Connect(const Environment& environment, const ClusterFlags& flags) {
  ASSIGN_OR_RETURN(kube::ClientConfig config, FindConfig(environment, flags));
  Connection connection;
  connection.config = std::move(config);

  if (connection.config.plugin.command.empty()) {
    ASSIGN_OR_RETURN(connection.transport, environment.cluster.connect(connection.config));
  } else {
    connection.transport =
        std::make_unique<PluginTransport>(connection.config, environment.cluster.connect);
  }

  kube::HttpClient::Options options;
  options.retry.max_tries = 3;  // a user is waiting
  options.sleep = [](absl::Duration time) { absl::SleepFor(time); };
  connection.client =
      std::make_unique<kube::HttpClient>(connection.transport.get(), std::move(options));

  connection.ns = flags.ns.empty() ? connection.config.default_namespace : flags.ns;
  return connection;
}

bool IsUnknownType(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return false;
  const std::optional<kube::ApiError> error = kube::ApiErrorOf(status);
  if (!error.has_value()) return false;
  // If the type exists, the message names the missing object instead.
  return absl::StrContains(error->message, "could not find the requested resource") ||
         absl::StrContains(error->message, "page not found");
}

absl::Status Explain(const absl::Status& status, const Connection& connection) {
  if (status.ok()) return status;
  const std::optional<kube::ApiError> error = kube::ApiErrorOf(status);

  // No connection was attempted, for example because a credential plugin failed.
  if (!error.has_value() && absl::IsFailedPrecondition(status)) return status;
  if (!error.has_value()) {
    return absl::Status(status.code(),
                        absl::StrCat(Server(connection), " cannot be reached: ", status.message()));
  }

  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(absl::StrCat(Server(connection), ": ", status.message()));
  }

  if (IsUnknownType(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat(Server(connection),
                     " does not know TrainingJobs: Sluice's operator is not installed there. "
                     "helm install sluice helm/sluice installs it (docs/kubernetes.md)"));
  }

  std::string text = error->message;
  // Refusals by a quota or a policy explain themselves.
  if (absl::IsPermissionDenied(status) && absl::StrContains(text, "cannot ")) {
    absl::StrAppend(&text,
                    ". The namespace's role edit includes its TrainingJobs: ask for the role edit "
                    "(or view, to follow jobs) of namespace ",
                    connection.ns);
  } else if (absl::IsUnauthenticated(status)) {
    text = absl::StrCat(Server(connection), " does not accept the kubeconfig's credentials (",
                        error->message, "); have they expired?");
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace sluice::cli

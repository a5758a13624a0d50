// Which API server, and as whom: from a kubeconfig, or from inside of a pod.
#ifndef SLUICE_OPERATOR_KUBE_CONFIG_H_
#define SLUICE_OPERATOR_KUBE_CONFIG_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::kube {

// PEM text, or a file that holds it and may be replaced at any time; or neither.
struct Credential {
  std::string pem;
  std::string file;
  bool empty() const { return pem.empty() && file.empty(); }
};

// A program that makes credentials; what a kubeconfig calls `exec`.
struct CredentialPlugin {
  std::string command;  // empty: none. A name without a slash is looked for in $PATH
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;
  std::string api_version;   // of the ExecCredential
  std::string install_hint;  // for who does not have the command
};

struct ClientConfig {
  std::string server;           // "https://host:port" or with a path; no slash at its end
  std::string tls_server_name;  // verified instead of the host, where given
  Credential certificate_authority;
  Credential client_certificate;
  Credential client_key;
  std::string token;
  std::string token_file;   // preferred to `token`
  CredentialPlugin plugin;  // makes token and certificate, which are then empty here
  bool insecure_skip_tls_verify = false;
  // Of the context, or of the pod; "default" where none is said.
  std::string default_namespace = "default";
  std::string context;  // for messages; "in-cluster" inside of a pod
};

// Reads the text of one kubeconfig. Relative file names in it are taken from `directory`, where the
// file lies. `context` empty: the current one. Never throws; InvalidArgument names the place
// ("users[2] \"ci\": ..."). Credential plugins (exec), auth providers and basic authentication are
// refused.
absl::StatusOr<ClientConfig> ParseKubeconfig(absl::string_view text, absl::string_view directory,
                                             absl::string_view context);

struct KubeconfigFile {
  std::string text;
  std::string directory;  // where it lies
};

// The same for several files, as kubectl merges them: the first that names a current context, and
// of two entries of one name the first, win. Without files: InvalidArgument. Credential plugins are
// read where `plugins` says that the caller runs them, and refused otherwise.
enum class Plugins { kRefused, kRead };
absl::StatusOr<ClientConfig> ParseKubeconfigs(const std::vector<KubeconfigFile>& files,
                                              absl::string_view context, Plugins plugins);

// For the text of $KUBECONFIG: the files of it, in order; empty where it is empty.
std::vector<std::string> SplitKubeconfigPath(absl::string_view value);

// What a pod finds. `host` and `port` are KUBERNETES_SERVICE_HOST and _PORT; `directory` is
// /var/run/secrets/kubernetes.io/serviceaccount, whose files are only named here, save for the
// namespace, whose content is `default_namespace`. FailedPrecondition: not in a pod.
absl::StatusOr<ClientConfig> InClusterConfig(absl::string_view host, absl::string_view port,
                                             absl::string_view directory,
                                             absl::string_view default_namespace);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_CONFIG_H_

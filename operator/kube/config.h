// The API server's address and the client's credentials, from a kubeconfig or from inside a pod.
#ifndef SLUICE_OPERATOR_KUBE_CONFIG_H_
#define SLUICE_OPERATOR_KUBE_CONFIG_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::kube {

// PEM text, or a file that contains it and may be replaced at any time; or neither.
struct Credential {
  std::string pem;
  std::string file;
  bool empty() const { return pem.empty() && file.empty(); }
};

// A program that produces credentials; a kubeconfig calls it `exec`.
struct CredentialPlugin {
  std::string command;  // empty: none. A name without a slash is looked up in $PATH
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;
  std::string api_version;   // of the ExecCredential
  std::string install_hint;  // shown if the command is not installed
};

// Everything that a transport needs for one API server. Files are named, not read: they are read
// when a connection needs them, and again when they are replaced.
struct ClientConfig {
  std::string server;           // "https://host:port", possibly with a path; no trailing slash
  std::string tls_server_name;  // verified instead of the host, unless empty
  Credential certificate_authority;
  Credential client_certificate;
  Credential client_key;
  std::string token;
  std::string token_file;   // preferred to `token`
  CredentialPlugin plugin;  // produces token and certificate, which are empty here
  bool insecure_skip_tls_verify = false;
  // The namespace of the context, or of the pod; "default" if none is set.
  std::string default_namespace = "default";
  std::string context;  // for messages; "in-cluster" inside a pod
};

// Reads the text of one kubeconfig. Relative file names in it are relative to `directory`, which
// contains the file. `context` empty: the current one. Never throws; InvalidArgument names the
// place ("users[2] \"ci\": ..."). Rejects credential plugins (exec), auth providers and basic
// authentication.
absl::StatusOr<ClientConfig> ParseKubeconfig(absl::string_view text, absl::string_view directory,
                                             absl::string_view context);

// The text of a kubeconfig, and where it came from.
struct KubeconfigFile {
  std::string text;
  std::string directory;  // which contains the file
};

// The same for several files, merged as kubectl does: the first current context wins, and of two
// entries with the same name the first. Without files: InvalidArgument. Credential plugins are read
// if `plugins` says that the caller runs them, and rejected otherwise.
enum class Plugins { kRefused, kRead };
absl::StatusOr<ClientConfig> ParseKubeconfigs(const std::vector<KubeconfigFile>& files,
                                              absl::string_view context, Plugins plugins);

// The files in the text of $KUBECONFIG, in order; empty if the text is empty.
std::vector<std::string> SplitKubeconfigPath(absl::string_view value);

// The configuration inside a pod. `host` and `port` are KUBERNETES_SERVICE_HOST and _PORT;
// `directory` is /var/run/secrets/kubernetes.io/serviceaccount. Its files are only named here,
// except the namespace, whose content is `default_namespace`. FailedPrecondition: not in a pod.
absl::StatusOr<ClientConfig> InClusterConfig(absl::string_view host, absl::string_view port,
                                             absl::string_view directory,
                                             absl::string_view default_namespace);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_CONFIG_H_

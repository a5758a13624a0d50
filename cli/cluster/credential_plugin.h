// Credentials from a program that a kubeconfig names, as managed clusters do
// (client.authentication.k8s.io: aws, gcloud, kubelogin and the like).
#ifndef SLUICE_CLI_CLUSTER_CREDENTIAL_PLUGIN_H_
#define SLUICE_CLI_CLUSTER_CREDENTIAL_PLUGIN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "operator/kube/config.h"
#include "operator/kube/http.h"
#include "services/common/threads/mutex.h"

namespace sluice::cli {

// Runs the plugin of `config` to its end, and returns a copy of `config` with the plugin's
// credentials. The plugin may prompt at the terminal, and prints its own errors there.
// FAILED_PRECONDITION: it failed, or is not installed.
absl::StatusOr<kube::ClientConfig> RunCredentialPlugin(const kube::ClientConfig& config);

// A transport with a plugin's credentials. It runs the plugin before the first request, and again
// each time the server rejects the credentials.
class PluginTransport final : public kube::HttpTransport {
 public:
  using Connect = std::function<absl::StatusOr<std::unique_ptr<kube::HttpTransport>>(
      const kube::ClientConfig&)>;

  // `config` has a plugin.
  PluginTransport(kube::ClientConfig config, Connect connect);

  absl::StatusOr<kube::HttpResponse> Do(const kube::HttpRequest& request) override;
  absl::StatusOr<kube::HttpResponse> Stream(const kube::HttpRequest& request, const BodySink& sink,
                                            kube::Cancellation* cancellation) override;

 private:
  // The current transport; replaced by a new one if it is still `refused`.
  absl::StatusOr<std::shared_ptr<kube::HttpTransport>> Current(
      const std::shared_ptr<kube::HttpTransport>& refused);

  const kube::ClientConfig config_;
  const Connect connect_;
  Mutex mutex_;  // held while the plugin runs: one at a time
  std::shared_ptr<kube::HttpTransport> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_CREDENTIAL_PLUGIN_H_

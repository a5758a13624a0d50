// A port of a pod on this machine, by `kubectl port-forward`.
//
// The way there is a protocol of its own through the API server (WebSocket, before that SPDY) that
// kubectl speaks in every version that clusters ask for; whoever uses a cluster has kubectl.
#ifndef SLUICE_SERVICES_CLI_CLUSTER_PORT_FORWARD_H_
#define SLUICE_SERVICES_CLI_CLUSTER_PORT_FORWARD_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"

namespace sluice::cli {

// Where kubectl is, among the folders of `path` (as in $PATH). FAILED_PRECONDITION: nowhere.
absl::StatusOr<std::string> FindKubectl(const std::string& path);

class PortForward {
 public:
  struct Options {
    std::string kubectl;
    std::vector<std::string> flags;  // that select the cluster
    kube::ObjectKey pod;
    int port = 0;
    absl::Duration timeout = absl::Seconds(15);
  };

  // Blocks until connections are taken. An error has kubectl's own words.
  static absl::StatusOr<std::unique_ptr<PortForward>> Start(const Options& options);
  // Ends it; it ends with this process too.
  ~PortForward();
  PortForward(const PortForward&) = delete;
  PortForward& operator=(const PortForward&) = delete;

  // "127.0.0.1:port"
  const std::string& address() const { return address_; }

 private:
  PortForward(pid_t pid, int output) : pid_(pid), output_(output) {}
  absl::Status WaitUntilOpen(absl::Duration timeout);
  std::string Output() const;

  pid_t pid_;
  const int output_;  // a file without a name, with what kubectl printed
  std::string address_;
};

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_CLUSTER_PORT_FORWARD_H_

// Forwards a port of a pod to this machine with `kubectl port-forward`.
//
// Port forwarding has its own protocol through the API server (WebSocket, formerly SPDY), and
// kubectl speaks every version that clusters require. Users of a cluster have kubectl.
#ifndef SLUICE_CLI_CLUSTER_PORT_FORWARD_H_
#define SLUICE_CLI_CLUSTER_PORT_FORWARD_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"

namespace sluice::cli {

// Finds kubectl in the directories of `path` (as in $PATH). FAILED_PRECONDITION: it is in none.
absl::StatusOr<std::string> FindKubectl(const std::string& path);

// A running `kubectl port-forward`. If it ends, connections to its address fail.
class PortForward {
 public:
  // `flags` are kubectl's. `timeout` bounds Start.
  struct Options {
    std::string kubectl;
    std::vector<std::string> flags;  // flags that select the cluster
    kube::ObjectKey pod;
    int port = 0;
    absl::Duration timeout = absl::Seconds(15);
  };

  // Blocks until the port accepts connections. An error contains kubectl's output.
  static absl::StatusOr<std::unique_ptr<PortForward>> Start(const Options& options);
  // Ends kubectl, which also ends if this process dies.
  ~PortForward();
  PortForward(const PortForward&) = delete;
  PortForward& operator=(const PortForward&) = delete;

  // "127.0.0.1:port"
  const std::string& address() const { return address_; }

 private:
  PortForward(pid_t pid, int output) : pid_(pid), output_(output) {}
  // Waits until kubectl has printed the port that it opened.
  absl::Status WaitUntilOpen(absl::Duration timeout);
  // The first 64 KiB that kubectl has printed.
  std::string Output() const;

  pid_t pid_;
  const int output_;  // an anonymous file with kubectl's output
  std::string address_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_PORT_FORWARD_H_

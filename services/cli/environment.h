// What `sluice` takes from the process that it is: made in main, or by a test.
#ifndef SLUICE_SERVICES_CLI_ENVIRONMENT_H_
#define SLUICE_SERVICES_CLI_ENVIRONMENT_H_

#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "operator/kube/config.h"
#include "operator/kube/http.h"
#include "services/common/clock.h"
#include "services/common/file_util.h"
#include "services/download/http_get.h"

namespace sluice::cli {

// How clusters are found and reached.
struct ClusterAccess {
  std::string kubeconfig;                  // $KUBECONFIG: files, with colons between them
  std::string home;                        // $HOME
  std::string service_host, service_port;  // $KUBERNETES_SERVICE_HOST and _PORT: inside of a pod
  // Where kubectl may be: $PATH.
  std::string path;
  std::function<absl::StatusOr<std::unique_ptr<kube::HttpTransport>>(const kube::ClientConfig&)>
      connect;
};

struct Environment {
  std::istream* in = nullptr;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool in_is_terminal = false;
  // Whether `out` understands cursor movements; and colours.
  bool live = false;
  bool color = false;
  // Whether the user's locale has more characters than ASCII.
  bool unicode = true;
  // Whether the reader of `out` has closed its end.
  std::function<bool()> reader_gone = [] { return false; };
  // Width of the terminal, in characters; it may change.
  std::function<int()> columns = [] { return 80; };
  // Where the programs of a job may be, best first.
  std::vector<std::string> program_directories;
  // $SLUICE_DATA: where data that is not beside its manifest may be; may be empty.
  std::string data_directory;
  // Where downloads are kept, and what downloads; null: data at addresses is refused.
  std::string cache_directory;
  HttpGet* http = nullptr;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
  ClusterAccess cluster;
  // From now on `handler(n)` is called for the n-th SIGINT, SIGTERM or SIGHUP, on a thread of its
  // own. An empty handler: nobody is told.
  std::function<void(std::function<void(int)>)> set_interrupt_handler =
      [](const std::function<void(int)>&) {};
};

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_ENVIRONMENT_H_

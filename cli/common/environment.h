// The process environment of `sluice`: main or a test fills it in.
#ifndef SLUICE_CLI_COMMON_ENVIRONMENT_H_
#define SLUICE_CLI_COMMON_ENVIRONMENT_H_

#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "operator/kube/config.h"
#include "operator/kube/http.h"
#include "services/common/io/file_util.h"
#include "services/common/time/clock.h"
#include "services/download/http_get.h"

namespace sluice::cli {

// How to find and reach clusters.
struct ClusterAccess {
  std::string kubeconfig;                  // $KUBECONFIG: files, separated by colons
  std::string home;                        // $HOME
  std::string service_host, service_port;  // $KUBERNETES_SERVICE_HOST and _PORT: set inside a pod
  // $PATH, to find kubectl.
  std::string path;
  // Connects to an API server.
  std::function<absl::StatusOr<std::unique_ptr<kube::HttpTransport>>(const kube::ClientConfig&)>
      connect;
};

// The surroundings of a command, which tests replace. The pointers must outlive the command.
struct Environment {
  std::istream* in = nullptr;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool in_is_terminal = false;
  // Whether `out` supports cursor movements, and colours.
  bool live = false;
  bool color = false;
  // Whether the user's locale has more characters than ASCII.
  bool unicode = true;
  // Whether the reader of `out` has closed its end.
  std::function<bool()> reader_gone = [] { return false; };
  // The terminal's width in characters; it may change.
  std::function<int()> columns = [] { return 80; };
  // Directories that may contain a job's programs, in order of preference.
  std::vector<std::string> program_directories;
  // $SLUICE_DATA: directory of data that is not beside its manifest; may be empty.
  std::string data_directory;
  std::string plugin_path;  // $SLUICE_PLUGIN_PATH; may be empty
  // The directory of downloads, and the client; null: data at addresses is refused.
  std::string cache_directory;
  HttpGet* http = nullptr;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
  ClusterAccess cluster;
  // Sets the handler that is called as `handler(n)` for the n-th SIGINT, SIGTERM or SIGHUP, on its
  // own thread. An empty handler removes it.
  std::function<void(std::function<void(int)>)> set_interrupt_handler =
      [](const std::function<void(int)>&) {};
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_ENVIRONMENT_H_

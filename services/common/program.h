// What every program of Sluice begins with: flags, logging, metrics, and how it ends.

#ifndef SLUICE_SERVICES_COMMON_PROGRAM_H_
#define SLUICE_SERVICES_COMMON_PROGRAM_H_

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/common/logging.h"
#include "services/common/metrics.h"
#include "services/common/mutex.h"
#include "services/common/process.h"

namespace sluice {

// Flags that all long-running programs share.
struct ProgramFlags {
  std::string log_level = "info";
  std::string log_format = "logfmt";
  std::string log_file;
  std::string metrics_address;  // host:port; empty: no metrics are served
  std::string port_file;
  std::string metrics_port_file;
  pid_t parent = 0;
  bool grpc_experiments = true;
};

// Adds --log-level, --log-format, --log-file, --metrics-address, --port-file, --metrics-port-file,
// --parent, --[no-]grpc-experiments and
// --version. `flags` must outlive `app`.
void AddProgramFlags(CLI::App* app, ProgramFlags* flags);

// To be called in main after parsing: ties the process to its parent if asked to, and opens the
// log.
absl::StatusOr<Logger> BeginProgram(const ProgramFlags& flags);

// Parses; returns the exit code if the program is to end at once (help, version, wrong flags; a
// flag that it does not know: kExitRefused), else -1.
int ParseFlags(CLI::App* app, int argc, char** argv);

// Serves the metrics where the flags say so, and writes the port's file; null if they do not. As
// MetricsServer::Start; `ready` and `alive` are those of its options.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(
    const ProgramFlags& flags, const Metrics* metrics, std::function<absl::Status()> ready,
    std::function<absl::Status()> alive = nullptr);

// Tells about SIGTERM, SIGINT and SIGHUP. A SIGHUP counts only as the first: a terminal that goes
// away may send several, and none of them is somebody's impatience. To be made in main before any
// other thread, once in a process.
class StopRequests {
 public:
  StopRequests();

  // From now on `handler(n)` is called for the n-th signal of the process's life, on a thread of
  // its own; at once for one that has come already and was not handled. Null: nobody is told. Waits
  // for a running handler.
  void SetHandler(std::function<void(int)> handler);

 private:
  void OnSignal(int signal);

  Mutex mutex_;  // held while the handler runs, so that SetHandler waits for it
  std::function<void(int)> handler_ ABSL_GUARDED_BY(mutex_);
  int received_ ABSL_GUARDED_BY(mutex_) = 0;
  int handled_ ABSL_GUARDED_BY(mutex_) = 0;
  SignalWatcher watcher_;  // last: its thread uses the above
};

// Prints "<program>: <status>" to standard error and returns the exit code: kExitUsage for
// INVALID_ARGUMENT, kExitRetry for UNAVAILABLE, kExitFailed otherwise.
int ExitWith(const std::string& program, const absl::Status& status);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROGRAM_H_

// The common parts of Sluice's programs: flags, logging, metrics and exit codes.

#ifndef SLUICE_SERVICES_COMMON_PROCESS_PROGRAM_H_
#define SLUICE_SERVICES_COMMON_PROCESS_PROGRAM_H_

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "services/common/exit_code.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/common/process/process.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// Flags of all long-running programs.
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
// --parent, --[no-]grpc-experiments and --version. `flags` must outlive `app`.
void AddProgramFlags(CLI::App* app, ProgramFlags* flags);

// Call this in main after parsing. Ties the process to its parent if --parent is set, and opens the
// log.
absl::StatusOr<Logger> BeginProgram(const ProgramFlags& flags);

// Parses the flags. Returns the exit code if the program must end at once (help, version, wrong
// flags; an unknown flag: kExitRefused), else -1.
int ParseFlags(CLI::App* app, int argc, char** argv);

// Serves the metrics and writes the port file if the flags ask for it; else null. As
// MetricsServer::Start; `ready` and `alive` go into its options.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(
    const ProgramFlags& flags, const Metrics* metrics, std::function<absl::Status()> ready,
    std::function<absl::Status()> alive = nullptr);

// Reports SIGTERM, SIGINT and SIGHUP. A SIGHUP counts only if it is the first signal: a closed
// terminal may send several, and they are no sign of an impatient user. Make it in main before any
// other thread, once in a process.
class StopRequests {
 public:
  StopRequests();

  // From now on `handler(n)` is called for the n-th signal since the process started, on a separate
  // thread; at once for one that came earlier and was not handled. Null: signals are only counted.
  // Waits for a running handler.
  void SetHandler(std::function<void(int)> handler);

  bool received() const;

 private:
  void OnSignal(int signal);

  mutable Mutex mutex_;  // held while the handler runs, so that SetHandler waits for it
  std::function<void(int)> handler_ ABSL_GUARDED_BY(mutex_);
  int received_ ABSL_GUARDED_BY(mutex_) = 0;
  int handled_ ABSL_GUARDED_BY(mutex_) = 0;
  SignalWatcher watcher_;  // last: its thread uses the other members
};

// Serves the metrics of a role, passes the n-th request to stop to `on_stop(n)`, and waits for the
// role's end. `Role` has Ready, Alive, Wait and Result. A process that ends well by itself answers
// probes until the next one is not due soon. (When a pod is deleted, the kubelet stops the probes.)
template <typename Role>
absl::StatusOr<typename Role::Result> WaitForEnd(
    Role* role, const ProgramFlags& flags, const Metrics* metrics, StopRequests* stop,
    std::function<void(int)> on_stop,
    const std::function<int(const typename Role::Result&)>& exit_code) {
  std::atomic<bool> ended_well{false};
  const absl::StatusOr<std::unique_ptr<MetricsServer>> server = ServeMetrics(
      flags, metrics, [&, role] { return ended_well ? absl::OkStatus() : role->Ready(); },
      [&, role] { return ended_well ? absl::OkStatus() : role->Alive(); });
  if (!server.ok()) return server.status();
  stop->SetHandler(std::move(on_stop));
  typename Role::Result result = role->Wait();
  stop->SetHandler(nullptr);
  ended_well = exit_code(result) == kExitOk;
  if (ended_well && *server != nullptr) {
    (*server)->AwaitProbes([stop] { return stop->received(); });
  }
  return result;
}

// Prints "<program>: <status>" to standard error and returns the exit code: kExitUsage for
// INVALID_ARGUMENT, kExitRetry for UNAVAILABLE, kExitFailed otherwise.
int ExitWith(const std::string& program, const absl::Status& status);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_PROGRAM_H_

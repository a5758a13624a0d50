#include "services/common/process/program.h"

#include <csignal>
#include <iostream>
#include <limits>

#include "services/common/exit_code.h"
#include "services/common/process/number_range.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/common/version.h"

namespace sluice {

void AddProgramFlags(CLI::App* app, ProgramFlags* flags) {
  app->add_option("--log-level", flags->log_level, "debug, info, warning, error or off")
      ->capture_default_str();
  app->add_option("--log-format", flags->log_format, "logfmt or json")->capture_default_str();
  app->add_option("--log-file", flags->log_file, "append the log to this file instead of stderr");

  app->add_option("--metrics-address", flags->metrics_address,
                  "serve /metrics, /healthz and /readyz on host:port (port 0: any)");
  app->add_option("--port-file", flags->port_file,
                  "write the port that the service listens on to this file");
  app->add_option("--metrics-port-file", flags->metrics_port_file,
                  "write the port that metrics are served on to this file");

  app->add_option("--parent", flags->parent,
                  "end when the process with this id, which must be the parent, ends")
      ->check(NumberBetween<pid_t>(1, std::numeric_limits<pid_t>::max()));
  app->add_flag("--grpc-experiments,!--no-grpc-experiments", flags->grpc_experiments,
                "use gRPC's own faster flow control and framing (on unless turned off)");
  app->set_version_flag("--version", std::string(Version()));
}

absl::StatusOr<Logger> BeginProgram(const ProgramFlags& flags) {
  // A write beyond a limit on file sizes should be an error, as on a full disk, and so should a
  // write to a peer that has disconnected: neither may kill the process.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  if (flags.parent != 0) {
    RETURN_IF_ERROR(DieWithParent(flags.parent));
  }
  return Logger::Create(
      {.level = flags.log_level, .format = flags.log_format, .file = flags.log_file});
}

int ParseFlags(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    // Most often a newer release started the program; that must not end a job that is training.
    app->exit(error);
    return kExitRefused;
  } catch (const CLI::ParseError& error) {
    // Prints help, version or the error.
    return app->exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return -1;
}

absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(const ProgramFlags& flags,
                                                            const Metrics* metrics,
                                                            std::function<absl::Status()> ready,
                                                            std::function<absl::Status()> alive) {
  if (flags.metrics_address.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<MetricsServer>> server = MetricsServer::Start(
      {.address = flags.metrics_address, .ready = std::move(ready), .alive = std::move(alive)},
      metrics);
  if (!server.ok() || flags.metrics_port_file.empty()) return server;
  RETURN_IF_ERROR(WritePortFile(flags.metrics_port_file, (*server)->port()));
  return server;
}

StopRequests::StopRequests() : watcher_([this](int signal) { OnSignal(signal); }) {}

void StopRequests::SetHandler(std::function<void(int)> handler) {
  MutexLock lock(&mutex_);
  handler_ = std::move(handler);
  while (handler_ != nullptr && handled_ < received_) handler_(++handled_);
}

bool StopRequests::received() const {
  MutexLock lock(&mutex_);
  return received_ > 0;
}

void StopRequests::OnSignal(int signal) {
  MutexLock lock(&mutex_);
  if (signal == SIGHUP && received_ > 0) return;
  ++received_;
  if (handler_ != nullptr) handler_(++handled_);
}

int ExitWith(const std::string& program, const absl::Status& status) {
  std::cerr << program << ": " << status.message() << std::endl;
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  if (absl::IsUnavailable(status)) return kExitRetry;
  return kExitFailed;
}

}  // namespace sluice

// sluice-worker: computes gradients for a job.

#include <curl/curl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/process/fork_server.h"
#include "services/common/process/number_range.h"
#include "services/common/process/process.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/common/time/clock.h"
#include "services/common/version.h"
#include "services/download/curl_get.h"
#include "services/download/download_cache.h"
#include "services/download/job_data.h"
#include "services/execution/worker/remote_engine.h"
#include "services/execution/worker/stage_channel.h"
#include "services/protocol/ids.h"
#include "services/protocol/member_exit.h"
#include "services/transport/endpoint.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/security_flags.h"
#include "services/transport/security/transport_security.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/describe.h"
#include "services/worker/export.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {
namespace {

// A coordinator may start later than its workers.
constexpr double kConnectSeconds = 600;

struct Flags {
  ProgramFlags program;
  security::TransportSecurity::Options security;
  std::string job;
  std::string coordinator;
  uint32_t index = 0;
  std::string advertised_host;
  int threads = 0;
  double grace_seconds = 10;
  std::optional<double> connect_seconds;
  bool shared_memory = true;
};

// Over the layers on the shards.
absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeRemoteEngine(const v1::JobSpec& job,
                                                                const DatasetInfo& data,
                                                                const WorkerOptions& worker,
                                                                StageConnector connect,
                                                                const Logger& logger) {
  RemoteEngineOptions options;
  options.job = job;
  options.job_name = worker.job;
  options.worker = worker.process.incarnation();
  options.sample_shape = data.sample_shape;
  options.outputs = data.outputs;
  options.tokens = data.tokens;
  options.connect = std::move(connect);
  options.on_opened = [logger](uint32_t stage, const std::string& address,
                               const std::string& device) {
    logger.Info("Stage opened", {{"stage", stage}, {"address", address}, {"device", device}});
  };
  return CreateRemoteEngine(std::move(options));
}

TorchEngineOptions LocalEngineOptions(const v1::JobSpec& job, const DatasetInfo& data,
                                      int threads) {
  TorchEngineOptions options = EngineOptionsOf(job, threads);
  options.sample_shape = data.sample_shape;
  options.outputs = data.outputs;
  options.tokens = data.tokens;
  return options;
}

absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeEngine(const v1::JobSpec& job,
                                                          const DatasetInfo& data, int threads) {
  return CreateTorchEngine(LocalEngineOptions(job, data, threads));
}

// For a description of the job, which is also made where its GPU is missing.
absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeDescribingEngine(const v1::JobSpec& job,
                                                                    const DatasetInfo& data,
                                                                    int threads) {
  TorchEngineOptions options = LocalEngineOptions(job, data, threads);
  options.only_describes = true;
  return CreateTorchEngine(options);
}

// For the execution that the job asks for.
EngineFactory MakeEngineFactory(
    const WorkerOptions& worker, const Logger& logger, Metrics* metrics,
    const std::shared_ptr<const security::TransportSecurity>& security) {
  const StageConnector connect = [credentials = security::ChannelCredentialsOf(security),
                                  metrics](const std::string& address) {
    return ConnectStage(address, credentials, [metrics](uint64_t sent, uint64_t received) {
      metrics->counter("sent_bytes_total").Increment(static_cast<double>(sent));
      metrics->counter("received_bytes_total").Increment(static_cast<double>(received));
    });
  };

  return [worker, connect, logger](const v1::JobSpec& job, const DatasetInfo& data, int threads) {
    return job.training().execution() == v1::TrainingSpec::SERVER
               ? MakeRemoteEngine(job, data, worker, connect, logger)
               : MakeEngine(job, data, threads);
  };
}

// Downloads data that the job names by address into this machine's cache.
DataFetcher MakeFetcher(std::function<void(const std::string&)> say) {
  return [say = std::move(say)](v1::DataSpec* data, const std::function<bool()>& cancelled) {
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    const RealClock clock;
    CurlGet::Options options;
    options.user_agent = absl::StrCat("sluice/", Version());
    CurlGet http(std::move(options));

    const DownloadMeans means{CacheDirectory([](const char* name) {
                                const char* value = std::getenv(name);
                                return std::string(value == nullptr ? "" : value);
                              }),
                              &http, files.get(), &clock};

    return FetchData(means, {say, cancelled}, data);
  };
}

int ExitCodeOf(const WorkerProcess::Result& result) {
  if (result.unreachable) return kExitRetry;
  if (result.data_missing) return kExitMissing;
  return ExitCodeOf(result.reason);
}

// A worker that is started by another program, and ends with its job, waits without a limit.
absl::Duration ConnectTimeout(const Flags& flags) {
  const bool managed = flags.program.parent != 0 || std::getenv("KUBERNETES_SERVICE_HOST");
  const double seconds = flags.connect_seconds.value_or(managed ? 0 : kConnectSeconds);
  return seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
}

absl::StatusOr<int> Run(const Flags& flags, const Logger& base_logger, StopRequests* stop) {
  const Logger logger = base_logger.With(
      {{"job", ShortJobName(flags.job)}, {"role", "worker"}, {"index", flags.index}});
  Metrics metrics(WorkerMetrics(), {{"training_job", ShortJobName(flags.job)},
                                    {"index", absl::StrCat(flags.index)}});
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();

  WorkerProcess::Options options;
  ASSIGN_OR_RETURN(options.coordinator, CoordinatorEndpoint(flags.coordinator));
  ASSIGN_OR_RETURN(options.security, security::OpenForProcess(files.get(), flags.security,
                                                              flags.job, v1::WORKER, flags.index));
  options.core.process.set_role(v1::WORKER);
  options.core.process.set_index(flags.index);
  options.core.process.set_incarnation(RandomIncarnation());
  options.core.job = flags.job;
  options.core.host = HostName();
  options.core.pid = getpid();
  options.connect_timeout = ConnectTimeout(flags);
  options.advertised_host = flags.advertised_host;
  options.threads = flags.threads;
  options.shared_memory = flags.shared_memory;
  options.make_engine = MakeEngineFactory(options.core, logger, &metrics, options.security);
  options.fetch_data = MakeFetcher([logger](const std::string& text) {
    logger.Info("Fetching data", {{"what", text}});
  });

  logger.Info("Worker starting",
              {{"coordinator", options.coordinator}, {"libtorch", TorchVersion()}});
  const std::unique_ptr<WorkerProcess> process =
      WorkerProcess::Start(std::move(options), &metrics, logger);

  const auto on_stop = [&](int count) {
    // On the second signal, the worker does not wait.
    process->Leave("asked to stop by a signal",
                   count == 1 ? absl::Seconds(flags.grace_seconds) : absl::ZeroDuration());
  };
  ASSIGN_OR_RETURN(const WorkerProcess::Result result,
                   WaitForEnd(process.get(), flags.program, &metrics, stop, on_stop,
                              [](const WorkerProcess::Result& end) { return ExitCodeOf(end); }));
  return ExitCodeOf(result);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Computes gradients for a Sluice job."};
  app.add_option("--job", flags.job, "the job: namespace/name/uid")->required();
  app.add_option("--coordinator", flags.coordinator,
                 "host:port of the job's coordinator (default: MASTER_ADDR and MASTER_PORT)");
  app.add_option("--index", flags.index, "index of this worker among the job's workers, from 0")
      ->required()
      ->check(NumberBetween<uint32_t>(0, kMaxReplicas - 1));
  app.add_option(
      "--advertise", flags.advertised_host,
      "host of this machine at which other workers reach it to sum gradients (default: the "
      "local address of the route to the coordinator)");
  app.add_option("--threads", flags.threads,
                 "threads within one operation (0: the job's setting, else one per core)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  app.add_option("--grace", flags.grace_seconds,
                 "seconds after SIGTERM to finish the step and hand over the work")
      ->capture_default_str()
      ->check(NumberBetween(0.0, 3600.0));
  app.add_option("--connect-timeout", flags.connect_seconds,
                 "seconds to wait for the coordinator's first answer (0: without a limit; default: "
                 "600, and 0 with --parent and in a pod)")
      ->check(NumberBetween(0.0, 30.0 * 24 * 3600));
  app.add_flag("--shared-memory,!--no-shared-memory", flags.shared_memory,
               "exchange tensors with shards of this machine through memory (default: yes)");

  security::AddSecurityFlags(&app, &flags.security);
  AddProgramFlags(&app, &flags.program);
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;

  StopRequests stop;
  ASSIGN_OR_RETURN(Logger logger, BeginProgram(flags.program), ExitWith("sluice-worker", _));
  ConfigureGrpcProcess({.experiments = flags.program.grpc_experiments});
  absl::StatusOr<int> code = Run(flags, logger, &stop);
  return code.ok() ? *code : ExitWith("sluice-worker", code.status());
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) {
  // Without it, cuBLAS may compute other bits every time. It is set before any thread may read the
  // environment, and so before the worker knows whether its job is bit-exact.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);

  std::vector<char*> forked;
  if (argc > 1 && std::string(argv[1]) == sluice::kForkServer) {
    forked = sluice::ServeForks(argc, argv);
    argc = static_cast<int>(forked.size());
    argv = forked.data();
  }
  curl_global_init(CURL_GLOBAL_DEFAULT);
  if (argc > 1 && std::string(argv[1]) == "export-torchscript") {
    return sluice::worker::ExportMain(argc, argv);
  }
  if (argc > 1 && std::string(argv[1]) == "describe") {
    return sluice::worker::DescribeMain(
        argc, argv, sluice::worker::MakeDescribingEngine,
        sluice::worker::MakeFetcher([](const std::string& text) { std::cerr << text << "\n"; }));
  }
  return sluice::worker::Main(argc, argv);
}

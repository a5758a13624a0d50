// The worker's shell: threads, sockets, data and LibTorch around WorkerCore.
//
// One serial executor guards the core. One compute thread reads samples, drives the ComputeEngine,
// and hands gradients to the core while backward still runs. Usually the thread that reads a block
// from the network also copies it into the engine's memory.
#ifndef SLUICE_SERVICES_WORKER_WORKER_PROCESS_H_
#define SLUICE_SERVICES_WORKER_WORKER_PROCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/protocol/member_exit.h"
#include "services/shell/core_shell.h"
#include "services/transport/security/transport_security.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/core/worker_core.h"
#include "services/worker/data/dataset.h"
#include "services/worker/model_runner.h"

namespace sluice::worker {

// Opens the model of a job for data of this form. `threads`: within one operation.
using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<ComputeEngine>>(
    const v1::JobSpec& job, const DatasetInfo& data, int threads)>;

// Replaces the addresses in a job's data by files of this machine. Blocks until the files exist or
// `cancelled` returns true.
using DataFetcher =
    std::function<absl::Status(v1::DataSpec* data, const std::function<bool()>& cancelled)>;

// Makes what computes, for the shell that gives it actions and outlives it.
using ModelRunnerFactory = std::function<std::unique_ptr<ModelRunner>(CoreShell<WorkerCore>*)>;

// One member of the job, under one incarnation.
class WorkerProcess {
 public:
  struct Options {
    WorkerOptions core;
    std::string coordinator;  // host:port
    // The worker exits if no coordinator answers within this time after the start. Once one has
    // answered, the worker waits for it or a replacement without a limit.
    absl::Duration connect_timeout = absl::InfiniteDuration();
    // Null: plain text.
    std::shared_ptr<const security::TransportSecurity> security;
    int threads = 0;  // 0: as the job says; else the machine's cores
    EngineFactory make_engine;
    // Empty: all data is in files of this machine.
    DataFetcher fetch_data;
    // Empty: a compute thread with an engine of make_engine. Otherwise threads, make_engine and
    // fetch_data are not used.
    ModelRunnerFactory make_runner;
    // How other workers reach this one to sum gradients: Reducer::Options.
    std::string advertised_host;
    // With shards of this machine: StreamClient::Options::shared_memory_bytes.
    bool shared_memory = true;
  };

  struct Result {
    ExitReason reason = ExitReason::kFailed;
    std::string message;
    // The worker left because data or model are missing or may not be read; it may be started again
    // once they are in place. Data that exists and cannot be used fails the job instead.
    bool data_missing = false;
    // No coordinator answered within `connect_timeout`.
    bool unreachable = false;
    // The coordinator's, with kExpelled and kRefused.
    v1::Refusal::Code refusal = v1::Refusal::UNSPECIFIED;
  };

  // Starts to look for the coordinator. `metrics` must outlive the process. Does not block; an
  // error is the Result's.
  static std::unique_ptr<WorkerProcess> Start(Options options, Metrics* metrics, Logger logger);
  // Ends the worker at once if it still runs.
  virtual ~WorkerProcess() = default;

  // OK once it has been a member of a view. It stays so.
  virtual absl::Status Ready() const = 0;

  // OK while the core processes its events (Liveness). Any thread; does not block.
  virtual absl::Status Alive() = 0;

  // Requests to leave, within `grace` at most. Any thread.
  virtual void Leave(std::string reason, absl::Duration grace) = 0;

  // Blocks until the core has ended.
  virtual Result Wait() = 0;
};

// All metrics of sluice-worker. Their names are an interface: alerts and dashboards use them.
std::vector<MetricDescriptor> WorkerMetrics();

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_WORKER_PROCESS_H_

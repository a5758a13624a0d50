// The thread that opens a worker's model and data, and computes.

#ifndef SLUICE_SERVICES_WORKER_COMPUTE_THREAD_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_THREAD_H_

#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/serial_executor.h"
#include "services/shell/core_shell.h"
#include "services/worker/core/worker_core.h"
#include "services/worker/model_runner.h"
#include "services/worker/trainer.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {

// Computes on a thread of its own, in the order of the actions.
class ComputeThread final : public ModelRunner {
 public:
  // All must outlive it; `options` are the process's.
  ComputeThread(const WorkerProcess::Options* options, CoreShell<WorkerCore>* shell,
                Metrics* metrics, Logger logger);

  // Each posts to the thread, except CancelCompute, which prevents a computation that has not
  // begun, and ComputeMetrics, which is answered with an error at once: there is no program.
  void Perform(OpenModel& open) override;
  void Perform(ReadInitialTensor& read) override;
  void Perform(Compute& compute) override;
  void Perform(FindRows& find) override;
  void Perform(CancelCompute& cancel) override;
  void Perform(EvaluateSamples& evaluate) override;
  void Perform(ComputeMetrics& compute) override;
  void Perform(GiveSum&) override {}  // its models need no sums

  absl::Status Store(const StoreBlock& block) override { return trainer_->Store(block); }
  absl::Status Adopt(uint64_t) override { return trainer_->engine().Adopt(); }
  bool data_missing() const override { return data_missing_; }
  // Drops the computations of gradients that are queued; waits for everything else that is queued
  // or running.
  void Stop() override;

 private:
  // Passes a computation's results to the core, several at a time.
  class Sink;

  // On the compute thread. Downloads data that has an address, which may take long.
  absl::StatusOr<std::unique_ptr<Trainer>> Open(v1::JobSpec job);
  // The worker reports a failure, or leaves if data or model are only missing.
  void OnNotOpened(const absl::Status& status);
  // The job's delay before each step. False: the result is no longer needed.
  bool WaitBeforeStep(ComputeId id);

  // Threads within one operation: what the job fixes (FixedThreads), else Options::threads, else
  // one per core.
  int ThreadsOf(const v1::JobSpec& job) const;
  // For DataFetcher.
  bool Stopping();

  const WorkerProcess::Options* const options_;
  CoreShell<WorkerCore>* const shell_;
  const Logger logger_;
  prometheus::Counter& evaluated_samples_;

  // Set on the compute thread before OnModelReady, constant from then on.
  std::unique_ptr<Trainer> trainer_;
  absl::Duration step_delay_;

  bool data_missing_ = false;

  Mutex mutex_;  // protects the members below
  CondVar changed_;
  std::set<ComputeId> cancelled_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  SerialExecutor thread_{{.name = "compute"}};
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_THREAD_H_

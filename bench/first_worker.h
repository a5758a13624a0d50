// Shared by the benchmarks of real jobs: processes in their own directory, and this process as one
// of the job's workers, so that it can observe the steps.

#ifndef SLUICE_BENCH_FIRST_WORKER_H_
#define SLUICE_BENCH_FIRST_WORKER_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "services/worker/worker_process.h"
#include "tests/testing/job_processes.h"

namespace sluice::bench {

// Calls `run` with a new directory and removes it on success; an error names the directory of the
// logs.
absl::Status InNewDirectory(const std::string& benchmark,
                            absl::FunctionRef<absl::Status(const std::string& directory)> run);

// Options that make this process the job's worker 0, computing with one thread; the caller sets
// make_engine.
worker::WorkerProcess::Options FirstWorkerOptions(const testing::JobProcesses& processes);

// Waits until the worker has ended; returns an error unless the job has finished.
absl::Status WaitUntilFinished(worker::WorkerProcess* process);

}  // namespace sluice::bench

#endif  // SLUICE_BENCH_FIRST_WORKER_H_

// What the benchmarks of real jobs share: processes in a folder of their own, and this process as
// one of the job's workers, so that it can see its steps.

#ifndef SLUICE_BENCH_FIRST_WORKER_H_
#define SLUICE_BENCH_FIRST_WORKER_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "services/worker/worker_process.h"
#include "tests/testing/job_processes.h"

namespace sluice::bench {

// Calls `run` with a new folder, which goes if all went well; else the error says where its logs
// are.
absl::Status InNewFolder(const std::string& benchmark,
                         absl::FunctionRef<absl::Status(const std::string& folder)> run);

// With what this process is the job's worker 0, computing with one thread; make_engine is missing.
worker::WorkerProcess::Options FirstWorkerOptions(const testing::JobProcesses& processes);

// Waits until the worker has ended; an error unless the job has finished.
absl::Status WaitUntilFinished(worker::WorkerProcess* process);

}  // namespace sluice::bench

#endif  // SLUICE_BENCH_FIRST_WORKER_H_

// A worker of the C interface: its instances, one after the other, and the program that computes.
#ifndef SLUICE_SERVICES_WORKER_LIBRARY_WORKER_H_
#define SLUICE_SERVICES_WORKER_LIBRARY_WORKER_H_

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/worker/library/call_result.h"
#include "services/worker/library/caller.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {

// Each instance is a WorkerProcess; all compute with the one Caller.
class Worker {
 public:
  // Starts to connect to the job. `options` lacks the incarnation and make_runner; its
  // connect_timeout is for the first instance. The others wait without a limit.
  Worker(WorkerProcess::Options options, Logger logger);

  // Call Stop before, in the process that made it.
  ~Worker();

  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Caller& caller() { return caller_; }

  // False: a thread of the program is in a call, and nothing has changed. Otherwise ends the worker
  // and its threads, if that has not happened.
  bool Stop();

 private:
  // The thread: runs instances, one after another, until one has no successor.
  void Run();
  // One instance, from its start to its end.
  WorkerProcess::Result RunInstance(absl::Duration connect_timeout);
  // Whether another instance may succeed where one was expelled or refused.
  bool MayReturn(const WorkerProcess::Result& result);

  const WorkerProcess::Options options_;
  const Logger logger_;
  Metrics metrics_;
  Caller caller_;
  absl::Time duplicate_since_ = absl::InfiniteFuture();  // used by thread_
  std::thread thread_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_LIBRARY_WORKER_H_

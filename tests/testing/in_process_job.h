// A job whose coordinator, shards and workers are threads of this process and talk over loopback:
// the programs without their main functions, so that a sanitizer sees all of them at once. Its
// workers have the counting model (counting_engine.h).

#ifndef SLUICE_TESTS_TESTING_IN_PROCESS_JOB_H_
#define SLUICE_TESTS_TESTING_IN_PROCESS_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/storage.h"
#include "services/common/io/file_util.h"
#include "services/common/process/metrics.h"
#include "services/coordinator/coordinator_server.h"
#include "services/ps/shard_server.h"
#include "services/worker/worker_process.h"

namespace sluice::testing {

// Not thread-safe.
class InProcessJob {
 public:
  // `job` as CountingJob makes it; its checkpoints go under `directory`, which must exist.
  InProcessJob(v1::JobSpec job, const std::string& directory);
  // Ends the processes that still run.
  ~InProcessJob();

  InProcessJob(const InProcessJob&) = delete;
  InProcessJob& operator=(const InProcessJob&) = delete;

  // Each starts a new instance (incarnation) of that process. A new coordinator listens at the
  // address of its predecessor.
  absl::Status StartCoordinator();
  absl::Status StartShard(uint32_t index);
  void StartWorker(uint32_t index);
  // Starts all processes of the job.
  absl::Status StartAll();

  // Makes the worker ask to leave, and waits until the coordinator has let it go.
  worker::WorkerProcess::Result Leave(uint32_t worker);
  // These end a process without notice to the others.
  void DropWorker(uint32_t index) { workers_.erase(index); }
  void DropShard(uint32_t index) { shards_.erase(index); }
  void DropCoordinator() { coordinator_.reset(); }
  // Like SIGTERM.
  void Suspend() { coordinator_->server->Suspend(); }

  // Calls JobControl, as every client does.
  absl::StatusOr<v1::JobProgress> Progress();
  // Polls until `condition` holds; DEADLINE_EXCEEDED with the last progress if it does not.
  absl::StatusOr<v1::JobProgress> WaitFor(absl::FunctionRef<bool(const v1::JobProgress&)> condition,
                                          absl::Duration timeout);
  // `step`: steps, or updates. Fails if training ends before it.
  absl::Status WaitForStep(uint64_t step);
  v1::JobControl::Stub& control() { return *control_; }

  // Waits for the job's end and for each process to end by itself. OK if each ended as it should
  // when the coordinator ends for this reason; then no process runs any more.
  absl::Status WaitForEnd(coordinator::ExitReason reason, absl::Duration timeout);

  const std::string& checkpoints() const { return job_.checkpoint().directory(); }

 private:
  struct Coordinator {
    std::unique_ptr<CheckpointStorage> storage;
    Metrics metrics{coordinator::CoordinatorMetrics(), {}};
    std::unique_ptr<coordinator::CoordinatorServer> server;
  };
  struct Shard {
    Metrics metrics{ps::ShardMetrics(), {}};
    std::unique_ptr<ps::ShardServer> server;
  };
  struct Worker {
    Metrics metrics{worker::WorkerMetrics(), {}};
    std::unique_ptr<worker::WorkerProcess> process;
  };

  v1::JobSpec job_;
  const std::unique_ptr<FileSystem> files_;
  std::string address_;  // of the coordinator
  std::unique_ptr<v1::JobControl::Stub> control_;
  std::unique_ptr<Coordinator> coordinator_;
  std::map<uint32_t, std::unique_ptr<Shard>> shards_;
  std::map<uint32_t, std::unique_ptr<Worker>> workers_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_IN_PROCESS_JOB_H_

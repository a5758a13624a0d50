// A job whose coordinator, shards and workers are threads of this process, on loopback: what the
// programs are without their mains, so that a sanitizer sees all of it at once. Its workers count
// (counting_engine.h).

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
#include "services/common/file_util.h"
#include "services/common/metrics.h"
#include "services/coordinator/coordinator_server.h"
#include "services/ps/shard_server.h"
#include "services/worker/worker_process.h"

namespace sluice::testing {

// For one thread.
class InProcessJob {
 public:
  // `job` as CountingJob makes it; its checkpoints go under `folder`, which must exist.
  InProcessJob(v1::JobSpec job, const std::string& folder);
  // Ends what still runs.
  ~InProcessJob();

  InProcessJob(const InProcessJob&) = delete;
  InProcessJob& operator=(const InProcessJob&) = delete;

  // Each begins a new life (incarnation) of that process. A successor of the coordinator listens
  // where it did.
  absl::Status StartCoordinator();
  absl::Status StartShard(uint32_t index);
  void StartWorker(uint32_t index);
  // All that the job asks for.
  absl::Status StartAll();

  // Asks it to be let go, and waits until it is.
  worker::WorkerProcess::Result Leave(uint32_t worker);
  // These end without a word to the others.
  void DropWorker(uint32_t index) { workers_.erase(index); }
  void DropShard(uint32_t index) { shards_.erase(index); }
  void DropCoordinator() { coordinator_.reset(); }
  // As SIGTERM does.
  void Suspend() { coordinator_->server->Suspend(); }

  // Through JobControl, as everyone else.
  absl::StatusOr<v1::JobProgress> Progress();
  // Polls until `condition` holds; DEADLINE_EXCEEDED with the last progress if it does not.
  absl::StatusOr<v1::JobProgress> WaitFor(absl::FunctionRef<bool(const v1::JobProgress&)> condition,
                                          absl::Duration timeout);
  // The number of steps, or updates; an error too if training is over before.
  absl::Status WaitForStep(uint64_t step);
  v1::JobControl::Stub& control() { return *control_; }
  // False: it has ended, and only still answers.
  bool CoordinatorRuns() const { return coordinator_->server->Ready().ok(); }

  // Waits for the job's end, and for each process to end by itself: OK if it ended as it should
  // when the coordinator ends for this reason. Nothing runs afterwards.
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

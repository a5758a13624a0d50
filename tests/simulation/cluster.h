// A whole job, simulated: the real cores of coordinator, shards and workers, on one clock and one
// network, with faults; all by one seed.
#ifndef SLUICE_TESTS_SIMULATION_CLUSTER_H_
#define SLUICE_TESTS_SIMULATION_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/coordinator/coordinator_rules.h"
#include "services/ps/shard_rules.h"
#include "services/worker/core/worker_rules.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/groups.h"
#include "tests/simulation/memory_storage.h"
#include "tests/simulation/network.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/toy_model.h"

namespace sluice::simulation {

// What a job looks like and what happens to it. Derived from a seed by MakeScenario.
struct Scenario {
  uint64_t seed = 0;
  v1::JobSpec job;
  uint32_t tensors = 4;
  uint64_t samples = 0;
  bool rows = false;
  uint32_t shards = 1;
  uint32_t workers = 1;
  uint32_t faults = 0;
  // Events between two faults, at the most.
  uint32_t fault_spacing = 250;
  // Chances of the kinds of fault, relative to each other.
  uint32_t kill_worker = 4, freeze_worker = 3, cut_stream = 6, cut_process = 2, leave = 1, join = 1,
           kill_shard = 1, freeze_shard = 2, kill_coordinator = 1, freeze_coordinator = 1,
           replace_coordinator = 1;

  // Null: all rules.
  const coordinator::CoordinatorRules* coordinator_rules = nullptr;
  const ps::ShardRules* shard_rules = nullptr;
  const worker::WorkerRules* worker_rules = nullptr;
};

struct ScenarioOptions {
  v1::Mode mode = v1::SYNCHRONOUS;
  bool bit_exact = false;
  bool drop_stragglers = false;
  bool rows = false;              // workers pull the rows that their samples name
  bool batches_by_speed = false;  // asynchronous: workers of different speed, and batches to match
  bool all_reduce = false;        // workers sum the gradients of dense tensors among each other
};
Scenario MakeScenario(uint64_t seed, const ScenarioOptions& options);
// "seed 17: BitExact, 2 shards, 3 workers, 4 partitions, 9 steps, 5 faults".
std::string Describe(const Scenario& scenario);

struct Outcome {
  std::string failure;  // empty: the job finished and every invariant held
  uint64_t events = 0;
  absl::Duration simulated;
  uint64_t faults = 0;
  uint64_t attempts = 0;
  uint64_t views = 0;
  uint64_t sums = 0;            // of gradients, among workers
  uint64_t broken_sums = 0;     // ... that members waited for in vain
  uint64_t larger_updates = 0;  // asynchronous: than training.globalBatchSize
};

class CoordinatorProcess;
class ShardProcess;
class WorkerProcess;

// What the processes share; and the process manager, which starts what is missing.
class Cluster {
 public:
  // kEvents: tells every fault, view, claim and death on standard error; kMessages: all messages
  // too.
  enum class Tracing { kNone, kEvents, kMessages };
  Cluster(Scenario scenario, Tracing tracing);
  ~Cluster();

  Outcome Run();

  // ---- for the processes
  const Scenario& scenario() const { return scenario_; }
  Scheduler& scheduler() { return scheduler_; }
  Network& network() { return network_; }
  Groups& groups() { return groups_; }
  Random& random() { return random_; }
  MemoryStorage& storage() { return storage_; }
  Checker& checker() { return checker_; }
  ToyModel& model() { return model_; }
  std::string job_name() const;
  std::shared_ptr<CoordinatorProcess> coordinator() { return coordinator_; }
  // Whoever now lives at that address; null if nobody does.
  std::shared_ptr<ShardProcess> FindShard(const std::string& address);
  void NoteUpdate(uint64_t samples);
  bool tracing() const { return tracing_ != Tracing::kNone; }
  void Trace(const std::string& what);
  void TraceMessage(const std::string& from, const std::string& to,
                    const google::protobuf::Message& message);
  void OnCoordinatorExit(CoordinatorProcess& process, bool succeeded, bool failed,
                         const std::string& message);
  void OnShardExit(ShardProcess& process, bool finished, bool failed, const std::string& message);
  void OnWorkerExit(WorkerProcess& process, bool finished, bool failed, const std::string& message);

 private:
  void StartCoordinator();
  void StartShard(uint32_t index);
  void StartWorker(uint32_t index);
  void TellDesired();
  void AfterFinish();
  void Replace(std::function<void()> start);
  void ReportDeath(v1::Role role, uint32_t index, uint64_t incarnation);
  void MaybeFault();
  void DoFault();
  void KillWorker();
  void KillShard();
  void KillCoordinator();
  void FreezeSome(v1::Role role);
  void ReplaceCoordinator();
  std::shared_ptr<WorkerProcess> PickWorker();
  std::shared_ptr<ShardProcess> PickShard();

  const Scenario scenario_;
  const Tracing tracing_;
  Scheduler scheduler_;
  Random random_;
  Network network_;
  Groups groups_;
  MemoryStorage storage_;
  ToyModel model_;
  Checker checker_;

  std::shared_ptr<CoordinatorProcess> coordinator_;
  std::map<uint32_t, std::shared_ptr<ShardProcess>> shards_;
  std::map<uint32_t, std::shared_ptr<WorkerProcess>> workers_;
  std::vector<std::weak_ptr<Process>> processes_;  // that ever were
  std::vector<std::pair<v1::ProcessId, absl::Time>> deaths_;
  uint32_t wanted_workers_;
  uint32_t faults_left_;
  uint64_t next_fault_ = 0;  // event number
  absl::Time calm_since_ = absl::InfiniteFuture();
  bool finished_ = false;
  bool only_workers_harmed_ = true;  // so far
  Outcome outcome_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_CLUSTER_H_

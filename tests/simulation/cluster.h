// A simulated job: the real cores of coordinator, shards and workers, on one clock and one network,
// with faults. One seed determines everything.
#ifndef SLUICE_TESTS_SIMULATION_CLUSTER_H_
#define SLUICE_TESTS_SIMULATION_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/base/rules.h"
#include "services/ps/core/base/rules.h"
#include "services/worker/core/base/rules.h"
#include "tests/simulation/checker/checker.h"
#include "tests/simulation/checker/contract.h"
#include "tests/simulation/checker/toy_model.h"
#include "tests/simulation/groups.h"
#include "tests/simulation/memory_storage.h"
#include "tests/simulation/network.h"
#include "tests/simulation/random_message.h"
#include "tests/simulation/scheduler.h"

namespace sluice::simulation {

// A job and the faults that it meets. MakeScenario derives it from a seed.
struct Scenario {
  uint64_t seed = 0;
  v1::JobSpec job;
  uint32_t tensors = 4;
  uint64_t samples = 0;
  uint32_t smallest_batch = 1;  // samples that the model can compute at once
  bool rows = false;
  uint32_t shards = 1;
  uint32_t workers = 1;
  uint32_t faults = 0;
  // Maximum number of events between two faults.
  uint32_t fault_spacing = 250;
  // Relative weights of the kinds of fault.
  uint32_t kill_worker = 4, freeze_worker = 3, cut_stream = 6, cut_process = 2, leave = 1, join = 1,
           kill_shard = 1, freeze_shard = 2, kill_coordinator = 1, freeze_coordinator = 1,
           replace_coordinator = 1;
  // Only if a problem requests it (problems.h).
  uint32_t freeze_for_good = 0, damage = 0, damage_record = 0, snapshot = 0, suspend = 0,
           leave_all = 0, leave_shard = 0, leave_coordinator = 0, two_coordinators = 0,
           crash_at_write = 0, break_group = 0, scale_shards = 0, cut_coordinator = 0;
  // Shards die or leave only if copies of their partitions remain, and coordinators only once
  // training has begun: this must cost no attempt.
  bool spare_last_copies = false;
  // Maximum additional time until a process is connected to the coordinator.
  absl::Duration slow_connections;

  // Whether a freeze of the coordinator counts among the faults that harm only workers.
  bool coordinator_freezes_are_harmless = false;
  // A thawed process handles its timers before it reads its messages.
  bool timers_first = false;
  // Maximum additional time to read or write a file. A shard handles its files one after the other.
  absl::Duration slow_disk;
  // One of this many storage operations fails until the faults are over; 0: none.
  uint32_t disk_errors = 0;
  // Hostile processes, which send arbitrary messages: workers that the job does not want, and
  // readers; and members, which also do their work.
  uint32_t strangers = 0, liars = 0;
  // The storage left by an earlier job that this job replaces; null: an empty storage.
  std::shared_ptr<MemoryStorage> storage;
  // After this many events all processes are killed for good, even if the job is not finished; 0:
  // never.
  uint64_t deleted_after = 0;

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
  bool copies = false;            // each partition has a second copy
  bool decisions = false;         // evaluations change the learning rate, and end some of the jobs
  bool sync = false;              // computations need sums over their step
};
Scenario MakeScenario(uint64_t seed, const ScenarioOptions& options);
// Makes a job with more processes than MakeScenario does.
void MakeLarge(Scenario* scenario);
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
  uint64_t broken_sums = 0;     // sums that members did not receive
  uint64_t larger_updates = 0;  // asynchronous: updates larger than training.globalBatchSize
  uint64_t lies = 0;            // messages and frames of hostile processes
  uint64_t snapshots = 0;       // snapshots that readers pulled whole
  uint64_t damaged = 0;         // damaged files and checkpoints that a restoration reported
  uint64_t put_back = 0;        // times that the job failed because of damage and was restarted
  uint64_t crashes = 0;         // of coordinators, while they used the storage
  uint64_t disk_errors = 0;
  uint64_t promotions = 0;       // views that continue without a shard of the view before
  uint64_t replaced_frozen = 0;  // processes that the parent ended because they were frozen
  uint64_t cuts = 0;             // of the coordinator's network, longer than the heartbeat timeout
  uint64_t reductions = 0;       // of the learning rate
  uint64_t stopped = 0;          // 1: an evaluation ended the job before its last step
};

// How long a hostile member sends false messages.
constexpr absl::Duration kLiesFor = absl::Seconds(4);

class CoordinatorProcess;
class ShardProcess;
class WorkerProcess;
class HostileProcess;
class ReaderProcess;

// The state that the processes share, and the process manager, which starts missing processes.
class Cluster {
 public:
  // kEvents: prints every fault, view, claim and death to standard error; kMessages: all messages
  // too.
  enum class Tracing { kNone, kEvents, kMessages };
  Cluster(Scenario scenario, Tracing tracing);
  ~Cluster();

  Outcome Run();

  // ---- for the processes
  const Scenario& scenario() const { return scenario_; }
  Scheduler& scheduler() { return scheduler_; }
  absl::Duration ConnectionDelay();
  Network& network() { return network_; }
  Groups& groups() { return groups_; }
  Random& random() { return random_; }
  MemoryStorage& storage() { return *storage_; }
  Checker& checker() { return checker_; }
  Contract& contract() { return contract_; }
  ToyModel& model() { return model_; }
  std::string job_name() const;
  std::shared_ptr<CoordinatorProcess> coordinator() { return coordinator_; }
  // The coordinator that the address resolves to now: either of two if two are running.
  std::shared_ptr<CoordinatorProcess> FindCoordinator();
  // The process that is now running at that address; null if there is none.
  std::shared_ptr<ShardProcess> FindShard(const std::string& address);
  std::vector<std::shared_ptr<ShardProcess>> shards() const;
  std::vector<std::shared_ptr<WorkerProcess>> workers() const;
  void NoteUpdate(uint64_t samples);
  // Whether this operation of the storage fails.
  bool DiskFails();
  // The earlier job's newest checkpoint is whole until this job has one.
  void CheckReplaced();
  // Whether the coordinator is to crash while it uses the storage now.
  bool TakeCrash();
  bool faults_are_over() const { return faults_left_ == 0; }
  Outcome& outcome() { return outcome_; }
  // The messages of other processes that hostile processes have seen.
  RandomMessage& seen() { return seen_; }
  void Record(const v1::Header& header);
  void Record(const v1::MemberMessage& message);
  const std::deque<v1::Header>& recorded_frames() const { return recorded_frames_; }
  const std::deque<v1::MemberMessage>& recorded_messages() const { return recorded_messages_; }
  bool tracing() const { return tracing_ != Tracing::kNone; }
  void Trace(const std::string& what);
  void TraceMessage(const std::string& from, const std::string& to,
                    const google::protobuf::Message& message);
  void OnCoordinatorCrash(CoordinatorProcess& process);
  void OnCoordinatorExit(CoordinatorProcess& process, bool succeeded, bool failed, bool suspended,
                         const std::string& message);
  void OnShardExit(ShardProcess& process, bool finished, bool failed, const std::string& message);
  void OnWorkerExit(WorkerProcess& process, bool finished, bool failed, const std::string& message);

 private:
  struct FaultKind {
    uint32_t weight;
    bool harmless;  // costs no attempt
    std::function<void()> fault;
  };

  void StartAll();
  // Takes the coordinator's view as the current one.
  void NoteView();
  // The time after the last fault within which the job must finish.
  absl::Duration Patience() const;
  void CheckProgress();
  void CheckEnd();
  void StartCoordinator();
  void StartShard(uint32_t index);
  void StartWorker(uint32_t index);
  void StartShardUnlessThere(uint32_t index);
  void StartWorkerUnlessThere(uint32_t index);
  void SendDesired();
  void AfterFinish(bool shard, const std::string& message);
  void StartMissing();
  void Replace(std::function<void()> start);
  void ReportDeath(v1::Role role, uint32_t index, uint64_t incarnation);
  void MaybeFault();
  std::vector<FaultKind> FaultKinds();
  void DoFault();
  void CutStream();
  void CutProcess();
  void CutCoordinator();
  void AskWorkerToLeave();
  void AskShardToLeave();
  void AskCoordinatorToLeave();
  void AddWorker();
  void CrashAtWrite();
  void BreakGroup();
  void KillWorker();
  void KillShard();
  void ScaleShards();
  bool HasAllCopies();
  bool MayLose(const ShardProcess& shard);
  bool MayLoseCoordinator();
  void KillCoordinator();
  void End(const std::shared_ptr<WorkerProcess>& worker);
  void End(const std::shared_ptr<ShardProcess>& shard);
  void FreezeSome(v1::Role role);
  void FreezeForGood();
  void FreezeAtStart(Process& process);
  void ReplaceCoordinator();
  void RunTwoCoordinators();
  void KillOlder(CoordinatorProcess& older);
  void DamageCheckpoint();
  void OpenSnapshot();
  void DamageRecord();
  void CheckOnlyOwnIsLeft();
  void Suspend();
  void RestartAll();
  void LeaveAll();
  void StartHostile();
  void Watch();
  void OnProgress(const std::shared_ptr<CoordinatorProcess>& coordinator,
                  const v1::JobProgress& progress);
  template <typename P>
  void EndIfFrozen(const std::shared_ptr<P>& process, const v1::JobProgress& progress);
  // Whether a failure names a file that is damaged.
  bool NamesDamage(const std::string& message);
  bool watched() const { return scenario_.freeze_for_good > 0 || scenario_.cut_coordinator > 0; }
  // Whether the parent's calls reach the coordinator.
  bool ParentReaches(const std::shared_ptr<CoordinatorProcess>& coordinator) const;
  std::shared_ptr<WorkerProcess> PickWorker();
  std::shared_ptr<ShardProcess> PickShard();

  const Scenario scenario_;
  const Tracing tracing_;
  Scheduler scheduler_;
  Random random_;
  Network network_;
  Groups groups_;
  const std::shared_ptr<MemoryStorage> storage_;
  ToyModel model_;
  Checker checker_;
  Contract contract_{&checker_};
  RandomMessage seen_{&random_};
  std::deque<v1::Header> recorded_frames_;
  std::deque<v1::MemberMessage> recorded_messages_;

  std::shared_ptr<CoordinatorProcess> coordinator_;
  std::map<uint32_t, std::shared_ptr<ShardProcess>> shards_;
  std::map<uint32_t, std::shared_ptr<WorkerProcess>> workers_;
  std::vector<std::weak_ptr<Process>> processes_;  // all that ever existed
  std::vector<std::pair<v1::ProcessId, absl::Time>> deaths_;
  uint64_t desired_number_ = 0;  // of the newest SetDesired
  uint32_t wanted_workers_;
  uint32_t wanted_shards_;
  uint32_t faults_left_;
  uint64_t next_fault_ = 0;  // event number
  absl::Time calm_since_ = absl::InfiniteFuture();
  const uint64_t first_attempt_;                       // above those of an earlier job
  const std::optional<v1::CheckpointIndex> replaced_;  // that job's newest
  bool finished_ = false;
  bool suspending_ = false;
  bool only_harmless_ = true;   // all faults so far
  bool whole_ = false;          // each partition was on two shards when a coordinator last knew
  bool trained_ = false;        // a step
  bool parent_is_cut_ = false;  // from a coordinator that is isolated
  bool parent_waits_ = false;   // ... and does not replace it
  absl::Time whole_since_ = absl::InfinitePast();  // since it was isolated
  bool crash_at_write_ = false;      // the next time that a coordinator uses the storage
  std::vector<std::string> mended_;  // paths of files that were damaged and are repaired
  std::shared_ptr<CoordinatorProcess> old_coordinator_;  // the older one while two are running
  std::vector<std::shared_ptr<HostileProcess>> hostile_;
  uint32_t readers_ = 0;
  // The parent's knowledge of its processes.
  v1::Role freezes_at_start_ = v1::ROLE_UNSPECIFIED;  // the next process of this role
  absl::Time coordinator_answered_;                   // last answer, or start of the coordinator
  absl::Time coordinator_knows_since_;                // first answer of the coordinator
  std::map<uint64_t, absl::Time> started_;            // by incarnation
  std::map<uint64_t, absl::Time> expelled_;           // first seen as expelled
  std::map<uint64_t, absl::Time> left_;               // since when it is listed as left
  v1::ViewId view_;                                   // the newest that the coordinator had
  uint64_t loss_record_ = 0;                          // of that view
  std::set<uint64_t> view_shards_;                    // ... by incarnation
  Outcome outcome_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_CLUSTER_H_

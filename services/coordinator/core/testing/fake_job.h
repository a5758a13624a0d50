// A job around a CoordinatorCore, for its tests: shards and workers that follow the protocol's
// rules in the simplest way, a storage in memory, and a clock that the test advances.
//
// Training is abstract: a step closes on all shards if every member of the view is alive and has
// received the view. An asynchronous update is applied in the same way. While time passes, a copy
// becomes whole every 50 ms on each shard that has its view; from then on the owner closes no step
// without it.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_TESTING_FAKE_JOB_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_TESTING_FAKE_JOB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/storage.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/protocol/interval_set.h"

namespace sluice::coordinator {

class FakeJob;

class FakeProcess {
 public:
  FakeProcess(FakeJob* job, v1::Role role, uint32_t index, uint64_t incarnation);
  virtual ~FakeProcess() = default;

  virtual void OnMessage(const v1::CoordinatorMessage& message) = 0;
  virtual v1::Register Registration() const;
  // Sends what the process reports unasked on a new stream, after its registration.
  virtual void Announce() = 0;
  void Say(v1::MemberMessage message);

  FakeJob* const job;
  v1::ProcessId id;
  StreamId stream = 0;    // 0: not connected
  bool running = true;    // false: killed or exited
  bool frozen = false;    // as after SIGSTOP: messages to it wait
  bool finished = false;  // received Finish
  std::optional<v1::Refusal> refusal;
  absl::Status closed;  // why the coordinator closed its stream
  std::deque<v1::CoordinatorMessage> waiting;
};

class FakeShard : public FakeProcess {
 public:
  using FakeProcess::FakeProcess;
  void OnMessage(const v1::CoordinatorMessage& message) override;
  v1::Register Registration() const override;
  void Announce() override {
    if (has_view) SayProgress();
  }

  void LoadedOrInitialized();
  bool CanClose() const;
  bool Held() const { return barrier > 0 && version == barrier; }
  void Close();  // closes a step, which commits the current version
  void Commit(uint64_t version);
  void SayProgress();
  std::vector<uint32_t> Owned() const;
  // The copies that the view names on this shard; and the next one of them that becomes whole.
  std::vector<uint32_t> NamedCopies() const;
  void MakeCopy();

  std::optional<v1::Admitted> admitted;  // newest
  v1::JobSpec job_spec;                  // as the coordinator sent it
  v1::ViewId obeyed;                     // attempt and term
  v1::InitId init_id;
  v1::PrepareState prepare;  // newest
  bool ready = false;
  bool has_view = false;
  v1::View view;
  uint64_t version = 0;
  uint64_t committed = 0;
  uint64_t barrier = 0;               // synchronous: no step is closed at this version
  v1::EvaluationDecisions decisions;  // the newest
  std::map<uint64_t, double> learning_rate_factors;  // of the steps that it has closed
  bool paused = false;
  std::optional<v1::Pause> after;  // a Pause whose step is not reached yet
  v1::PauseId answered;
  std::optional<v1::OpenSnapshot> snapshot;
  bool pinned = false, reported = false, written = false;
  bool disk_full = false;
  double busy_seconds = 0;
  uint64_t skipped_steps = 0;
  bool silent_snapshots = false;  // pins nothing, writes nothing
  bool drop_installs = false;
  std::map<uint32_t, uint64_t> copies;  // whole ones: partition -> version
  std::string load_error;
  // Asynchronous.
  IntervalSet ledger;
  std::map<uint64_t, v1::ClockRecord> clocks;
  std::vector<v1::LeaseRecord> leases;
  std::map<uint64_t, v1::ClockRecord> staged;
  std::vector<v1::Install> installs;

 private:
  bool Has(const v1::OpenSnapshot& named) const;
  void Repeat();
  void OnPrepareState(const v1::PrepareState& state);
  void OnPause(const v1::Pause& pause);
  void OnOpenSnapshot(const v1::OpenSnapshot& named);
  void Reply(const v1::PauseId& pause);
  void Install(const v1::Install& install);
  void InstallCopies(const v1::Install& install);
  bool Loses(const v1::Install& install) const;
  void CheckLosers(const v1::Install& install) const;
  void CheckAfter();
  void CheckSnapshot();
  void Obey(uint64_t attempt, const v1::Term& term);
};

class FakeWorker : public FakeProcess {
 public:
  using FakeProcess::FakeProcess;
  void OnMessage(const v1::CoordinatorMessage& message) override;
  v1::Register Registration() const override;
  void Announce() override;
  // The answer, in which each metric is the number of samples.
  static v1::MetricValues ValuesOf(const v1::ComputeMetrics& request);

  v1::Ready ready;
  bool says_ready = true;
  bool initializes = true;  // pushes version 0 when asked
  bool evaluates = true;
  std::string evaluation_error;
  std::optional<v1::View> view;
  bool was_member = false;
  bool has_table = false;
  int asked = 0;
  v1::InitId pushed;  // the init request for which it pushed version 0
  std::vector<v1::Evaluate> evaluations;
  bool computes_metrics = true;
  std::vector<v1::ComputeMetrics> computations;
  double seconds_per_sample = 0.001;
  uint64_t batch_size = 0;  // of the newest heartbeat's reply
};

class FakeJob {
 public:
  explicit FakeJob(v1::JobSpec spec);

  static v1::JobSpec Spec();

  // ---- processes
  FakeShard& AddShard(uint32_t index);
  // From then on the operator wants at least index + 1 workers.
  FakeWorker& AddWorker(uint32_t index, bool initializes = true);
  // The operator wants this many workers.
  void Scale(uint32_t workers);
  void ScaleShards(uint32_t shards);
  // Starts the spec's shards and workers, and runs until there is a first view.
  void Start();
  // Ends the process. `reported`: the operator reports its death.
  void Kill(FakeProcess& process, bool reported = true);
  void Break(FakeProcess& process);  // ends only its stream
  void Connect(FakeProcess& process);
  // The coordinator dies and a new one starts; all other processes connect to it.
  void RestartCoordinator();
  // No process connects to the new one, and it does not learn what the job wants.
  void RestartAlone();
  // As a process that receives SIGTERM.
  void AskToLeave(FakeProcess& process);

  // ---- time and training
  // Performs all actions and delivers all messages; nothing else happens.
  void Pump();
  // Lets time pass in steps of 50 ms, with heartbeats and ticks but without training.
  void Pass(absl::Duration time);
  // All shards close `steps` steps, 100 ms each (fewer if the view does not allow it).
  void Train(int steps = 1);
  // Only these shards close the current step.
  void CloseOn(const std::vector<FakeShard*>& some);
  // Asynchronous: all shards apply a worker's update; the shards in `not_yet` only stage it. The
  // update is of the first samples from `from` on that were not applied.
  void Update(FakeWorker& worker, uint64_t samples, const std::vector<FakeShard*>& not_yet = {},
              uint64_t from = 0);

  // Applies the worker's staged updates.
  void FinishUpdates(const FakeWorker& worker);

  // ---- readers
  // A new reader opens the call with this number; answers are in `snapshots`.
  void OpenSnapshot(uint64_t call, double hold_seconds = 600);
  void EndSnapshot(uint64_t call);  // the reader ends the call, or dies

  // ---- state
  v1::JobProgress Progress() { return core->Progress(0, now); }
  std::vector<std::string> Events();
  bool HasEvent(const std::string& part);
  std::vector<FakeShard*> Shards();       // running
  std::vector<FakeWorker*> Workers();     // running
  FakeShard* Find(uint64_t incarnation);  // running; null: none
  FakeShard* Holder(const v1::View& view, uint32_t position) {
    return Find(view.shards(static_cast<int>(position)).process().incarnation());
  }
  uint64_t ViewNumber() { return core->view().id().number(); }
  uint64_t Version();  // lowest over the running shards

  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  v1::JobSpec spec;
  uint32_t wanted_workers;
  uint32_t wanted_shards;
  int64_t elements = 100'000;  // of the model's one tensor
  v1::Ready traits;            // of the model, besides its tensors
  // The loss of the held-out samples at a version.
  std::function<double(uint64_t)> loss = [](uint64_t) { return 0.5; };
  std::optional<double> sample_weight;  // in reports and evaluations
  uint64_t training_samples = 3200;
  CoordinatorOptions options;
  std::unique_ptr<CoordinatorCore> core;
  std::vector<std::unique_ptr<FakeShard>> shards;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  std::vector<FakeProcess*> strangers;  // other processes with a stream; the test owns them
  uint64_t next_incarnation = 100;
  uint64_t next_stream = 1;

  // Storage. If `storage` is set, the core's actions are performed there, not on the fields below.
  CheckpointStorage* storage = nullptr;
  std::function<absl::StatusOr<StorageContents>()> read_storage;  // null: from the fields below
  // Of a shard that has loaded its partitions: what is wrong. Null: FakeShard::load_error.
  std::function<std::string(const FakeShard&)> load;
  std::vector<v1::Claim> claims;
  std::map<std::pair<uint64_t, uint64_t>, v1::CheckpointIndex> checkpoint_indexes;
  std::set<std::pair<uint64_t, uint64_t>> damaged;
  std::set<std::pair<uint64_t, uint64_t>> deleted;
  std::vector<std::pair<uint64_t, uint64_t>> removed;  // incomplete checkpoints, in order
  absl::Status storage_error, checkpoint_index_error, claim_error;
  // Requests of claims and loss records that fail make them nevertheless: the answer is lost.
  bool made_although_failed = false;
  bool hold_checkpoint_index = false;
  bool hold_storage = false;  // a read ends when the test answers it
  std::vector<v1::Claim> loss_records;
  absl::Status loss_record_error;
  bool hold_loss_records = false;  // the test answers
  bool makes_copies = true;
  std::map<uint64_t, uint64_t> committed;  // attempt -> highest version of a synchronous job
  bool heartbeats = true;                  // members send heartbeats

  std::optional<Exit> exit;
  std::vector<AnswerSnapshot> snapshots;
  std::vector<v1::MemberMessage> said;  // messages of members, in order

 private:
  friend class FakeProcess;

  void Perform(Action& action);
  // Actions on the storage. A test may hold reads, loss records and indexes, and answer itself.
  void ReadStorageOrHold(FileCheck check);
  void MakeLossRecord(const v1::Claim& record);
  void MakeClaim(const v1::Claim& claim);
  void WriteIndexOrHold(const v1::CheckpointIndex& index);
  void CheckAdmissions(const Send& send);
  StorageContents Contents() const;
  std::vector<v1::Claim> Claims() const;
  FakeProcess* OnStream(StreamId stream);
  void Deliver();

  std::deque<std::pair<StreamId, v1::MemberMessage>> to_core_;
  std::map<StreamId, std::set<uint64_t>> admitted_;  // incarnations that each shard was last sent
};

// A job that has trained this many steps.
struct TrainedJob : FakeJob {
  explicit TrainedJob(int steps, v1::JobSpec spec = FakeJob::Spec()) : FakeJob(std::move(spec)) {
    Start();
    Train(steps);
  }
  const v1::View& view() { return core->view(); }
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_TESTING_FAKE_JOB_H_

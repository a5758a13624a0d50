// The faults of a simulated job, and the parent that recovers from them.
#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/hostile_process.h"
#include "tests/simulation/reader_process.h"
#include "tests/simulation/shard_process.h"
#include "tests/simulation/worker_process.h"

namespace sluice::simulation {

// ---- faults

void Cluster::MaybeFault() {
  if (faults_left_ == 0 || scheduler_.events() < next_fault_) return;
  --faults_left_;
  ++outcome_.faults;
  next_fault_ = scheduler_.events() + 1 + random_.Below(scenario_.fault_spacing);
  DoFault();
  if (faults_left_ == 0) {
    // All freezes have ended by then.
    calm_since_ = scheduler_.now() + absl::Seconds(5);
    network_.set_calm(true);
  }
}

std::vector<Cluster::FaultKind> Cluster::FaultKinds() {
  const Scenario& s = scenario_;
  return {
      {s.kill_worker, true, [this] { KillWorker(); }},
      {s.freeze_worker, true, [this] { FreezeSome(v1::WORKER); }},
      {s.freeze_shard, false, [this] { FreezeSome(v1::SHARD); }},
      {s.freeze_coordinator, s.coordinator_freezes_are_harmless,
       [this] { FreezeSome(v1::COORDINATOR); }},
      {s.replace_coordinator, false, [this] { ReplaceCoordinator(); }},
      {s.kill_shard, s.spare_last_copies, [this] { KillShard(); }},
      {s.kill_coordinator, s.spare_last_copies, [this] { KillCoordinator(); }},
      {s.cut_stream, false, [this] { CutStream(); }},
      {s.cut_process, false, [this] { CutProcess(); }},
      {s.cut_coordinator, true, [this] { CutCoordinator(); }},
      {s.leave, true, [this] { AskWorkerToLeave(); }},
      {s.join, true, [this] { AddWorker(); }},
      {s.freeze_for_good, false, [this] { FreezeForGood(); }},
      {s.two_coordinators, false, [this] { RunTwoCoordinators(); }},
      {s.damage, false, [this] { DamageCheckpoint(); }},
      {s.damage_record, false, [this] { DamageRecord(); }},
      {s.snapshot, true, [this] { OpenSnapshot(); }},
      {s.suspend, false, [this] { Suspend(); }},
      {s.leave_shard, s.spare_last_copies, [this] { AskShardToLeave(); }},
      {s.leave_all, true, [this] { LeaveAll(); }},
      {s.leave_coordinator, s.spare_last_copies, [this] { AskCoordinatorToLeave(); }},
      {s.crash_at_write, false, [this] { CrashAtWrite(); }},
      {s.scale_shards, false, [this] { ScaleShards(); }},
      {s.break_group, true, [this] { BreakGroup(); }},
  };
}

void Cluster::DoFault() {
  const std::vector<FaultKind> kinds = FaultKinds();
  uint64_t all = 0;
  for (const FaultKind& kind : kinds) all += kind.weight;
  if (all == 0) return;

  uint64_t pick = random_.Below(all);
  for (const FaultKind& kind : kinds) {
    if (pick < kind.weight) {
      only_harmless_ = only_harmless_ && kind.harmless;
      return kind.fault();
    }
    pick -= kind.weight;
  }
}

void Cluster::CutStream() {
  if (StreamRef stream = network_.Pick()) {
    Trace("a stream is cut");
    network_.Cut(stream);
  }
}

void Cluster::CutProcess() {
  std::shared_ptr<Process> process = PickShard();
  if (random_.OneIn(2)) process = PickWorker();
  if (process == nullptr) return;
  Trace("all streams of a process are cut");
  network_.CutAll(*process);
}

// The coordinator is cut off from all processes, or from all shards where there are several; half
// of the time also from its parent. This lasts for up to three heartbeat timeouts, or longer where
// no parent replaces the coordinator, as on a cluster. The ends of its streams may give up.
void Cluster::CutCoordinator() {
  const std::shared_ptr<CoordinatorProcess> cut = coordinator_;
  if (cut == nullptr || cut->frozen() || network_.IsIsolated(cut)) return;
  const absl::Duration timeout = absl::Seconds(scenario_.job.timeouts().heartbeat_timeout());
  // Before the first step, the parent may replace it before all shards have the first view. And
  // cuts without a pause in which all messages arrive are one cut, which may be longer.
  if (cut->Progress().step() == 0 || scheduler_.now() < whole_since_ + timeout) return;
  parent_is_cut_ = random_.OneIn(2);
  parent_waits_ = parent_is_cut_ && random_.OneIn(2);
  // The parent kills processes that do not come to a new coordinator in time.
  const int longest = !cut->view().has_id() ? 2 : parent_waits_ ? 8 : 3;
  const absl::Duration time = random_.Between(absl::ZeroDuration(), longest * timeout);
  std::set<const Process*> spared;
  if (scenario_.shards > 1 && random_.OneIn(3)) {
    for (const auto& worker : workers()) spared.insert(worker.get());
  }
  Trace(absl::StrCat("the coordinator is cut off for ", absl::FormatDuration(time),
                     spared.empty() ? "" : ", but not from the workers",
                     parent_is_cut_ ? ", also from its parent" : ""));
  if (time > timeout) ++outcome_.cuts;
  network_.Isolate(cut, std::move(spared));
  if (random_.OneIn(2)) {
    scheduler_.After(random_.Between(timeout, 3 * timeout), [this, cut, since = scheduler_.now()] {
      if (network_.IsIsolated(cut) && since > whole_since_) network_.BreakIsolated(*cut);
    });
  }
  scheduler_.After(time, [this, cut] {
    Trace("the coordinator's network is whole again");
    network_.Heal(cut);
    whole_since_ = scheduler_.now();
    if (cut == coordinator_) SendDesired();
  });
}

bool Cluster::ParentReaches(const std::shared_ptr<CoordinatorProcess>& coordinator) const {
  return !parent_is_cut_ || !network_.IsIsolated(coordinator);
}

void Cluster::AskWorkerToLeave() {
  const auto worker = PickWorker();
  if (worker == nullptr) return;
  Trace(absl::StrCat("worker-", worker->index(), " receives SIGTERM"));
  worker->Handle([worker] { worker->Leave(); });
}

void Cluster::AskShardToLeave() {
  const auto shard = PickShard();
  if (shard == nullptr || shard->leaving() || !MayLose(*shard)) return;
  Trace(absl::StrCat(shard->name(), " receives SIGTERM"));
  shard->Handle([shard] { shard->Leave(); });
}

void Cluster::AskCoordinatorToLeave() {
  if (coordinator_ == nullptr || !MayLoseCoordinator()) return;
  Trace("the coordinator receives SIGTERM");
  coordinator_->Handle([leaving = coordinator_] { leaving->Leave(); });
}

void Cluster::AddWorker() {
  if (wanted_workers_ >= scenario_.workers + 2) return;
  StartWorker(wanted_workers_++);
  SendDesired();
}

void Cluster::CrashAtWrite() {
  Trace("the next coordinator that uses the storage crashes");
  crash_at_write_ = true;
}

void Cluster::BreakGroup() {
  if (groups_.Break()) Trace("the connections among workers break");
}

std::shared_ptr<WorkerProcess> Cluster::PickWorker() {
  auto it = std::next(workers_.begin(), static_cast<long>(random_.Below(workers_.size())));
  return it->second->alive() ? it->second : nullptr;
}

std::shared_ptr<ShardProcess> Cluster::PickShard() {
  auto it = std::next(shards_.begin(), static_cast<long>(random_.Below(shards_.size())));
  return it->second->alive() ? it->second : nullptr;
}

void Cluster::KillWorker() {
  auto worker = PickWorker();
  if (worker == nullptr) return;
  Trace(absl::StrCat("worker-", worker->index(), " is killed"));
  End(worker);
}

void Cluster::End(const std::shared_ptr<WorkerProcess>& worker) {
  worker->Die();
  network_.CutAll(*worker);
  groups_.Leave(worker->incarnation());
  ReportDeath(v1::WORKER, worker->index(), worker->incarnation());
  Replace([this, index = worker->index()] { StartWorkerUnlessThere(index); });
}

// Whether each partition is on two living shards.
bool Cluster::HasAllCopies() {
  if (coordinator_ == nullptr || coordinator_->frozen()) return false;
  const v1::JobProgress progress = coordinator_->Progress();
  const auto& shards = coordinator_->view().shards();
  return progress.copies() > 0 && progress.missing_copies() == 0 &&
         std::all_of(shards.begin(), shards.end(), [this](const v1::View::Shard& shard) {
           const auto process = shards_.at(shard.process().index());
           return process->alive() && process->incarnation() == shard.process().incarnation();
         });
}

bool Cluster::MayLose(const ShardProcess& shard) {
  if (!scenario_.spare_last_copies) return true;
  const bool knows = coordinator_ != nullptr && coordinator_->Progress().copies() > 0;
  if (knows) whole_ = HasAllCopies();
  const bool another_stays = std::any_of(shards_.begin(), shards_.end(), [&](const auto& entry) {
    const ShardProcess& other = *entry.second;
    return other.incarnation() != shard.incarnation() && other.alive() && !other.leaving() &&
           view_shards_.count(other.incarnation()) > 0;
  });
  return whole_ && another_stays;
}

// Before the first step, a shard may lack the attempt's first view.
bool Cluster::MayLoseCoordinator() {
  trained_ = trained_ || coordinator_->Progress().step() > 0;
  return !scenario_.spare_last_copies || trained_;
}

void Cluster::KillShard() {
  auto shard = PickShard();
  if (shard == nullptr || !MayLose(*shard)) return;
  whole_ = false;
  Trace(absl::StrCat("ps-", shard->index(), " is killed"));
  End(shard);
}

// Adds or removes a shard while the job trains.
void Cluster::ScaleShards() {
  const bool more =
      wanted_shards_ <= 2 || (wanted_shards_ < scenario_.shards + 2 && random_.OneIn(2));
  wanted_shards_ += more ? 1 : -1;
  Trace(absl::StrCat("the job wants ", wanted_shards_, " shards"));
  if (more) StartShardUnlessThere(wanted_shards_ - 1);
  SendDesired();
}

void Cluster::End(const std::shared_ptr<ShardProcess>& shard) {
  shard->Die();
  network_.CutAll(*shard);
  ReportDeath(v1::SHARD, shard->index(), shard->incarnation());
  Replace([this, index = shard->index()] { StartShardUnlessThere(index); });
}

void Cluster::OnCoordinatorCrash(CoordinatorProcess& process) {
  ++outcome_.crashes;
  if (coordinator_.get() == &process) return KillCoordinator();
  Trace("an older coordinator crashes");
  process.Die();
  network_.CutAll(process);
}

void Cluster::KillCoordinator() {
  if (coordinator_ == nullptr || !MayLoseCoordinator()) return;
  Trace("the coordinator is killed");
  coordinator_->Die();
  network_.CutAll(*coordinator_);
  coordinator_ = nullptr;
  Replace([this] {
    if (coordinator_ == nullptr) StartCoordinator();
  });
}

// The coordinator freezes, a new one replaces it, and then the old one thaws and runs for a while.
void Cluster::ReplaceCoordinator() {
  std::shared_ptr<CoordinatorProcess> old = coordinator_;
  if (old == nullptr || old->frozen()) return;
  Trace("the coordinator freezes and is replaced");
  old->Freeze();

  scheduler_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(1)),
                   [old] { old->Thaw(); });
  scheduler_.After(random_.Between(absl::Seconds(1), absl::Seconds(3)), [this, old] {
    if (!old->alive()) return;
    Trace("the replaced coordinator is killed");
    old->Die();
    network_.CutAll(*old);
  });

  // Half of the time the members notice late: they still have their streams to it.
  if (random_.OneIn(2)) network_.CutAll(*old);
  coordinator_ = nullptr;
  Replace([this] {
    if (coordinator_ == nullptr) StartCoordinator();
  });
}

void Cluster::FreezeSome(v1::Role role) {
  std::shared_ptr<Process> process = coordinator_;
  if (role == v1::WORKER) process = PickWorker();
  if (role == v1::SHARD) process = PickShard();
  if (process == nullptr || process->frozen()) return;
  const absl::Duration time = random_.OneIn(2)
                                  ? random_.Between(absl::Milliseconds(1), absl::Milliseconds(300))
                                  : random_.Between(absl::Milliseconds(300), absl::Seconds(4));
  Trace(absl::StrCat(v1::Role_Name(role), " freezes for ", absl::FormatDuration(time)));
  process->Freeze();
  scheduler_.After(time, [process] { process->Thaw(); });
}

// ---- faults of problems

// Freezes a process of any role, at once or as soon as it starts. Half of the time another process
// dies as well.
void Cluster::FreezeForGood() {
  const v1::Role roles[] = {v1::COORDINATOR, v1::SHARD, v1::WORKER};
  const v1::Role role = roles[random_.Below(3)];
  if (random_.OneIn(4)) {
    freezes_at_start_ = role;
  } else {
    std::shared_ptr<Process> process = coordinator_;
    if (role == v1::WORKER) process = PickWorker();
    if (role == v1::SHARD) process = PickShard();
    if (process == nullptr) return;
    Trace(absl::StrCat(v1::Role_Name(role), " freezes for good"));
    process->FreezeForGood();
  }

  if (random_.OneIn(2)) return;
  const v1::Role other = roles[random_.Below(3)];
  scheduler_.After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(400)), [this, other] {
    if (finished_) return;
    if (other == v1::COORDINATOR) KillCoordinator();
    if (other == v1::SHARD) KillShard();
    if (other == v1::WORKER) KillWorker();
  });
}

void Cluster::FreezeAtStart(Process& process) {
  Trace("the process freezes for good while it starts");
  freezes_at_start_ = v1::ROLE_UNSPECIFIED;
  process.FreezeForGood();
}

// Starts a second coordinator while the first one continues. For a while, a process that looks for
// the coordinator finds either of them.
void Cluster::RunTwoCoordinators() {
  if (coordinator_ == nullptr || (old_coordinator_ != nullptr && old_coordinator_->alive())) return;
  Trace("two coordinators run");
  old_coordinator_ = coordinator_;
  StartCoordinator();
  network_.CutSome(*old_coordinator_);
  scheduler_.After(random_.Between(absl::Milliseconds(300), absl::Seconds(3)),
                   [this, old = old_coordinator_] { KillOlder(*old); });
}

void Cluster::KillOlder(CoordinatorProcess& older) {
  if (!older.alive()) return;
  Trace("the older coordinator is killed");
  older.Die();
  network_.CutAll(older);
}

// Never damages the last whole checkpoint, because the protocol does not cover that case.
void Cluster::DamageCheckpoint() {
  const std::string damaged = storage_->DamageCheckpoint(&random_);
  if (damaged.empty()) return;
  Trace(absl::StrCat("damaged: ", damaged));
  // Only a restoration finds the damage, and only if the checkpoint is still the newest.
  if (random_.OneIn(2)) {
    KillShard();
  } else {
    KillCoordinator();
  }
}

void Cluster::DamageRecord() {
  const std::string damaged = storage_->DamageRecord(&random_);
  if (damaged.empty()) return;
  Trace(absl::StrCat("damaged: ", damaged));
  // Claims are read when an attempt begins, the owner file when a coordinator starts.
  if (random_.OneIn(4)) {
    KillShard();
  } else {
    KillCoordinator();
  }
}

void Cluster::OpenSnapshot() {
  auto reader = std::make_shared<ReaderProcess>(this, readers_++, random_.Next() | 1);
  processes_.push_back(reader);
  Trace(absl::StrCat(reader->name(), " requests a snapshot"));
  reader->Start();
}

void Cluster::Suspend() {
  if (coordinator_ == nullptr || suspending_) return;
  Trace("the job is suspended");
  suspending_ = true;
  SendDesired();
}

void Cluster::RestartAll() {
  Trace("all processes restart");
  suspending_ = false;
  if (old_coordinator_ != nullptr) KillOlder(*old_coordinator_);
  for (const auto& [index, shard] : shards_) {
    shard->Die();
    network_.CutAll(*shard);
  }
  for (const auto& [index, worker] : workers_) {
    worker->Die();
    network_.CutAll(*worker);
    groups_.Leave(worker->incarnation());
  }
  Replace([this] { StartMissing(); });
}

void Cluster::LeaveAll() {
  Trace("all workers receive SIGTERM");
  for (const auto& worker : workers()) {
    if (worker->alive()) worker->Handle([worker] { worker->Leave(); });
  }
}

void Cluster::StartHostile() {
  const auto start = [this](const std::shared_ptr<HostileProcess>& process) {
    processes_.push_back(process);
    hostile_.push_back(process);
    process->Start();
  };
  for (uint32_t i = 0; i < scenario_.strangers; ++i) {
    const v1::Role role = random_.OneIn(3) ? v1::READER : v1::WORKER;
    start(std::make_shared<HostileProcess>(this, role, 500 + i, false));
  }
  for (uint32_t i = 0; i < scenario_.liars; ++i) {
    start(std::make_shared<HostileProcess>(this, v1::WORKER, i % scenario_.workers, true));
  }
}

// ---- the parent of processes that may freeze for good

namespace {

constexpr absl::Duration kLook = absl::Milliseconds(200);
// Time limits for the coordinator to answer its parent, and for a process to register, and to exit
// once it is expelled or has left. They exceed the job's timers: timeouts.heartbeat_timeout and
// timeouts.pause are 1 s.
constexpr absl::Duration kCoordinatorAnswers = absl::Seconds(3);
constexpr absl::Duration kRegisters = absl::Seconds(4);
constexpr absl::Duration kExitsExpelled = absl::Seconds(1);
constexpr absl::Duration kExitsLeft = absl::Seconds(4);

}  // namespace

void Cluster::Watch() {
  scheduler_.After(kLook, [this] {
    if (!finished_) Watch();
  });

  if (coordinator_ == nullptr) return;
  if (parent_waits_ && network_.IsIsolated(coordinator_)) coordinator_answered_ = scheduler_.now();
  if (scheduler_.now() > coordinator_answered_ + kCoordinatorAnswers) {
    Trace("the coordinator does not answer its parent");
    ++outcome_.replaced_frozen;
    KillCoordinator();
    return;
  }

  const auto travel = [this] {
    return random_.Between(absl::Microseconds(100), absl::Milliseconds(20));
  };
  scheduler_.After(travel(), [this, asked = coordinator_, back = travel()] {
    if (!ParentReaches(asked)) return;
    asked->Handle([this, asked, back] {
      asked->OnParentCall();
      scheduler_.After(back, [this, asked, progress = asked->Progress()] {
        if (!finished_ && asked == coordinator_) OnProgress(asked, progress);
      });
    });
  });
}

void Cluster::OnProgress(const std::shared_ptr<CoordinatorProcess>&,
                         const v1::JobProgress& progress) {
  coordinator_answered_ = scheduler_.now();
  coordinator_knows_since_ = std::min(coordinator_knows_since_, scheduler_.now());
  for (const auto& shard : shards()) EndIfFrozen(shard, progress);
  for (const auto& worker : workers()) EndIfFrozen(worker, progress);
}

template <typename P>
void Cluster::EndIfFrozen(const std::shared_ptr<P>& process, const v1::JobProgress& progress) {
  if (!process->alive()) return;
  const uint64_t incarnation = process->incarnation();
  bool registered = false;
  bool left = false;
  for (const v1::ProcessStatus& status : progress.processes()) {
    if (status.process().incarnation() != incarnation) continue;
    registered = true;
    left = status.state() == v1::ProcessStatus::LEFT;
    if (status.state() != v1::ProcessStatus::EXPELLED) continue;
    expelled_.emplace(incarnation, scheduler_.now());
  }
  if (left) {
    left_.emplace(incarnation, scheduler_.now());
  } else {
    left_.erase(incarnation);
  }

  const auto overdue = [&](const std::map<uint64_t, absl::Time>& since, absl::Duration limit) {
    const auto found = since.find(incarnation);
    return found != since.end() && scheduler_.now() > found->second + limit;
  };
  const absl::Time begun = std::max(started_[incarnation], coordinator_knows_since_);
  const bool never_came = !registered && scheduler_.now() > begun + kRegisters;
  const bool stays = overdue(expelled_, kExitsExpelled) || overdue(left_, kExitsLeft);
  if (!never_came && !stays) return;
  Trace(absl::StrCat(process->name(), never_came ? " does not register" : " does not exit",
                     " and is killed"));
  ++outcome_.replaced_frozen;
  End(process);
}

}  // namespace sluice::simulation

#include "tests/simulation/cluster.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/coordinator/job_length.h"
#include "services/protocol/layout.h"
#include "tests/simulation/processes.h"

namespace sluice::simulation {
namespace {

// In simulated time, after the last fault: long enough for a restoration after a restoration.
constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr uint64_t kMaxEvents = 2'000'000;

}  // namespace

Scenario MakeScenario(uint64_t seed, const ScenarioOptions& options) {
  Random random(seed * 2654435761u + 17);
  Scenario scenario;
  scenario.seed = seed;
  scenario.shards = 1 + static_cast<uint32_t>(random.Below(3));
  scenario.workers = 1 + static_cast<uint32_t>(random.Below(4));
  scenario.tensors = 2 + static_cast<uint32_t>(random.Below(5));
  scenario.samples = 20 + random.Below(40);
  scenario.faults = static_cast<uint32_t>(random.Below(10));

  scenario.rows = options.rows;

  v1::JobSpec& job = scenario.job;
  job.set_name("job");
  job.set_namespace_("default");
  job.set_uid("uid");
  v1::TrainingSpec& training = *job.mutable_training();
  training.set_mode(options.mode);
  training.set_bit_exact(options.bit_exact);
  training.set_aggregation(v1::TrainingSpec::SUM);
  training.set_microbatch_size(1 + random.Below(2));
  const uint64_t microbatches =
      options.bit_exact ? uint64_t{1} << random.Below(5) : 1 + random.Below(9);
  training.set_global_batch_size(training.microbatch_size() * microbatches);
  training.set_steps(5 + random.Below(25));
  training.set_max_staleness(random.Below(4));
  if (options.drop_stragglers) {
    training.mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
    training.mutable_stragglers()->set_backup(1 + scenario.workers / 3);
  }
  if (options.all_reduce) {
    training.mutable_dense()->set_aggregation(v1::TrainingSpec::Dense::ALL_REDUCE);
  }
  if (options.batches_by_speed) {
    training.set_min_batch_size(1);
    training.set_max_batch_size(3 * training.global_batch_size());
    training.set_steps(4 * training.steps());  // until speeds are known
  }
  // Skipping makes the shards exchange norms before each close.
  training.set_non_finite(random.OneIn(4) ? v1::TrainingSpec::SKIP : v1::TrainingSpec::FAIL);
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADD);
  job.mutable_parameter_server()->set_replicas(scenario.shards);
  job.mutable_parameter_server()->set_partitions(1 + static_cast<uint32_t>(random.Below(6)));
  job.mutable_worker()->set_replicas(scenario.workers);
  job.mutable_checkpoint()->set_directory("memory");
  job.mutable_checkpoint()->set_interval_steps(1 + random.Below(5));
  job.mutable_checkpoint()->set_max_to_keep(2 + static_cast<uint32_t>(random.Below(2)));
  job.mutable_data()->mutable_evaluation()->set_interval_steps(random.Below(6));
  v1::TimeoutSpec& timeouts = *job.mutable_timeouts();
  timeouts.set_heartbeat(options.batches_by_speed ? 0.02 : 0.2);
  timeouts.set_suspect(0.3);
  timeouts.set_silence(1.0);
  timeouts.set_pause(1.0);
  timeouts.set_birth(1.0);
  timeouts.set_suspend_checkpoint(5);
  job.set_backoff_limit(1000);
  return scenario;
}

std::string Describe(const Scenario& scenario) {
  const v1::TrainingSpec& training = scenario.job.training();
  return absl::StrCat("seed ", scenario.seed, ": ", v1::Mode_Name(training.mode()),
                      training.bit_exact() ? " BitExact" : "",
                      training.has_stragglers() ? " without stragglers" : "",
                      scenario.rows ? " by rows" : "", training.has_dense() ? " all-reduced" : "",
                      ", ", scenario.shards, " shards, ", scenario.workers, " workers, ",
                      scenario.job.parameter_server().partitions(), " partitions, ",
                      scenario.tensors, " tensors, ", training.steps(), " steps of ",
                      training.global_batch_size(), " samples, ", scenario.faults, " faults");
}

Cluster::Cluster(Scenario scenario, Tracing tracing)
    : scenario_(std::move(scenario)),
      tracing_(tracing),
      random_(scenario_.seed),
      network_(&scheduler_, &random_),
      groups_(&scheduler_, &random_),
      model_(scenario_.seed, scenario_.tensors, scenario_.rows, scenario_.samples,
             scenario_.job.training()),
      checker_(&model_, scenario_.job,
               *MakeLayout(model_.table(), scenario_.job.parameter_server().partitions())),
      wanted_workers_(scenario_.workers),
      faults_left_(scenario_.faults) {}

Cluster::~Cluster() {
  // What waits in a frozen process holds the process.
  for (const std::weak_ptr<Process>& weak : processes_) {
    if (const auto process = weak.lock()) process->Die();
  }
}

std::string Cluster::job_name() const { return coordinator::JobName(scenario_.job); }

std::shared_ptr<ShardProcess> Cluster::FindShard(const std::string& address) {
  for (const auto& [index, shard] : shards_) {
    if (shard != nullptr && absl::StrCat("ps-", index) == address) return shard;
  }
  return nullptr;
}

void Cluster::NoteUpdate(uint64_t samples) {
  if (samples > scenario_.job.training().global_batch_size()) ++outcome_.larger_updates;
}

void Cluster::Trace(const std::string& what) {
  if (!tracing()) return;
  std::fprintf(stderr, "%10.4f %6llu  %s\n",
               absl::ToDoubleSeconds(scheduler_.now() - absl::FromUnixSeconds(1'000'000)),
               static_cast<unsigned long long>(scheduler_.events()), what.c_str());
}

void Cluster::TraceMessage(const std::string& from, const std::string& to,
                           const google::protobuf::Message& message) {
  if (tracing_ != Tracing::kMessages) return;
  const std::string text = message.ShortDebugString();
  if (text.find("heartbeat") != std::string::npos) return;
  Trace(absl::StrCat("    ", from, " -> ", to, ": ", text.substr(0, 500)));
}

Outcome Cluster::Run() {
  StartCoordinator();
  for (uint32_t index = 0; index < scenario_.shards; ++index) StartShard(index);
  for (uint32_t index = 0; index < scenario_.workers; ++index) StartWorker(index);
  next_fault_ = 50 + random_.Below(scenario_.fault_spacing);
  if (faults_left_ == 0) calm_since_ = scheduler_.now();
  const absl::Time begin = scheduler_.now();
  v1::ViewId view;
  while (!finished_ && !checker_.failed()) {
    if (!scheduler_.RunOne()) {
      checker_.Fail("nothing is left to happen, and the job has not finished");
      break;
    }
    MaybeFault();
    if (coordinator_ != nullptr && !Same(coordinator_->view().id(), view)) {
      view = coordinator_->view().id();
      ++outcome_.views;
      Trace(absl::StrCat("view ", ShortName(view), ", first step ",
                         coordinator_->view().first_step(), ", ",
                         coordinator_->view().workers_size(), " workers"));
    }
    if (view.attempt() > 1 && only_workers_harmed_) {
      checker_.Fail("only workers were harmed, and it cost an attempt");
    }
    if (scheduler_.now() > calm_since_ + kPatience) {
      checker_.Fail("the job does not finish, long after the last fault");
    }
    if (scheduler_.events() > kMaxEvents) checker_.Fail("too many events");
  }
  if (!checker_.failed()) {
    absl::StatusOr<RestorePoint> newest = FindRestorePoint(storage_);
    const auto length = coordinator::JobLength::Create(scenario_.job, scenario_.samples);
    const bool synchronous = scenario_.job.training().mode() == v1::SYNCHRONOUS;
    std::optional<v1::Manifest> manifest;
    if (newest.ok() && newest->found) manifest = newest->manifest;
    checker_.OnEnd(synchronous ? length->total_steps() : length->total_samples(), manifest);
  }
  outcome_.failure = checker_.failure();
  outcome_.events = scheduler_.events();
  outcome_.simulated = scheduler_.now() - begin;
  outcome_.sums = groups_.sums();
  outcome_.broken_sums = groups_.broken();
  outcome_.attempts = view.attempt();
  return outcome_;
}

// ---- the process manager

void Cluster::StartCoordinator() {
  coordinator_ = std::make_shared<CoordinatorProcess>(this, random_.Next() | 1);
  processes_.push_back(coordinator_);
  Trace("a coordinator starts");
  coordinator_->Start();
  TellDesired();
}

void Cluster::StartShard(uint32_t index) {
  auto shard = std::make_shared<ShardProcess>(this, index, random_.Next() | 1);
  processes_.push_back(shard);
  shards_[index] = shard;
  Trace(absl::StrCat("ps-", index, " starts, incarnation ", shard->incarnation() % 1000));
  shard->Start();
}

void Cluster::StartWorker(uint32_t index) {
  auto worker = std::make_shared<WorkerProcess>(this, index, random_.Next() | 1);
  processes_.push_back(worker);
  workers_[index] = worker;
  Trace(absl::StrCat("worker-", index, " starts, incarnation ", worker->incarnation() % 1000));
  worker->Start();
}

void Cluster::TellDesired() {
  if (coordinator_ == nullptr) return;
  v1::SetDesiredRequest desired;
  desired.set_workers(wanted_workers_);
  desired.set_shards(scenario_.shards);
  for (const auto& [process, time] : deaths_) {
    v1::SetDesiredRequest::Death& death = *desired.add_deaths();
    *death.mutable_process() = process;
    death.set_reason("killed");
  }
  auto to = coordinator_;
  scheduler_.After(random_.Between(absl::Microseconds(100), absl::Milliseconds(20)),
                   [to, desired] { to->Handle([to, desired] { to->SetDesired(desired); }); });
}

void Cluster::Replace(std::function<void()> start) {
  scheduler_.After(random_.Between(absl::Milliseconds(5), absl::Milliseconds(300)),
                   [this, start = std::move(start)] {
                     if (!finished_) start();
                   });
}

// Now and then the manager does not notice: then the coordinator must find out by itself.
void Cluster::ReportDeath(v1::Role role, uint32_t index, uint64_t incarnation) {
  if (random_.OneIn(3)) return;
  v1::ProcessId id;
  id.set_role(role);
  id.set_index(index);
  id.set_incarnation(incarnation);
  deaths_.emplace_back(id, scheduler_.now());
  TellDesired();
}

void Cluster::OnCoordinatorExit(CoordinatorProcess& process, bool succeeded, bool failed,
                                const std::string& message) {
  Trace(absl::StrCat("the coordinator exits: ", message));
  process.Die();
  network_.CutAll(process);
  if (failed) checker_.Fail(absl::StrCat("the coordinator fails the job: ", message));
  if (succeeded) finished_ = true;
  if (coordinator_.get() == &process) coordinator_ = nullptr;
  Replace([this] {
    if (coordinator_ == nullptr) StartCoordinator();
  });
}

void Cluster::OnShardExit(ShardProcess& process, bool finished, bool failed,
                          const std::string& message) {
  const uint32_t index = process.index();
  Trace(absl::StrCat("ps-", index, " exits: ", message));
  process.Die();
  network_.CutAll(process);
  if (failed) checker_.Fail(absl::StrCat("ps-", index, " fails: ", message));
  if (finished) return AfterFinish();
  ReportDeath(v1::SHARD, index, process.incarnation());
  Replace([this, index] { StartShard(index); });
}

// The shards say that the job has ended. A coordinator that knows nothing of it (it was started
// while another one still lived) waits for them in vain: the manager starts it anew, and it reads.
void Cluster::AfterFinish() {
  scheduler_.After(absl::Seconds(2), [this, told = coordinator_] {
    if (!finished_ && coordinator_ != nullptr && coordinator_ == told) KillCoordinator();
  });
}

void Cluster::OnWorkerExit(WorkerProcess& process, bool finished, bool failed,
                           const std::string& message) {
  const uint32_t index = process.index();
  Trace(absl::StrCat("worker-", index, " exits: ", message));
  process.Die();
  groups_.Leave(process.incarnation());
  // What it has said arrives.
  scheduler_.After(absl::Milliseconds(100),
                   [this, self = process.shared_from_this()] { network_.CutAll(*self); });
  if (failed) checker_.Fail(absl::StrCat("worker-", index, " fails: ", message));
  if (finished) return;
  ReportDeath(v1::WORKER, index, process.incarnation());
  Replace([this, index] { StartWorker(index); });
}

// ---- faults

void Cluster::MaybeFault() {
  if (faults_left_ == 0 || scheduler_.events() < next_fault_) return;
  --faults_left_;
  ++outcome_.faults;
  next_fault_ = scheduler_.events() + 1 + random_.Below(scenario_.fault_spacing);
  DoFault();
  if (faults_left_ == 0) {
    // Freezes end within this.
    calm_since_ = scheduler_.now() + absl::Seconds(5);
    network_.set_calm(true);
  }
}

void Cluster::DoFault() {
  const Scenario& s = scenario_;
  struct Kind {
    uint32_t weight;
    bool of_workers;  // nobody else is harmed
    std::function<void()> fault;
  };
  const std::vector<Kind> kinds = {
      {s.kill_worker, true, [this] { KillWorker(); }},
      {s.freeze_worker, true, [this] { FreezeSome(v1::WORKER); }},
      {s.freeze_shard, false, [this] { FreezeSome(v1::SHARD); }},
      {s.freeze_coordinator, false, [this] { FreezeSome(v1::COORDINATOR); }},
      {s.replace_coordinator, false, [this] { ReplaceCoordinator(); }},
      {s.kill_shard, false, [this] { KillShard(); }},
      {s.kill_coordinator, false, [this] { KillCoordinator(); }},
      {s.cut_stream, false,
       [this] {
         if (StreamRef stream = network_.Pick()) {
           Trace("a stream is cut");
           network_.Cut(stream);
         }
       }},
      {s.cut_process, false,
       [this] {
         std::shared_ptr<Process> process = PickShard();
         if (random_.OneIn(2)) process = PickWorker();
         if (process == nullptr) return;
         Trace("all streams of a process are cut");
         network_.CutAll(*process);
       }},
      {s.leave, true,
       [this] {
         if (auto worker = PickWorker()) {
           Trace(absl::StrCat("worker-", worker->index(), " is told to leave"));
           worker->Handle([worker] { worker->Leave(); });
         }
       }},
      {s.join, true,
       [this] {
         if (wanted_workers_ >= scenario_.workers + 2) return;
         StartWorker(wanted_workers_++);
         TellDesired();
       }},
  };
  uint64_t all = 0;
  for (const Kind& kind : kinds) all += kind.weight;
  uint64_t pick = random_.Below(all);
  for (const Kind& kind : kinds) {
    if (pick < kind.weight) {
      only_workers_harmed_ = only_workers_harmed_ && kind.of_workers;
      return kind.fault();
    }
    pick -= kind.weight;
  }
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
  worker->Die();
  network_.CutAll(*worker);
  groups_.Leave(worker->incarnation());
  ReportDeath(v1::WORKER, worker->index(), worker->incarnation());
  Replace([this, index = worker->index()] { StartWorker(index); });
}

void Cluster::KillShard() {
  auto shard = PickShard();
  if (shard == nullptr) return;
  Trace(absl::StrCat("ps-", shard->index(), " is killed"));
  shard->Die();
  network_.CutAll(*shard);
  ReportDeath(v1::SHARD, shard->index(), shard->incarnation());
  Replace([this, index = shard->index()] { StartShard(index); });
}

void Cluster::KillCoordinator() {
  if (coordinator_ == nullptr) return;
  Trace("the coordinator is killed");
  coordinator_->Die();
  network_.CutAll(*coordinator_);
  coordinator_ = nullptr;
  Replace([this] {
    if (coordinator_ == nullptr) StartCoordinator();
  });
}

// It stands still, another one is started in its place, and then it goes on for a while.
void Cluster::ReplaceCoordinator() {
  std::shared_ptr<CoordinatorProcess> old = coordinator_;
  if (old == nullptr || old->frozen()) return;
  Trace("the coordinator freezes and is replaced");
  old->Freeze();
  scheduler_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(1)),
                   [old] { old->Thaw(); });
  scheduler_.After(random_.Between(absl::Seconds(1), absl::Seconds(3)), [this, old] {
    if (!old->alive()) return;
    Trace("the replaced coordinator is killed at last");
    old->Die();
    network_.CutAll(*old);
  });
  // Half of the time its members find out late: they still hold their streams to it.
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

}  // namespace sluice::simulation

#include "tests/simulation/cluster.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/samples/smallest_batch.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/hostile_process.h"
#include "tests/simulation/member.h"
#include "tests/simulation/shard_process.h"
#include "tests/simulation/worker_process.h"

namespace sluice::simulation {
namespace {

// In simulated time, after the last fault: long enough for two restorations in a row.
constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr uint64_t kMaxEvents = 2'000'000;
// How many recorded frames, and as many messages, hostile processes may send again.
constexpr size_t kMaxRecorded = 300;

void SetTimeouts(const ScenarioOptions& options, v1::TimeoutSpec* timeouts) {
  timeouts->set_heartbeat(options.batches_by_speed ? 0.02 : 0.2);
  timeouts->set_suspect(0.3);
  timeouts->set_heartbeat_timeout(1.0);
  timeouts->set_pause(1.0);
  timeouts->set_initialization(1.0);
  timeouts->set_suspend_checkpoint(5);
}

// Follows from the seed alone, so that the scenario's other draws do not depend on it. An
// asynchronous worker may compute a sample twice for such a model, which the checker would report.
void SetLastBatch(Scenario* scenario) {
  v1::TrainingSpec& training = *scenario->job.mutable_training();
  if (training.mode() != v1::SYNCHRONOUS) return;
  if (scenario->seed % 3 == 1 && scenario->samples >= training.global_batch_size()) {
    training.set_last_batch(v1::TrainingSpec::DROP);
  }
  v1::Ready ready;
  ready.set_training_samples(scenario->samples);
  ready.set_smallest_batch(2);
  const bool fits = CheckSmallestBatch(scenario->job, ready).ok();
  if (scenario->seed % 2 == 0 && fits) scenario->smallest_batch = 2;
}

// Follows from the seed alone, as the last batch. Where stragglers are dropped, the participants'
// weights do not add up to those of a step.
void SetWeights(Scenario* scenario) {
  v1::TrainingSpec& training = *scenario->job.mutable_training();
  const bool weighted = scenario->seed % 5 < 2 && !training.has_stragglers();
  training.set_aggregation(weighted ? v1::TrainingSpec::MEAN : v1::TrainingSpec::SUM);
}

// Evaluations lower the learning rate and end half of the jobs.
void AddDecisions(Random* random, v1::JobSpec* job) {
  job->mutable_data()->mutable_evaluation()->set_interval_steps(1 + random->Below(4));
  job->mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  job->mutable_optimizer()->set_learning_rate(1);
  v1::OptimizerSpec::Plateau& plateau = *job->mutable_optimizer()->mutable_plateau();
  plateau.set_metric("loss");
  plateau.set_factor(0.5);  // so that all products are exact
  plateau.set_min_factor(1.0 / 64);
  plateau.set_patience(random->Below(2));
  plateau.set_cooldown(random->Below(2));
  if (random->OneIn(2)) {
    v1::CheckpointSpec::KeepBest& keep = *job->mutable_checkpoint()->mutable_keep_best();
    keep.set_metric("loss");
    keep.set_count(1 + static_cast<uint32_t>(random->Below(2)));
  }
  if (!random->OneIn(2)) return;
  v1::TrainingSpec::Stopping& stopping = *job->mutable_training()->mutable_stopping();
  stopping.set_metric("loss");
  stopping.set_patience(2 + random->Below(3));
}

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
  if (options.sync) training.set_sync(v1::TrainingSpec::BATCH_NORM);
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

  SetTimeouts(options, job.mutable_timeouts());
  job.set_backoff_limit(1000);
  if (options.copies) {
    scenario.shards += 1;
    scenario.kill_shard = 6;
    v1::ParameterServerSpec& server = *job.mutable_parameter_server();
    server.set_replicas(scenario.shards);
    server.set_copies(2);
    // A partition's state has about 1 KB.
    if (random.OneIn(2)) server.set_copy_megabytes_per_second(0.05);
    training.set_steps(training.steps() * 3);
  }
  if (options.decisions) AddDecisions(&random, &job);
  SetLastBatch(&scenario);
  SetWeights(&scenario);
  return scenario;
}

void MakeLarge(Scenario* scenario) {
  scenario->shards += static_cast<uint32_t>(scenario->seed % 3);
  scenario->workers += static_cast<uint32_t>(scenario->seed % 4);
  v1::JobSpec& job = scenario->job;
  job.mutable_parameter_server()->set_replicas(scenario->shards);
  job.mutable_parameter_server()->set_partitions(job.parameter_server().partitions() +
                                                 static_cast<uint32_t>(scenario->seed % 5));
  job.mutable_worker()->set_replicas(scenario->workers);
}

std::string Describe(const Scenario& scenario) {
  const v1::TrainingSpec& training = scenario.job.training();
  return absl::StrCat(
      "seed ", scenario.seed, ": ", v1::Mode_Name(training.mode()),
      training.bit_exact() ? " BitExact" : "",
      training.has_stragglers() ? " without stragglers" : "",
      training.aggregation() == v1::TrainingSpec::MEAN ? " by weights" : "",
      scenario.rows ? " by rows" : "", training.has_dense() ? " all-reduced" : "",
      training.sync() == v1::TrainingSpec::BATCH_NORM ? " with sums" : "",
      scenario.job.parameter_server().copies() > 1 ? " with copies" : "", ", ", scenario.shards,
      " shards, ", scenario.workers, " workers, ", scenario.job.parameter_server().partitions(),
      " partitions, ", scenario.tensors, " tensors, ", training.steps(), " steps of ",
      training.global_batch_size(), " of ", scenario.samples, " samples",
      training.last_batch() == v1::TrainingSpec::DROP ? ", the rest dropped" : "",
      scenario.smallest_batch > 1 ? ", never one alone" : "", ", ", scenario.faults, " faults");
}

Cluster::Cluster(Scenario scenario, Tracing tracing)
    : scenario_(std::move(scenario)),
      tracing_(tracing),
      random_(scenario_.seed),
      network_(&scheduler_, &random_),
      groups_(&scheduler_, &random_),
      storage_(scenario_.storage == nullptr ? std::make_shared<MemoryStorage>()
                                            : scenario_.storage),
      model_(scenario_.seed, scenario_.tensors, scenario_.rows, scenario_.samples, scenario_.job),
      checker_(&model_, scenario_.job,
               *MakeLayout(model_.table(), scenario_.job.parameter_server().partitions())),
      wanted_workers_(scenario_.workers),
      wanted_shards_(scenario_.shards),
      faults_left_(scenario_.faults),
      first_attempt_((*storage_)->ReadClaims()->size() + 1),
      replaced_(storage_->NewestAsWritten()) {}

Cluster::~Cluster() {
  // Waiting events of a frozen process hold references to the process.
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

std::shared_ptr<CoordinatorProcess> Cluster::FindCoordinator() {
  const bool two = old_coordinator_ != nullptr && old_coordinator_->alive();
  return two && random_.OneIn(2) ? old_coordinator_ : coordinator_;
}

absl::Duration Cluster::ConnectionDelay() {
  if (scenario_.slow_connections == absl::ZeroDuration()) return absl::ZeroDuration();
  return random_.Between(absl::ZeroDuration(), scenario_.slow_connections);
}

std::vector<std::shared_ptr<ShardProcess>> Cluster::shards() const {
  std::vector<std::shared_ptr<ShardProcess>> shards;
  for (const auto& [index, shard] : shards_) shards.push_back(shard);
  return shards;
}

std::vector<std::shared_ptr<WorkerProcess>> Cluster::workers() const {
  std::vector<std::shared_ptr<WorkerProcess>> workers;
  for (const auto& [index, worker] : workers_) workers.push_back(worker);
  return workers;
}

bool Cluster::TakeCrash() { return std::exchange(crash_at_write_, false); }

bool Cluster::DiskFails() {
  if (scenario_.disk_errors == 0 || faults_left_ == 0) return false;
  if (!random_.OneIn(scenario_.disk_errors)) return false;
  ++outcome_.disk_errors;
  return true;
}

void Cluster::Record(const v1::Header& header) {
  if (hostile_.empty()) return;
  seen_.Learn(header);
  recorded_frames_.push_back(header);
  if (recorded_frames_.size() > kMaxRecorded) recorded_frames_.pop_front();
}

void Cluster::Record(const v1::MemberMessage& message) {
  if (hostile_.empty()) return;
  seen_.Learn(message);
  recorded_messages_.push_back(message);
  if (recorded_messages_.size() > kMaxRecorded) recorded_messages_.pop_front();
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
  if (text.rfind("heartbeat", 0) == 0) return;
  Trace(absl::StrCat("    ", from, " -> ", to, ": ", text.substr(0, 500)));
}

Outcome Cluster::Run() {
  const bool all_rules = scenario_.coordinator_rules == nullptr &&
                         scenario_.shard_rules == nullptr && scenario_.worker_rules == nullptr;
  std::optional<WithoutDebugChecks> without_checks;
  if (!all_rules) without_checks.emplace();

  StartAll();
  const absl::Time begin = scheduler_.now();
  while (!finished_ && !checker_.failed()) {
    if (!scheduler_.RunOne()) {
      checker_.Fail("no events are left, and the job has not finished");
      break;
    }
    MaybeFault();
    NoteView();
    if (scenario_.deleted_after > 0 && scheduler_.events() > scenario_.deleted_after) {
      outcome_.failure = checker_.failure();
      return outcome_;
    }
    CheckProgress();
  }
  if (!checker_.failed()) CheckEnd();

  outcome_.failure = checker_.failure();
  outcome_.events = scheduler_.events();
  outcome_.simulated = scheduler_.now() - begin;
  outcome_.sums = groups_.sums();
  outcome_.broken_sums = groups_.broken();
  outcome_.attempts = view_.attempt();
  return outcome_;
}

void Cluster::StartAll() {
  StartCoordinator();
  for (uint32_t index = 0; index < scenario_.shards; ++index) StartShard(index);
  for (uint32_t index = 0; index < scenario_.workers; ++index) StartWorker(index);
  next_fault_ = 50 + random_.Below(scenario_.fault_spacing);
  if (faults_left_ == 0) calm_since_ = scheduler_.now();
  StartHostile();
  if (watched()) Watch();
}

void Cluster::NoteView() {
  if (coordinator_ == nullptr || Same(coordinator_->view().id(), view_)) return;
  const v1::View& view = coordinator_->view();
  if (view.loss_record() > loss_record_ && view.id().attempt() == view_.attempt()) {
    ++outcome_.promotions;
  }
  loss_record_ = view.loss_record();
  view_ = view.id();
  view_shards_.clear();
  for (const auto& shard : view.shards()) view_shards_.insert(shard.process().incarnation());
  ++outcome_.views;
  Trace(absl::StrCat("view ", ShortName(view_), ", first step ", view.first_step(), ", ",
                     view.workers_size(), " workers"));
}

absl::Duration Cluster::Patience() const {
  absl::Duration patience = kPatience;
  if (scenario_.liars > 0) patience += kLiesFor;
  // A restoration and a checkpoint read and write each partition.
  patience += scenario_.slow_disk * 4 * scenario_.job.parameter_server().partitions();
  // An evaluation waits for the checkpoint before it, and the job may do both at each step.
  patience += scenario_.slow_disk * 2 * scenario_.job.training().steps();
  return patience;
}

void Cluster::CheckProgress() {
  if (view_.attempt() > first_attempt_ && only_harmless_) {
    checker_.Fail("faults that must not cost an attempt did");
  }
  if (scheduler_.now() > calm_since_ + Patience()) {
    checker_.Fail("the job has not finished long after the last fault");
  }
  if (scheduler_.events() > kMaxEvents) checker_.Fail("too many events");
}

void Cluster::CheckEnd() {
  const auto length = JobLength::Create(scenario_.job, scenario_.samples);
  const bool synchronous = scenario_.job.training().mode() == v1::SYNCHRONOUS;
  std::optional<v1::CheckpointIndex> newest;
  if (!storage_->Damaged().empty()) {
    newest = storage_->NewestAsWritten();
  } else if (absl::StatusOr<RestorePoint> whole = FindRestorePoint(**storage_);
             whole.ok() && whole->found) {
    newest = whole->checkpoint_index;
  }
  CheckOnlyOwnIsLeft();
  if (!synchronous) return checker_.OnEnd(length->total_samples(), newest);
  const uint64_t last = model_.LastStep(length->total_steps());
  outcome_.stopped = last < length->total_steps() ? 1 : 0;
  outcome_.reductions = model_.ReductionsBefore(last);
  checker_.OnEnd(last, newest);
}

void Cluster::CheckReplaced() {
  if (!replaced_.has_value() || !storage_->Damaged().empty()) return;
  const std::vector<v1::CheckpointRef> checkpoints = *(*storage_)->ListCheckpoints();
  const bool has_own = !checkpoints.empty() && checkpoints.back().attempt() >= first_attempt_;
  if (has_own || ReadWholeCheckpoint(**storage_, replaced_->checkpoint()).ok()) return;
  checker_.Fail("the earlier job's newest checkpoint is gone before this job has one");
}

// A job that replaced an earlier job leaves no checkpoints of the earlier job, unless the claim
// that names their job is damaged.
void Cluster::CheckOnlyOwnIsLeft() {
  if (!storage_->Damaged().empty()) return;
  const std::vector<v1::CheckpointRef> checkpoints = (*storage_)->ListCheckpoints().value();
  for (const v1::CheckpointRef& ref : checkpoints) {
    if (ref.attempt() >= first_attempt_) continue;
    checker_.Fail(absl::StrCat(CheckpointDirectory(ref), " of the earlier job is left at the end"));
  }
}

// ---- the process manager

void Cluster::StartCoordinator() {
  coordinator_ = std::make_shared<CoordinatorProcess>(this, random_.Next() | 1);
  processes_.push_back(coordinator_);
  Trace("a coordinator starts");
  coordinator_answered_ = scheduler_.now();
  coordinator_knows_since_ = absl::InfiniteFuture();
  coordinator_->Start();
  if (freezes_at_start_ == v1::COORDINATOR) FreezeAtStart(*coordinator_);
  SendDesired();
}

void Cluster::StartShard(uint32_t index) {
  auto shard = std::make_shared<ShardProcess>(this, index, random_.Next() | 1);
  processes_.push_back(shard);
  shards_[index] = shard;
  Trace(absl::StrCat("ps-", index, " starts, incarnation ", shard->incarnation() % 1000));
  started_[shard->incarnation()] = scheduler_.now();
  shard->Start();
  if (freezes_at_start_ == v1::SHARD) FreezeAtStart(*shard);
}

void Cluster::StartWorker(uint32_t index) {
  auto worker = std::make_shared<WorkerProcess>(this, index, random_.Next() | 1);
  processes_.push_back(worker);
  workers_[index] = worker;
  Trace(absl::StrCat("worker-", index, " starts, incarnation ", worker->incarnation() % 1000));
  started_[worker->incarnation()] = scheduler_.now();
  worker->Start();
  if (freezes_at_start_ == v1::WORKER) FreezeAtStart(*worker);
}

void Cluster::StartShardUnlessThere(uint32_t index) {
  const auto shard = shards_.find(index);
  if (index >= wanted_shards_) return;
  if (shard == shards_.end() || !shard->second->alive()) StartShard(index);
}

void Cluster::StartWorkerUnlessThere(uint32_t index) {
  const auto worker = workers_.find(index);
  if (worker == workers_.end() || !worker->second->alive()) StartWorker(index);
}

void Cluster::SendDesired() {
  if (coordinator_ == nullptr) return;
  v1::SetDesiredRequest desired;
  desired.set_workers(wanted_workers_);
  desired.set_shards(wanted_shards_);
  desired.set_suspend(suspending_);
  for (const auto& [process, time] : deaths_) {
    v1::SetDesiredRequest::Death& death = *desired.add_deaths();
    *death.mutable_process() = process;
    death.set_reason("killed");
  }
  desired.set_number(++desired_number_);
  // Requests may overtake each other.
  const absl::Duration delay = random_.Between(absl::Microseconds(100), absl::Milliseconds(20));
  scheduler_.After(delay, [this, to = coordinator_, desired] {
    if (!ParentReaches(to)) return;  // it is sent again when the network is whole
    to->Handle([to, desired] { to->SetDesired(desired); });
  });
}

void Cluster::Replace(std::function<void()> start) {
  scheduler_.After(random_.Between(absl::Milliseconds(5), absl::Milliseconds(300)),
                   [this, start = std::move(start)] {
                     if (!finished_) start();
                   });
}

// Sometimes the manager does not notice a death. Then the coordinator must detect it.
void Cluster::ReportDeath(v1::Role role, uint32_t index, uint64_t incarnation) {
  if (random_.OneIn(3)) return;
  deaths_.emplace_back(MakeProcessId(role, index, incarnation), scheduler_.now());
  SendDesired();
}

void Cluster::OnCoordinatorExit(CoordinatorProcess& process, bool succeeded, bool failed,
                                bool suspended, const std::string& message) {
  Trace(absl::StrCat("the coordinator exits: ", message));
  process.Die();
  network_.CutAll(process);
  // If the message names the damage, the user repairs the storage and restarts the job.
  const bool mended = failed && NamesDamage(message);
  if (failed && !mended) checker_.Fail(absl::StrCat("the coordinator fails the job: ", message));
  if (mended) {
    for (const MemoryStorage::DamagedFile& file : storage_->Damaged()) mended_.push_back(file.path);
    storage_->PutBack();
    ++outcome_.put_back;
  }
  if (succeeded) finished_ = true;
  if (coordinator_.get() == &process) coordinator_ = nullptr;
  // The coordinator has released all processes.
  if (suspended || mended) RestartAll();
  Replace([this] {
    if (coordinator_ == nullptr) StartCoordinator();
  });
}

bool Cluster::NamesDamage(const std::string& message) {
  std::vector<std::string> paths = mended_;  // files that an older coordinator still found damaged
  for (const MemoryStorage::DamagedFile& file : storage_->Damaged()) paths.push_back(file.path);
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return MemoryStorage::Names(message, path); });
}

void Cluster::OnShardExit(ShardProcess& process, bool finished, bool failed,
                          const std::string& message) {
  const uint32_t index = process.index();
  Trace(absl::StrCat("ps-", index, " exits: ", message));
  process.Die();
  network_.CutAll(process);
  if (failed && !NamesDamage(message)) {
    checker_.Fail(absl::StrCat("ps-", index, " fails: ", message));
  }
  const bool removed = finished && index >= wanted_shards_;
  if (removed) return;
  // Released because it was not wanted for a moment.
  const bool drained = finished && absl::StrContains(message, "the job continues");
  if (finished && !process.leaving() && !drained) return AfterFinish(/*shard=*/true, message);
  ReportDeath(v1::SHARD, index, process.incarnation());
  Replace([this, index] { StartShardUnlessThere(index); });
}

// The coordinator has released a process. If the coordinator dies before the job ends, the parent
// starts all missing processes. A coordinator that started while another one was still running may
// not know that the job has ended. The parent replaces it when the shards are gone, and the next
// coordinator reads the end record.
void Cluster::AfterFinish(bool shard, const std::string& message) {
  const bool suspended = absl::StartsWith(message, "suspended");
  scheduler_.After(absl::Seconds(2), [this, shard, suspended, sender = coordinator_] {
    if (finished_ || suspending_) return;
    if (shard && coordinator_ != nullptr && coordinator_ == sender) KillCoordinator();
    // A job that has ended continues only if its end record is damaged.
    if (suspended || !storage_->Damaged().empty()) StartMissing();
  });
}

void Cluster::StartMissing() {
  for (uint32_t index = 0; index < wanted_shards_; ++index) StartShardUnlessThere(index);
  for (uint32_t index = 0; index < wanted_workers_; ++index) StartWorkerUnlessThere(index);
}

void Cluster::OnWorkerExit(WorkerProcess& process, bool finished, bool failed,
                           const std::string& message) {
  const uint32_t index = process.index();
  Trace(absl::StrCat("worker-", index, " exits: ", message));
  process.Die();
  groups_.Leave(process.incarnation());
  // Messages that the worker has sent still arrive.
  scheduler_.After(absl::Milliseconds(100),
                   [this, self = process.shared_from_this()] { network_.CutAll(*self); });
  if (failed && !NamesDamage(message)) {
    checker_.Fail(absl::StrCat("worker-", index, " fails: ", message));
  }
  if (finished) return AfterFinish(/*shard=*/false, message);
  ReportDeath(v1::WORKER, index, process.incarnation());
  Replace([this, index] { StartWorkerUnlessThere(index); });
}

}  // namespace sluice::simulation

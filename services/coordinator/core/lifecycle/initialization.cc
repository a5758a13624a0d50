#include "services/coordinator/core/lifecycle/initialization.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/kernels.h"
#include "services/protocol/layout.h"
#include "services/protocol/stages.h"

namespace sluice::coordinator {
namespace {

uint32_t PartitionsOf(const v1::JobSpec& job) {
  const uint32_t partitions = job.parameter_server().partitions();
  return partitions == 0 ? kDefaultPartitions : partitions;
}

bool ComputedByShards(const v1::JobSpec& job) {
  return job.training().execution() == v1::TrainingSpec::SERVER;
}

absl::StatusOr<v1::Layout> MakeLayoutOf(const v1::JobSpec& job, const v1::TensorTable& table) {
  if (!ComputedByShards(job)) return MakeLayout(table, PartitionsOf(job));
  const uint32_t stages = StageCount(job.model());
  const uint32_t shards = std::max<uint32_t>(job.parameter_server().replicas(), 1);
  if (stages > shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has ", stages, " model.stages and ", shards,
                     " shards: there should be a shard for each stage"));
  }
  return MakeStagedLayout(table, job.model(), PartitionsOf(job));
}

}  // namespace

absl::StatusOr<v1::Layout> LayoutOfModel(const Facts& facts) {
  SLUICE_DCHECK(facts.attempt.model.ready.has_value(), "a worker has reported the model");
  const v1::TensorTable& table = facts.attempt.model.ready->table();
  if (!facts.storage.has_newest) return MakeLayoutOf(facts.job(), table);
  const v1::Layout& layout = facts.storage.newest.layout();
  if (ComputedByShards(facts.job())) {
    RETURN_IF_ERROR(CheckStagedLayout(table, facts.job().model(), layout));
  }
  return layout;
}

v1::PrepareState PrepareStateOf(const Facts& facts) {
  const Attempt& attempt = facts.attempt;
  SLUICE_DCHECK(attempt.model.ready.has_value() && !attempt.shards().empty(),
                "the attempt has its model and shards");
  v1::PrepareState prepare;
  *prepare.mutable_init_id() = attempt.facts().init_id;
  *prepare.mutable_job() = facts.job();
  *prepare.mutable_table() = attempt.model.ready->table();
  *prepare.mutable_layout() = attempt.layout;
  *prepare.mutable_shards() = {attempt.shards().begin(), attempt.shards().end()};
  *prepare.mutable_owner() = {attempt.facts().owner.begin(), attempt.facts().owner.end()};
  prepare.set_training_samples(attempt.model.ready->training_samples());
  prepare.set_version(attempt.facts().base_version);
  prepare.set_last_position(attempt.last_position);
  return prepare;
}

v1::Ledger LedgerOf(const v1::CheckpointIndex& checkpoint_index) {
  v1::Ledger ledger = checkpoint_index.ledger();
  if (!IsSynchronous(checkpoint_index.mode())) return ledger;
  if (checkpoint_index.samples() > 0) {
    *ledger.add_applied() = ToProto(Interval{0, checkpoint_index.samples()});
  }
  ledger.set_updates(checkpoint_index.checkpoint().step());
  return ledger;
}

// ---- the attempt

bool Initialization::Gathered(bool continues, absl::Time now) {
  gather_at_ = absl::InfiniteFuture();
  uint64_t shards = 0;
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (shard->id.index() < facts_.wanted_shards) ++shards;
  }
  const bool all_shards = shards >= facts_.wanted_shards;
  const std::vector<const Process*> workers = facts_.ReadyWorkers();
  if ((!all_shards && !continues) || workers.empty()) return false;
  if (all_shards && workers.size() >= facts_.wanted_workers) return true;

  absl::Time first = absl::InfiniteFuture();
  absl::Time newest = absl::InfinitePast();
  for (const Process* worker : workers) {
    first = std::min(first, worker->ready_since);
    newest = std::max(newest, worker->ready_since);
  }
  const absl::Time until =
      std::min(newest + facts_.timers.gather, first + facts_.timers.gather_all);
  if (until <= now) return true;
  gather_at_ = until;
  return false;
}

absl::Status Initialization::BeginAttempt(absl::Time now) {
  SLUICE_DCHECK(attempt_.model.ready.has_value(), "the model is known");
  const v1::TensorTable& table = attempt_.model.ready->table();
  ASSIGN_OR_RETURN(attempt_.layout, LayoutOfModel(facts_));
  if (facts_.storage.has_newest) BeginFromCheckpoint(now);
  attempt_.layout_hash = LayoutHash(table, attempt_.layout);

  std::vector<v1::View::Shard> shards;
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (shard->id.index() < facts_.wanted_shards) shards.push_back(shard->AsShard());
  }

  SLUICE_DCHECK(shards.size() == facts_.wanted_shards, "all wanted shards have come");
  const LayoutIndex index(table, attempt_.layout);
  std::vector<uint32_t> owner = PlacePartitions(index, static_cast<uint32_t>(shards.size()));
  attempt_.BeginWith(std::move(shards), std::move(owner), index);
  return absl::OkStatus();
}

void Initialization::WarnOfOtherEnvironment(absl::Time now) {
  const v1::Environment& before = facts_.storage.newest.environment();
  const v1::Environment& after = attempt_.model.ready->environment();
  if (!facts_.job().training().bit_exact() || SameBits(before, after)) return;
  output_.Warn(
      absl::StrCat("BitExact: ", CheckpointName(*attempt_.base), " is of workers with ",
                   EnvironmentText(before), "; training continues with ", EnvironmentText(after),
                   ", and its bits are no longer those of an undisturbed run"),
      now);
}

// Translates the checkpoint's state into this attempt's mode. A synchronous job's step and an
// asynchronous job's ledger both describe which samples were trained on, and agree as long as the
// ledger has no holes: the samples of a step are the positions up to the step's end. If the ledger
// has holes, this attempt trains asynchronously on the open samples up to the next step, and the
// attempt after it is synchronous.
void Initialization::BeginFromCheckpoint(absl::Time now) {
  const v1::CheckpointIndex& checkpoint_index = facts_.storage.newest;
  attempt_.base = checkpoint_index.checkpoint();
  attempt_.SetBase(attempt_.base->step(), checkpoint_index.ledger());

  const std::string arithmetic = facts_.Arithmetic();
  if (facts_.job().training().bit_exact() && checkpoint_index.isa() != arithmetic) {
    output_.Warn(absl::StrCat("BitExact: ", CheckpointName(*attempt_.base), " is of ",
                              checkpoint_index.isa(), ", and training continues with ", arithmetic,
                              ": bits may differ"),
                 now);
  }
  WarnOfOtherEnvironment(now);

  const bool synchronous = facts_.mode().synchronous();
  if (IsSynchronous(checkpoint_index.mode()) == synchronous) return;
  if (!synchronous) {
    attempt_.SetBase(attempt_.base->step(), LedgerOf(checkpoint_index));
    output_.Info(
        absl::StrCat("training continues asynchronously after step ", attempt_.base->step()), now);
    return;
  }

  IntervalSet applied = *IntervalSet::FromProtos(checkpoint_index.ledger().applied());
  const uint64_t end = applied.empty() ? 0 : applied.Intervals().back().end;
  const uint64_t step = attempt_.model.length->StepFrom(end);
  const uint64_t samples = attempt_.model.length->SamplesAt(step);
  if (applied.Count() == samples) {
    attempt_.SetBase(step, v1::Ledger());
    output_.Info(absl::StrCat("training continues synchronously at step ", step), now);
    return;
  }

  SLUICE_DCHECK(end <= samples || end > attempt_.model.length->total_samples(),
                "the step begins after the samples that were trained on");
  attempt_.mode = v1::ASYNCHRONOUS;
  attempt_.last_position = samples;
  output_.Info(absl::StrCat("before training continues synchronously at step ", step, ", ",
                            samples - applied.Count(),
                            " earlier samples that asynchronous training left out are trained on"),
               now);
}

// ---- the init request

bool Initialization::Begin(absl::Time now) {
  SLUICE_DCHECK(attempt_.id.number != 0 && !attempt_.facts().shards.empty(),
                "R11: the attempt is claimed, and has its shards");
  std::optional<uint64_t> worker;
  if (!attempt_.base.has_value()) {
    std::vector<uint64_t> candidates;
    for (const Process* ready : facts_.ReadyWorkers()) candidates.push_back(ready->incarnation());
    worker = request_.NextWorker(candidates);
    if (!worker.has_value()) return false;
  }

  v1::InitId init_id;
  init_id.set_attempt(attempt_.id.number);
  *init_id.mutable_term() = attempt_.id.term;
  init_id.set_number(attempt_.NextNumber());
  attempt_.SetInitId(init_id);
  request_.Begin(init_id, attempt_.facts().shards, worker, now + facts_.timers.initialization);
  return true;
}

void Initialization::SendRequest() {
  SLUICE_DCHECK(request_.active() && Same(request_.init_id(), attempt_.facts().init_id),
                "R12: the request under way is the attempt's newest");
  output_.SendToShards(PrepareStateMessage());
  if (request_.worker().has_value()) {
    output_.Send(*facts_.members.Find(*request_.worker()), InitializeMessage());
  }
}

void Initialization::ResendToShard(const Process& shard) {
  SLUICE_DCHECK(attempt_.HasShard(shard.incarnation()), "the shard is to hold the first state");
  output_.Send(shard, PrepareStateMessage());
}

void Initialization::ResendToWorker(const Process& worker) {
  if (request_.active() && request_.worker() == worker.incarnation()) {
    output_.Send(worker, InitializeMessage());
  }
}

v1::CoordinatorMessage Initialization::PrepareStateMessage() const {
  v1::CoordinatorMessage message;
  v1::PrepareState& prepare = *message.mutable_prepare_state();
  prepare = PrepareStateOf(facts_);
  if (attempt_.base.has_value()) {
    const StorageContents& storage = facts_.storage;
    *prepare.mutable_checkpoint() = storage.newest;
    prepare.set_checkpoint_directory(storage.foreign_directory.empty()
                                         ? facts_.options.checkpoint_directory(*attempt_.base)
                                         : storage.foreign_directory);
  }
  return message;
}

v1::CoordinatorMessage Initialization::InitializeMessage() const {
  v1::CoordinatorMessage message;
  v1::Initialize& initialize = *message.mutable_initialize();
  *initialize.mutable_init_id() = attempt_.facts().init_id;
  *initialize.mutable_table() = attempt_.model.ready->table();
  *initialize.mutable_layout() = attempt_.layout;
  *initialize.mutable_shards() = {attempt_.shards().begin(), attempt_.shards().end()};
  *initialize.mutable_owner() = {attempt_.facts().owner.begin(), attempt_.facts().owner.end()};
  return message;
}

Verdict Initialization::OnStateReady(const Process& shard, const v1::StateReady& ready) {
  if (ready.error().empty()) {
    request_.OnStateReady(shard.incarnation(), ready.init_id());
    return Verdict::Continue();
  }
  if (!attempt_.HasShard(shard.incarnation()) || !Same(ready.init_id(), attempt_.facts().init_id)) {
    return Verdict::Continue();
  }
  std::string why =
      absl::StrCat(ProcessName(shard.id), ": ", CleanUtf8(ready.error(), kMaxReasonBytes));
  return attempt_.base.has_value() ? Verdict::Unloadable(std::move(why))
                                   : Verdict::Failed(std::move(why));
}

Initialization::State Initialization::Check(absl::Time now) {
  SLUICE_DCHECK(request_.active(), "shards wait for an init request");
  if (request_.complete()) return State::kComplete;
  if (!request_.worker().has_value()) return State::kWaiting;

  const Process* worker = facts_.members.Find(*request_.worker());
  if (worker == nullptr) {
    output_.Info("the worker that creates the model is gone; asking another worker", now);
    return State::kAskNextWorker;
  }
  if (request_.deadline() <= now) {
    output_.Warn(absl::StrCat(ProcessName(worker->id), " did not create the model in ",
                              absl::FormatDuration(facts_.timers.initialization),
                              "; asking the next worker"),
                 now);
    return State::kAskNextWorker;
  }
  return State::kWaiting;
}

absl::Time Initialization::NextDeadline() const {
  if (facts_.phase == Phase::kGathering) return gather_at_;
  if (facts_.phase == Phase::kPreparing && request_.active()) return request_.deadline();
  return absl::InfiniteFuture();
}

}  // namespace sluice::coordinator

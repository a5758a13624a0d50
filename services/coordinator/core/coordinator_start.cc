// Storage, claims, the first state of an attempt, and restoration.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/utf8.h"
#include "services/coordinator/core/codec_check.h"
#include "services/coordinator/core/coordinator_impl.h"
#include "services/coordinator/core/model_difference.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/layout.h"
#include "services/protocol/stages.h"

namespace sluice::coordinator {
namespace {

constexpr int kMaxStorageErrors = 10;
// A shard may know an attempt this far above the newest claim in the storage; a higher report is
// ignored, because the storage accepts at most kMaxMissingClaims gaps.
constexpr uint64_t kMaxLostClaims = 10;
// A damaged claim adds this, times its attempt, to the highest known counter of a term: more than
// the number of coordinators that may have raised the counter and died without a claim, or that
// have read other damage.
constexpr uint64_t kTermsOfDamagedClaim = 1000;

// Whether a retry may succeed.
bool IsTransient(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded ||
         status.code() == absl::StatusCode::kResourceExhausted ||
         status.code() == absl::StatusCode::kAborted;
}

std::string CheckpointName(const v1::CheckpointRef& ref) {
  return absl::StrCat("the checkpoint of attempt ", ref.attempt(), ", step ", ref.step());
}

bool SameCheckpoint(const v1::CheckpointRef& a, const v1::CheckpointRef& b) {
  return a.attempt() == b.attempt() && a.step() == b.step();
}

uint32_t PartitionsOf(const v1::JobSpec& job) {
  const uint32_t partitions = job.parameter_server().partitions();
  return partitions == 0 ? kDefaultPartitions : partitions;
}

bool ComputedByShards(const v1::JobSpec& job) {
  return job.training().execution() == v1::TrainingSpec::SERVER;
}

absl::StatusOr<v1::Layout> LayoutOf(const v1::JobSpec& job, const v1::TensorTable& table) {
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

// ---- storage

void CoordinatorCore::Impl::ReadStorageAgain(absl::Time) {
  storage_pending_ = true;
  retry_at_ = absl::InfiniteFuture();
  shards_attempt_at_read_ = shards_attempt_;
  actions_.push_back(ReadStorage{});
}

void CoordinatorCore::Impl::OnStorageRead(absl::StatusOr<StorageContents> contents,
                                          absl::Time now) {
  Step(now);
  if (phase_ == Phase::kReading && storage_pending_) {
    storage_pending_ = false;
    if (contents.ok()) {
      storage_errors_ = 0;
      AcceptStorage(*std::move(contents), now);
    } else if (!IsTransient(contents.status()) || ++storage_errors_ >= kMaxStorageErrors) {
      Fail(std::string(contents.status().message()), now);
    } else {
      retry_at_ = now + timers_.storage_retry;
    }
  }
  Advance(now);
}

void CoordinatorCore::Impl::AcceptStorage(StorageContents contents, absl::Time now) {
  storage_ = std::move(contents);

  for (const std::string& damaged : storage_.damaged) {
    Warn(absl::StrCat("skipped: ", damaged), now);
  }
  const ExistingJob& existing = storage_.existing;
  if (existing.kind == ExistingJob::Kind::kRefused) {
    Fail(existing.message, now, kCheckpointDirectoryInUse);
    return;
  }

  for (const v1::Claim& claim : storage_.claims) {
    highest_claim_ = std::max(highest_claim_, claim.attempt());
    highest_counter_ = IsDamaged(claim) ? highest_counter_ + kTermsOfDamagedClaim * claim.attempt()
                                        : std::max(highest_counter_, claim.term().counter());
  }
  // An attempt's number is never claimed twice: processes of the first attempt would accept the
  // messages of the second.
  if (shards_attempt_at_read_ > highest_claim_ &&
      shards_attempt_at_read_ - highest_claim_ <= kMaxLostClaims) {
    Warn(absl::StrCat("a shard knows attempt ", shards_attempt_at_read_,
                      ", and the newest claim is of attempt ", highest_claim_,
                      ": claims were removed"),
         now);
    highest_claim_ = shards_attempt_at_read_;
  }
  // A job that was made longer begins another attempt after the end record.
  const bool goes_on =
      existing.kind == ExistingJob::Kind::kResume || existing.kind == ExistingJob::Kind::kReplace;
  const bool ended = !storage_.claims.empty() && storage_.claims.back().end() && !goes_on;

  const bool first = !storage_known_;
  if (first) {
    storage_known_ = true;
    term_.set_counter(1);
  }
  if (attempt_ == 0 && rules_->TakeHigherTerm()) {
    term_.set_counter(std::max(term_.counter(), highest_counter_ + 1));
  }

  if (ended) {
    linger_until_ = now + timers_.suspect;
    if (existing.kind == ExistingJob::Kind::kFinished) reason_code_ = kNothingTrained;
    Leave(ExitReason::kSucceeded,
          existing.message.empty() ? "the job has finished" : existing.message, now);
    return;
  }
  // (R11) A coordinator may claim the attempt after its own, but not the one after a later
  // coordinator's attempt.
  if (attempt_ != 0 && highest_claim_ > attempt_ && rules_->ClaimAttempts()) {
    Supersede(absl::StrCat("another coordinator has claimed attempt ", highest_claim_));
    return;
  }
  if (unloadable_.has_value() && storage_.has_newest &&
      SameCheckpoint(*unloadable_, storage_.newest.checkpoint())) {
    Fail(unloadable_why_, now);
    return;
  }
  if (std::string wrong = CheckCheckpoint(); !wrong.empty()) {
    Fail(wrong, now);
    return;
  }

  if (existing.kind == ExistingJob::Kind::kReplace) Warn(existing.message, now);
  if (existing.kind == ExistingJob::Kind::kResume) Info(existing.message, now);
  phase_ = Phase::kGathering;
  if (!first) return;
  for (v1::Role role : {v1::SHARD, v1::WORKER}) {
    for (const Process* process : membership_.LivingAndConnected(role)) {
      AnswerRegistration(*process, now);
    }
  }
}

void CoordinatorCore::Impl::AnswerRegistration(const Process& process, absl::Time now) {
  membership_.Answered(process.incarnation(), now);
  v1::CoordinatorMessage message;
  v1::Registered& registered = *message.mutable_registered();
  *registered.mutable_term() = term_;
  *registered.mutable_job() = options_.job;
  registered.set_attempt(std::max(attempt_, highest_claim_));
  Send(process, std::move(message));
  if (process.id.role() == v1::SHARD) Send(process, AdmittedMessage());
}

// A term or attempt above ours belongs to a later coordinator; before our first claim, it belongs
// to an earlier one.
void CoordinatorCore::Impl::NoteTerm(const v1::ViewId& seen, absl::Time now) {
  highest_counter_ = std::max(highest_counter_, seen.term().counter());
  shards_attempt_ = std::max(shards_attempt_, seen.attempt());
  const bool claimed = attempt_ != 0 || claim_.has_value();
  if (!claimed) {
    if (storage_known_ && rules_->TakeHigherTerm()) {
      term_.set_counter(std::max(term_.counter(), highest_counter_ + 1));
    }
    // Another coordinator may have claimed that attempt meanwhile, or its claim was lost.
    const bool news = shards_attempt_ > highest_claim_ && shards_attempt_ > shards_attempt_at_read_;
    if (phase_ == Phase::kGathering && news) {
      phase_ = Phase::kReading;
      ReadStorageAgain(now);
    }
  } else if (Compare(seen.term(), term_) > 0) {
    Supersede(absl::StrCat("a process knows view ", ShortName(seen), " of a newer coordinator"));
  }
}

// ---- the next attempt

std::vector<const Process*> CoordinatorCore::Impl::ReadyWorkers() const {
  std::vector<const Process*> workers = membership_.LivingAndConnected(v1::WORKER);
  workers.erase(std::remove_if(workers.begin(), workers.end(),
                               [](const Process* w) { return !w->ready || w->leaving; }),
                workers.end());
  return workers;
}

bool CoordinatorCore::Impl::Gathered(absl::Time now) {
  gather_at_ = absl::InfiniteFuture();
  uint64_t shards = 0;
  for (const Process* shard : membership_.LivingAndConnected(v1::SHARD)) {
    if (shard->id.index() < wanted_shards_) ++shards;
  }
  const std::vector<const Process*> workers = ReadyWorkers();
  if (shards < wanted_shards_ || workers.empty()) return false;
  if (workers.size() >= wanted_workers_) return true;

  absl::Time first = absl::InfiniteFuture();
  absl::Time newest = absl::InfinitePast();
  for (const Process* worker : workers) {
    first = std::min(first, worker->ready_since);
    newest = std::max(newest, worker->ready_since);
  }
  const absl::Time until = std::min(newest + timers_.gather, first + timers_.gather_all);
  if (until <= now) return true;
  gather_at_ = until;
  return false;
}

void CoordinatorCore::Impl::AdvanceGathering(absl::Time now) {
  if (suspend_) {
    Leave(ExitReason::kSuspended, "suspended before training began", now);
    return;
  }
  LetShardsGo(now);  // their attempt ended before they could leave
  const bool gathered = Gathered(now);
  if (looking_) return;  // continues once the claims are read
  if (!gathered) {
    LookAtClaims(now);
    return;
  }
  look_at_ = absl::InfiniteFuture();
  if (claim_unused_) {
    if (MakeAttempt(now)) RequestInit(now);
  } else {
    Claim(/*end=*/false, now);
  }
}

// Another coordinator, earlier or later, may have ended or continued the job: then no process would
// ever register here.
void CoordinatorCore::Impl::LookAtClaims(absl::Time now) {
  if (look_at_ == absl::InfiniteFuture()) look_at_ = now + timers_.claims;
  if (now < look_at_) return;
  look_at_ = absl::InfiniteFuture();
  looking_ = true;
  actions_.push_back(ReadClaims{});
}

void CoordinatorCore::Impl::OnClaimsSeen(const absl::StatusOr<std::vector<v1::Claim>>& claims,
                                         absl::Time now) {
  looking_ = false;
  if (phase_ != Phase::kGathering || !claims.ok()) return;  // looks again later
  const bool news = std::any_of(claims->begin(), claims->end(), [&](const v1::Claim& claim) {
    return claim.attempt() > highest_claim_;
  });
  if (!news) return;
  phase_ = Phase::kReading;
  ReadStorageAgain(now);
}

void CoordinatorCore::Impl::Claim(bool end, absl::Time now) {
  v1::Claim claim;
  claim.set_format_version(kClaimFormatVersion);
  claim.set_attempt(std::max(highest_claim_, attempt_) + 1);
  *claim.mutable_term() = term_;
  if (end) {
    claim.set_end(true);
  } else {
    // Another job's checkpoint is not a parent: parents are looked up in this job's storage.
    if (storage_.has_newest && storage_.foreign_directory.empty()) {
      *claim.mutable_parent() = storage_.newest.checkpoint();
    }
    phase_ = Phase::kClaiming;
  }

  claim.set_job(JobName(options_.job));
  claim.set_settings(ClaimSettings(options_.job));
  claim.set_time(absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone()));

  claim_ = claim;
  claim_pending_ = true;
  retry_at_ = absl::InfiniteFuture();
  const bool needed = end ? rules_->ClaimTheEnd() : rules_->ClaimAttempts();
  if (needed) {
    actions_.push_back(ClaimAttempt{std::move(claim)});
  } else {
    OnClaimResult(claim_->attempt(), absl::OkStatus(), now);
  }
}

void CoordinatorCore::Impl::OnClaimResult(uint64_t attempt, const absl::Status& status,
                                          absl::Time now) {
  Step(now);
  if (!claim_.has_value() || !claim_pending_ || claim_->attempt() != attempt || Leaving() ||
      phase_ == Phase::kExited) {
    return;
  }
  claim_pending_ = false;

  if (absl::IsAlreadyExists(status)) {
    Supersede(absl::StrCat("another coordinator has claimed attempt ", attempt));
  } else if (!status.ok() && claim_->end()) {
    // Everything is saved. The job waits for the disk, as for its last checkpoint.
    const std::string why = absl::StrCat("the end cannot be recorded: ", status.message());
    if (checkpoint_status_.error() != why) Warn(why + "; the job waits until it can", now);
    checkpoint_status_.set_error(why);
    retry_at_ = now + RetryDelay(++storage_errors_);
  } else if (!status.ok()) {
    if (!IsTransient(status) || ++storage_errors_ >= kMaxStorageErrors) {
      Fail(absl::StrCat("attempt ", attempt, " cannot be claimed: ", status.message()), now);
    } else {
      retry_at_ = now + timers_.storage_retry;
    }
  } else if (claim_->end()) {
    checkpoint_status_.clear_error();
    Leave(ExitReason::kSucceeded,
          goal_ == Goal::kTarget ? "the target was reached" : "training is complete", now);
  } else {
    storage_errors_ = 0;
    attempt_ = highest_claim_ = attempt;
    storage_.claims.push_back(*claim_);
    if (claim_->has_parent()) {
      Info(absl::StrCat("attempt ", attempt, ": resumed from ", CheckpointName(claim_->parent())),
           now);
    }
    claim_unused_ = true;
    claim_.reset();
    phase_ = Phase::kGathering;
  }
  Advance(now);
}

// ---- model

bool CoordinatorCore::Impl::AcceptModel(const v1::Ready& ready, absl::Time now) {
  if (absl::Status valid = ValidateTable(ready.table()); !valid.ok()) {
    Fail(absl::StrCat("the model cannot be trained: ", valid.message()), now);
    return false;
  }
  if (absl::Status codecs = CheckCodecs(options_.job.training(), ready.table()); !codecs.ok()) {
    Fail(std::string(codecs.message()), now);
    return false;
  }
  absl::StatusOr<JobLength> length = JobLength::Create(options_.job, ready.training_samples());
  if (!length.ok()) {
    Fail(absl::StrCat(length.status().message()), now);
    return false;
  }

  model_ = ready;
  model_confirmed_ = storage_.has_newest;
  length_ = *length;
  if (std::string wrong = CheckCheckpoint(); !wrong.empty()) {
    Fail(wrong, now);
    return false;
  }
  if (options_.job.data().has_evaluation() && ready.evaluation_samples() == 0) {
    Warn("data.evaluation is set, and the workers have no evaluation data: nothing is evaluated",
         now);
  }
  return true;
}

// The first worker that is ready reports the model. One worker may be wrong, or hostile. So its
// model becomes the job's only if the job has a checkpoint of it, or once more than half of the
// wanted workers have reported the same model.
void CoordinatorCore::Impl::ConfirmModel(const Process& worker) {
  model_workers_.insert(worker.id.index());
  model_confirmed_ = model_confirmed_ || 2 * model_workers_.size() > wanted_workers_;
}

// Until the model is confirmed, the coordinator cannot know which of the two models is wrong, and
// the job fails. After that, only the worker fails.
void CoordinatorCore::Impl::OnOtherModel(Process& worker, const std::string& difference,
                                         absl::Time now) {
  const std::string name = ProcessName(worker.id);
  if (!model_confirmed_) {
    Fail(absl::StrCat(name, " and worker-", *model_workers_.begin(),
                      " have different models or data: ", name, ": ", difference,
                      "; all workers of a job must run the same program on the same data"),
         now);
    return;
  }

  refused_models_.insert(name);
  v1::Refusal refusal;
  refusal.set_code(v1::Refusal::MODEL_DIFFERS);
  refusal.set_reason(absl::StrCat("model or data differ from the job's: ", difference));
  const Departure departure =
      *membership_.Expel(worker.incarnation(), refusal.reason());  // ends `worker`
  Refuse(departure.process.stream, std::move(refusal));
  OnGone(departure, now);
}

// Why the newest checkpoint does not fit the model. Empty: it fits, or one of the two is not known
// yet.
std::string CoordinatorCore::Impl::CheckCheckpoint() const {
  if (!storage_.has_newest || !model_.has_value()) return "";
  const v1::CheckpointIndex& checkpoint_index = storage_.newest;
  const std::string name = CheckpointName(checkpoint_index.checkpoint());
  if (const std::string difference = Difference(checkpoint_index.table(), model_->table());
      !difference.empty()) {
    return absl::StrCat("the model differs from that of ", name, ": ", difference);
  }
  if (absl::Status valid = ValidateLayout(checkpoint_index.table(), checkpoint_index.layout());
      !valid.ok()) {
    return absl::StrCat(name, " has no valid layout: ", valid.message());
  }
  if (absl::Status valid = IntervalSet::FromProtos(checkpoint_index.ledger().applied()).status();
      !valid.ok()) {
    return absl::StrCat(name, " has no valid ledger: ", valid.message());
  }
  return "";
}

// Translates the checkpoint's state into this attempt's mode. A synchronous job's step and an
// asynchronous job's ledger both describe which samples were trained on, and agree as long as the
// ledger has no holes: the samples of a step are the positions up to the step's end. If the ledger
// has holes, this attempt trains asynchronously on the open samples up to the next step, and the
// attempt after it is synchronous.
void CoordinatorCore::Impl::BeginFromCheckpoint(absl::Time now) {
  const v1::CheckpointIndex& checkpoint_index = storage_.newest;
  base_ = checkpoint_index.checkpoint();
  facts_.base_version = base_->step();
  facts_.base_ledger = checkpoint_index.ledger();
  if (options_.job.training().bit_exact() && checkpoint_index.isa() != Arithmetic()) {
    Warn(absl::StrCat("BitExact: ", CheckpointName(*base_), " is of ", checkpoint_index.isa(),
                      ", and training continues with ", Arithmetic(), ": bits may differ"),
         now);
  }

  if (IsSynchronous(checkpoint_index.mode()) == Synchronous()) return;
  if (IsSynchronous(checkpoint_index.mode())) {
    if (checkpoint_index.samples() > 0) {
      *facts_.base_ledger.add_applied() = ToProto(Interval{0, checkpoint_index.samples()});
    }
    facts_.base_ledger.set_updates(base_->step());
    Info(absl::StrCat("training continues asynchronously after step ", base_->step()), now);
    return;
  }

  IntervalSet applied = *IntervalSet::FromProtos(checkpoint_index.ledger().applied());
  const uint64_t end = applied.empty() ? 0 : applied.Intervals().back().end;
  const uint64_t step = length_->StepFrom(end);
  if (applied.Count() == length_->SamplesAt(step)) {
    facts_.base_version = step;
    facts_.base_ledger.Clear();
    Info(absl::StrCat("training continues synchronously at step ", step), now);
    return;
  }

  mode_ = v1::ASYNCHRONOUS;
  last_position_ = length_->SamplesAt(step);
  Info(absl::StrCat("before training continues synchronously at step ", step, ", ",
                    last_position_ - applied.Count(),
                    " earlier samples that asynchronous training left out are trained on"),
       now);
}

// ---- initialization

// Sets the facts of the claimed attempt, with the shards that live now. False: the job failed.
bool CoordinatorCore::Impl::MakeAttempt(absl::Time now) {
  ForgetAttempt();
  if (storage_.has_newest) {
    layout_ = storage_.newest.layout();
    if (ComputedByShards(options_.job)) {
      absl::Status staged = CheckStagedLayout(model_->table(), options_.job.model(), layout_);
      if (!staged.ok()) {
        Fail(absl::StrCat(staged.message()), now);
        return false;
      }
    }
    BeginFromCheckpoint(now);
  } else {
    absl::StatusOr<v1::Layout> layout = LayoutOf(options_.job, model_->table());
    if (!layout.ok()) {
      Fail(absl::StrCat(layout.status().message()), now);
      return false;
    }
    layout_ = *std::move(layout);
  }
  layout_hash_ = LayoutHash(model_->table(), layout_);

  for (const Process* shard : membership_.LivingAndConnected(v1::SHARD)) {
    if (shard->id.index() >= wanted_shards_) continue;
    v1::View::Shard& entry = shards_.emplace_back();
    *entry.mutable_process() = shard->id;
    entry.set_address(shard->address);
    facts_.shards.push_back(shard->incarnation());
    shard_states_[shard->incarnation()] = {};
  }

  const LayoutIndex index(model_->table(), layout_);
  facts_.term = term_;
  facts_.owner = PlacePartitions(index, static_cast<uint32_t>(facts_.shards.size()));
  for (uint32_t p = 0; p < index.partitions(); ++p) facts_.empty.push_back(index.IsEmpty(p));
  committed_ = facts_.base_version;
  init_request_.Reset();
  change_.Reset(facts_.shards);
  return true;
}

void CoordinatorCore::Impl::ForgetAttempt() {
  facts_ = {};
  mode_ = options_.job.training().mode();
  last_position_ = 0;

  shards_.clear();
  base_.reset();
  shard_states_.clear();
  owed_.clear();
  judge_leases_ = false;
  knows_model_.clear();
  init_request_.Reset();
  change_.Reset({});
  view_.Clear();

  EndReaders(absl::UnavailableError("the job is being restored"));
  snapshot_.reset();
  barrier_ = 0;
  incomplete_.clear();  // they are removed when the storage is read
  evaluation_.reset();

  goal_ = Goal::kNone;
  final_snapshot_open_ = final_evaluation_given_up_ = false;
  final_failures_ = 0;
  final_problems_.clear();
  final_retry_at_ = suspend_deadline_ = absl::InfiniteFuture();
  join_at_ = unbalanced_since_ = absl::InfiniteFuture();
}

void CoordinatorCore::Impl::RequestInit(absl::Time now) {
  std::optional<uint64_t> worker;
  if (!base_.has_value()) {
    std::vector<uint64_t> candidates;
    for (const Process* ready : ReadyWorkers()) candidates.push_back(ready->incarnation());
    worker = init_request_.NextWorker(candidates);
    if (!worker.has_value()) {
      phase_ = Phase::kGathering;
      return;
    }
  }

  v1::InitId init_id;
  init_id.set_attempt(attempt_);
  *init_id.mutable_term() = term_;
  init_id.set_number(NextNumber());
  facts_.init_id = init_id;
  init_request_.Begin(init_id, facts_.shards, worker, now + timers_.initialization);
  phase_ = Phase::kPreparing;

  TellAdmitted();  // before the worker is asked
  v1::CoordinatorMessage prepare;
  *prepare.mutable_prepare_state() = PrepareStateMessage();
  SendToShards(prepare);
  if (worker.has_value()) {
    v1::CoordinatorMessage message;
    *message.mutable_initialize() = InitializeMessage();
    Send(*membership_.Find(*worker), std::move(message));
  }
}

v1::PrepareState CoordinatorCore::Impl::PrepareStateMessage() const {
  v1::PrepareState prepare;
  *prepare.mutable_init_id() = facts_.init_id;
  *prepare.mutable_job() = options_.job;
  *prepare.mutable_table() = model_->table();
  *prepare.mutable_layout() = layout_;
  *prepare.mutable_shards() = {shards_.begin(), shards_.end()};
  *prepare.mutable_owner() = {facts_.owner.begin(), facts_.owner.end()};
  if (base_.has_value()) {
    *prepare.mutable_checkpoint() = storage_.newest;
    prepare.set_checkpoint_directory(storage_.foreign_directory.empty()
                                         ? options_.checkpoint_directory(*base_)
                                         : storage_.foreign_directory);
  }
  prepare.set_training_samples(model_->training_samples());
  prepare.set_version(facts_.base_version);
  prepare.set_last_position(last_position_);
  return prepare;
}

v1::Initialize CoordinatorCore::Impl::InitializeMessage() const {
  v1::Initialize initialize;
  *initialize.mutable_init_id() = facts_.init_id;
  *initialize.mutable_table() = model_->table();
  *initialize.mutable_layout() = layout_;
  *initialize.mutable_shards() = {shards_.begin(), shards_.end()};
  *initialize.mutable_owner() = {facts_.owner.begin(), facts_.owner.end()};
  return initialize;
}

void CoordinatorCore::Impl::OnStateReady(const Process& process, const v1::StateReady& ready,
                                         absl::Time now) {
  if (phase_ != Phase::kPreparing) return;
  if (ready.error().empty()) {
    init_request_.OnStateReady(process.incarnation(), ready.init_id());
    return;
  }
  if (!Same(ready.init_id(), facts_.init_id)) return;
  const std::string why =
      absl::StrCat(ProcessName(process.id), ": ", CleanUtf8(ready.error(), kMaxReasonBytes));
  if (!base_.has_value()) {
    Fail(why, now);
    return;
  }
  // Reading the storage again finds the damage and an older checkpoint; if not, the job fails.
  unloadable_ = base_;
  unloadable_why_ = why;
  Restore(why, now);
}

void CoordinatorCore::Impl::AdvancePreparing(absl::Time now) {
  if (suspend_) {
    Leave(ExitReason::kSuspended, "suspended before training began", now);
    return;
  }
  if (init_request_.complete()) {
    phase_ = Phase::kRunning;
    BeginPause(/*at_once=*/true, now);
    return;
  }

  if (!init_request_.worker().has_value()) return;
  const Process* worker = membership_.Find(*init_request_.worker());
  if (worker == nullptr) {
    Info("the worker that creates the model is gone; asking another worker", now);
    RequestInit(now);
  } else if (init_request_.deadline() <= now) {
    Warn(absl::StrCat(ProcessName(worker->id), " did not create the model in ",
                      absl::FormatDuration(timers_.initialization), "; asking the next worker"),
         now);
    RequestInit(now);
  }
}

// ---- restoration

void CoordinatorCore::Impl::LoseShard(const std::string& why, absl::Time now) {
  if (change_.has_install()) {
    Restore(why, now);
  } else if (SpendRestoration(why, now)) {
    // Nothing was trained in this attempt: it begins again with the shards that come.
    ForgetAttempt();
    phase_ = Phase::kGathering;
  }
}

void CoordinatorCore::Impl::Restore(const std::string& why, absl::Time now) {
  if (SpendRestoration(why, now)) BeginNextAttempt(now);
}

// The next attempt begins with what the storage holds.
void CoordinatorCore::Impl::BeginNextAttempt(absl::Time now) {
  ForgetAttempt();
  claim_unused_ = false;
  claim_.reset();
  phase_ = Phase::kReading;
  ReadStorageAgain(now);
}

// False: the job was restored too often, and failed.
bool CoordinatorCore::Impl::SpendRestoration(const std::string& why, absl::Time now) {
  if (restorations_ >= options_.job.backoff_limit()) {
    Fail(absl::StrCat(why, "; the job was restored ", restorations_,
                      " times, and backoffLimit allows no more"),
         now);
    return false;
  }
  ++restorations_;
  // The event of the claim names the attempt and its checkpoint. This event has no number, because
  // this coordinator does not know how often earlier coordinators restored the job.
  Warn(absl::StrCat(why, "; the job is restored"), now);
  return true;
}

}  // namespace sluice::coordinator

// The open snapshot and its purposes: checkpoints, evaluation, readers.

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/utf8.h"
#include "services/coordinator/core/coordinator_impl.h"
#include "services/coordinator/core/retention.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

constexpr uint32_t kCheckpointIndexFormatVersion = 2;
constexpr absl::Duration kMaxFinalRetry = absl::Seconds(30);
constexpr size_t kMaxFinalProblems = 64;  // reported of one last checkpoint
constexpr uint64_t kMaxSnapshotLead = 1 << 20;

// Readers. A snapshot is held for at most this long; a version must be pinned within kSnapshotWait.
constexpr double kMinSnapshotHoldSeconds = 1;
constexpr double kMaxSnapshotHoldSeconds = 600;
constexpr absl::Duration kSnapshotWait = absl::Seconds(30);
constexpr size_t kMaxSnapshots = 16;  // waiting and pinned
// A reader's snapshot makes room this long before the step of a checkpoint or an evaluation, so
// that the shards learn of the next snapshot in time.
constexpr absl::Duration kReaderNotice = absl::Milliseconds(500);

// Whether samples are sequences of tokens: then a loss is reported as perplexity.
bool IsLanguageModel(const v1::JobSpec& job) {
  return job.data().format() == v1::DataSpec::TEXT || job.data().synthetic().vocabulary() > 0;
}

std::string SizeText(uint64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? absl::StrFormat("%.1f KiB", kib) : absl::StrFormat("%.1f MiB", kib / 1024);
}

bool IsClassification(const v1::JobSpec& job) {
  if (IsLanguageModel(job)) return false;
  return job.loss() == "nll" || job.loss() == "crossEntropy" ||
         job.loss() == "binaryCrossEntropyWithLogits";
}

std::string OptimizerName(const v1::OptimizerSpec& optimizer) {
  return v1::OptimizerSpec::Name_Name(optimizer.name());
}

bool TargetReached(const v1::TrainingSpec::Target& target, const v1::Evaluation& result) {
  if (target.metric().empty()) return false;
  if (target.metric() == "accuracy" && !result.has_accuracy()) return false;
  if (target.metric() == "perplexity" && !result.has_perplexity()) return false;
  const double value = target.metric() == "accuracy"     ? result.accuracy()
                       : target.metric() == "perplexity" ? result.perplexity()
                                                         : result.loss();
  return target.goal() == "AtMost" ? value <= target.value() : value >= target.value();
}

}  // namespace

void CoordinatorCore::Impl::AdvanceSnapshots(absl::Time now) {
  AdvanceReaders(now);
  if (snapshot_.has_value()) {
    AdvanceSaving(now);
    if (phase_ != Phase::kRunning) return;
    AdvanceEvaluation(now);
    AnswerReaders(now);
    if (snapshot_.has_value() && !snapshot_->InUse()) {
      CloseSnapshot();
      if (!Synchronous())
        AdvanceViews(now);  // may make a view, with which the next snapshot begins
      if (phase_ != Phase::kRunning) return;
    }
  }

  if (snapshot_.has_value()) {
    const bool evaluating = snapshot_->evaluation && snapshot_->PinnedBy(facts_.shards);
    const bool lingers = snapshot_->reached && !evaluating && snapshot_->InUseByJob();
    snapshot_->lingers_since =
        lingers ? std::min(snapshot_->lingers_since, now) : absl::InfiniteFuture();
  }

  if (Synchronous() && change_.has_install() && Idle()) {
    PlanSynchronousSnapshot(now);
    // After the snapshot: the shards wait until they know of it.
    MoveBarrier(now);
  }
}

// ---- planning

// The step number that schedules use.
uint64_t CoordinatorCore::Impl::ScheduleStep() const {
  return Synchronous() ? LowestClosed() : length_->BatchesIn(Samples());
}

uint64_t CoordinatorCore::Impl::ScheduleStepOf(const Snapshot& snapshot) const {
  return Synchronous() ? snapshot.step : length_->BatchesIn(SamplesIn(snapshot.ledger));
}

uint64_t CoordinatorCore::Impl::SamplesIn(const v1::Ledger& ledger) {
  uint64_t samples = 0;
  for (const v1::Range& range : ledger.applied()) samples += range.end() - range.begin();
  return samples;
}

// Whether all workers train from the same version, so that training can be held at a version.
bool CoordinatorCore::Impl::InStep() const {
  return Synchronous() ||
         (mode_ == v1::BOUNDED_STALENESS && options_.job.training().max_staleness() == 0);
}

// Whether the open snapshot has served only a checkpoint for longer than training is held for it.
bool CoordinatorCore::Impl::SnapshotLingers(absl::Time now) const {
  return snapshot_.has_value() && now >= snapshot_->lingers_since + timers_.barrier;
}

// The first version, not below `from`, that is due for evaluation and is not the open snapshot's;
// 0: none.
uint64_t CoordinatorCore::Impl::NextBarrier(uint64_t from, absl::Time now) const {
  if (!InStep() || goal_ != Goal::kNone || EvaluationSamples() == 0) return 0;
  if (SnapshotLingers(now)) return 0;
  if (snapshot_.has_value() && snapshot_->evaluation)
    from = std::max(from, ScheduleStepOf(*snapshot_) + 1);
  const uint64_t due = evaluations_.NextMultiple(from);
  return due < length_->total_steps() ? due : 0;
}

void CoordinatorCore::Impl::MoveBarrier(absl::Time now) {
  const bool holds = barrier_ > 0 && HighestClosed() <= barrier_;
  const uint64_t barrier = NextBarrier(holds ? HighestClosed() : EarliestSnapshot(now), now);
  if (barrier == barrier_) return;
  barrier_ = barrier;
  SendToShards(BarrierMessage());
}

// Asynchronous: only a view moves the barrier, and training has reached it.
bool CoordinatorCore::Impl::BarrierLapses(absl::Time now) const {
  return barrier_ > 0 && ScheduleStep() >= barrier_ && SnapshotLingers(now);
}

v1::CoordinatorMessage CoordinatorCore::Impl::BarrierMessage() const {
  v1::CoordinatorMessage message;
  *message.mutable_barrier()->mutable_view() = view_.id();
  message.mutable_barrier()->set_version(barrier_);
  return message;
}

// The lowest step that no shard is past when a message about it arrives.
uint64_t CoordinatorCore::Impl::EarliestSnapshot(absl::Time now) const {
  if (!Synchronous()) return ScheduleStep();
  if (view_.workers_size() == 0 || goal_ != Goal::kNone) return LowestClosed();
  const uint64_t earliest =
      std::min(HighestClosed() + std::max(snapshot_lead_, StepsIn(kControlDelay, now) + 1),
               length_->total_steps());
  return barrier_ >= HighestClosed() && barrier_ > 0 ? std::min(earliest, barrier_) : earliest;
}

std::optional<SnapshotPlan> CoordinatorCore::Impl::PlanNow(absl::Time now) const {
  if (goal_ != Goal::kNone) {
    if (removals_ > 0) return std::nullopt;
    const SnapshotPlan last = FinalPlan();
    if (final_retry_at_ > now && final_retry_at_ != absl::InfiniteFuture()) return std::nullopt;
    return last.checkpoint || last.evaluation ? std::optional<SnapshotPlan>(last) : std::nullopt;
  }
  static const IntervalSchedule kNever(0, absl::ZeroDuration());
  const uint64_t earliest = EarliestSnapshot(now);
  // While files are removed, no files of the same name may be written.
  std::optional<SnapshotPlan> plan = PlanSnapshot(removals_ > 0 ? kNever : checkpoints_,
                                                  EvaluationSamples() > 0 ? evaluations_ : kNever,
                                                  earliest, length_->total_steps(), now);
  const bool near = plan.has_value() && plan->step <= earliest + ReaderLead(now);
  if (!waiting_readers_.empty() && !near) plan = SnapshotPlan{earliest, false, false};
  return plan;
}

// Steps before a checkpoint or an evaluation at which readers make room.
uint64_t CoordinatorCore::Impl::ReaderLead(absl::Time now) const {
  return Synchronous() ? StepsIn(kReaderNotice, now) : 0;
}

bool CoordinatorCore::Impl::SnapshotIsForReadersOnly() const {
  return goal_ == Goal::kNone && snapshot_.has_value() && !snapshot_->InUseByJob() &&
         !snapshot_->readers.empty();
}

void CoordinatorCore::Impl::PlanSynchronousSnapshot(absl::Time now) {
  const std::optional<SnapshotPlan> plan = PlanNow(now);
  if (!plan.has_value()) return;
  if (snapshot_.has_value()) {
    if (final_snapshot_open_) return;
    if (goal_ == Goal::kComplete && evaluation_.has_value()) return;
    // A reader's snapshot makes room for a due snapshot of the job.
    const bool due = (plan->checkpoint || plan->evaluation) &&
                     plan->step <= EarliestSnapshot(now) + ReaderLead(now);
    const bool makes_room = SnapshotIsForReadersOnly() && due;
    // A snapshot that no shard has reached makes room for a snapshot that is due before it.
    if (goal_ == Goal::kNone && !makes_room &&
        (snapshot_->reached || plan->step >= snapshot_->step))
      return;
    CloseSnapshot();
  }
  OpenNewSnapshot(*plan, plan->step);
  v1::CoordinatorMessage message;
  *message.mutable_open_snapshot() = snapshot_->Message();
  SendToShards(message);
}

// An asynchronous snapshot is made by a view change, and is therefore due only once its step is
// reached.
bool CoordinatorCore::Impl::AsynchronousSnapshotDue(absl::Time now) const {
  if (snapshot_.has_value() && !SnapshotIsForReadersOnly()) return false;
  const std::optional<SnapshotPlan> plan = PlanNow(now);
  if (!plan.has_value()) return false;
  const bool for_readers = !plan->checkpoint && !plan->evaluation;
  if (snapshot_.has_value() && for_readers) return false;
  return goal_ != Goal::kNone || plan->step <= ScheduleStep();
}

void CoordinatorCore::Impl::OpenNewSnapshot(const SnapshotPlan& plan, uint64_t step) {
  Snapshot snapshot;
  snapshot.id = ++last_snapshot_;
  snapshot.step = step;
  snapshot.name.set_attempt(attempt_);
  snapshot.name.set_step(step);
  snapshot.write = plan.checkpoint;
  snapshot.saving = plan.checkpoint ? Snapshot::Saving::kCollecting : Snapshot::Saving::kNo;
  if (plan.checkpoint) incomplete_.insert(step);
  if (plan.checkpoint) snapshot.directory = options_.checkpoint_directory(snapshot.name);
  snapshot.evaluation = plan.evaluation;
  if (goal_ == Goal::kNone) snapshot.readers = {waiting_readers_.begin(), waiting_readers_.end()};
  if (goal_ == Goal::kNone) waiting_readers_.clear();
  final_snapshot_open_ = goal_ != Goal::kNone;
  snapshot_ = std::move(snapshot);
}

void CoordinatorCore::Impl::ReplanSoon() {
  for (const ReaderHold& hold : snapshot_->readers) {
    if (hold.answered) {
      EndReader(hold, absl::AbortedError(absl::StrCat(
                          "the snapshot of version ", snapshot_->step,
                          " made room for a checkpoint or an evaluation; open another one")));
    } else {
      waiting_readers_.push_back(hold);
    }
  }
  snapshot_.reset();
  evaluation_.reset();
  final_snapshot_open_ = false;
}

void CoordinatorCore::Impl::CloseSnapshot() {
  v1::CoordinatorMessage message;
  message.mutable_close_snapshot()->set_snapshot_id(snapshot_->id);
  SendToShards(message);
  ReplanSoon();
}

// ---- reports of shards

bool CoordinatorCore::Impl::IsOpenSnapshot(uint64_t snapshot, const v1::CheckpointRef& name) const {
  return snapshot_.has_value() && snapshot == snapshot_->id &&
         name.attempt() == snapshot_->name.attempt() && name.step() == snapshot_->name.step();
}

// Empty: the shard may have written these.
std::string CoordinatorCore::Impl::CheckFiles(const Process& process,
                                              const v1::SnapshotWritten& written) const {
  std::set<uint32_t> seen;
  for (const v1::PartitionFile& file : written.files()) {
    const uint32_t p = file.partition();
    if (p < facts_.owner.size() && seen.insert(p).second &&
        facts_.shards[facts_.owner[p]] == process.incarnation()) {
      continue;
    }
    return absl::StrCat(ProcessName(process.id), " reports a file of partition ", p,
                        ", which it does not own or has reported already");
  }
  return "";
}

void CoordinatorCore::Impl::OnSnapshotPinned(const Process& process,
                                             const v1::SnapshotPinned& pinned) {
  if (!IsOpenSnapshot(pinned.snapshot_id(), pinned.name())) return;
  snapshot_->pinned.insert(process.incarnation());
  snapshot_->reached = snapshot_->reached || OwnsBlocks(process.incarnation());
  snapshot_lead_ = 1;
}

void CoordinatorCore::Impl::OnSnapshotWritten(const Process& process,
                                              const v1::SnapshotWritten& written, absl::Time now) {
  if (!IsOpenSnapshot(written.snapshot_id(), written.name())) return;
  if (snapshot_->saving != Snapshot::Saving::kCollecting) return;
  if (const std::string wrong = CheckFiles(process, written); !wrong.empty()) {
    FailCheckpoint(wrong, now);
    return;
  }
  snapshot_->reached = true;
  snapshot_->written[process.incarnation()] = {written.files().begin(), written.files().end()};
  snapshot_->seconds = std::max(snapshot_->seconds, written.seconds());
}

void CoordinatorCore::Impl::OnSnapshotFailed(const Process& process,
                                             const v1::SnapshotFailed& failed, absl::Time now) {
  if (!IsOpenSnapshot(failed.snapshot_id(), failed.name())) return;
  if (failed.past() == 0) {
    FailCheckpoint(
        absl::StrCat(ProcessName(process.id), ": ", CleanUtf8(failed.reason(), kMaxReasonBytes)),
        now);
    return;
  }
  if (const auto state = shard_states_.find(process.incarnation()); state != shard_states_.end()) {
    // `past` is the highest version of its partitions. Its other partitions may be one version
    // behind, and `closed` is the lowest version, from which the committed one follows.
    state->second.closed = std::max(state->second.closed, failed.past() - 1);
  }
  snapshot_lead_ = std::min(snapshot_lead_ * 2, kMaxSnapshotLead);
  if (barrier_ > 0 &&
      failed.past() > barrier_) {  // too late for some shards; release the others too
    barrier_ = 0;
    SendToShards(BarrierMessage());
  }
  CloseSnapshot();
}

// ---- checkpoints

void CoordinatorCore::Impl::AdvanceSaving(absl::Time now) {
  if (snapshot_->saving != Snapshot::Saving::kCollecting || !snapshot_->WrittenBy(facts_.shards))
    return;
  std::vector<bool> saved(facts_.owner.size());
  for (const auto& [shard, files] : snapshot_->written) {
    for (const v1::PartitionFile& file : files) {
      if (file.partition() < saved.size()) saved[file.partition()] = true;
    }
  }
  for (size_t p = 0; p < saved.size(); ++p) {
    if (saved[p] || facts_.empty[p]) continue;
    FailCheckpoint(absl::StrCat("no shard wrote partition ", p), now);
    return;
  }
  snapshot_->saving = Snapshot::Saving::kCheckingClaim;
  actions_.push_back(ReadClaims{});
}

void CoordinatorCore::Impl::OnClaimsRead(absl::StatusOr<std::vector<v1::Claim>> claims,
                                         absl::Time now) {
  Step(now);
  if (looking_) {
    OnClaimsSeen(claims, now);
  } else if (phase_ == Phase::kRunning && snapshot_.has_value() &&
             snapshot_->saving == Snapshot::Saving::kCheckingClaim) {
    if (!claims.ok()) {
      FailCheckpoint(absl::StrCat("the claims cannot be read: ", claims.status().message()), now);
    } else {
      uint64_t highest = 0;
      for (const v1::Claim& claim : *claims) highest = std::max(highest, claim.attempt());
      if (highest > attempt_ && rules_->ClaimAttempts()) {
        Supersede(absl::StrCat("attempt ", highest, " was claimed by another coordinator"));
        return;
      }
      snapshot_->saving = Snapshot::Saving::kWriting;
      actions_.push_back(WriteCheckpointIndex{MakeCheckpointIndex(now)});
    }
  }

  Advance(now);
}

v1::CheckpointIndex CoordinatorCore::Impl::MakeCheckpointIndex(absl::Time now) const {
  v1::CheckpointIndex checkpoint_index;
  checkpoint_index.set_format_version(kCheckpointIndexFormatVersion);
  checkpoint_index.set_job(JobName(options_.job));
  *checkpoint_index.mutable_checkpoint() = snapshot_->name;
  if (base_.has_value()) *checkpoint_index.mutable_parent() = *base_;
  checkpoint_index.set_mode(mode_);

  if (Synchronous()) {
    checkpoint_index.set_samples(length_->SamplesAt(snapshot_->step));
  } else {
    *checkpoint_index.mutable_ledger() = snapshot_->ledger;
    checkpoint_index.set_samples(SamplesIn(snapshot_->ledger));
  }

  checkpoint_index.set_seed(options_.job.training().seed());
  checkpoint_index.set_optimizer(OptimizerName(options_.job.optimizer()));
  *checkpoint_index.mutable_table() = model_->table();
  *checkpoint_index.mutable_layout() = layout_;

  for (const auto& [shard, files] : snapshot_->written) {
    for (const v1::PartitionFile& file : files) *checkpoint_index.add_files() = file;
  }
  std::sort(checkpoint_index.mutable_files()->begin(), checkpoint_index.mutable_files()->end(),
            [](const auto& a, const auto& b) { return a.partition() < b.partition(); });

  checkpoint_index.set_time(absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone()));
  checkpoint_index.set_build(options_.build);
  checkpoint_index.set_isa(Arithmetic());
  if (meter_.has_loss()) checkpoint_index.set_loss(meter_.loss());

  if (last_result_.has_value()) {
    checkpoint_index.set_has_metric(true);
    checkpoint_index.set_metric(last_result_->has_accuracy()     ? last_result_->accuracy()
                                : last_result_->has_perplexity() ? last_result_->perplexity()
                                                                 : last_result_->loss());
  }
  return checkpoint_index;
}

// What the bits of a synchronous job depend on, as far as the coordinator knows. It does not know
// the thread counts that workers choose themselves.
std::string CoordinatorCore::Impl::Arithmetic() const {
  const v1::TrainingSpec& training = options_.job.training();
  const uint32_t threads = training.threads() == 0 && training.bit_exact() ? 1 : training.threads();
  if (threads == 0) return options_.isa;
  return absl::StrCat(options_.isa, ", threads of a worker: ", threads);
}

void CoordinatorCore::Impl::OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint,
                                                     const absl::Status& status, absl::Time now) {
  Step(now);
  if (phase_ == Phase::kRunning && snapshot_.has_value() &&
      snapshot_->saving == Snapshot::Saving::kWriting &&
      snapshot_->name.attempt() == checkpoint.attempt() &&
      snapshot_->name.step() == checkpoint.step()) {
    if (!status.ok()) {
      FailCheckpoint(absl::StrCat("the manifest cannot be written: ", status.message()), now);
    } else {
      FinishCheckpoint(now);
    }
  }
  Advance(now);
}

void CoordinatorCore::Impl::FinishCheckpoint(absl::Time now) {
  snapshot_->saving = Snapshot::Saving::kDone;

  uint64_t bytes = 0;
  for (const auto& [shard, files] : snapshot_->written) {
    for (const v1::PartitionFile& file : files) bytes += file.bytes();
  }

  *checkpoint_status_.mutable_last() = snapshot_->name;
  checkpoint_status_.set_directory(snapshot_->directory);
  checkpoint_status_.set_bytes(bytes);
  checkpoint_status_.set_seconds(snapshot_->seconds);
  checkpoint_status_.clear_error();
  checkpoints_.Done(Synchronous() ? snapshot_->step : ScheduleStep(), now);
  final_failures_ = 0;
  final_problems_.clear();

  events_.Add(v1::Event::CHECKPOINT,
              absl::StrFormat("checkpoint at step %d saved (%s)", snapshot_->step, SizeText(bytes)),
              now);

  incomplete_.erase(snapshot_->step);
  RemoveIncompletes();
  incomplete_.clear();  // each shard writes in order, so no shard writes one of them any more

  storage_.checkpoints.push_back(snapshot_->name);
  std::vector<v1::CheckpointRef> unneeded =
      ReplacedCheckpoints(options_.job, storage_.claims, storage_.checkpoints);
  for (v1::CheckpointRef& old :
       Superseded(storage_.checkpoints, snapshot_->name, options_.job.checkpoint().max_to_keep())) {
    const auto same = [&](const v1::CheckpointRef& ref) {
      return ref.attempt() == old.attempt() && ref.step() == old.step();
    };
    if (std::none_of(unneeded.begin(), unneeded.end(), same)) unneeded.push_back(std::move(old));
  }

  for (const v1::CheckpointRef& old : unneeded) {
    actions_.push_back(DeleteCheckpoint{old, attempt_});
    storage_.checkpoints.erase(
        std::remove_if(storage_.checkpoints.begin(), storage_.checkpoints.end(),
                       [&](const v1::CheckpointRef& ref) {
                         return ref.attempt() == old.attempt() && ref.step() == old.step();
                       }),
        storage_.checkpoints.end());
  }
}

// Shards may still be writing: files that arrive later are removed at the next call.
void CoordinatorCore::Impl::RemoveIncompletes() {
  for (const uint64_t step : incomplete_) {
    RemoveIncomplete remove;
    remove.checkpoint.set_attempt(attempt_);
    remove.checkpoint.set_step(step);
    actions_.push_back(std::move(remove));
    ++removals_;
  }
}

void CoordinatorCore::Impl::OnIncompleteRemoved(absl::Time now) {
  Step(now);
  removals_ = std::max(removals_ - 1, 0);
  Advance(now);
}

// Training continues. The job does not end without its last checkpoint: it waits for the disk, for
// as long as the user lets it.
void CoordinatorCore::Impl::FailCheckpoint(const std::string& why, absl::Time now) {
  if (snapshot_->write && snapshot_->saving == Snapshot::Saving::kNo)
    return;  // another shard has reported it
  checkpoint_status_.set_error(why);
  if (!final_snapshot_open_ ||
      (final_problems_.size() < kMaxFinalProblems && final_problems_.insert(why).second)) {
    Warn(absl::StrCat(
             "no checkpoint at step ", snapshot_->step, ": ", why,
             final_snapshot_open_ ? "; the job waits until its last checkpoint can be saved" : ""),
         now);
  }
  checkpoints_.Done(Synchronous() ? snapshot_->step : ScheduleStep(), now);
  snapshot_->saving = Snapshot::Saving::kNo;
  snapshot_->written.clear();
  RemoveIncompletes();
  if (!final_snapshot_open_) return;
  final_retry_at_ = now + RetryDelay(++final_failures_);
}

// The delay before the next try after this many failures in a row.
absl::Duration CoordinatorCore::Impl::RetryDelay(int failures) const {
  return std::min(timers_.storage_retry * (1 << std::min(failures - 1, 10)), kMaxFinalRetry);
}

// ---- evaluation

// While the job trains; at the end all samples are evaluated.
uint64_t CoordinatorCore::Impl::EvaluationSamples() const {
  const uint64_t limit = options_.job.data().evaluation().max_samples();
  const uint64_t samples = model_->evaluation_samples();
  return limit == 0 ? samples : std::min(limit, samples);
}

void CoordinatorCore::Impl::AdvanceEvaluation(absl::Time now) {
  if (!snapshot_->evaluation) return;
  if (!evaluation_.has_value()) {
    if (!snapshot_->PinnedBy(facts_.shards)) return;
    Evaluation::Options options;
    options.id = ++last_evaluation_id_;
    options.snapshot = snapshot_->id;
    options.attempt = attempt_;
    options.version = snapshot_->step;
    options.samples = EvaluationSamples();
    if (EndsWithEvaluation()) {
      options.first = options.samples;
      options.samples = model_->evaluation_samples();
    }
    options.started = now;
    options.patience = timers_.evaluation;
    evaluation_.emplace(options);
  }
  if (evaluation_->done() || evaluation_->failed()) {
    FinishEvaluation(now);
    return;
  }

  for (auto& [incarnation, evaluate] : evaluation_->Assign(Evaluators(), now)) {
    v1::CoordinatorMessage message;
    *message.mutable_evaluate() = std::move(evaluate);
    // For a suspect it is sent again when the worker returns.
    Send(*membership_.Find(incarnation), std::move(message));
  }
}

// The members. If training has ended at a target: the workers that were members or have joined
// since. Shards compute their layers only for workers that were members, so other workers are asked
// only if no former member is alive.
std::vector<Evaluator> CoordinatorCore::Impl::Evaluators() const {
  std::vector<Evaluator> evaluators;
  const auto add = [&](const Process* process) {
    if (process == nullptr || process->leaving) return;
    evaluators.push_back({process->incarnation(), meter_.SpeedOf(process->incarnation())});
  };
  if (goal_ != Goal::kTarget) {
    for (const auto& member : view_.workers()) {
      add(membership_.Find(member.process().incarnation()));
    }
    return evaluators;
  }
  for (const Process* worker : ReadyWorkers()) add(worker);
  if (options_.job.training().execution() != v1::TrainingSpec::SERVER) return evaluators;
  std::vector<Evaluator> former;
  absl::c_copy_if(evaluators, std::back_inserter(former),
                  [](const Evaluator& evaluator) { return evaluator.speed > 0; });
  return former.empty() ? evaluators : former;
}

void CoordinatorCore::Impl::FinishEvaluation(absl::Time now) {
  const Evaluation evaluation = *std::move(evaluation_);
  evaluation_.reset();
  snapshot_->evaluation = false;
  evaluations_.Done(InStep() ? ScheduleStepOf(*snapshot_) : ScheduleStep(), now);

  if (evaluation.failed()) {
    Warn(absl::StrCat("no evaluation at step ", snapshot_->step, ": ", evaluation.last_error()),
         now);
    final_evaluation_given_up_ = final_snapshot_open_;
    return;
  }

  const bool classification = IsClassification(options_.job);
  const bool told = last_result_.has_value() && last_result_->step() == snapshot_->step;
  if (evaluation.has_first() && !told) {
    NoteEvaluation(evaluation.FirstResult(classification, now), now);
  }

  v1::Evaluation result = evaluation.Result(classification, now);
  result.set_final(final_snapshot_open_ && EndsWithEvaluation());
  NoteEvaluation(std::move(result), now);

  if (goal_ == Goal::kNone && TargetReached(options_.job.training().target(), *last_result_)) {
    target_reached_ = true;
  }
}

void CoordinatorCore::Impl::NoteEvaluation(v1::Evaluation result, absl::Time now) {
  // All samples have the same number of tokens, so the mean over samples is the mean over tokens.
  const double perplexity = std::exp(result.loss());
  if (IsLanguageModel(options_.job) && std::isfinite(perplexity)) {
    result.set_has_perplexity(true);
    result.set_perplexity(perplexity);
  }
  const uint64_t samples = Synchronous() ? length_->SamplesAt(snapshot_->step) : Samples();
  result.set_epoch(length_->EpochsIn(samples));
  std::string message =
      absl::StrFormat("evaluation at step %d: loss %.4f", result.step(), result.loss());
  if (result.has_accuracy())
    absl::StrAppendFormat(&message, ", accuracy %.2f %%", result.accuracy());
  if (result.has_perplexity()) {
    absl::StrAppendFormat(&message, ", perplexity %.2f", result.perplexity());
  }
  events_.AddEvaluation(result, std::move(message), now);
  last_result_ = std::move(result);
}

// ---- snapshots

void CoordinatorCore::Impl::OnOpenSnapshot(uint64_t request,
                                           const v1::OpenSnapshotRequest& snapshot,
                                           absl::Time now) {
  Step(now);
  const absl::Status valid = CheckReader(snapshot);
  if (!valid.ok()) {
    ++refusals_.readers;
    actions_.push_back(AnswerSnapshot{request, valid});
    Advance(now);
    return;
  }

  const auto before = [&](const ReaderHold& hold) {
    return hold.reader.incarnation() == snapshot.reader().incarnation();
  };
  EndReadersIf(before, absl::AbortedError("the reader has opened another snapshot"));

  if (phase_ != Phase::kRunning || goal_ != Goal::kNone) {
    actions_.push_back(
        AnswerSnapshot{request, absl::UnavailableError("the job is not training; try again")});
  } else if (OpenReaders() >= kMaxSnapshots) {
    ++refusals_.readers;
    actions_.push_back(AnswerSnapshot{
        request, absl::ResourceExhaustedError(absl::StrCat(
                     OpenReaders(),
                     " snapshots are open, which is the limit (kMaxSnapshots): try again "
                     "when a reader has ended"))});
  } else {
    const double seconds = snapshot.hold_seconds();
    const bool limited = seconds > 0 && seconds < kMaxSnapshotHoldSeconds;
    ReaderHold hold;
    hold.request = request;
    hold.reader = snapshot.reader();
    hold.hold = absl::Seconds(limited ? std::max(seconds, kMinSnapshotHoldSeconds)
                                      : kMaxSnapshotHoldSeconds);
    hold.expires = now + kSnapshotWait;
    waiting_readers_.push_back(std::move(hold));
    ++reader_changes_;
    TellAdmitted();  // before the reader learns of the shards
  }

  Advance(now);
}

absl::Status CoordinatorCore::Impl::CheckReader(const v1::OpenSnapshotRequest& request) const {
  const v1::ProcessId& reader = request.reader();
  if (reader.role() != v1::READER || reader.incarnation() == 0) {
    return absl::InvalidArgumentError(
        "a snapshot is opened by a reader: OpenSnapshotRequest.reader should have role READER and "
        "an incarnation that is not 0");
  }
  if (membership_.Find(reader.incarnation()) != nullptr ||
      membership_.IsExpelled(reader.incarnation())) {
    return absl::InvalidArgumentError(
        "OpenSnapshotRequest.reader has the incarnation of a worker or shard: it should have one "
        "of its own");
  }
  return absl::OkStatus();
}

void CoordinatorCore::Impl::OnSnapshotCallEnded(uint64_t request, absl::Time now) {
  Step(now);
  // The call has ended, so the answer is dropped.
  EndReadersIf([&](const ReaderHold& hold) { return hold.request == request; },
               absl::CancelledError("the reader ended the call"));
  Advance(now);
}

void CoordinatorCore::Impl::AdvanceReaders(absl::Time now) {
  EndReadersIf([&](const ReaderHold& hold) { return !hold.answered && hold.expires <= now; },
               absl::DeadlineExceededError(absl::StrCat("no version could be pinned within ",
                                                        absl::FormatDuration(kSnapshotWait))));
  EndReadersIf([&](const ReaderHold& hold) { return hold.answered && hold.expires <= now; },
               absl::DeadlineExceededError("the snapshot has reached its barrier time"));
  // A reader that comes while a pinned snapshot is open shares it.
  if (!snapshot_.has_value() || goal_ != Goal::kNone || !snapshot_->PinnedBy(facts_.shards)) return;
  snapshot_->readers.insert(snapshot_->readers.end(), waiting_readers_.begin(),
                            waiting_readers_.end());
  waiting_readers_.clear();
}

void CoordinatorCore::Impl::AnswerReaders(absl::Time now) {
  if (!snapshot_.has_value() || !snapshot_->PinnedBy(facts_.shards)) return;
  for (ReaderHold& hold : snapshot_->readers) {
    if (hold.answered) continue;
    hold.answered = true;
    hold.expires = now + hold.hold;
    v1::Snapshot snapshot;
    snapshot.set_snapshot_id(snapshot_->id);
    snapshot.set_version(snapshot_->step);
    *snapshot.mutable_view() = view_;
    *snapshot.mutable_table() = model_->table();
    *snapshot.mutable_layout() = layout_;
    actions_.push_back(AnswerSnapshot{hold.request, std::move(snapshot)});
  }
}

void CoordinatorCore::Impl::EndReader(const ReaderHold& hold, absl::Status why) {
  ++reader_changes_;
  actions_.push_back(AnswerSnapshot{hold.request, std::move(why)});
}

void CoordinatorCore::Impl::EndReadersIf(absl::FunctionRef<bool(const ReaderHold&)> which,
                                         const absl::Status& why) {
  const auto end_in = [&](std::vector<ReaderHold>* holds) {
    const auto kept = std::stable_partition(holds->begin(), holds->end(), std::not_fn(which));
    for (auto hold = kept; hold != holds->end(); ++hold) EndReader(*hold, why);
    holds->erase(kept, holds->end());
  };
  end_in(&waiting_readers_);
  if (snapshot_.has_value()) end_in(&snapshot_->readers);
}

void CoordinatorCore::Impl::EndReaders(const absl::Status& why) {
  EndReadersIf([](const ReaderHold&) { return true; }, why);
}

}  // namespace sluice::coordinator

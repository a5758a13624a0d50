#include "services/coordinator/core/snapshots/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/checkpoint/best_checkpoints.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/check.h"
#include "services/coordinator/core/decisions/retention.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/evaluation/evaluation.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

constexpr uint32_t kCheckpointIndexFormatVersion = 2;
constexpr size_t kMaxFinalProblems = 64;  // reported of one last checkpoint

std::string SizeText(uint64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? absl::StrFormat("%.1f KiB", kib) : absl::StrFormat("%.1f MiB", kib / 1024);
}

// "SGD", and those of groups: "SGD, ADAGRAD".
std::string OptimizerNames(const v1::OptimizerSpec& optimizer) {
  std::vector<std::string> names = {v1::OptimizerSpec::Name_Name(optimizer.name())};
  for (const v1::OptimizerSpec::Group& group : optimizer.groups()) {
    if (!group.has_name()) continue;
    std::string name = v1::OptimizerSpec::Name_Name(group.name());
    if (!absl::c_linear_search(names, name)) names.push_back(std::move(name));
  }
  return absl::StrJoin(names, ", ");
}

bool SameCheckpoint(const v1::CheckpointRef& a, const v1::CheckpointRef& b) {
  return a.attempt() == b.attempt() && a.step() == b.step();
}

void AddMetrics(const v1::Evaluation& evaluation, v1::CheckpointIndex* index) {
  *index->mutable_metrics() = evaluation.metrics();
  for (const char* name : {"loss", "accuracy", "perplexity"}) {
    const std::optional<double> value = MetricOf(evaluation, name);
    if (!value.has_value() || !std::isfinite(*value)) continue;
    v1::Metric& metric = *index->add_metrics();
    metric.set_name(name);
    metric.set_value(*value);
  }
}

bool IsIn(const std::vector<v1::CheckpointRef>& refs, const v1::CheckpointRef& wanted) {
  return std::any_of(refs.begin(), refs.end(),
                     [&](const auto& ref) { return SameCheckpoint(ref, wanted); });
}

}  // namespace

Checkpoints::Checkpoints(const Facts& facts, const std::optional<Snapshot>& open,
                         const Evaluations& evaluations, Output* output)
    : facts_(facts),
      snapshot_(open),
      evaluations_(evaluations),
      output_(*output),
      schedule_(facts.job().checkpoint().interval_steps(),
                absl::Seconds(facts.job().checkpoint().interval_seconds())) {}

void Checkpoints::LeaveAttempt() {
  incomplete_.clear();  // they are removed when the storage is read
  final_failures_ = 0;
  final_problems_.clear();
  final_retry_at_ = absl::InfiniteFuture();
}

void Checkpoints::BeginAttempt() {
  SLUICE_DCHECK(!snapshot_.has_value() && incomplete_.empty(),
                "nothing is saved before the attempt's first view");
  stored_ = facts_.storage.checkpoints;
  values_.clear();
  for (const auto& [ref, metrics] : facts_.storage.metrics) {
    for (const v1::Metric& metric : metrics) {
      if (metric.name() == facts_.job().checkpoint().keep_best().metric()) {
        values_.emplace_back(ref, metric.value());
      }
    }
  }
  const v1::CheckpointIndex& newest = facts_.storage.newest;
  if (!facts_.storage.has_newest || newest.checkpoint().attempt() != facts_.attempt.id.number)
    return;
  uint64_t bytes = 0;
  for (const v1::PartitionFile& file : newest.files()) bytes += file.bytes();
  *status_.mutable_last() = newest.checkpoint();
  status_.set_directory(facts_.options.checkpoint_directory(newest.checkpoint()));
  status_.set_bytes(bytes);
}

void Checkpoints::OnFirstView(absl::Time now) {
  SLUICE_DCHECK(facts_.training.view().has_id(), "the schedule begins with a view");
  first_step_ = facts_.training.view().first_step();
  uint64_t done = facts_.mode().ScheduleStep();
  if (status_.last().attempt() == facts_.attempt.id.number) {
    // The earlier coordinator may have died before it removed what this checkpoint replaces, or
    // before it saved a version that was due since.
    RemoveReplaced(status_.last());
    if (facts_.mode().synchronous()) done = std::min(done, status_.last().step());
  }
  schedule_.Done(done, now);
}

bool Checkpoints::Has(uint64_t version) const {
  return status_.has_last() && status_.last().attempt() == facts_.attempt.id.number &&
         status_.last().step() == version;
}

// ---- the open snapshot

void Checkpoints::OnOpened(bool only_if_best) {
  SLUICE_DCHECK(!saving_.has_value(), "one checkpoint is made at a time");
  if (!snapshot_->write) return;
  saving_.emplace(only_if_best);
  incomplete_.insert(snapshot_->step);
}

void Checkpoints::OnPinsDropped() {
  if (saving_.has_value()) saving_->written.clear();
}

// Empty: the shard may have written these.
std::string Checkpoints::CheckFiles(const Process& shard,
                                    const v1::SnapshotWritten& written) const {
  const AttemptFacts& facts = facts_.attempt.facts();
  std::set<uint32_t> seen;
  for (const v1::PartitionFile& file : written.files()) {
    const uint32_t p = file.partition();
    if (p < facts.owner.size() && seen.insert(p).second &&
        facts.shards[facts.owner[p]] == shard.incarnation()) {
      continue;
    }
    return absl::StrCat(ProcessName(shard.id), " reports a file of partition ", p,
                        ", which it does not own or has reported already");
  }
  return "";
}

bool Checkpoints::OnWritten(const Process& shard, const v1::SnapshotWritten& written,
                            absl::Time now) {
  SLUICE_DCHECK(facts_.attempt.HasShard(shard.incarnation()), "shards of the view write files");
  if (!Is(Saving::State::kCollecting)) return false;
  if (const std::string wrong = CheckFiles(shard, written); !wrong.empty()) {
    Fail(wrong, now);
    return false;
  }
  saving_->written[shard.incarnation()] = {written.files().begin(), written.files().end()};
  saving_->seconds = std::max(saving_->seconds, written.seconds());
  return true;
}

// A partition with blocks of which no shard has written a file.
std::optional<size_t> Checkpoints::MissingPartition() const {
  const AttemptFacts& facts = facts_.attempt.facts();
  std::vector<bool> saved(facts.empty.size());
  for (const auto& [shard, files] : saving_->written) {
    for (const v1::PartitionFile& file : files) {
      if (file.partition() < saved.size()) saved[file.partition()] = true;
    }
  }
  for (size_t p = 0; p < saved.size(); ++p) {
    if (!saved[p] && !facts.empty[p]) return p;
  }
  return std::nullopt;
}

void Checkpoints::Advance(absl::Time now) {
  RemoveIncompletes();
  if (!Is(Saving::State::kCollecting)) return;
  if (facts_.job().checkpoint().has_keep_best()) {
    if (evaluations_.pending()) return;  // the index has its result
    if (saving_->only_if_best && !IsIn(BestWith(Valued()), snapshot_->name)) {
      saving_.reset();
      return;
    }
  }
  const auto has_written = [&](uint64_t shard) { return saving_->written.count(shard) > 0; };
  if (!absl::c_all_of(facts_.attempt.facts().shards, has_written)) return;
  if (const std::optional<size_t> missing = MissingPartition(); missing.has_value()) {
    Fail(absl::StrCat("no shard wrote partition ", *missing), now);
    return;
  }
  saving_->state = Saving::State::kCheckingClaim;
  output_.Add(ReadClaims{});
}

std::optional<ValuedCheckpoint> Checkpoints::Valued() const {
  const std::optional<v1::Evaluation>& last = facts_.last_evaluation;
  if (!facts_.job().checkpoint().has_keep_best() || !last.has_value() ||
      last->step() != snapshot_->step) {
    return std::nullopt;
  }
  const std::optional<double> value =
      MetricOf(*last, facts_.job().checkpoint().keep_best().metric());
  if (!value.has_value()) return std::nullopt;
  return ValuedCheckpoint(snapshot_->name, *value);
}

std::vector<v1::CheckpointRef> Checkpoints::BestWith(
    const std::optional<ValuedCheckpoint>& another) const {
  const v1::CheckpointSpec::KeepBest& keep = facts_.job().checkpoint().keep_best();
  std::vector<ValuedCheckpoint> all = values_;
  if (another.has_value()) all.push_back(*another);
  return BestCheckpoints(std::move(all), Maximizes(keep.metric(), keep.direction()), keep.count());
}

bool Checkpoints::ChecksClaim() const { return Is(Saving::State::kCheckingClaim); }

Verdict Checkpoints::OnClaimsRead(const absl::StatusOr<std::vector<v1::Claim>>& claims,
                                  absl::Time now) {
  SLUICE_DCHECK(ChecksClaim(), "the claims were read for a checkpoint");
  if (!claims.ok()) {
    Fail(absl::StrCat("the claims cannot be read: ", claims.status().message()), now);
    return Verdict::Continue();
  }
  uint64_t highest = 0;
  for (const v1::Claim& claim : *claims) highest = std::max(highest, claim.attempt());
  if (highest > facts_.attempt.id.number && facts_.rules.ClaimAttempts()) {
    return Verdict::Superseded(
        absl::StrCat("attempt ", highest, " was claimed by another coordinator"));
  }
  saving_->state = Saving::State::kWriting;
  incomplete_.erase(
      snapshot_->step);  // the index may be written although the snapshot is abandoned
  output_.Add(WriteCheckpointIndex{MakeIndex(now)});
  return Verdict::Continue();
}

v1::CheckpointIndex Checkpoints::MakeIndex(absl::Time now) const {
  const Attempt& attempt = facts_.attempt;
  v1::CheckpointIndex index;
  index.set_format_version(kCheckpointIndexFormatVersion);
  index.set_job(FullJobName(facts_.job()));
  *index.mutable_checkpoint() = snapshot_->name;
  if (attempt.base.has_value()) *index.mutable_parent() = *attempt.base;
  index.set_mode(attempt.mode);
  if (!facts_.mode().synchronous()) *index.mutable_ledger() = snapshot_->ledger;
  index.set_samples(facts_.mode().SamplesOf(*snapshot_));

  index.set_seed(facts_.job().training().seed());
  index.set_optimizer(OptimizerNames(facts_.job().optimizer()));
  *index.mutable_table() = attempt.model.ready->table();
  index.set_training_samples(attempt.model.ready->training_samples());
  *index.mutable_digests() = attempt.model.ready->digests();
  *index.mutable_layout() = attempt.layout;

  for (const auto& [shard, files] : saving_->written) {
    for (const v1::PartitionFile& file : files) *index.add_files() = file;
  }
  std::sort(index.mutable_files()->begin(), index.mutable_files()->end(),
            [](const auto& a, const auto& b) { return a.partition() < b.partition(); });

  index.set_time(absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone()));
  index.set_build(facts_.options.build);
  index.set_isa(facts_.Arithmetic());
  *index.mutable_environment() = attempt.model.ready->environment();
  if (facts_.meter.has_loss()) index.set_loss(facts_.meter.loss());

  if (facts_.attempt.decisions.step() > 0) *index.mutable_decisions() = facts_.attempt.decisions;
  NoteComparedMetrics(facts_.job(), &index);
  if (facts_.last_evaluation.has_value() && facts_.last_evaluation->step() == snapshot_->step) {
    AddMetrics(*facts_.last_evaluation, &index);
  }
  if (facts_.last_evaluation.has_value()) {
    const v1::Evaluation& evaluation = *facts_.last_evaluation;
    index.set_has_metric(true);
    index.set_metric(evaluation.has_accuracy()     ? evaluation.accuracy()
                     : evaluation.has_perplexity() ? evaluation.perplexity()
                                                   : evaluation.loss());
  }
  return index;
}

void Checkpoints::OnIndexWritten(const v1::CheckpointRef& checkpoint, const absl::Status& status,
                                 absl::Time now) {
  if (!Is(Saving::State::kWriting) || !SameCheckpoint(snapshot_->name, checkpoint)) return;
  if (status.ok()) {
    Finish(now);
  } else {
    incomplete_.insert(snapshot_->step);
    Fail(absl::StrCat("the checkpoint index cannot be written: ", status.message()), now);
  }
}

void Checkpoints::Finish(absl::Time now) {
  SLUICE_DCHECK(!MissingPartition().has_value(), "a complete checkpoint has all partitions");
  SLUICE_DCHECK(incomplete_.count(snapshot_->step) == 0, "a complete checkpoint is not removed");
  saving_->state = Saving::State::kDone;

  uint64_t bytes = 0;
  for (const auto& [shard, files] : saving_->written) {
    for (const v1::PartitionFile& file : files) bytes += file.bytes();
  }

  *status_.mutable_last() = snapshot_->name;
  status_.set_directory(snapshot_->directory);
  status_.set_bytes(bytes);
  status_.set_seconds(saving_->seconds);
  status_.clear_error();
  schedule_.Done(facts_.mode().DoneStepOf(*snapshot_), now);
  final_failures_ = 0;
  final_problems_.clear();

  output_.events().Add(
      v1::Event::CHECKPOINT,
      absl::StrFormat("checkpoint at step %d saved (%s)", snapshot_->step, SizeText(bytes)), now);

  RemoveIncompletes();
  stored_.push_back(snapshot_->name);
  if (const std::optional<ValuedCheckpoint> valued = Valued(); valued.has_value()) {
    values_.push_back(*valued);
    if (const auto best = BestWith(std::nullopt);
        IsIn({best.begin(), best.begin() + 1}, valued->first)) {
      output_.Info(
          absl::StrFormat("the checkpoint of step %d is the best one: %s %.6g", snapshot_->step,
                          facts_.job().checkpoint().keep_best().metric(), valued->second),
          now);
    }
  }
  RemoveReplaced(snapshot_->name);
}

void Checkpoints::RemoveReplaced(const v1::CheckpointRef& newest) {
  std::vector<v1::CheckpointRef> unneeded =
      ReplacedCheckpoints(facts_.job(), facts_.storage.claims, stored_);
  const std::vector<v1::CheckpointRef> best = BestWith(std::nullopt);
  for (v1::CheckpointRef& old :
       Superseded(stored_, newest, facts_.job().checkpoint().max_to_keep())) {
    const bool known = IsIn(unneeded, old) || IsIn(best, old);
    if (!known) unneeded.push_back(std::move(old));
  }

  for (const v1::CheckpointRef& old : unneeded) {
    SLUICE_DCHECK(!SameCheckpoint(old, newest), "the newest checkpoint is kept");
    output_.Add(DeleteCheckpoint{old, facts_.attempt.id.number});
    stored_.erase(std::remove_if(stored_.begin(), stored_.end(),
                                 [&](const auto& other) { return SameCheckpoint(other, old); }),
                  stored_.end());
    values_.erase(
        std::remove_if(values_.begin(), values_.end(),
                       [&](const auto& entry) { return SameCheckpoint(entry.first, old); }),
        values_.end());
  }
}

// Whether no coordinator saves this version of the attempt any more. A coordinator that takes the
// attempt over begins with the newest committed version, so it may save that one and later ones.
// The coordinator before this one may be about to write the index of the version that this one
// began with. A checkpoint of a later version replaces both. Only versions that are committed in a
// view of this coordinator count (OnShardProgress takes no other reports): a later coordinator may
// save this version and then pass it.
bool Checkpoints::IsOver(uint64_t step) const {
  if (saving_.has_value() && snapshot_->step == step) return false;  // it is being saved
  const uint64_t passed = facts_.mode().ShownStep();
  const bool replaced =
      status_.last().attempt() == facts_.attempt.id.number && step < status_.last().step();
  return replaced || (first_step_ < step && step < passed);
}

// Shards may still be writing. Files that arrive later are removed when the next attempt begins.
void Checkpoints::RemoveIncompletes() {
  for (auto step = incomplete_.begin(); step != incomplete_.end();) {
    if (!IsOver(*step)) {
      ++step;
      continue;
    }
    RemoveIncomplete remove;
    remove.checkpoint.set_attempt(facts_.attempt.id.number);
    remove.checkpoint.set_step(*step);
    output_.Add(std::move(remove));
    step = incomplete_.erase(step);
  }
}

void Checkpoints::Fail(const std::string& why, absl::Time now) {
  SLUICE_DCHECK(snapshot_.has_value(), "the checkpoint of the open snapshot fails");
  // Another shard has reported it, or the snapshot is no checkpoint, or is already a complete one.
  if (!saving()) return;
  status_.set_error(why);
  if (!snapshot_->final ||
      (final_problems_.size() < kMaxFinalProblems && final_problems_.insert(why).second)) {
    output_.Warn(
        absl::StrCat(
            "no checkpoint at step ", snapshot_->step, ": ", why,
            snapshot_->final ? "; the job waits until its last checkpoint can be saved" : ""),
        now);
  }
  schedule_.Done(facts_.mode().DoneStepOf(*snapshot_), now);
  saving_.reset();
  RemoveIncompletes();
  if (snapshot_->final) final_retry_at_ = now + facts_.timers.RetryDelay(++final_failures_);
}

// ---- the end of the job

void Checkpoints::OnEndRecord(const absl::Status& status, absl::Time now) {
  if (status.ok()) {
    status_.clear_error();
    return;
  }
  const std::string why = absl::StrCat("the end cannot be recorded: ", status.message());
  if (status_.error() != why) output_.Warn(why + "; the job waits until it can", now);
  status_.set_error(why);
}

absl::Time Checkpoints::NextDeadline() const {
  return facts_.newest_event < final_retry_at_ ? final_retry_at_ : absl::InfiniteFuture();
}

}  // namespace sluice::coordinator

#include "services/coordinator/core/facts/snapshot.h"

#include <algorithm>

#include "services/common/check.h"

namespace sluice::coordinator {

void IntervalSchedule::Done(uint64_t step, absl::Time now) {
  done_step_ = step;
  done_time_ = now;
  if (due_step_.has_value() && step >= *due_step_) due_step_.reset();
}

void IntervalSchedule::MakeDue(uint64_t step) {
  if (step > done_step_ && !due_step_.has_value()) due_step_ = step;
}

std::optional<uint64_t> IntervalSchedule::NextStep(uint64_t earliest, absl::Time now) const {
  std::optional<uint64_t> next;
  if (steps_ > 0) next = std::max(earliest, (done_step_ / steps_ + 1) * steps_);
  if (NextTime() <= now || due_step_.has_value()) {
    // There must be something new to save or evaluate.
    const uint64_t soon = std::max(earliest, done_step_ + 1);
    next = std::min(next.value_or(soon), soon);
  }
  SLUICE_DCHECK(!next.has_value() || *next >= earliest, "no shard is past the next step");
  return next;
}

uint64_t IntervalSchedule::NextMultiple(uint64_t from) const {
  if (steps_ == 0) return 0;
  return std::max((done_step_ / steps_ + 1) * steps_, (from + steps_ - 1) / steps_ * steps_);
}

absl::Time IntervalSchedule::NextTime() const {
  if (time_ <= absl::ZeroDuration()) return absl::InfiniteFuture();
  return done_time_ + time_;
}

std::optional<SnapshotPlan> PlanSnapshot(const IntervalSchedule& checkpoints,
                                         const IntervalSchedule& evaluations, uint64_t earliest,
                                         uint64_t end, absl::Time now) {
  const std::optional<uint64_t> checkpoint = checkpoints.NextStep(earliest, now);
  const std::optional<uint64_t> evaluation = evaluations.NextStep(earliest, now);
  SnapshotPlan plan;
  plan.step = std::min(checkpoint.value_or(end), evaluation.value_or(end));
  if (plan.step >= end) return std::nullopt;
  plan.checkpoint = checkpoint == plan.step;
  plan.evaluation = evaluation == plan.step;
  SLUICE_DCHECK(plan.checkpoint || plan.evaluation, "a planned snapshot has a purpose");
  return plan;
}

bool Snapshot::PinnedBy(const std::vector<uint64_t>& shards) const {
  return std::all_of(shards.begin(), shards.end(),
                     [this](uint64_t shard) { return pinned.count(shard) > 0; });
}

v1::OpenSnapshot Snapshot::Message() const {
  SLUICE_DCHECK(write == !directory.empty(), "a checkpoint has a directory");
  v1::OpenSnapshot message;
  message.set_snapshot_id(id);
  message.set_step(step);
  message.set_write(write);
  message.set_directory(directory);
  *message.mutable_name() = name;
  return message;
}

bool SurvivesViewChange(const Snapshot& snapshot, uint64_t first_step,
                        const std::vector<uint64_t>& shards, bool owners_change) {
  if (owners_change) return snapshot.step > first_step;
  return snapshot.step >= first_step || snapshot.PinnedBy(shards);
}

}  // namespace sluice::coordinator

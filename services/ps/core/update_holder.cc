#include "services/ps/core/update_holder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/check_errors.h"
#include "services/ps/core/copy_checks.h"
#include "services/ps/core/copy_step.h"
#include "services/ps/core/update_arguments.h"

namespace sluice::ps {

absl::StatusOr<Handled> UpdateHolder::OnEntry(uint64_t sender, const v1::CopyEntry& entry,
                                              const absl::Cord& payload) {
  if (!state_.MayChange()) return Handled::kWait;
  RETURN_IF_ERROR(CheckCopyEntry(state_, sender, entry));
  uint64_t& last = carried_out_[sender];
  if (entry.sequence() > last + 1) {
    return Invalid("entry ", entry.sequence(), " comes after entry ", last);
  }
  if (entry.sequence() == last + 1) {
    RETURN_IF_ERROR(CarryOut(sender, entry, payload));
    last = entry.sequence();
  }
  Ack(sender);
  return Handled::kDone;
}

absl::Status UpdateHolder::CarryOut(uint64_t sender, const v1::CopyEntry& entry,
                                    const absl::Cord& payload) {
  if (entry.has_staged()) return Stage(sender, entry, payload);
  if (entry.has_applied()) return Apply(sender, entry);
  leased_(entry.worker(), entry.leased());
  return absl::OkStatus();
}

// The owners' updates wait for acks, so at most one more update of each worker comes until a copy
// is whole. A Pause needs no acks here: an owner replies to it between updates.
bool UpdateHolder::QueueIsFull() const {
  return queued_bytes_ > state_.options.max_copy_queue_bytes;
}

void UpdateHolder::Ack(uint64_t owner) {
  if (QueueIsFull()) {
    held_back_.insert(owner);
    state_.Reached(Bound::kCopyQueueBytes);
    return;
  }
  for (const v1::View::Shard& shard : state_.view->proto().shards()) {
    if (shard.process().incarnation() != owner) continue;
    SendToShard action;
    action.shard = shard.process();
    action.address = shard.address();
    action.header = state_.NewHeader();
    action.header.mutable_copy_ack()->set_sequence(carried_out_[owner]);
    state_.actions.push_back(std::move(action));
  }
}

void UpdateHolder::OnShardConnected(uint64_t incarnation) {
  // (R2) What was acked before a promise may be acked again.
  if (state_.view.has_value() && carried_out_.count(incarnation) > 0) Ack(incarnation);
}

// ---- updates

absl::Status UpdateHolder::Stage(uint64_t sender, const v1::CopyEntry& entry,
                                 const absl::Cord& payload) {
  const v1::CopyStep& step = entry.staged();
  Update& update = staged_[{sender, entry.worker()}];
  if (update.clock != step.step()) {
    if (!update.parts.empty()) {
      return Invalid("update ", step.step(), " of a worker is staged while ", update.clock,
                     " waits");
    }
    update.clock = step.step();
  }

  Part& part = update.parts[step.partition()];
  if (part.arrived.empty()) {
    part.arrived.resize(step.parts());
    part.missing = step.parts();
    part.sums.resize(state_.model->BlockCount(step.partition()));
    part.arguments.schedule_step = entry.ordinal();
    part.arguments.gradient_scale = step.gradient_scale();
    part.arguments.buffer_scale = step.buffer_scale();
  }
  if (step.parts() != part.arrived.size() || part.arrived[step.part()]) {
    return Invalid("part ", step.part(), " of ", step.parts(), " of update ", step.step(),
                   " of partition ", step.partition(), " comes twice, or has another number");
  }
  RETURN_IF_ERROR(AddPart(*state_.model, step, payload, &part.sums));
  part.arrived[step.part()] = true;
  part.bytes += payload.size();
  --part.missing;
  return absl::OkStatus();
}

absl::Status UpdateHolder::Apply(uint64_t sender, const v1::CopyEntry& entry) {
  const v1::ClockRecord record = RecordOf(entry.worker(), entry.applied());
  const auto found = staged_.find({sender, entry.worker()});
  if (found == staged_.end() || found->second.clock != record.clock()) {
    return Invalid("update ", record.clock(), " is applied, which is not staged");
  }
  std::map<uint32_t, Part> parts = std::move(found->second.parts);
  staged_.erase(found);
  for (const auto& [number, part] : parts) {
    if (part.missing > 0) return Invalid("update ", record.clock(), " is not staged whole");
  }
  for (const auto& [number, copy] : state_.copies) {
    if (state_.view->OwnerOf(number).process().incarnation() == sender &&
        parts.count(number) == 0) {
      return Invalid("update ", record.clock(), " lacks partition ", number);
    }
  }

  for (auto& [number, part] : parts) {
    part.arguments.schedule_step = entry.applied().ordinal();
    const auto copy = state_.copies.find(number);
    if (copy == state_.copies.end()) {
      queued_bytes_ += part.bytes;
      queued_[number].push_back({record, std::move(part)});
      continue;
    }
    ApplyTo(copy->second.get(), record, &part);
    if (!state_.failure.empty()) return absl::OkStatus();
  }
  Note(record);
  return absl::OkStatus();
}

void UpdateHolder::ApplyTo(Partition* copy, const v1::ClockRecord& record, Part* part) {
  clocks_[copy->id()][record.worker()] = record.clock();
  copy->SetVersion(copy->version() + 1);
  if (IsSkipped(state_.job, record)) return;
  UpdateArguments arguments = ArgumentsFor(state_.job, part->arguments, record);
  arguments.learning_rate_factor = state_.LearningRateFactorAt(0);
  absl::Status applied = copy->Apply(arguments,
                                     /*base=*/nullptr, &part->sums, *state_.pool, state_.parallel);
  if (!applied.ok()) {
    state_.Fail(absl::StrCat("update ", record.clock(), " of a copy: ", applied.message()));
  }
}

void UpdateHolder::Note(const v1::ClockRecord& record) {
  v1::ClockRecord& newest = copied_[record.worker()];
  if (record.clock() > newest.clock()) newest = record;
}

uint64_t UpdateHolder::AppliedClock(uint32_t partition, uint64_t worker) const {
  if (const auto copy = clocks_.find(partition); copy != clocks_.end()) {
    const auto clock = copy->second.find(worker);
    if (clock != copy->second.end()) return clock->second;
  }
  const auto base = base_.find(worker);
  return base == base_.end() ? 0 : base->second;
}

absl::Status UpdateHolder::CatchUp(const PartitionContent& content, Partition* copy) {
  std::map<uint64_t, uint64_t>& clocks = clocks_[copy->id()];
  for (const v1::ClockRecord& record : content.clocks) {
    if (record.clock() > AppliedClock(copy->id(), record.worker())) Note(record);
    clocks[record.worker()] = record.clock();
  }
  std::vector<Queued> queued = std::move(queued_[copy->id()]);
  queued_.erase(copy->id());
  for (const Queued& update : queued) queued_bytes_ -= update.part.bytes;
  for (Queued& update : queued) {
    if (update.record.clock() <= AppliedClock(copy->id(), update.record.worker())) {
      return Invalid("update ", update.record.clock(), " is in the state of partition ", copy->id(),
                     " and comes after it");
    }
    ApplyTo(copy, update.record, &update.part);
  }
  for (const uint64_t owner : std::exchange(held_back_, {})) Ack(owner);
  return absl::OkStatus();
}

// ---- views

void UpdateHolder::Settle(const v1::Install& install) {
  std::vector<uint32_t> behind;
  for (const auto& [number, copy] : state_.copies) {
    for (const v1::ClockRecord& winner : install.clocks()) {
      if (Settle(winner, copy.get())) continue;
      behind.push_back(number);
      break;
    }
  }
  for (const uint32_t number : behind) state_.copies.erase(number);
}

// False: the copy lacks the update.
bool UpdateHolder::Settle(const v1::ClockRecord& winner, Partition* copy) {
  if (AppliedClock(copy->id(), winner.worker()) >= winner.clock()) return true;
  const uint64_t owner = state_.view->OwnerOf(copy->id()).process().incarnation();
  const auto update = staged_.find({owner, winner.worker()});
  if (update == staged_.end() || update->second.clock != winner.clock()) return false;
  const auto part = update->second.parts.find(copy->id());
  if (part == update->second.parts.end() || part->second.missing > 0) return false;
  if (state_.rules.ApplyWinners()) ApplyTo(copy, winner, &part->second);
  return true;
}

void UpdateHolder::OnInstalled(const std::map<uint64_t, v1::ClockRecord>& clocks) {
  Clear();
  for (const auto& [worker, record] : clocks) base_[worker] = record.clock();
}

void UpdateHolder::Clear() {
  carried_out_.clear();
  staged_.clear();
  queued_.clear();
  queued_bytes_ = 0;
  held_back_.clear();
  base_.clear();
  clocks_.clear();
  copied_.clear();
}

void UpdateHolder::FillPauseReply(v1::PauseReply* reply) const {
  for (const auto& [worker, record] : copied_) *reply->add_copied() = record;
}

}  // namespace sluice::ps

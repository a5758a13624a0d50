#include "services/ps/core/replication/update_holder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/base/check_errors.h"
#include "services/ps/core/replication/checks.h"
#include "services/ps/core/replication/copy_step.h"
#include "services/ps/core/state/update_arguments.h"

namespace sluice::ps {

absl::StatusOr<Handled> UpdateHolder::OnEntry(uint64_t sender, const v1::CopyEntry& entry,
                                              const absl::Cord& payload) {
  if (!state_.MayChange()) return Handled::kWait;
  RETURN_IF_ERROR(CheckCopyEntry(state_, sender, entry));
  uint64_t& last = of_view_.carried_out[sender];
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
  return of_view_.queued_bytes > state_.options().max_copy_queue_bytes;
}

void UpdateHolder::Ack(uint64_t owner) {
  if (QueueIsFull()) {
    of_view_.held_back.insert(owner);
    out_.Reached(Bound::kCopyQueueBytes);
    return;
  }
  for (const v1::View::Shard& shard : state_.view()->proto().shards()) {
    if (shard.process().incarnation() != owner) continue;
    SendToShard action = state_.NewMessageTo(shard);
    action.header.mutable_copy_ack()->set_sequence(of_view_.carried_out[owner]);
    out_.Add(std::move(action));
  }
}

void UpdateHolder::OnShardConnected(uint64_t incarnation) {
  // (R2) What was acked before a promise may be acked again.
  if (state_.view().has_value() && of_view_.carried_out.count(incarnation) > 0) Ack(incarnation);
}

// ---- updates

absl::Status UpdateHolder::Stage(uint64_t sender, const v1::CopyEntry& entry,
                                 const absl::Cord& payload) {
  const v1::CopyStep& step = entry.staged();
  Update& update = of_view_.staged[{sender, entry.worker()}];
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
    part.sums.resize(state_.model()->BlockCount(step.partition()));
    part.arguments.schedule_step = entry.ordinal();
    part.arguments.gradient_scale = step.gradient_scale();
    part.arguments.buffer_scale = step.buffer_scale();
  }
  if (step.parts() != part.arrived.size() || part.arrived[step.part()]) {
    return Invalid("part ", step.part(), " of ", step.parts(), " of update ", step.step(),
                   " of partition ", step.partition(), " comes twice, or has another number");
  }
  RETURN_IF_ERROR(AddPart(*state_.model(), step, payload, &part.sums));
  part.arrived[step.part()] = true;
  part.bytes += payload.size();
  --part.missing;
  return absl::OkStatus();
}

absl::Status UpdateHolder::Apply(uint64_t sender, const v1::CopyEntry& entry) {
  const v1::ClockRecord record = RecordOf(entry.worker(), entry.applied());
  const auto found = of_view_.staged.find({sender, entry.worker()});
  if (found == of_view_.staged.end() || found->second.clock != record.clock()) {
    return Invalid("update ", record.clock(), " is applied, which is not staged");
  }
  std::map<uint32_t, Part> parts = std::move(found->second.parts);
  of_view_.staged.erase(found);
  for (const auto& [number, part] : parts) {
    if (part.missing > 0) return Invalid("update ", record.clock(), " is not staged whole");
  }
  for (const auto& [number, copy] : copies_) {
    if (state_.view()->OwnerOf(number).process().incarnation() == sender &&
        parts.count(number) == 0) {
      return Invalid("update ", record.clock(), " lacks partition ", number);
    }
  }

  for (auto& [number, part] : parts) {
    part.arguments.schedule_step = entry.applied().ordinal();
    const auto copy = copies_.find(number);
    if (copy == copies_.end()) {
      of_view_.queued_bytes += part.bytes;
      of_view_.queued[number].push_back({record, std::move(part)});
      continue;
    }
    ApplyTo(&copy->second, record, &part);
    if (state_.failed()) return absl::OkStatus();
  }
  Note(record);
  return absl::OkStatus();
}

void UpdateHolder::ApplyTo(Partition* copy, const v1::ClockRecord& record, Part* part) {
  of_view_.clocks[copy->id()][record.worker()] = record.clock();
  copy->SetVersion(copy->version() + 1);
  if (IsSkipped(state_.job(), record)) return;
  UpdateArguments arguments = ArgumentsFor(state_.job(), part->arguments, record);
  arguments.learning_rate_factor = state_.barrier().LearningRateFactorAt(0);
  absl::Status applied =
      copy->Apply(arguments,
                  /*base=*/nullptr, &part->sums, *state_.pool(), state_.parallel());
  if (!applied.ok()) {
    failure_.Fail(absl::StrCat("update ", record.clock(), " of a copy: ", applied.message()));
  }
}

void UpdateHolder::Note(const v1::ClockRecord& record) {
  v1::ClockRecord& newest = of_view_.copied[record.worker()];
  if (record.clock() > newest.clock()) newest = record;
}

uint64_t UpdateHolder::AppliedClock(uint32_t partition, uint64_t worker) const {
  if (const auto copy = of_view_.clocks.find(partition); copy != of_view_.clocks.end()) {
    const auto clock = copy->second.find(worker);
    if (clock != copy->second.end()) return clock->second;
  }
  const auto base = of_view_.base.find(worker);
  return base == of_view_.base.end() ? 0 : base->second;
}

absl::Status UpdateHolder::CatchUp(const PartitionContent& content, Partition* copy) {
  std::map<uint64_t, uint64_t>& clocks = of_view_.clocks[copy->id()];
  for (const v1::ClockRecord& record : content.clocks) {
    if (record.clock() > AppliedClock(copy->id(), record.worker())) Note(record);
    clocks[record.worker()] = record.clock();
  }
  std::vector<Queued> queued = std::move(of_view_.queued[copy->id()]);
  of_view_.queued.erase(copy->id());
  for (const Queued& update : queued) of_view_.queued_bytes -= update.part.bytes;
  for (Queued& update : queued) {
    if (update.record.clock() <= AppliedClock(copy->id(), update.record.worker())) {
      return Invalid("update ", update.record.clock(), " is in the state of partition ", copy->id(),
                     " and comes after it");
    }
    ApplyTo(copy, update.record, &update.part);
  }
  for (const uint64_t owner : std::exchange(of_view_.held_back, {})) Ack(owner);
  return absl::OkStatus();
}

// ---- views

void UpdateHolder::Settle(const v1::Install& install) {
  std::vector<uint32_t> behind;
  for (auto& [number, copy] : copies_) {
    for (const v1::ClockRecord& winner : install.clocks()) {
      if (Settle(winner, &copy)) continue;
      behind.push_back(number);
      break;
    }
  }
  for (const uint32_t number : behind) copies_.erase(number);
}

// False: the copy lacks the update.
bool UpdateHolder::Settle(const v1::ClockRecord& winner, Partition* copy) {
  if (AppliedClock(copy->id(), winner.worker()) >= winner.clock()) return true;
  const uint64_t owner = state_.view()->OwnerOf(copy->id()).process().incarnation();
  const auto update = of_view_.staged.find({owner, winner.worker()});
  if (update == of_view_.staged.end() || update->second.clock != winner.clock()) return false;
  const auto part = update->second.parts.find(copy->id());
  if (part == update->second.parts.end() || part->second.missing > 0) return false;
  if (state_.rules().ApplyWinners()) ApplyTo(copy, winner, &part->second);
  return true;
}

void UpdateHolder::OnInstalled(const std::map<uint64_t, v1::ClockRecord>& clocks) {
  of_view_ = {};
  for (const auto& [worker, record] : clocks) of_view_.base[worker] = record.clock();
  for (auto& [number, copy] : copies_) copy.SetVersion(state_.updates());
}

void UpdateHolder::FillPauseReply(v1::PauseReply* reply) const {
  for (const auto& [worker, record] : of_view_.copied) *reply->add_copied() = record;
}

}  // namespace sluice::ps

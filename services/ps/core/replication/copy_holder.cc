#include "services/ps/core/replication/copy_holder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/base/check_errors.h"
#include "services/ps/core/replication/checks.h"

namespace sluice::ps {
namespace {

v1::PartitionFile FileOf(const v1::CopyState& state) {
  v1::PartitionFile file;
  file.set_partition(state.partition());
  file.set_name(PartitionFileName(state.partition()));
  file.set_bytes(state.file_bytes());
  file.set_crc32c(state.file_crc32c());
  file.set_state_hash(state.state_hash());
  return file;
}

}  // namespace

// ---- the state

absl::StatusOr<Handled> CopyHolder::OnState(uint64_t sender, const v1::CopyState& state,
                                            const absl::Cord& payload) {
  RETURN_IF_ERROR(CheckCopyState(state_, sender, state, payload.size()));
  const uint32_t number = state.partition();
  if (const auto whole = copies_.find(number); whole != copies_.end()) {
    Ack(number, whole->second.version(), true);
    return Handled::kDone;
  }

  Receiving& receiving = receiving_[number];
  if (receiving.parts.empty()) {
    receiving.version = state.version();
    receiving.file = FileOf(state);
    receiving.parts.resize(state.parts());
    receiving.missing = state.parts();
  }
  if (state.version() != receiving.version || state.parts() != receiving.parts.size() ||
      state.file_crc32c() != receiving.file.crc32c()) {
    return Invalid("a part of version ", state.version(), " of partition ", number,
                   ", of which version ", receiving.version, " is being received");
  }
  if (receiving.missing > 0 && receiving.parts[state.part()].empty()) {
    receiving.parts[state.part()] = payload;
    out_.CountCopiedBytes(payload.size());
    if (--receiving.missing == 0) Read(&receiving);
  }
  return Handled::kDone;
}

void CopyHolder::Read(Receiving* receiving) {
  ReadCopy action;
  action.transfer = receiving->transfer = out_.NewTransfer();
  action.file = receiving->file;
  for (absl::Cord& part : receiving->parts) action.bytes.Append(std::exchange(part, absl::Cord()));
  action.model = state_.model();
  action.pool = state_.pool();
  out_.Add(std::move(action));
}

void CopyHolder::OnRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read) {
  const auto found = std::find_if(receiving_.begin(), receiving_.end(), [&](const auto& entry) {
    return entry.second.transfer == transfer;
  });
  if (found == receiving_.end()) return;
  auto& [number, receiving] = *found;
  if (!read.ok()) return Drop(number, std::move(read).status());
  receiving.content = std::move((*read)->content);
  if (receiving.content->version != receiving.version) {
    return Drop(number, Invalid("the state of partition ", number, " is of version ",
                                receiving.content->version, ", not ", receiving.version));
  }
  receiving.copy = std::make_unique<Partition>(state_.model(), number, receiving.version,
                                               std::move(receiving.content->blocks));
  receiving.copy->Reserve(std::move((*read)->memory));
}

void CopyHolder::Drop(uint32_t partition, absl::Status why) {
  receiving_.erase(partition);
  const uint64_t owner = state_.view()->OwnerOf(partition).process().incarnation();
  if (const Stream* stream = streams_.Find(v1::SHARD, owner)) {
    streams_.Close(stream->id, std::move(why));
  }
}

void CopyHolder::OnTick() {
  if (MustAckHeldBack()) {
    for (auto& [number, receiving] : receiving_) {
      if (std::exchange(receiving.held_back, false)) Ack(number, HeldBy(receiving), false);
    }
  }
  const std::optional<uint32_t> due = FindDue();
  if (!due.has_value()) return;
  Receiving& receiving = receiving_.at(*due);
  absl::StatusOr<bool> caught_up = CatchUp(&receiving);
  if (caught_up.ok() && !*caught_up) return;
  absl::Status done = caught_up.ok() ? BecomeWhole(*due, &receiving) : caught_up.status();
  if (!done.ok()) return Drop(*due, std::move(done));
  receiving_.erase(*due);
}

absl::Time CopyHolder::NextDeadline() const {
  return FindDue().has_value() || MustAckHeldBack() ? state_.now() : absl::InfiniteFuture();
}

// The owners' steps wait for acks, so no more steps come until a copy is whole.
bool CopyHolder::QueueIsFull() const {
  return QueuedBytes() > state_.options().max_copy_queue_bytes;
}

uint64_t CopyHolder::QueuedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, receiving] : receiving_) {
    for (const auto& [version, step] : receiving.steps) bytes += step.bytes;
  }
  return bytes;
}

bool CopyHolder::MustAckHeldBack() const {
  if (state_.MayChange()) return false;
  for (const auto& [number, receiving] : receiving_) {
    if (receiving.held_back) return true;
  }
  return false;
}

std::optional<uint32_t> CopyHolder::FindDue() const {
  if (!state_.MayChange()) return std::nullopt;
  for (const auto& [number, receiving] : receiving_) {
    if (receiving.copy == nullptr) continue;
    const bool arrived = !receiving.steps.empty() && receiving.steps.begin()->second.missing == 0;
    if (!arrived || !state_.AwaitsDecisions(receiving.copy->version())) return number;
  }
  return std::nullopt;
}

absl::StatusOr<bool> CopyHolder::CatchUp(Receiving* receiving) {
  std::map<uint64_t, Step>& steps = receiving->steps;
  const auto arrived = [&] { return !steps.empty() && steps.begin()->second.missing == 0; };
  if (!arrived()) return true;
  SLUICE_DCHECK(steps.begin()->first == receiving->copy->version(),
                "the steps of a copy come without gaps");
  RETURN_IF_ERROR(Close(*receiving->copy, &steps.begin()->second));
  steps.erase(steps.begin());
  return !arrived();
}

absl::Status CopyHolder::BecomeWhole(uint32_t number, Receiving* receiving) {
  if (!receiving->steps.empty()) arriving_[number] = std::move(receiving->steps.begin()->second);
  RETURN_IF_ERROR(updates_.CatchUp(*receiving->content, receiving->copy.get()));
  Ack(number, receiving->copy->version(), true);
  copies_.try_emplace(number, std::move(*receiving->copy));
  changed_();
  return absl::OkStatus();
}

// ---- steps

absl::StatusOr<Handled> CopyHolder::OnStep(uint64_t sender, const v1::CopyStep& step,
                                           const absl::Cord& payload) {
  RETURN_IF_ERROR(CheckCopyStep(state_, sender, step));
  const uint32_t number = step.partition();
  const auto whole = copies_.find(number);
  if (whole == copies_.end()) {
    // The owner sends the state again on each new stream, before it sends steps.
    const auto found = receiving_.find(number);
    if (found == receiving_.end()) {
      return Invalid("step ", step.step(), " of partition ", number, " comes before its state");
    }
    Receiving& receiving = found->second;
    const uint64_t held = HeldBy(receiving);
    if (step.step() > held) {
      return Invalid("step ", step.step(), " of partition ", number, " comes before step ", held);
    }
    if (!state_.MayChange()) {
      // The next Install drops the copy, so its steps would only take memory: an owner that is cut
      // off from the coordinator may train for as long as this shard waits.
      receiving.discarded = std::max(held, step.step() + 1);
      Ack(number, HeldBy(receiving), false);
      return Handled::kDone;
    }
    if (step.step() == held) RETURN_IF_ERROR(Take(step, payload, &receiving.steps[held]));
    // A copy that becomes whole acks all its steps.
    receiving.held_back = QueueIsFull();
    if (receiving.held_back) {
      out_.Reached(Bound::kCopyQueueBytes);
    } else {
      Ack(number, HeldBy(receiving), false);
    }
    return Handled::kDone;
  }

  Partition& partition = whole->second;
  // A repetition is acked even during a promise, which it does not touch: the owner may need the
  // ack to stop after this step.
  if (step.step() < partition.version()) {
    Ack(number, partition.version(), true);
    return Handled::kDone;
  }
  if (!state_.MayChange()) return Handled::kDone;
  if (step.step() > partition.version()) {
    return Invalid("step ", step.step(), " of partition ", number, ", whose copy is at version ",
                   partition.version());
  }
  Step& arriving = arriving_[number];
  RETURN_IF_ERROR(Take(step, payload, &arriving));
  RETURN_IF_ERROR(TryClose(number));
  return Handled::kDone;
}

absl::Status CopyHolder::TryClose(uint32_t number) {
  Partition& partition = copies_.at(number);
  const auto arriving = arriving_.find(number);
  if (arriving == arriving_.end() || arriving->second.missing > 0) return absl::OkStatus();
  if (state_.AwaitsDecisions(partition.version())) return absl::OkStatus();
  Step complete = std::move(arriving->second);
  arriving_.erase(arriving);
  RETURN_IF_ERROR(Close(partition, &complete));
  changed_();
  Ack(number, partition.version(), true);
  return absl::OkStatus();
}

void CopyHolder::OnBarrierMoved() {
  for (const auto& [number, partition] : copies_) {
    if (!state_.MayChange()) return;
    // The step's parts were checked when they came, so only memory can be missing here.
    if (absl::Status closed = TryClose(number); !closed.ok()) {
      failure_.Fail(absl::StrCat("the copy of partition ", number, ": ", closed.message()));
      return;
    }
  }
}

absl::Status CopyHolder::Take(const v1::CopyStep& part, const absl::Cord& payload, Step* step) {
  if (step->arrived.empty()) {
    step->arrived.resize(part.parts());
    step->missing = part.parts();
    step->sums.resize(state_.model()->BlockCount(part.partition()));
    step->close.arguments.schedule_step = part.step();
    step->close.arguments.gradient_scale = part.gradient_scale();
    step->close.arguments.buffer_scale = part.buffer_scale();
    step->close.unchanged = part.unchanged();
  }
  if (part.parts() != step->arrived.size()) {
    return Invalid("step ", part.step(), " of partition ", part.partition(), " has ",
                   step->arrived.size(), " parts, and now ", part.parts());
  }
  if (step->arrived[part.part()]) return absl::OkStatus();
  RETURN_IF_ERROR(AddPart(*state_.model(), part, payload, &step->sums));
  step->arrived[part.part()] = true;
  step->bytes += payload.size();
  --step->missing;
  return absl::OkStatus();
}

// The owner closes a step only when all of its contributions have come: every member held every
// partition at this step, so the version of this step is committed and needs no undo.
absl::Status CopyHolder::Close(Partition& partition, Step* step) {
  partition.DropUndo();
  if (step->close.unchanged) {
    partition.CloseUnchanged();
    return absl::OkStatus();
  }
  step->close.arguments.learning_rate_factor =
      state_.barrier().LearningRateFactorAt(step->close.arguments.schedule_step);
  return partition.CloseWith(step->close.arguments, &step->sums, *state_.pool(), state_.parallel());
}

// ---- acks

uint64_t CopyHolder::HeldBy(const Receiving& receiving) const {
  uint64_t held = receiving.copy != nullptr ? receiving.copy->version() : receiving.version;
  for (const auto& [step, arrived] : receiving.steps) {
    if (arrived.missing == 0) held = step + 1;
  }
  return std::max(held, receiving.discarded);
}

void CopyHolder::Ack(uint32_t partition, uint64_t version, bool whole) {
  const v1::View::Shard& owner = state_.view()->OwnerOf(partition);
  SendToShard action = state_.NewMessageTo(owner);
  v1::CopyAck& ack = *action.header.mutable_copy_ack();
  ack.set_partition(partition);
  ack.set_version(version);
  ack.set_whole(whole);
  out_.Add(std::move(action));
}

void CopyHolder::OnShardConnected(uint64_t incarnation) {
  if (!state_.view().has_value()) return;
  const auto is_owner = [&](uint32_t partition) {
    return state_.view()->OwnerOf(partition).process().incarnation() == incarnation;
  };
  for (const auto& [number, receiving] : receiving_) {
    if (is_owner(number)) Ack(number, HeldBy(receiving), false);
  }
  // (R2) What was acked before a promise may be acked again.
  for (const auto& [number, partition] : copies_) {
    if (is_owner(number)) Ack(number, partition.version(), true);
  }
}

// ---- views

void CopyHolder::OnInstalled() {
  receiving_.clear();
  arriving_.clear();
}

}  // namespace sluice::ps

#include "services/ps/core/replication/sender.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/base/check_errors.h"
#include "services/ps/core/replication/checks.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {

// ---- steps

std::set<uint64_t> CopySender::ReceiversOf(uint32_t partition) const {
  std::set<uint64_t> receivers;
  for (const auto& [incarnation, receiver] : receivers_) {
    if (receiver.acked.count(partition) > 0) receivers.insert(incarnation);
  }
  return receivers;
}

void CopySender::SendStep(const Partition& partition, const StepClose& close) {
  SLUICE_DCHECK(HasCopies(partition.id()), "a step is sent to copies");
  Pending& pending = steps_[partition.id()];
  pending.step = partition.version();
  pending.parts = EncodeStep(*state_.model(), partition.id(), pending.step, close, partition.sums(),
                             state_.options().max_data_frame_bytes);
  for (const auto& [incarnation, receiver] : receivers_) {
    if (receiver.acked.count(partition.id()) > 0) Send(receiver, pending);
  }
}

void CopySender::Send(const Receiver& receiver, const Pending& pending) const {
  for (const auto& [body, payload] : pending.parts) {
    SendToShard action = state_.NewMessageTo(receiver.shard);
    *action.header.mutable_copy_step() = body;
    action.payload = payload;
    out_.Add(std::move(action));
  }
}

absl::Status CopySender::OnAck(uint64_t sender, const v1::CopyAck& ack) {
  if (ack.sequence() != 0) return log_.OnAck(sender, ack.sequence());
  RETURN_IF_ERROR(CheckCopyAck(state_, sender, ack));
  const auto found = receivers_.find(sender);
  SLUICE_DCHECK(found != receivers_.end(), "CheckCopyAck admits receivers only");
  Receiver& receiver = found->second;
  const auto acked = receiver.acked.find(ack.partition());
  if (acked == receiver.acked.end()) {
    return Invalid("partition ", ack.partition(), " is acked before its transfer");
  }
  acked->second = std::max(acked->second, ack.version());
  if (ack.whole() && receiver.transfers.erase(ack.partition()) > 0) BeginTransfers();

  const auto pending = steps_.find(ack.partition());
  if (pending == steps_.end() || !IsHeld(ack.partition(), pending->second.step + 1)) {
    return absl::OkStatus();
  }
  steps_.erase(pending);
  events_.held(ack.partition());
  return absl::OkStatus();
}

bool CopySender::IsHeld(uint32_t partition, uint64_t version) const {
  return std::all_of(receivers_.begin(), receivers_.end(), [&](const auto& entry) {
    const auto acked = entry.second.acked.find(partition);
    return acked == entry.second.acked.end() || acked->second >= version;
  });
}

// ---- states

// A transfer begins at a committed version, which no view change takes back. A step that is closing
// was sent to the copies that the partition had; a transfer that began now would miss it.
void CopySender::BeginTransfers() {
  if (!state_.MayChange()) return;
  const uint64_t limit = TransferBytes();
  for (auto& [incarnation, receiver] : receivers_) {
    uint64_t bytes = 0;
    for (const auto& [partition, transfer] : receiver.transfers) bytes += transfer.bytes.size();
    for (auto next = receiver.missing.begin(); next != receiver.missing.end();) {
      if (bytes >= limit) break;
      const Partition& partition = *state_.Find(*next);
      const bool waits = partition.version() != state_.committed() || Waits(*next);
      if (state_.view()->synchronous() && waits) {
        ++next;
        continue;
      }
      BeginTransfer(receiver, partition);
      bytes += receiver.transfers[*next].bytes.size();
      next = receiver.missing.erase(next);
    }
  }
  SendParts();
}

void CopySender::OnCommitted() {
  if (committed_at_ <= state_.now()) {
    // Grows slowly: a step that waited for copies must not lead to more of them.
    const absl::Duration step = state_.now() - committed_at_;
    step_time_ = step_time_ == absl::ZeroDuration() ? step : std::min(step, step_time_ * 1.25);
  }
  committed_at_ = state_.now();
  BeginTransfers();
}

void CopySender::BeginTransfer(Receiver& receiver, const Partition& partition) {
  std::shared_ptr<PartitionContent> content = partition.Pin(partition.version());
  if (!state_.view()->synchronous()) {
    events_.begins(receiver.shard.process().incarnation(), content.get());
  }
  EncodedPartition encoded = EncodePartition(*content);
  Transfer& transfer = receiver.transfers[partition.id()];
  transfer.version = partition.version();
  transfer.file = std::move(encoded.file);
  transfer.bytes = std::move(encoded.bytes);
  transfer.parts =
      static_cast<uint32_t>((transfer.bytes.size() + state_.options().copy_part_bytes - 1) /
                            state_.options().copy_part_bytes);
  receiver.acked[partition.id()] = transfer.version;
  // At once: it must arrive before the partition's next step.
  SendNextPart(receiver, transfer);
}

void CopySender::SendParts() {
  constexpr absl::Duration kBurst = absl::Milliseconds(20);
  const double rate = BytesPerSecond();
  const auto missing = [](const auto& entry) {
    return entry.second.next_part < entry.second.parts;
  };
  while (rate <= 0 || next_part_at_ <= state_.now()) {
    bool sent = false;
    for (auto& [incarnation, receiver] : receivers_) {
      const auto next = std::find_if(receiver.transfers.begin(), receiver.transfers.end(), missing);
      if (next == receiver.transfers.end()) continue;
      SendNextPart(receiver, next->second);
      sent = true;
      if (rate <= 0) continue;
      next_part_at_ = std::max(next_part_at_, state_.now() - kBurst) +
                      absl::Seconds(static_cast<double>(state_.options().copy_part_bytes) / rate);
    }
    if (!sent) return;
  }
}

void CopySender::SendNextPart(const Receiver& receiver, Transfer& transfer) const {
  SendToShard action = state_.NewMessageTo(receiver.shard);
  v1::CopyState& body = *action.header.mutable_copy_state();
  body.set_partition(transfer.file.partition());
  body.set_version(transfer.version);
  body.set_part(transfer.next_part);
  body.set_parts(transfer.parts);
  body.set_file_bytes(transfer.file.bytes());
  body.set_file_crc32c(transfer.file.crc32c());
  body.set_state_hash(transfer.file.state_hash());
  const uint64_t part_bytes = state_.options().copy_part_bytes;
  action.payload = transfer.bytes.Subcord(transfer.next_part * part_bytes, part_bytes);
  ++transfer.next_part;
  out_.Add(std::move(action));
}

void CopySender::OnShardConnected(uint64_t incarnation) {
  const auto found = receivers_.find(incarnation);
  if (found == receivers_.end() || !state_.view().has_value()) return;
  Receiver& receiver = found->second;
  log_.OnShardConnected(incarnation);  // first: a copy is whole as soon as it has all parts
  for (auto& [partition, transfer] : receiver.transfers) {
    transfer.next_part = 0;
    SendNextPart(receiver, transfer);
  }
  for (const auto& [partition, pending] : steps_) {
    const auto acked = receiver.acked.find(partition);
    if (acked != receiver.acked.end() && acked->second <= pending.step) Send(receiver, pending);
  }
  SendParts();
}

absl::Time CopySender::NextDeadline() const {
  for (const auto& [incarnation, receiver] : receivers_) {
    for (const auto& [partition, transfer] : receiver.transfers) {
      if (transfer.next_part < transfer.parts) return next_part_at_;
    }
  }
  return absl::InfiniteFuture();
}

// Bytes in flight delay the acks of later steps, so at most a step's worth is in flight: a slow
// job, whose transfers can only begin in a small part of each step, begins more of them.
uint64_t CopySender::TransferBytes() const {
  const double rate = BytesPerSecond() > 0 ? BytesPerSecond() : 1e9;
  const double bytes = std::min(absl::ToDoubleSeconds(step_time_) * rate, 1e15);
  const uint64_t most = state_.options().copy_transfer_bytes;
  return std::clamp(static_cast<uint64_t>(bytes), (most + 7) / 8, most);
}

double CopySender::BytesPerSecond() const {
  return state_.job().parameter_server().copy_megabytes_per_second() * 1e6;
}

// ---- views

void CopySender::OnInstalled(const v1::Install& install) {
  receivers_.clear();
  steps_.clear();
  log_.Reset();
  const InstalledView& view = *state_.view();
  const auto add = [&](uint32_t partition, const google::protobuf::RepeatedField<uint32_t>& list,
                       const google::protobuf::RepeatedField<uint32_t>& whole) {
    if (partition >= static_cast<uint32_t>(list.size())) return;
    const uint32_t position = list[static_cast<int>(partition)];
    if (position == 0) return;
    const v1::View::Shard& shard = view.proto().shards(static_cast<int>(position - 1));
    Receiver& receiver = receivers_[shard.process().incarnation()];
    receiver.shard = shard;
    log_.AddReceiver(shard);
    if (std::find(whole.begin(), whole.end(), partition) != whole.end()) {
      receiver.acked[partition] = view.proto().first_step();
    } else {
      receiver.missing.insert(partition);
    }
  };
  for (uint32_t partition : view.owned()) {
    add(partition, view.proto().follower(), install.whole_followers());
    add(partition, view.proto().target(), install.whole_targets());
  }
  BeginTransfers();
}

}  // namespace sluice::ps

#include "services/ps/core/replication/sender.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "services/common/check.h"
#include "services/ps/core/base/check_errors.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {

std::set<uint64_t> CopySender::ReceiversOf(uint32_t partition) const {
  std::set<uint64_t> receivers;
  for (const auto& [incarnation, receiver] : receivers_) {
    if (receiver.begun.count(partition) > 0) receivers.insert(incarnation);
  }
  return receivers;
}

std::set<uint64_t> CopySender::ReceiversOfAny() const {
  std::set<uint64_t> receivers;
  for (const auto& [incarnation, receiver] : receivers_) {
    if (!receiver.begun.empty()) receivers.insert(incarnation);
  }
  return receivers;
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
      const bool waits = partition.version() != state_.committed() ||
                         log_.Awaits({CopyWait::kClose, partition.id()});
      if (state_.view()->synchronous() && waits) {
        ++next;
        continue;
      }
      BeginTransfer(incarnation, receiver, partition);
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

void CopySender::BeginTransfer(uint64_t incarnation, Receiver& receiver,
                               const Partition& partition) {
  std::shared_ptr<PartitionContent> content = partition.Pin(partition.version());
  if (!state_.view()->synchronous()) begins_(incarnation, content.get());
  EncodedPartition encoded = EncodePartition(*content);
  Transfer& transfer = receiver.transfers[partition.id()];
  transfer.version = partition.version();
  transfer.file = std::move(encoded.file);
  transfer.bytes = std::move(encoded.bytes);
  transfer.parts =
      static_cast<uint32_t>((transfer.bytes.size() + state_.options().copy_part_bytes - 1) /
                            state_.options().copy_part_bytes);
  receiver.begun.insert(partition.id());
  // At once: it must arrive before the partition's next step.
  SendNextPart(incarnation, transfer);
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
      SendNextPart(incarnation, next->second);
      sent = true;
      if (rate <= 0) continue;
      next_part_at_ = std::max(next_part_at_, state_.now() - kBurst) +
                      absl::Seconds(static_cast<double>(state_.options().copy_part_bytes) / rate);
    }
    if (!sent) return;
  }
}

void CopySender::SendNextPart(uint64_t receiver, Transfer& transfer) const {
  SendToShard action = state_.NewMessageTo(receiver);
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

absl::Status CopySender::OnWhole(uint64_t sender, const v1::CopyWhole& whole) {
  const auto receiver = receivers_.find(sender);
  if (receiver == receivers_.end() || receiver->second.begun.count(whole.partition()) == 0) {
    return Invalid("the sender was sent no copy of a partition ", whole.partition());
  }
  if (receiver->second.transfers.erase(whole.partition()) > 0) BeginTransfers();
  return absl::OkStatus();
}

void CopySender::OnShardConnected(uint64_t incarnation) {
  const auto found = receivers_.find(incarnation);
  if (found == receivers_.end() || !state_.view().has_value()) return;
  Receiver& receiver = found->second;
  log_.OnShardConnected(incarnation);  // first: a copy is whole as soon as it has all parts
  for (auto& [partition, transfer] : receiver.transfers) {
    transfer.next_part = 0;
    SendNextPart(incarnation, transfer);
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
  log_.Reset();
  const InstalledView& view = *state_.view();
  const auto add = [&](uint32_t partition, const google::protobuf::RepeatedField<uint32_t>& list,
                       const google::protobuf::RepeatedField<uint32_t>& whole) {
    if (partition >= static_cast<uint32_t>(list.size())) return;
    const uint32_t position = list[static_cast<int>(partition)];
    if (position == 0) return;
    const v1::View::Shard& shard = view.proto().shards(static_cast<int>(position - 1));
    Receiver& receiver = receivers_[shard.process().incarnation()];
    if (std::find(whole.begin(), whole.end(), partition) != whole.end()) {
      receiver.begun.insert(partition);
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

#include "services/ps/core/replication/log.h"

#include <algorithm>
#include <utility>

#include "services/ps/core/base/check_errors.h"

namespace sluice::ps {

void CopyLog::Append(const std::set<uint64_t>& receivers, const v1::CopyEntry& entry,
                     const absl::Cord& payload) {
  for (const uint64_t incarnation : receivers) {
    Receiver& receiver = receivers_[incarnation];
    receiver.unacked.emplace_back(entry, payload);
    receiver.unacked.back().first.set_sequence(++receiver.last);
    Send(incarnation, receiver.unacked.back().first, payload);
  }
}

void CopyLog::AppendGradients(const std::set<uint64_t>& receivers, v1::CopyEntry entry,
                              uint32_t partition, uint64_t number, const StepClose& close,
                              const std::vector<GradientSum>& sums) {
  for (auto& [part, payload] : EncodeGradients(*state_.model(), partition, number, close, sums,
                                               state_.options().max_data_frame_bytes)) {
    *entry.mutable_gradients() = std::move(part);
    Append(receivers, entry, payload);
  }
}

void CopyLog::Send(uint64_t receiver, const v1::CopyEntry& entry, const absl::Cord& payload) {
  SendToShard action = state_.NewMessageTo(receiver);
  *action.header.mutable_copy_entry() = entry;
  action.payload = payload;
  out_.Add(std::move(action));
}

void CopyLog::Await(Key key, const std::set<uint64_t>& receivers, std::function<void()> done) {
  Wait wait;
  for (const uint64_t incarnation : receivers) {
    const Receiver& receiver = receivers_[incarnation];
    if (!receiver.unacked.empty()) wait.sequences[incarnation] = receiver.last;
  }
  waits_.erase(key);
  if (wait.sequences.empty()) return done();
  wait.done = std::move(done);
  waits_.emplace(key, std::move(wait));
}

absl::Status CopyLog::OnAck(uint64_t sender, const v1::CopyAck& ack) {
  const auto found = receivers_.find(sender);
  if (found == receivers_.end() || ack.sequence() > found->second.last) {
    return Invalid("entry ", ack.sequence(), " is acked, which the sender was not sent");
  }
  Receiver& receiver = found->second;
  while (receiver.acked() < ack.sequence()) receiver.unacked.pop_front();

  for (auto& [key, wait] : waits_) {
    const auto awaited = wait.sequences.find(sender);
    if (awaited == wait.sequences.end() || awaited->second > receiver.acked()) continue;
    wait.sequences.erase(awaited);
  }
  CallDue();
  return absl::OkStatus();
}

// One at a time: each may append and await again, and what is due after it still waits until then.
void CopyLog::CallDue() {
  for (;;) {
    const auto due = std::find_if(waits_.begin(), waits_.end(),
                                  [](const auto& entry) { return entry.second.sequences.empty(); });
    if (due == waits_.end()) return;
    const std::function<void()> done = std::move(due->second.done);
    waits_.erase(due);
    done();
  }
}

void CopyLog::OnShardConnected(uint64_t incarnation) {
  const auto found = receivers_.find(incarnation);
  if (found == receivers_.end()) return;
  for (const auto& [entry, payload] : found->second.unacked) Send(incarnation, entry, payload);
}

}  // namespace sluice::ps

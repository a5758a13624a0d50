#include "services/ps/core/replication/log.h"

#include <algorithm>

#include "services/common/check.h"
#include "services/ps/core/base/check_errors.h"

namespace sluice::ps {

void CopyLog::AddReceiver(const v1::View::Shard& shard) {
  receivers_[shard.process().incarnation()].shard = shard;
}

void CopyLog::Append(uint64_t receiver, v1::CopyEntry entry, absl::Cord payload) {
  const auto found = receivers_.find(receiver);
  SLUICE_DCHECK(found != receivers_.end(), "entries are for shards with copies");
  Receiver& to = found->second;
  entry.set_sequence(++to.last);
  Send(to, entry, payload);
  to.unacked.emplace_back(std::move(entry), std::move(payload));
}

void CopyLog::Send(const Receiver& receiver, const v1::CopyEntry& entry,
                   const absl::Cord& payload) {
  SendToShard action = state_.NewMessageTo(receiver.shard);
  *action.header.mutable_copy_entry() = entry;
  action.payload = payload;
  out_.Add(std::move(action));
}

void CopyLog::Await(const std::set<uint64_t>& receivers, std::function<void()> done) {
  Wait wait;
  for (const uint64_t incarnation : receivers) {
    const Receiver& receiver = receivers_.at(incarnation);
    if (!receiver.unacked.empty()) wait.sequences[incarnation] = receiver.last;
  }
  if (wait.sequences.empty()) {
    done();
    return;
  }
  wait.done = std::move(done);
  waits_.push_back(std::move(wait));
}

absl::Status CopyLog::OnAck(uint64_t sender, uint64_t sequence) {
  const auto found = receivers_.find(sender);
  if (found == receivers_.end() || sequence > found->second.last) {
    return Invalid("entry ", sequence, " is acked, which the sender was not sent");
  }
  Receiver& receiver = found->second;
  while (receiver.acked() < sequence) receiver.unacked.pop_front();

  std::vector<std::function<void()>> due;
  for (Wait& wait : waits_) {
    const auto awaited = wait.sequences.find(sender);
    if (awaited == wait.sequences.end() || awaited->second > receiver.acked()) continue;
    wait.sequences.erase(awaited);
    if (wait.sequences.empty()) due.push_back(std::move(wait.done));
  }
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(),
                              [](const Wait& wait) { return wait.sequences.empty(); }),
               waits_.end());
  for (const std::function<void()>& done : due) done();
  return absl::OkStatus();
}

void CopyLog::OnShardConnected(uint64_t incarnation) {
  const auto found = receivers_.find(incarnation);
  if (found == receivers_.end()) return;
  for (const auto& [entry, payload] : found->second.unacked) Send(found->second, entry, payload);
}

}  // namespace sluice::ps

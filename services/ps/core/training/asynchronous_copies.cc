// The part of Asynchronous that keeps the copies of this shard's partitions (docs/protocol.md 8.7).

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "services/common/check.h"
#include "services/ps/core/replication/copy_step.h"
#include "services/ps/core/training/asynchronous.h"

namespace sluice::ps {

// ---- staging

void Asynchronous::AckStaged(Stream& stream, Staged& staged) {
  if (!staged.sent) {
    staged.sent = true;
    SendToCopies(stream.incarnation(), staged);
  } else if (staged.held) {
    SendStaged(stream, staged.clock, &staged);
  }
}

void Asynchronous::SendToCopies(uint64_t worker, Staged& staged) {
  std::set<uint64_t> receivers;
  for (const uint32_t number : state_.view()->owned()) {
    for (const uint64_t receiver : copies_.ReceiversOf(number)) {
      SendToCopy(receiver, worker, staged, number);
      receivers.insert(receiver);
    }
  }
  if (!state_.rules().AwaitCopies()) receivers.clear();
  copies_.log().Await(receivers, [this, worker, clock = staged.clock] {
    const auto held = staged_.find(worker);
    if (held == staged_.end() || held->second.clock != clock) return;
    held->second.held = true;
    if (Stream* const stream = streams_.Find(v1::WORKER, worker); stream != nullptr) {
      SendStaged(*stream, clock, &held->second);
    }
  });
}

void Asynchronous::SendToCopy(uint64_t receiver, uint64_t worker, Staged& staged,
                              uint32_t partition) {
  std::vector<GradientSum>& sums = staged.sums[partition];
  sums.resize(state_.model()->BlockCount(partition));
  for (size_t place = 0; place < sums.size(); ++place) {
    if (sums[place].empty()) continue;
    const BlockInfo& info = state_.model()->block(state_.model()->FirstBlock(partition) + place);
    if (absl::Status settled = sums[place].Settle(info, *state_.pool()); !settled.ok()) {
      return failure_.Fail(absl::StrCat("update ", staged.clock, ": ", settled.message()));
    }
  }
  for (auto& [step, payload] :
       EncodeStep(*state_.model(), partition, staged.clock, {Arguments(staged)}, sums,
                  state_.options().max_data_frame_bytes)) {
    v1::CopyEntry entry;
    entry.set_worker(worker);
    entry.set_ordinal(staged.ordinal);
    *entry.mutable_staged() = std::move(step);
    copies_.log().Append(receiver, std::move(entry), std::move(payload));
  }
}

void Asynchronous::OnTransfer(uint64_t receiver, uint32_t partition) {
  if (!state_.rules().SendStagedToNewCopies()) return;
  for (auto& [worker, staged] : staged_) {
    if (staged.sent) SendToCopy(receiver, worker, staged, partition);
  }
  if (partition != 0) return;
  for (const auto& [worker, lease] : arbiter_.leases()) {
    for (const Interval& rest : lease.Intervals()) {
      v1::Lease recorded;
      *recorded.mutable_samples() = ToProto(rest);
      recorded.set_clock(arbiter_.ClockOf(worker));
      SendLeaseToCopy(receiver, worker, recorded);
    }
  }
}

// ---- applying

void Asynchronous::SendApplyToCopies(uint64_t worker, const v1::Apply& apply) {
  std::set<uint64_t> receivers;
  for (const uint32_t number : state_.view()->owned()) {
    const std::set<uint64_t> more = copies_.ReceiversOf(number);
    receivers.insert(more.begin(), more.end());
  }
  if (receivers.empty()) return;
  const v1::ClockRecord& record = clocks_.at(worker);
  for (const uint64_t receiver : receivers) {
    v1::CopyEntry entry;
    entry.set_worker(worker);
    v1::Apply& applied = *entry.mutable_applied();
    applied.set_clock(record.clock());
    *applied.mutable_samples() = record.samples();
    applied.set_ordinal(apply.ordinal());
    applied.set_staleness(record.staleness());
    applied.set_square_sum(record.square_sum());
    applied.set_non_finite(record.non_finite());
    copies_.log().Append(receiver, std::move(entry));
  }
  if (!state_.rules().AnswerAfterCopies()) return;

  unanswered_[worker] = {record.clock(), FromProto(record.samples()).size(), false};
  copies_.log().Await(receivers, [this, worker, clock = record.clock()] {
    const auto waits = unanswered_.find(worker);
    if (waits == unanswered_.end() || waits->second.clock != clock) return;
    const bool pull_next = waits->second.pull_next;
    unanswered_.erase(waits);
    if (Stream* const stream = streams_.Find(v1::WORKER, worker); stream != nullptr) {
      SendApplied(*stream, clock, pull_next);
    }
    applied_();
  });
}

// ---- leases

void Asynchronous::SendLease(Stream& stream, v1::Lease lease) {
  v1::Header header = state_.NewHeader();
  *header.mutable_lease() = std::move(lease);
  out_.Send(stream.id, std::move(header));
}

// R8: a lease is given once the copies of partition 0 have recorded it.
void Asynchronous::RecordAtCopies(uint64_t worker, const v1::Lease& lease) {
  std::set<uint64_t> receivers = copies_.ReceiversOf(0);
  if (!state_.rules().RecordLeasesAtCopies()) receivers.clear();
  for (const uint64_t receiver : receivers) SendLeaseToCopy(receiver, worker, lease);
  unrecorded_[worker] = lease;
  copies_.log().Await(receivers, [this, worker] {
    const auto recorded = unrecorded_.find(worker);
    if (recorded == unrecorded_.end()) return;
    const v1::Lease given = std::move(recorded->second);
    unrecorded_.erase(recorded);
    if (Stream* const stream = streams_.Find(v1::WORKER, worker); stream != nullptr) {
      SendLease(*stream, given);
    }
  });
}

void Asynchronous::SendLeaseToCopy(uint64_t receiver, uint64_t worker, const v1::Lease& lease) {
  v1::CopyEntry entry;
  entry.set_worker(worker);
  *entry.mutable_leased()->mutable_samples() = lease.samples();
  entry.mutable_leased()->set_clock(lease.clock());
  copies_.log().Append(receiver, std::move(entry));
}

void Asynchronous::OnLeased(uint64_t worker, const v1::Lease& lease) {
  arbiter_.Record(worker, FromProto(lease.samples()), lease.clock());
}

}  // namespace sluice::ps

// The part of Asynchronous that keeps the copies of this shard's partitions (docs/protocol.md 8.7).

#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "services/common/check.h"
#include "services/ps/core/replication/log.h"
#include "services/ps/core/training/asynchronous.h"

namespace sluice::ps {

// ---- staging

void Asynchronous::AckStaged(Stream& stream, Staged& staged) {
  const uint64_t worker = stream.incarnation();
  if (staged.sent) {
    if (CopiesHold(worker, staged)) SendStaged(stream, staged.clock, &staged);
    return;
  }
  staged.sent = true;
  for (const uint32_t number : state_.view()->owned()) {
    SendToCopies(copies_.ReceiversOf(number), worker, staged, number);
  }
  std::set<uint64_t> receivers = copies_.ReceiversOfAny();
  if (!state_.rules().AwaitCopies()) receivers.clear();
  AnswerAfterCopies(CopyWait::kStaged, worker, receivers, [this, worker](Stream& waiting) {
    const auto held = staged_.find(worker);
    if (held != staged_.end()) SendStaged(waiting, held->second.clock, &held->second);
  });
}

// `answer` is called with the worker's stream, if it has one then.
void Asynchronous::AnswerAfterCopies(CopyWait what, uint64_t worker,
                                     const std::set<uint64_t>& receivers,
                                     std::function<void(Stream&)> answer) {
  copies_.log().Await({what, worker}, receivers, [this, worker, answer = std::move(answer)] {
    Stream* const stream = streams_.Find(v1::WORKER, worker);
    if (stream != nullptr) answer(*stream);
  });
}

// R6: all copies have it too, so the worker may send Apply.
bool Asynchronous::CopiesHold(uint64_t worker, const Staged& staged) const {
  return staged.sent && !copies_.log().Awaits({CopyWait::kStaged, worker});
}

void Asynchronous::SendToCopies(const std::set<uint64_t>& receivers, uint64_t worker,
                                Staged& staged, uint32_t partition) {
  if (receivers.empty()) return;
  std::vector<GradientSum>& sums = staged.sums[partition];
  sums.resize(state_.model()->BlockCount(partition));
  for (size_t place = 0; place < sums.size(); ++place) {
    if (sums[place].empty()) continue;
    const BlockInfo& info = state_.model()->block(state_.model()->FirstBlock(partition) + place);
    if (absl::Status settled = sums[place].Settle(info, *state_.pool()); !settled.ok()) {
      return failure_.Fail(absl::StrCat("update ", staged.clock, ": ", settled.message()));
    }
  }
  v1::CopyEntry entry;
  entry.set_worker(worker);
  entry.set_ordinal(staged.ordinal);
  copies_.log().AppendGradients(receivers, std::move(entry), partition, staged.clock,
                                {Arguments(staged)}, sums);
}

void Asynchronous::OnTransfer(uint64_t receiver, uint32_t partition) {
  if (!state_.rules().SendStagedToNewCopies()) return;
  for (auto& [worker, staged] : staged_) {
    if (staged.sent) SendToCopies({receiver}, worker, staged, partition);
  }
  if (partition != 0) return;
  for (const auto& [worker, lease] : arbiter_.leases()) {
    for (const Interval& rest : lease.Intervals()) {
      v1::Lease recorded;
      *recorded.mutable_samples() = ToProto(rest);
      recorded.set_clock(arbiter_.ClockOf(worker));
      SendLeaseToCopies({receiver}, worker, recorded);
    }
  }
}

// ---- applying

void Asynchronous::SendApplyToCopies(uint64_t worker, const v1::Apply& apply) {
  const std::set<uint64_t> receivers = copies_.ReceiversOfAny();
  if (receivers.empty()) return;
  const v1::ClockRecord& record = clocks_.at(worker);
  v1::CopyEntry entry;
  entry.set_worker(worker);
  v1::Apply& applied = *entry.mutable_applied();
  applied.set_clock(record.clock());
  *applied.mutable_samples() = record.samples();
  applied.set_ordinal(apply.ordinal());
  applied.set_staleness(record.staleness());
  applied.set_square_sum(record.square_sum());
  applied.set_non_finite(record.non_finite());
  copies_.log().Append(receivers, entry);

  if (!state_.rules().AnswerAfterCopies()) return;
  copies_.log().Await({CopyWait::kApplied, worker}, receivers, [this, worker, apply] {
    Stream* const stream = streams_.Find(v1::WORKER, worker);
    if (stream != nullptr) SendApplied(*stream, apply.clock(), apply.pull_next());
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
  SendLeaseToCopies(receivers, worker, lease);
  AnswerAfterCopies(CopyWait::kLease, worker, receivers,
                    [this, lease](Stream& stream) { SendLease(stream, lease); });
}

void Asynchronous::SendLeaseToCopies(const std::set<uint64_t>& receivers, uint64_t worker,
                                     const v1::Lease& lease) {
  v1::CopyEntry entry;
  entry.set_worker(worker);
  *entry.mutable_leased()->mutable_samples() = lease.samples();
  entry.mutable_leased()->set_clock(lease.clock());
  copies_.log().Append(receivers, entry);
}

void Asynchronous::OnLeased(uint64_t worker, const v1::Lease& lease) {
  arbiter_.Record(worker, FromProto(lease.samples()), lease.clock());
}

}  // namespace sluice::ps

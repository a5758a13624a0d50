#include "services/coordinator/core/snapshots/readers.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"

namespace sluice::coordinator {
namespace {

// The bounds of the time for which a reader may hold a snapshot.
constexpr double kMinSnapshotHoldSeconds = 1;
constexpr double kMaxSnapshotHoldSeconds = 600;
constexpr absl::Duration kSnapshotWait = absl::Seconds(30);  // until a version is pinned
constexpr size_t kMaxSnapshots = 16;                         // waiting and pinned

}  // namespace

bool Readers::OnOpen(uint64_t request, const v1::OpenSnapshotRequest& call, absl::Time now) {
  if (absl::Status valid = Check(call); !valid.ok()) {
    ++refused_;
    output_.Add(AnswerSnapshot{request, std::move(valid)});
    return false;
  }

  const auto before = [&](const ReaderHold& hold) {
    return hold.reader.incarnation() == call.reader().incarnation();
  };
  EndIf(before, absl::AbortedError("the reader has opened another snapshot"));

  if (facts_.phase != Phase::kRunning || facts_.attempt.goal != Goal::kNone) {
    output_.Add(
        AnswerSnapshot{request, absl::UnavailableError("the job is not training; try again")});
    return false;
  }
  if (size() >= kMaxSnapshots) {
    ++refused_;
    output_.Add(AnswerSnapshot{
        request, absl::ResourceExhaustedError(absl::StrCat(
                     size(),
                     " snapshots are open, which is the limit (kMaxSnapshots): try again "
                     "when a reader has ended"))});
    return false;
  }

  const double seconds = call.hold_seconds();
  const bool limited = seconds > 0 && seconds < kMaxSnapshotHoldSeconds;
  ReaderHold hold;
  hold.request = request;
  hold.reader = call.reader();
  hold.hold =
      absl::Seconds(limited ? std::max(seconds, kMinSnapshotHoldSeconds) : kMaxSnapshotHoldSeconds);
  hold.expires = now + kSnapshotWait;
  waiting_.push_back(std::move(hold));
  ++changes_;
  return true;
}

absl::Status Readers::Check(const v1::OpenSnapshotRequest& call) const {
  const v1::ProcessId& reader = call.reader();
  if (reader.role() != v1::READER || reader.incarnation() == 0) {
    return absl::InvalidArgumentError(
        "a snapshot is opened by a reader: OpenSnapshotRequest.reader should have role READER and "
        "an incarnation that is not 0");
  }
  if (facts_.members.Find(reader.incarnation()) != nullptr ||
      facts_.members.IsExpelled(reader.incarnation())) {
    return absl::InvalidArgumentError(
        "OpenSnapshotRequest.reader has the incarnation of a worker or shard: it should have one "
        "of its own");
  }
  return absl::OkStatus();
}

void Readers::OnCallEnded(uint64_t request) {
  // The call has ended, so the answer is dropped.
  EndIf([&](const ReaderHold& hold) { return hold.request == request; },
        absl::CancelledError("the reader ended the call"));
}

void Readers::Advance(absl::Time now) {
  SLUICE_DCHECK(absl::c_none_of(waiting_, [](const ReaderHold& hold) { return hold.answered; }),
                "a reader that waits knows no version");
  EndIf([&](const ReaderHold& hold) { return !hold.answered && hold.expires <= now; },
        absl::DeadlineExceededError(absl::StrCat("no version could be pinned within ",
                                                 absl::FormatDuration(kSnapshotWait))));
  EndIf([&](const ReaderHold& hold) { return hold.answered && hold.expires <= now; },
        absl::DeadlineExceededError("the snapshot was held for its time "
                                    "(OpenSnapshotRequest.hold_seconds); open another one"));
  // A reader that comes while a pinned snapshot is open shares it.
  if (!snapshot_.has_value() || facts_.attempt.goal != Goal::kNone ||
      !snapshot_->PinnedBy(facts_.attempt.facts().shards)) {
    return;
  }
  holds_.insert(holds_.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
}

void Readers::Answer(absl::Time now) {
  if (!snapshot_.has_value() || !snapshot_->PinnedBy(facts_.attempt.facts().shards)) return;
  SLUICE_DCHECK(facts_.training.has_view() && facts_.attempt.model.ready.has_value(),
                "a version that is pinned has a view and a model");
  for (ReaderHold& hold : holds_) {
    if (hold.answered) continue;
    hold.answered = true;
    hold.expires = now + hold.hold;
    v1::Snapshot snapshot;
    snapshot.set_snapshot_id(snapshot_->id);
    snapshot.set_version(snapshot_->step);
    *snapshot.mutable_view() = facts_.training.view();
    *snapshot.mutable_table() = facts_.attempt.model.ready->table();
    *snapshot.mutable_layout() = facts_.attempt.layout;
    output_.Add(AnswerSnapshot{hold.request, std::move(snapshot)});
  }
}

void Readers::OnOpened() {
  SLUICE_DCHECK(snapshot_.has_value() && holds_.empty(), "a new snapshot has no readers");
  if (!snapshot_->final) holds_.swap(waiting_);
}

void Readers::OnClose() {
  SLUICE_DCHECK(snapshot_.has_value(), "an open snapshot is closed");
  for (const ReaderHold& hold : holds_) {
    if (hold.answered) {
      End(hold, absl::AbortedError(absl::StrCat(
                    "the snapshot of version ", snapshot_->step,
                    " made room for a checkpoint or an evaluation; open another one")));
    } else {
      waiting_.push_back(hold);
    }
  }
  holds_.clear();
}

void Readers::End(const ReaderHold& hold, absl::Status why) {
  SLUICE_DCHECK(!why.ok(), "OK is the answer to a reader that gets a version");
  ++changes_;
  output_.Add(AnswerSnapshot{hold.request, std::move(why)});
}

void Readers::EndIf(absl::FunctionRef<bool(const ReaderHold&)> which, const absl::Status& why) {
  const auto end_in = [&](std::vector<ReaderHold>* holds) {
    const auto kept = std::stable_partition(holds->begin(), holds->end(), std::not_fn(which));
    for (auto hold = kept; hold != holds->end(); ++hold) End(*hold, why);
    holds->erase(kept, holds->end());
  };
  end_in(&waiting_);
  end_in(&holds_);
}

void Readers::EndAll(const absl::Status& why) {
  EndIf([](const ReaderHold&) { return true; }, why);
}

void Readers::ForEach(absl::FunctionRef<void(const ReaderHold&)> f) const {
  for (const ReaderHold& hold : waiting_) f(hold);
  for (const ReaderHold& hold : holds_) f(hold);
}

bool Readers::Has(uint64_t incarnation) const {
  bool found = false;
  ForEach(
      [&](const ReaderHold& hold) { found = found || hold.reader.incarnation() == incarnation; });
  return found;
}

size_t Readers::size() const { return waiting_.size() + holds_.size(); }

absl::Time Readers::NextDeadline() const {
  absl::Time deadline = absl::InfiniteFuture();
  ForEach([&](const ReaderHold& hold) { deadline = std::min(deadline, hold.expires); });
  return deadline;
}

}  // namespace sluice::coordinator

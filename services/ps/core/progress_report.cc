#include "services/ps/core/progress_report.h"

#include <utility>

#include "services/common/check.h"

namespace sluice::ps {

// False only if this shard is wrong. A job that has failed keeps the versions that it had.
bool ProgressReport::VersionsAreInOrder() const {
  if (!state_.view()->synchronous() || state_.view()->owned().empty() || state_.failed()) {
    return true;
  }
  const uint64_t lowest = state_.LowestVersion();
  return state_.committed() <= lowest && state_.HighestVersion() <= lowest + 1;
}

void ProgressReport::SendIfDue() {
  if (!IsWanted()) return;
  const uint64_t last = state_.job().training().steps();
  const bool at_end = last > 0 && state_.LowestVersion() >= last;
  if (state_.now() < next_ && !at_end && !asynchronous_.IsHeld()) return;
  SLUICE_DCHECK(VersionsAreInOrder(), "7.4: committed <= every version <= the lowest version + 1");

  due_ = false;
  next_ = state_.now() + state_.options().progress_interval;

  v1::MemberMessage message;
  v1::ShardProgress& progress = *message.mutable_shard_progress();
  *progress.mutable_view() = state_.view()->id();
  progress.set_closed(state_.LowestVersion());
  progress.set_committed(state_.committed());
  progress.set_skipped_steps(out_.counts().steps_skipped);
  progress.set_dropped_contributions(out_.counts().dropped_contributions);
  for (uint64_t worker : synchronous_.Awaited()) progress.add_awaited(worker);
  for (const auto& [number, copy] : state_.copies()) progress.add_copies(number);
  progress.set_copied_bytes(out_.counts().copied_bytes);
  asynchronous_.FillProgress(&progress);
  out_.Report(std::move(message));
}

void ProgressReport::SendLast() {
  due_ = true;
  next_ = absl::InfinitePast();
  SendIfDue();
}

absl::Time ProgressReport::NextDeadline() const {
  return IsWanted() ? next_ : absl::InfiniteFuture();
}

}  // namespace sluice::ps

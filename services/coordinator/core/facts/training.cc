#include "services/coordinator/core/facts/training.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "services/common/check.h"

namespace sluice::coordinator {

void Training::Begin() {
  SLUICE_DCHECK(reports_.empty() && !has_view(), "the attempt has no view yet");
  committed_ = attempt_->facts().base_version;
}

void Training::TakeOver(const v1::View& view, absl::Time now) {
  SLUICE_DCHECK(change_->AllReplied() && !has_view(), "all shards have replied to the Pause");
  view_ = view;
  view_since_ = now;
  committed_ = view.first_step();
}

bool Training::IsMember(uint64_t incarnation) const {
  return std::any_of(view_.workers().begin(), view_.workers().end(), [&](const auto& member) {
    return member.process().incarnation() == incarnation;
  });
}

void Training::OnView(const v1::Install& install, uint64_t samples, absl::Time now) {
  SLUICE_DCHECK(change_->AllReplied(), "a view is decided once all shards have replied");
  SLUICE_DCHECK(!install.view().shards().empty(), "a view has shards");
  view_ = install.view();
  view_since_ = now;
  committed_ = std::max(committed_, view_.first_step());
  ++copy_changes_;

  std::map<uint64_t, Shard> before = std::exchange(reports_, {});
  for (const v1::View::Shard& entry : view_.shards()) {
    Shard& state = reports_[entry.process().incarnation()];
    state = before[entry.process().incarnation()];
    state.closed = view_.first_step();
    state.samples = samples;
    state.copies.clear();
  }
  const auto hold = [&](uint32_t position_plus_one, uint32_t partition) {
    SLUICE_DCHECK(position_plus_one > 0, "the view names the shard of a whole copy");
    const auto& holder = view_.shards(static_cast<int>(position_plus_one) - 1);
    reports_.at(holder.process().incarnation()).copies.insert(partition);
  };
  for (const uint32_t p : install.whole_followers()) hold(view_.follower(static_cast<int>(p)), p);
  for (const uint32_t p : install.whole_targets()) hold(view_.target(static_cast<int>(p)), p);
}

const Training::Shard& Training::shard(uint64_t incarnation) const {
  static const Shard* const kNone = new Shard();
  const auto found = reports_.find(incarnation);
  return found == reports_.end() ? *kNone : found->second;
}

bool Training::OnProgress(uint64_t shard, const v1::ShardProgress& progress) {
  if (!attempt_->HasShard(shard)) return false;
  Shard& state = reports_[shard];
  state.closed = std::max(state.closed, progress.closed());
  state.samples = std::max(state.samples, progress.samples());
  state.leaseholders = progress.leaseholders();
  skipped_ = std::max(skipped_, progress.skipped_steps());
  dropped_ = std::max(dropped_, progress.dropped_contributions());
  for (const uint32_t partition : progress.copies()) {
    if (state.copies.insert(partition).second) ++copy_changes_;
  }
  return true;
}

bool Training::HoldsCopy(uint64_t shard, uint32_t partition) const {
  return this->shard(shard).copies.count(partition) > 0;
}

void Training::RaiseClosed(uint64_t shard, uint64_t closed) {
  if (!attempt_->HasShard(shard)) return;
  Shard& state = reports_[shard];
  state.closed = std::max(state.closed, closed);
}

void Training::RaiseCommitted(uint64_t version) { committed_ = std::max(committed_, version); }

uint64_t Training::LowestClosed() const {
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (const uint64_t shard : attempt_->facts().shards) {
    if (attempt_->HasBlocks(shard)) lowest = std::min(lowest, this->shard(shard).closed);
  }
  return lowest == std::numeric_limits<uint64_t>::max() ? view_.first_step() : lowest;
}

uint64_t Training::HighestClosed() const {
  uint64_t highest = view_.first_step();
  for (const uint64_t shard : attempt_->facts().shards) {
    highest = std::max(highest, this->shard(shard).closed);
  }
  return highest;
}

}  // namespace sluice::coordinator

#include "services/coordinator/core/training.h"

#include <algorithm>
#include <limits>

#include "services/common/check.h"

namespace sluice::coordinator {

void Training::Begin() {
  SLUICE_DCHECK(shards_.empty() && !has_view(), "the attempt before is forgotten");
  for (const uint64_t shard : attempt_.facts.shards) shards_[shard] = {};
  committed_ = attempt_.facts.base_version;
  change_.Reset(attempt_.facts.shards);
}

void Training::TakeOver(const v1::View& view, absl::Time now) {
  SLUICE_DCHECK(change_.AllReplied() && !has_view(), "all shards have replied to the Pause");
  view_ = view;
  view_since_ = now;
  committed_ = view.first_step();
}

void Training::Forget() {
  shards_.clear();
  change_.Reset({});
  view_.Clear();
}

bool Training::IsMember(uint64_t incarnation) const {
  return std::any_of(view_.workers().begin(), view_.workers().end(), [&](const auto& member) {
    return member.process().incarnation() == incarnation;
  });
}

void Training::OnView(const v1::View& view, uint64_t samples, absl::Time now) {
  SLUICE_DCHECK(change_.AllReplied(), "a view is decided once all shards have replied");
  view_ = view;
  view_since_ = now;
  committed_ = std::max(committed_, view.first_step());
  for (auto& [shard, state] : shards_) {
    state.closed = view.first_step();
    state.samples = samples;
  }
}

bool Training::OnProgress(uint64_t shard, const v1::ShardProgress& progress) {
  const auto found = shards_.find(shard);
  if (found == shards_.end()) return false;
  Shard& state = found->second;
  state.closed = std::max(state.closed, progress.closed());
  state.samples = std::max(state.samples, progress.samples());
  state.skipped = std::max(state.skipped, progress.skipped_steps());
  state.dropped = std::max(state.dropped, progress.dropped_contributions());
  state.leaseholders = progress.leaseholders();
  return true;
}

void Training::RaiseClosed(uint64_t shard, uint64_t closed) {
  const auto found = shards_.find(shard);
  if (found != shards_.end()) found->second.closed = std::max(found->second.closed, closed);
}

void Training::RaiseCommitted(uint64_t version) { committed_ = std::max(committed_, version); }

uint64_t Training::LowestClosed() const {
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (const uint64_t shard : attempt_.facts.shards) {
    if (attempt_.HasBlocks(shard)) lowest = std::min(lowest, shards_.at(shard).closed);
  }
  return lowest == std::numeric_limits<uint64_t>::max() ? view_.first_step() : lowest;
}

uint64_t Training::HighestClosed() const {
  uint64_t highest = view_.first_step();
  for (const auto& [shard, state] : shards_) highest = std::max(highest, state.closed);
  return highest;
}

}  // namespace sluice::coordinator

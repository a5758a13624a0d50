#include "services/ps/core/state/installed_view.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"

namespace sluice::ps {

std::vector<uint32_t> OwnedPartitions(
    const google::protobuf::RepeatedPtrField<v1::View::Shard>& shards,
    const google::protobuf::RepeatedField<uint32_t>& owner, uint64_t self,
    const ShardModel& model) {
  std::vector<uint32_t> owned;
  for (uint32_t partition : model.filled()) {
    if (partition >= static_cast<uint32_t>(owner.size())) break;

    const uint32_t position = owner[static_cast<int>(partition)];
    if (position >= static_cast<uint32_t>(shards.size())) continue;
    if (shards[static_cast<int>(position)].process().incarnation() == self) {
      owned.push_back(partition);
    }
  }
  return owned;
}

InstalledView::InstalledView(v1::View view, uint64_t self, const ShardModel& model)
    : view_(std::move(view)) {
  for (const v1::View::Member& member : view_.workers()) {
    member_index_[member.process().incarnation()] = assigned_.size();
    IntervalSet assigned;
    for (const v1::Range& range : member.microbatches()) {
      assigned.Add(FromProto(range));
      microbatches_ = std::max(microbatches_, range.end());
    }
    assigned_.push_back(std::move(assigned));
  }
  SLUICE_DCHECK(member_index_.size() == assigned_.size(), "a member is listed once");

  owned_ = OwnedPartitions(view_.shards(), view_.owner(), self, model);
  is_arbiter_ = view_.owner_size() > 0 &&
                view_.owner(0) < static_cast<uint32_t>(view_.shards_size()) &&
                view_.shards(static_cast<int>(view_.owner(0))).process().incarnation() == self;
}

std::optional<size_t> InstalledView::MemberIndex(uint64_t incarnation) const {
  const auto found = member_index_.find(incarnation);
  if (found == member_index_.end()) return std::nullopt;
  return found->second;
}

bool InstalledView::Owns(uint32_t partition) const {
  return std::binary_search(owned_.begin(), owned_.end(), partition);
}

bool InstalledView::HasCopy(uint32_t partition, uint64_t shard) const {
  const auto names = [&](const google::protobuf::RepeatedField<uint32_t>& list) {
    if (partition >= static_cast<uint32_t>(list.size())) return false;
    const uint32_t position = list[static_cast<int>(partition)];
    return position > 0 &&
           view_.shards(static_cast<int>(position - 1)).process().incarnation() == shard;
  };
  return names(view_.follower()) || names(view_.target());
}

bool InstalledView::HasShard(uint64_t incarnation) const {
  return std::any_of(
      view_.shards().begin(), view_.shards().end(),
      [&](const v1::View::Shard& shard) { return shard.process().incarnation() == incarnation; });
}

}  // namespace sluice::ps

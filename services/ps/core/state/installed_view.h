#ifndef SLUICE_SERVICES_PS_CORE_STATE_INSTALLED_VIEW_H_
#define SLUICE_SERVICES_PS_CORE_STATE_INSTALLED_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/samples/job_length.h"
#include "services/ps/core/base/model.h"

namespace sluice::ps {

// An installed view, with the lookups that a shard needs.
class InstalledView {
 public:
  InstalledView() = default;
  // `self` is the shard's incarnation.
  InstalledView(v1::View view, uint64_t self, const ShardModel& model);

  // The view as the coordinator sent it, its id, and whether it trains in steps.
  const v1::View& proto() const { return view_; }
  const v1::ViewId& id() const { return view_.id(); }
  bool synchronous() const { return IsSynchronous(view_.mode()); }

  // Number of workers in the view.
  size_t members() const { return assigned_.size(); }
  // The position of a worker in the view; nullopt unless it is a member.
  std::optional<size_t> MemberIndex(uint64_t incarnation) const;
  uint64_t MemberIncarnation(size_t member) const {
    return view_.workers(static_cast<int>(member)).process().incarnation();
  }
  // Microbatches of a member.
  const IntervalSet& Assigned(size_t member) const { return assigned_[member]; }
  // Microbatches of a step, over all members.
  uint64_t microbatches() const { return microbatches_; }

  // Partitions that this shard owns and that are not empty, ascending.
  const std::vector<uint32_t>& owned() const { return owned_; }
  // False for empty partitions too: they have no content to own.
  bool Owns(uint32_t partition) const;
  // Requires a partition of the layout.
  const v1::View::Shard& OwnerOf(uint32_t partition) const {
    return view_.shards(static_cast<int>(view_.owner(static_cast<int>(partition))));
  }
  // Whether a shard (its incarnation) is the follower or the target of the partition.
  bool HasCopy(uint32_t partition, uint64_t shard) const;
  // Whether a process is one of the view's shards.
  bool HasShard(uint64_t incarnation) const;
  // Whether this shard owns partition 0, and so gives leases and permits in asynchronous training.
  bool is_arbiter() const { return is_arbiter_; }

 private:
  v1::View view_;
  absl::flat_hash_map<uint64_t, size_t> member_index_;
  std::vector<IntervalSet> assigned_;
  uint64_t microbatches_ = 0;
  std::vector<uint32_t> owned_;
  bool is_arbiter_ = false;
};

// Owner lists refer to positions in `shards`. Returns the partitions of shard `self` that are not
// empty, ascending.
std::vector<uint32_t> OwnedPartitions(
    const google::protobuf::RepeatedPtrField<v1::View::Shard>& shards,
    const google::protobuf::RepeatedField<uint32_t>& owner, uint64_t self, const ShardModel& model);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_INSTALLED_VIEW_H_

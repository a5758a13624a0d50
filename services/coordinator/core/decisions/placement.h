// Where partitions are: a pure function from the current placement to the planned one.
//
// Intuition. A partition has one holder, its owner, or two, its owner and its follower. A target is
// a third copy that is made while training continues; once it is whole it replaces one of the
// holders: one that leaves, else the one whose shard holds more. So memory is balanced by
// targets, and only by them. Ownership is balanced without any transfer: an owner and its whole
// follower swap. Each planned target makes the holdings more even, and each swap the ownership, so
// the plan converges: once it is carried out, planning again changes nothing.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_PLACEMENT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_PLACEMENT_H_

#include <cstdint>
#include <vector>

namespace sluice::coordinator {

// By partition: positions in a list of shards.
struct Placement {
  static constexpr uint32_t kNone = UINT32_MAX;

  std::vector<uint32_t> owner;
  std::vector<uint32_t> follower;  // kNone: none
  std::vector<uint32_t> target;    // kNone: none

  bool operator==(const Placement& other) const {
    return owner == other.owner && follower == other.follower && target == other.target;
  }
  bool operator!=(const Placement& other) const { return !(*this == other); }
};

struct PlacementInput {
  std::vector<bool> leaving;    // by shard
  std::vector<uint64_t> bytes;  // by partition; 0: it has no blocks
  // Each partition with blocks has an owner. A follower or target differs from the other holders.
  Placement current;
  std::vector<bool> follower_whole;  // by partition
  std::vector<bool> target_whole;
  uint32_t copies = 1;    // of each partition that the job wants: 1 or 2
  bool may_move = false;  // an owner may change
  // By shard, in percent: what a byte costs there (shard_load.h). Empty: 100 everywhere. What
  // shards hold and own is balanced by its cost.
  std::vector<uint32_t> cost;
};

// A shard that leaves has nothing once all that it takes to replace it is whole. If all shards
// leave, they keep what they have. Partitions without blocks have an owner and nothing else.
Placement PlanPlacement(const PlacementInput& input);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_PLACEMENT_H_

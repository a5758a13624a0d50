#include "services/coordinator/core/decisions/placement.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "services/common/check.h"

namespace sluice::coordinator {
namespace {

constexpr uint32_t kNone = Placement::kNone;

class Planner {
 public:
  explicit Planner(const PlacementInput& input)
      : in_(input),
        plan_(input.current),
        whole_(input.follower_whole),
        moves_owner_(input.bytes.size()),
        total_(input.leaving.size()),
        owned_(input.leaving.size()) {
    for (uint32_t s = 0; s < in_.leaving.size(); ++s) {
      if (!in_.leaving[s]) staying_.push_back(s);
    }
    wanted_ = in_.copies >= 2 && staying_.size() >= 2;
    largest_ = in_.bytes.empty() ? 0 : *std::max_element(in_.bytes.begin(), in_.bytes.end());
    by_bytes_.resize(in_.bytes.size());
    std::iota(by_bytes_.begin(), by_bytes_.end(), 0);
    std::stable_sort(by_bytes_.begin(), by_bytes_.end(),
                     [&](uint32_t a, uint32_t b) { return in_.bytes[a] > in_.bytes[b]; });
  }

  Placement Plan() && {
    for (uint32_t p = 0; p < in_.bytes.size(); ++p) {
      if (in_.bytes[p] == 0) {
        PlaceEmpty(p);
      } else {
        SLUICE_DCHECK(plan_.owner[p] < total_.size(), "a partition with blocks has an owner");
        SLUICE_DCHECK(plan_.owner[p] != plan_.follower[p] && plan_.owner[p] != plan_.target[p],
                      "a copy is on another shard than the partition's owner");
        total_[plan_.owner[p]] += in_.bytes[p];
        if (plan_.follower[p] != kNone) total_[plan_.follower[p]] += in_.bytes[p];
      }
    }
    if (staying_.empty()) return std::move(plan_);

    for (uint32_t p = 0; p < in_.bytes.size(); ++p) {
      if (plan_.target[p] != kNone) UseTarget(p);
    }
    for (const uint32_t p : by_bytes_) {
      if (in_.bytes[p] > 0) Settle(p);
    }
    BalanceHoldings();
    if (in_.may_move) BalanceOwnership();
    return std::move(plan_);
  }

 private:
  bool Leaving(uint32_t shard) const { return in_.leaving[shard]; }

  // The cost of this many bytes on the shard.
  uint64_t Cost(uint32_t shard, uint64_t bytes) const {
    return bytes * (in_.cost.empty() ? 100 : in_.cost[shard]);
  }
  // A difference between the two shards that no partition could make smaller.
  uint64_t Unavoidable(uint32_t a, uint32_t b) const {
    return std::max(Cost(a, largest_), Cost(b, largest_));
  }

  void PlaceEmpty(uint32_t p) {
    uint32_t& owner = plan_.owner[p];
    if (owner == kNone || (Leaving(owner) && in_.may_move && !staying_.empty())) {
      owner = staying_.empty() ? 0 : staying_.front();
    }
    plan_.follower[p] = plan_.target[p] = kNone;
  }

  // Whether the target replaces the owner; else it replaces the follower.
  bool ReplacesOwner(uint32_t p) const {
    const uint32_t owner = plan_.owner[p];
    const uint32_t follower = plan_.follower[p];
    if (Leaving(owner) || follower == kNone) return true;
    return !Leaving(follower) && Cost(owner, total_[owner]) > Cost(follower, total_[follower]);
  }

  // The target takes its place if it is whole, and is counted at that place if it is not.
  void UseTarget(uint32_t p) {
    uint32_t& owner = plan_.owner[p];
    uint32_t& follower = plan_.follower[p];
    uint32_t& target = plan_.target[p];
    if (Leaving(target)) {
      target = kNone;
      return;
    }
    total_[target] += in_.bytes[p];
    if (follower == kNone && wanted_) {
      whole_[p] = in_.target_whole[p];
      follower = std::exchange(target, kNone);
      return;
    }

    const bool replaces_owner = ReplacesOwner(p);
    uint32_t& replaced = replaces_owner ? owner : follower;
    total_[replaced] -= in_.bytes[p];
    moves_owner_[p] = replaces_owner;
    if (!in_.target_whole[p] || (replaces_owner && !in_.may_move)) return;
    if (!replaces_owner) whole_[p] = true;
    replaced = std::exchange(target, kNone);
    moves_owner_[p] = false;
  }

  // The staying shard with the least cost that is not a holder; among equals, the one that follows
  // the least of this owner.
  uint32_t Least(uint32_t p) const {
    std::vector<uint64_t> follows(total_.size());
    for (uint32_t q = 0; q < in_.bytes.size(); ++q) {
      if (plan_.follower[q] != kNone && plan_.owner[q] == plan_.owner[p]) {
        follows[plan_.follower[q]] += in_.bytes[q];
      }
    }
    uint32_t least = kNone;
    for (const uint32_t s : staying_) {
      if (s == plan_.owner[p] || s == plan_.follower[p] || s == plan_.target[p]) continue;
      if (least == kNone || std::make_pair(Cost(s, total_[s]), follows[s]) <
                                std::make_pair(Cost(least, total_[least]), follows[least])) {
        least = s;
      }
    }
    return least;
  }

  void Drop(uint32_t p) {
    total_[plan_.follower[p]] -= in_.bytes[p];
    plan_.follower[p] = kNone;
  }

  // A shard that leaves is replaced, and a missing follower is named.
  void Settle(uint32_t p) {
    uint32_t& owner = plan_.owner[p];
    uint32_t& follower = plan_.follower[p];
    uint32_t& target = plan_.target[p];

    if (Leaving(owner) && follower != kNone && !Leaving(follower) && whole_[p] && in_.may_move) {
      std::swap(owner, follower);
      moves_owner_[p] = false;  // a target replaces the same shard, which is the follower now
    }
    if (follower != kNone && ((Leaving(follower) && !whole_[p]) || (!wanted_ && !Leaving(owner)))) {
      Drop(p);
    }
    if (follower == kNone && wanted_) {
      follower = Least(p);
      whole_[p] = false;
      if (follower != kNone) total_[follower] += in_.bytes[p];
    }

    const bool owner_needs = Leaving(owner) && (follower == kNone || Leaving(follower));
    const bool follower_needs = !Leaving(owner) && follower != kNone && Leaving(follower);
    if (target != kNone || !(owner_needs || follower_needs)) return;
    target = Least(p);
    if (target != kNone) {
      total_[target] += in_.bytes[p];
      moves_owner_[p] = owner_needs;
    } else if (follower_needs) {
      Drop(p);  // no shard is left that could follow
    }
  }

  // Whether another target may be made of the partition: all its holders stay and are whole.
  bool IsSettled(uint32_t p) const {
    return in_.bytes[p] > 0 && plan_.target[p] == kNone && !Leaving(plan_.owner[p]) &&
           (plan_.follower[p] == kNone ? !wanted_ : !Leaving(plan_.follower[p]) && whole_[p]);
  }

  void BalanceHoldings() {
    const auto less = [&](uint32_t a, uint32_t b) {
      return Cost(a, total_[a]) < Cost(b, total_[b]);
    };
    while (true) {
      const uint32_t most = *std::max_element(staying_.begin(), staying_.end(), less);
      const uint32_t least = *std::min_element(staying_.begin(), staying_.end(), less);
      const uint64_t gap = Cost(most, total_[most]) - Cost(least, total_[least]);
      if (gap <= Unavoidable(most, least)) return;

      // The largest partition that does not overshoot; else the smallest.
      uint32_t chosen = kNone;
      for (const uint32_t p : by_bytes_) {
        const bool held = plan_.owner[p] == most || plan_.follower[p] == most;
        if (!held || plan_.owner[p] == least || plan_.follower[p] == least || !IsSettled(p)) {
          continue;
        }
        chosen = p;
        if (Cost(most, in_.bytes[p]) + Cost(least, in_.bytes[p]) <= gap) break;
      }
      if (chosen == kNone) return;
      SLUICE_DCHECK(total_[most] >= in_.bytes[chosen], "a shard holds what is taken from it");
      moves_owner_[chosen] = ReplacesOwner(chosen);
      total_[moves_owner_[chosen] ? plan_.owner[chosen] : plan_.follower[chosen]] -=
          in_.bytes[chosen];
      total_[least] += in_.bytes[chosen];
      plan_.target[chosen] = least;
    }
  }

  void BalanceOwnership() {
    for (uint32_t p = 0; p < in_.bytes.size(); ++p) {
      owned_[moves_owner_[p] ? plan_.target[p] : plan_.owner[p]] += in_.bytes[p];
    }
    while (true) {
      uint32_t chosen = kNone;
      uint64_t widest = 0;
      for (const uint32_t p : by_bytes_) {
        if (plan_.follower[p] == kNone || !IsSettled(p)) continue;
        const uint32_t owner = plan_.owner[p];
        const uint32_t follower = plan_.follower[p];
        const uint64_t from = Cost(owner, owned_[owner]);
        const uint64_t to = Cost(follower, owned_[follower]);
        if (from <= to || from - to <= std::max(widest, Unavoidable(owner, follower))) continue;
        widest = from - to;
        chosen = p;
      }
      if (chosen == kNone) return;
      SLUICE_DCHECK(owned_[plan_.owner[chosen]] >= in_.bytes[chosen],
                    "a shard owns what is taken from it");
      owned_[plan_.owner[chosen]] -= in_.bytes[chosen];
      owned_[plan_.follower[chosen]] += in_.bytes[chosen];
      std::swap(plan_.owner[chosen], plan_.follower[chosen]);
    }
  }

  const PlacementInput& in_;
  Placement plan_;
  std::vector<bool> whole_;        // the follower is
  std::vector<bool> moves_owner_;  // the target will replace the owner
  std::vector<uint32_t> staying_;
  std::vector<uint32_t> by_bytes_;  // partitions, largest first
  bool wanted_ = false;             // a follower of each partition
  uint64_t largest_ = 0;
  std::vector<uint64_t> total_;  // bytes that a shard holds, or will hold
  std::vector<uint64_t> owned_;
};

}  // namespace

Placement PlanPlacement(const PlacementInput& input) {
  SLUICE_DCHECK(input.current.owner.size() == input.bytes.size() &&
                    input.current.follower.size() == input.bytes.size() &&
                    input.current.target.size() == input.bytes.size() &&
                    input.follower_whole.size() == input.bytes.size() &&
                    input.target_whole.size() == input.bytes.size(),
                "all lists are by partition");
  SLUICE_DCHECK(input.cost.empty() || input.cost.size() == input.leaving.size(),
                "costs are by shard");
  const Placement plan = Planner(input).Plan();
  for (size_t p = 0; p < input.bytes.size() && DebugChecksAreOn(); ++p) {
    SLUICE_DCHECK(plan.owner[p] < input.leaving.size(), "each partition has an owner");
    SLUICE_DCHECK(input.bytes[p] > 0 || (plan.follower[p] == kNone && plan.target[p] == kNone),
                  "a partition without blocks has no copies");
    SLUICE_DCHECK(plan.owner[p] != plan.follower[p] && plan.owner[p] != plan.target[p],
                  "a copy is on another shard than the partition's owner");
    SLUICE_DCHECK(input.may_move || input.bytes[p] == 0 || plan.owner[p] == input.current.owner[p],
                  "owners change only where they may move");
  }
  return plan;
}

}  // namespace sluice::coordinator

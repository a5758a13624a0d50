#include "services/coordinator/core/decisions/placement.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr uint32_t kNone = Placement::kNone;

// Partitions of 10 bytes each with these owners, and no copies.
PlacementInput Owned(std::vector<uint32_t> owner, uint32_t shards, uint32_t copies) {
  PlacementInput input;
  input.leaving.resize(shards);
  input.bytes.assign(owner.size(), 10);
  input.current.owner = owner;
  input.current.follower.assign(owner.size(), kNone);
  input.current.target.assign(owner.size(), kNone);
  input.follower_whole.resize(owner.size());
  input.target_whole.resize(owner.size());
  input.copies = copies;
  input.may_move = true;
  return input;
}

// The plan is carried out, and all of its copies are whole.
void CarryOut(PlacementInput* input) {
  const Placement next = PlanPlacement(*input);
  for (size_t p = 0; p < next.owner.size(); ++p) {
    input->follower_whole[p] = next.follower[p] != kNone;
    input->target_whole[p] = next.target[p] != kNone;
  }
  input->current = next;
}

TEST(Placement, NamesFollowersOnSeveralOtherShards) {
  const PlacementInput input = Owned({0, 1, 2, 0, 1, 2}, 3, 2);
  const Placement plan = PlanPlacement(input);
  EXPECT_EQ(plan.owner, input.current.owner);
  std::vector<int> follows(3);
  for (size_t p = 0; p < 6; ++p) {
    EXPECT_NE(plan.follower[p], plan.owner[p]);
    ++follows[plan.follower[p]];
  }
  EXPECT_THAT(follows, ElementsAre(2, 2, 2));
  for (size_t p = 0; p < 3; ++p) {
    EXPECT_NE(plan.follower[p], plan.follower[p + 3]) << "of one owner, on two shards";
  }
  EXPECT_THAT(plan.target, Each(kNone));
}

TEST(Placement, OneShardHasNoFollowersAndOneCopyNone) {
  EXPECT_THAT(PlanPlacement(Owned({0, 0}, 1, 2)).follower, Each(kNone));
  EXPECT_THAT(PlanPlacement(Owned({0, 1}, 2, 1)).follower, Each(kNone));
}

TEST(Placement, NewShardOfJobWithoutCopiesReceivesTargetsAndThenOwns) {
  PlacementInput input = Owned({0, 0, 0, 0}, 2, 1);
  const Placement plan = PlanPlacement(input);
  EXPECT_EQ(plan.owner, input.current.owner) << "before the copies are whole";
  EXPECT_EQ(std::count(plan.target.begin(), plan.target.end(), 1u), 2);

  input.current = plan;
  EXPECT_EQ(PlanPlacement(input), plan) << "it waits";
  for (size_t p = 0; p < 4; ++p) input.target_whole[p] = plan.target[p] != kNone;
  input.may_move = false;
  EXPECT_EQ(PlanPlacement(input), plan) << "owners may not change";
  input.may_move = true;
  const Placement moved = PlanPlacement(input);
  EXPECT_EQ(std::count(moved.owner.begin(), moved.owner.end(), 1u), 2);
  EXPECT_THAT(moved.target, Each(kNone));
  EXPECT_THAT(moved.follower, Each(kNone)) << "the old owner drops it";
}

TEST(Placement, SwapsOwnersWithWholeFollowersToBalance) {
  PlacementInput input = Owned({0, 0, 0, 0}, 2, 2);
  CarryOut(&input);
  EXPECT_THAT(input.current.follower, Each(1u));
  EXPECT_THAT(input.current.owner, Each(0u));
  const Placement plan = PlanPlacement(input);
  EXPECT_EQ(std::count(plan.owner.begin(), plan.owner.end(), 1u), 2);
  EXPECT_THAT(plan.target, Each(kNone)) << "no transfer";
  for (size_t p = 0; p < 4; ++p) EXPECT_NE(plan.owner[p], plan.follower[p]);
}

// Bytes that the shards hold, owner and follower counted, or own.
std::vector<uint64_t> Sums(const PlacementInput& input, bool own) {
  std::vector<uint64_t> sums(input.leaving.size());
  for (size_t p = 0; p < input.bytes.size(); ++p) {
    sums[input.current.owner[p]] += input.bytes[p];
    if (!own && input.current.follower[p] != kNone) {
      sums[input.current.follower[p]] += input.bytes[p];
    }
  }
  return sums;
}

TEST(Placement, ShardWhereBytesCostMoreHoldsFewerOfThem) {
  PlacementInput input = Owned({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, 2, 1);
  input.cost = {300, 100};
  for (int i = 0; i < 3; ++i) CarryOut(&input);
  EXPECT_THAT(Sums(input, true), ElementsAre(40, 120));
  const Placement plan = input.current;
  CarryOut(&input);
  EXPECT_EQ(input.current, plan) << "planning again after the plan was carried out changes nothing";

  input.cost = {100, 100};
  for (int i = 0; i < 3; ++i) CarryOut(&input);
  EXPECT_THAT(Sums(input, true), ElementsAre(80, 80)) << "it gets its part again";
}

TEST(Placement, WithCopiesOnBothShardsTheExpensiveOneOwnsLess) {
  PlacementInput input = Owned({0, 0, 0, 0, 1, 1, 1, 1}, 2, 2);
  CarryOut(&input);
  input.cost = {300, 100};
  for (int i = 0; i < 3; ++i) CarryOut(&input);
  EXPECT_THAT(Sums(input, true), ElementsAre(20, 60));
  EXPECT_THAT(Sums(input, false), ElementsAre(80, 80));
}

TEST(Placement, PlansWithAnyCostsConverge) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const uint32_t shards = 2 + random() % 4;
    std::vector<uint32_t> owner(1 + random() % 24);
    for (uint32_t& o : owner) o = random() % shards;
    PlacementInput input = Owned(owner, shards, 1 + random() % 2);
    for (uint64_t& bytes : input.bytes) bytes = random() % 4 == 0 ? 0 : 1 + random() % 30;
    for (uint32_t s = 0; s < shards; ++s) input.cost.push_back(100 + random() % 701);
    Placement before;
    int rounds = 0;
    do {
      before = input.current;
      CarryOut(&input);
      ASSERT_LT(++rounds, 100) << "round " << round;
    } while (input.current != before);
  }
}

TEST(Placement, LeavingOwnerSwapsWithItsFollowerThatIsReplacedByTarget) {
  PlacementInput input = Owned({0, 1}, 3, 2);
  input.current.follower = {1, 2};
  input.follower_whole = {true, true};
  input.leaving[0] = true;
  Placement plan = PlanPlacement(input);
  EXPECT_EQ(plan.owner[0], 1u);
  EXPECT_EQ(plan.follower[0], 0u) << "it is the second copy until there is another one";
  EXPECT_EQ(plan.target[0], 2u);

  input.current = plan;
  input.target_whole[0] = true;
  plan = PlanPlacement(input);
  EXPECT_EQ(plan.owner[0], 1u);
  EXPECT_EQ(plan.follower[0], 2u);
  EXPECT_EQ(plan.target[0], kNone);
}

TEST(Placement, LeavingOwnerKeepsPartitionUntilACopyIsWhole) {
  PlacementInput input = Owned({0, 0}, 2, 2);
  input.current.follower = {1, 1};
  input.leaving[0] = true;
  EXPECT_EQ(PlanPlacement(input).owner, input.current.owner);
  input.follower_whole = {true, false};
  EXPECT_THAT(PlanPlacement(input).owner, ElementsAre(1, 0));
  input.leaving[1] = true;
  EXPECT_EQ(PlanPlacement(input), input.current) << "all leave";
}

TEST(Placement, PartitionsWithoutBlocksHaveOwnersOnly) {
  PlacementInput input = Owned({0, kNone, 1}, 2, 2);
  input.bytes = {10, 0, 0};
  input.leaving[1] = true;
  const Placement plan = PlanPlacement(input);
  EXPECT_THAT(plan.owner, ElementsAre(0, 0, 0));
  EXPECT_THAT(plan.follower, Each(kNone));
}

// Shards join, leave and die at random, and copies become whole in any order.
class RandomPlacement {
 public:
  explicit RandomPlacement(uint64_t seed) : random_(seed) {
    const auto shards = static_cast<uint32_t>(1 + Any(6));
    const uint64_t partitions = 1 + Any(40);
    input_ = Owned(std::vector<uint32_t>(partitions, 0), shards, 1 + Any(2));
    for (uint64_t p = 0; p < partitions; ++p) {
      input_.bytes[p] = Any(5) == 0 ? 0 : 1 + Any(1000);
      input_.current.owner[p] = static_cast<uint32_t>(Any(shards));
    }
  }

  void Run() {
    for (int round = 0; round < 60; ++round) {
      Change();
      Plan();
      if (::testing::Test::HasFailure()) return;
    }
    input_.may_move = true;
    Settle();
  }

 private:
  uint64_t Any(uint64_t below) { return random_() % below; }

  void Change() {
    PlacementInput& in = input_;
    const auto shards = static_cast<uint32_t>(in.leaving.size());
    in.may_move = Any(4) > 0;
    for (size_t p = 0; p < in.bytes.size(); ++p) {
      if (in.current.follower[p] != kNone && Any(2) == 0) in.follower_whole[p] = true;
      if (in.current.target[p] != kNone && Any(2) == 0) in.target_whole[p] = true;
    }
    switch (Any(12)) {
      case 0:
        if (shards < 8) in.leaving.push_back(false);
        break;
      case 1:
        in.leaving[Any(shards)] = true;
        break;
      case 2:
        in.leaving[Any(shards)] = false;
        break;
      case 3:
        Kill(static_cast<uint32_t>(Any(shards)));
        break;
      default:
        break;
    }
  }

  // A shard dies if all of its partitions have another whole copy; those own them.
  void Kill(uint32_t shard) {
    PlacementInput next = input_;
    Placement& at = next.current;
    for (size_t p = 0; p < next.bytes.size(); ++p) {
      if (at.follower[p] == shard) {
        at.follower[p] = kNone;
        next.follower_whole[p] = false;
      }
      if (at.target[p] == shard) {
        at.target[p] = kNone;
        next.target_whole[p] = false;
      }
      if (at.owner[p] != shard) continue;
      at.owner[p] = kNone;
      if (next.bytes[p] == 0) continue;
      if (next.follower_whole[p]) {
        at.owner[p] = std::exchange(at.follower[p], kNone);
        next.follower_whole[p] = false;
      } else if (next.target_whole[p]) {
        at.owner[p] = std::exchange(at.target[p], kNone);
        next.target_whole[p] = false;
      } else {
        return;
      }
    }
    if (next.leaving.size() == 1) return;
    next.leaving.erase(next.leaving.begin() + shard);
    for (auto* positions : {&at.owner, &at.follower, &at.target}) {
      for (uint32_t& s : *positions) {
        if (s != kNone && s > shard) --s;
      }
    }
    input_ = next;
  }

  bool HoldsWhole(size_t p, uint32_t shard) const {
    const PlacementInput& in = input_;
    return in.current.owner[p] == shard ||
           (in.current.follower[p] == shard && in.follower_whole[p]) ||
           (in.current.target[p] == shard && in.target_whole[p]);
  }

  void Plan() {
    const Placement plan = PlanPlacement(input_);
    const auto shards = static_cast<uint32_t>(input_.leaving.size());
    PlacementInput next = input_;
    next.current = plan;
    for (size_t p = 0; p < input_.bytes.size(); ++p) {
      ASSERT_LT(plan.owner[p], shards);
      const uint32_t follower = plan.follower[p];
      const uint32_t target = plan.target[p];
      if (input_.bytes[p] == 0) {
        ASSERT_EQ(follower, kNone);
        ASSERT_EQ(target, kNone);
        continue;
      }
      ASSERT_TRUE(HoldsWhole(p, plan.owner[p])) << "a whole copy owns partition " << p;
      if (!input_.may_move) {
        ASSERT_EQ(plan.owner[p], input_.current.owner[p]);
      }
      ASSERT_NE(follower, plan.owner[p]);
      ASSERT_NE(target, plan.owner[p]);
      if (follower != kNone) {
        ASSERT_LT(follower, shards);
        ASSERT_NE(follower, target);
      }
      ASSERT_TRUE(target == kNone || target < shards);

      // A second whole copy is given up only for another one, or if no shard is left for one.
      const bool staying = std::count(input_.leaving.begin(), input_.leaving.end(), false) >= 2;
      const bool had = input_.current.follower[p] != kNone && input_.follower_whole[p];
      if (had && staying && input_.copies == 2) {
        ASSERT_NE(follower, kNone);
        ASSERT_TRUE(HoldsWhole(p, follower)) << "partition " << p;
      }
      next.follower_whole[p] = follower != kNone && HoldsWhole(p, follower);
      next.target_whole[p] = target != kNone && HoldsWhole(p, target);
    }
    input_ = next;
  }

  void Settle() {
    int rounds = 0;
    while (true) {
      const Placement before = input_.current;
      Plan();
      if (::testing::Test::HasFailure()) return;
      bool whole = true;
      for (size_t p = 0; p < input_.bytes.size(); ++p) {
        if (input_.current.follower[p] != kNone) {
          whole = whole && input_.follower_whole[p];
          input_.follower_whole[p] = true;
        }
        if (input_.current.target[p] != kNone) {
          whole = whole && input_.target_whole[p];
          input_.target_whole[p] = true;
        }
      }
      if (whole && input_.current == before) break;
      ASSERT_LT(++rounds, 20) << "the plan does not converge";
    }

    const std::vector<bool>& leaving = input_.leaving;
    const auto staying = std::count(leaving.begin(), leaving.end(), false);
    if (staying == 0) return;
    EXPECT_THAT(input_.current.target, Each(kNone));
    std::vector<uint64_t> total(leaving.size());
    std::vector<uint64_t> owned(leaving.size());
    const uint64_t largest = *std::max_element(input_.bytes.begin(), input_.bytes.end());
    for (size_t p = 0; p < input_.bytes.size(); ++p) {
      const uint32_t owner = input_.current.owner[p];
      const uint32_t follower = input_.current.follower[p];
      EXPECT_FALSE(leaving[owner]) << "partition " << p;
      owned[owner] += input_.bytes[p];
      total[owner] += input_.bytes[p];
      if (input_.bytes[p] == 0) continue;
      ASSERT_EQ(follower == kNone, input_.copies == 1 || staying == 1);
      if (follower == kNone) continue;
      EXPECT_FALSE(leaving[follower]) << "partition " << p;
      total[follower] += input_.bytes[p];
    }
    for (size_t a = 0; a < leaving.size(); ++a) {
      for (size_t b = 0; b < leaving.size(); ++b) {
        if (leaving[a] || leaving[b]) continue;
        EXPECT_LE(total[a], total[b] + largest) << "shards hold about the same";
        EXPECT_LE(owned[a], owned[b] + 2 * largest) << "shards own about the same";
      }
    }
  }

  std::mt19937_64 random_;
  PlacementInput input_;
};

TEST(Placement, RandomChangesNeverLoseACopyAndConvergeToBalance) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomPlacement(seed).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::coordinator

#include "cli/chaos/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace sluice::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<FaultKind> Parsed(const std::string& text) {
  const absl::StatusOr<std::vector<FaultKind>> kinds = ParseFaults(text);
  EXPECT_TRUE(kinds.ok()) << kinds.status();
  return kinds.ok() ? *kinds : std::vector<FaultKind>();
}

std::string ErrorOf(const std::string& text) {
  return std::string(ParseFaults(text).status().message());
}

ScheduleOptions Options(uint64_t seed, const std::string& faults = kDefaultFaults) {
  ScheduleOptions options;
  options.seed = seed;
  options.kinds = Parsed(faults);
  options.workers = 3;
  options.shards = 2;
  return options;
}

std::vector<std::string> Texts(const ScheduleOptions& options, uint64_t count) {
  std::vector<std::string> texts;
  for (uint64_t n = 0; n < count; ++n) texts.push_back(FaultText(FaultAt(options, n)));
  return texts;
}

TEST(FaultsTest, ParsesActionsAndRoles) {
  std::vector<std::string> texts;
  for (const FaultKind& kind :
       Parsed("kill:worker, freeze:shard+shard,term:coordinator,cut:worker,slow:shard,fill:disk")) {
    texts.push_back(KindText(kind));
  }
  EXPECT_THAT(texts, ElementsAre("kill:worker", "freeze:shard+shard", "term:coordinator",
                                 "cut:worker", "slow:shard", "fill:disk"));
  EXPECT_EQ(Parsed(kDefaultFaults).size(), 6u);
}

TEST(FaultsTest, RefusesUnknownWordsWithTheKnownOnes) {
  EXPECT_THAT(
      ErrorOf("explode:worker"),
      HasSubstr("there is no fault 'explode'; there are kill, freeze, term, scale, cut, slow and "
                "fill"));
  EXPECT_THAT(ErrorOf("fill:shard"), HasSubstr("'fill:shard': write fill:disk"));
  EXPECT_THAT(ErrorOf("kill:disk"), HasSubstr("there is no role 'disk'"));
  EXPECT_THAT(ErrorOf("kill:ps"),
              HasSubstr("there is no role 'ps'; there are worker, shard and coordinator"));
  for (const std::string text : {"", "kill", "kill:worker,", "kill:worker:1"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("is not a fault; write ACTION:ROLE")) << text;
  }
  EXPECT_THAT(ErrorOf("kill:"), HasSubstr("there is no role ''"));
  for (const std::string text : {"scale:coordinator", "scale:shard+shard"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("write scale:shard, scale:worker")) << text;
  }
}

TEST(FaultsTest, RefusesMoreProcessesThanTheJobHas) {
  EXPECT_TRUE(CheckFaults(Parsed("kill:worker+worker,kill:shard"), 2, 1).ok());
  EXPECT_THAT(CheckFaults(Parsed("kill:worker+worker+worker"), 2, 1).message(),
              HasSubstr("needs 3 processes of the role worker, and the job has 2"));
  EXPECT_THAT(CheckFaults(Parsed("kill:coordinator+coordinator"), 2, 1).message(),
              HasSubstr("the job has 1"));
}

TEST(FaultsTest, SameSeedGivesSameSchedule) {
  EXPECT_EQ(Texts(Options(7), 100), Texts(Options(7), 100));
  EXPECT_NE(Texts(Options(7), 100), Texts(Options(8), 100));
  for (uint64_t n = 0; n < 100; ++n) {
    EXPECT_EQ(FaultAt(Options(7), n).delay, FaultAt(Options(7), n).delay);
  }
}

// A user repeats a failure with its seed, so a release keeps the schedule of each seed.
TEST(FaultsTest, ScheduleOfASeedIsFixed) {
  EXPECT_THAT(
      Texts(Options(7), 6),
      ElementsAre("kill worker-0", "kill ps-0", "freeze ps-1 for 3.3 s",
                  "freeze worker-2 for 3.4 s", "kill coordinator", "freeze coordinator for 8.7 s"));
}

TEST(FaultsTest, FaultsOfLinksAndDiskLastAndSayHow) {
  ScheduleOptions options = Options(7, "cut:shard,slow:worker,fill:disk");
  EXPECT_THAT(Texts(options, 3),
              ElementsAre("cut ps-0 for 1.3 s", "slow worker-1 for 2.7 s (19 ms, 10 MB/s)",
                          "fill the disk for 3.3 s"));
  options.lasting = absl::Seconds(3);
  for (uint64_t n = 0; n < 30; ++n) {
    const PlannedFault fault = FaultAt(options, n);
    EXPECT_EQ(fault.lasts, absl::Seconds(3));
    EXPECT_EQ(fault.link.cut, fault.action == Action::kCut);
    EXPECT_EQ(fault.targets.size(), fault.action == Action::kFill ? 0u : 1u);
    if (fault.action != Action::kSlow) continue;
    EXPECT_GE(fault.link.delay, absl::Milliseconds(10));
    EXPECT_LE(fault.link.delay, absl::Milliseconds(100));
    EXPECT_GT(fault.link.bytes_per_second, 0);
  }
}

TEST(FaultsTest, EveryKindOccursInEveryTurn) {
  const ScheduleOptions options = Options(3);
  std::set<std::string> orders;
  for (uint64_t turn = 0; turn < 20; ++turn) {
    std::set<std::pair<Action, v1::Role>> seen;
    std::string order;
    for (uint64_t i = 0; i < 6; ++i) {
      const PlannedFault fault = FaultAt(options, turn * 6 + i);
      ASSERT_EQ(fault.targets.size(), 1u);
      seen.insert({fault.action, fault.targets[0].role});
      order += FaultText(fault).substr(0, 6);
    }
    EXPECT_EQ(seen.size(), 6u);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 5u);
}

TEST(FaultsTest, EveryProcessIsHitInTime) {
  const ScheduleOptions options = Options(1, "kill:worker,kill:shard");
  std::set<std::string> names;
  for (uint64_t n = 0; n < 100; ++n) {
    for (const policy::Replica& target : FaultAt(options, n).targets) {
      names.insert(policy::ReplicaName(target));
    }
  }
  EXPECT_THAT(names, ElementsAre("ps-0", "ps-1", "worker-0", "worker-1", "worker-2"));
}

TEST(FaultsTest, SeveralTargetsAreDifferent) {
  const ScheduleOptions options = Options(5, "kill:worker+shard+worker");
  for (uint64_t n = 0; n < 50; ++n) {
    const PlannedFault fault = FaultAt(options, n);
    ASSERT_EQ(fault.targets.size(), 3u);
    EXPECT_FALSE(fault.targets[0] == fault.targets[1]);
    EXPECT_EQ(fault.targets[2].role, v1::SHARD);
  }
}

TEST(FaultsTest, ScalingsChangeTheNumbersWithinTheirBounds) {
  ScheduleOptions options = Options(5, "scale:shard+worker,kill:worker+worker,kill:shard");
  options.min_shards = 2;
  options.max_shards = 3;
  local::Sizes sizes = {options.shards, options.workers};
  std::set<uint32_t> shards, workers;
  for (uint64_t n = 0; n < 300; ++n) {
    const PlannedFault fault = FaultAt(options, n);
    if (fault.action != Action::kScale) {
      EXPECT_EQ(fault.sizes, sizes) << n;
      for (const policy::Replica& target : fault.targets) {
        EXPECT_LT(target.index, target.role == v1::SHARD ? sizes.shards : sizes.workers) << n;
      }
      continue;
    }
    EXPECT_THAT(fault.targets, IsEmpty());
    EXPECT_NE(fault.sizes.shards, sizes.shards) << n;
    EXPECT_NE(fault.sizes.workers, sizes.workers) << n;
    sizes = fault.sizes;
    shards.insert(sizes.shards);
    workers.insert(sizes.workers);
    EXPECT_EQ(FaultText(fault), "scale to " + local::SizesText(sizes));
  }
  EXPECT_THAT(shards, ElementsAre(2, 3));
  EXPECT_THAT(workers, ElementsAre(2, 3, 4, 5, 6)) << "two at least, for kill:worker+worker";
}

TEST(FaultsTest, DelaysAndFreezesStayInTheirRanges) {
  ScheduleOptions options = Options(11, "freeze:worker");
  int expelled = 0;
  for (uint64_t n = 0; n < 200; ++n) {
    const PlannedFault fault = FaultAt(options, n);
    EXPECT_GE(fault.delay, absl::Seconds(2.5));
    EXPECT_LE(fault.delay, absl::Seconds(7.5));
    EXPECT_GE(fault.lasts, absl::Milliseconds(100));
    EXPECT_LE(fault.lasts, absl::Seconds(10));
    if (fault.lasts > options.heartbeat_timeout) ++expelled;
  }
  EXPECT_GT(expelled, 60);
  EXPECT_LT(expelled, 140);

  options.lasting = absl::Seconds(3);
  EXPECT_EQ(FaultAt(options, 0).lasts, absl::Seconds(3));
  options.kinds = Parsed("kill:worker");
  EXPECT_EQ(FaultAt(options, 0).lasts, absl::ZeroDuration());
}

}  // namespace
}  // namespace sluice::chaos

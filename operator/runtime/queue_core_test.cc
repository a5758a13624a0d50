#include "operator/runtime/queue_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/splitmix64.h"

namespace sluice::runtime {
namespace {

using ::testing::ElementsAre;

class QueueCoreTest : public ::testing::Test {
 protected:
  static Key K(const std::string& name) { return {"ns", name}; }
  std::string Take() {
    const auto taken = core_.Take(now_);
    return taken.has_value() ? taken->key.name : "";
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  QueueCore core_{QueueCore::Options{}};
};

TEST_F(QueueCoreTest, CombinesAdditionsOfAWaitingKey) {
  for (int i = 0; i < 5; ++i) core_.Add(K("a"), now_);
  EXPECT_EQ(Take(), "a");
  EXPECT_EQ(Take(), "");
}

TEST_F(QueueCoreTest, AKeyAddedDuringProcessingWaitsUntilItIsDone) {
  core_.Add(K("a"), now_);
  EXPECT_EQ(Take(), "a");
  core_.Add(K("a"), now_);
  EXPECT_EQ(Take(), "");
  core_.Done(K("a"), now_);
  EXPECT_EQ(Take(), "a");
  core_.Done(K("a"), now_);
  EXPECT_EQ(Take(), "");
}

TEST_F(QueueCoreTest, AKeyThatIsAddedAgainAtOnceStarvesNoOther) {
  for (const char* name : {"hot", "b", "c"}) core_.Add(K(name), now_);
  std::vector<std::string> order;
  for (int i = 0; i < 5; ++i) {
    order.push_back(Take());
    if (order.back() == "hot") core_.Add(K("hot"), now_);
    core_.Done(K(order.back()), now_);
  }
  EXPECT_THAT(order, ElementsAre("hot", "b", "c", "hot", "hot"));
}

TEST_F(QueueCoreTest, ASlowNamespaceLeavesRoomForOthers) {
  QueueCore::Options options;
  options.max_per_namespace = 2;
  QueueCore core(options);
  const auto take = [&] {
    const auto taken = core.Take(now_);
    return taken.has_value() ? taken->key.ToString() : "";
  };
  for (const char* name : {"a", "b", "c", "d"}) core.Add({"slow", name}, now_);
  core.Add({"other", "a"}, now_);
  EXPECT_EQ(take(), "slow/a");
  EXPECT_EQ(take(), "slow/b");
  EXPECT_EQ(take(), "other/a");
  EXPECT_EQ(take(), "") << "the namespace has its share";
  EXPECT_EQ(core.depth(), 2u);
  core.Done({"other", "a"}, now_);
  EXPECT_EQ(take(), "");
  core.Done({"slow", "b"}, now_);
  EXPECT_EQ(take(), "slow/c") << "in the order of the queue";
}

TEST_F(QueueCoreTest, ADelayedKeyIsTakenAtItsEarliestTime) {
  core_.AddAfter(K("a"), absl::Seconds(10), now_);
  core_.AddAfter(K("a"), absl::Seconds(5), now_);
  core_.AddAfter(K("a"), absl::Seconds(20), now_);
  EXPECT_EQ(core_.NextDue(), now_ + absl::Seconds(5));
  now_ += absl::Seconds(4.9);
  EXPECT_EQ(Take(), "");
  now_ += absl::Seconds(0.1);
  EXPECT_EQ(Take(), "a");
  EXPECT_EQ(core_.NextDue(), absl::InfiniteFuture());
}

TEST_F(QueueCoreTest, FailuresDoubleAKeysDelayUntilItIsForgotten) {
  EXPECT_EQ(core_.AddRateLimited(K("a"), now_), absl::Milliseconds(5));
  EXPECT_EQ(core_.AddRateLimited(K("a"), now_), absl::Milliseconds(10));
  EXPECT_EQ(core_.AddRateLimited(K("a"), now_), absl::Milliseconds(20));
  EXPECT_EQ(core_.AddRateLimited(K("b"), now_), absl::Milliseconds(5));
  EXPECT_EQ(core_.Failures(K("a")), 3);
  core_.Forget(K("a"));
  EXPECT_EQ(core_.AddRateLimited(K("a"), now_), absl::Milliseconds(5));
  for (int i = 0; i < 100; ++i) core_.AddRateLimited(K("a"), now_);
  EXPECT_EQ(core_.AddRateLimited(K("a"), now_), absl::Minutes(5));
}

TEST_F(QueueCoreTest, LimitsTheTotalRateOfRateLimitedKeys) {
  QueueCore::Options options;
  options.burst = 10;
  options.tokens_per_second = 2;
  QueueCore core(options);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(core.AddRateLimited(K(absl::StrCat(i)), now_), absl::Milliseconds(5));
  }
  EXPECT_EQ(core.AddRateLimited(K("x"), now_), absl::Seconds(0.5));
  EXPECT_EQ(core.AddRateLimited(K("y"), now_), absl::Seconds(1));
  now_ += absl::Seconds(2);
  EXPECT_EQ(core.AddRateLimited(K("z"), now_), absl::Milliseconds(5));
}

TEST_F(QueueCoreTest, MeasuresWaitingTimeFromWhenAKeyWasDue) {
  core_.AddAfter(K("a"), absl::Seconds(5), now_);
  now_ += absl::Seconds(8);
  EXPECT_EQ(core_.Take(now_)->waited, absl::Seconds(3));
}

TEST_F(QueueCoreTest, MatchesAModelUnderRandomOperations) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    QueueCore core{QueueCore::Options{}};
    absl::Time now = absl::FromUnixSeconds(1000);
    std::map<Key, bool> pending;  // the model: added and not yet taken
    std::map<Key, absl::Time> due;
    std::vector<Key> working;
    const auto fire = [&] {
      for (auto at = due.begin(); at != due.end();) {
        if (at->second > now) {
          ++at;
          continue;
        }
        pending[at->first] = true;
        at = due.erase(at);
      }
    };
    for (uint64_t n = 0; n < 300; n += 3) {
      const Key key = K(absl::StrCat(SplitMix64At(seed, n) % 6));
      switch (SplitMix64At(seed, n + 1) % 5) {
        case 0:
          core.Add(key, now);
          pending[key] = true;
          break;
        case 1: {
          const auto delay = absl::Seconds(1 + SplitMix64At(seed, n + 2) % 9);
          core.AddAfter(key, delay, now);
          const auto found = due.try_emplace(key, now + delay).first;
          found->second = std::min(found->second, now + delay);
          break;
        }
        case 2: {
          fire();
          const auto taken = core.Take(now);
          bool could = false;
          for (const auto& [k, is] : pending) {
            could |= is && std::find(working.begin(), working.end(), k) == working.end();
          }
          ASSERT_EQ(taken.has_value(), could) << "seed " << seed;
          if (!taken.has_value()) break;
          ASSERT_EQ(std::count(working.begin(), working.end(), taken->key), 0) << "seed " << seed;
          ASSERT_TRUE(pending[taken->key]) << "seed " << seed;
          pending[taken->key] = false;
          working.push_back(taken->key);
          break;
        }
        case 3:
          if (working.empty()) break;
          core.Done(working.back(), now);
          working.pop_back();
          break;
        case 4:
          now += absl::Seconds(SplitMix64At(seed, n + 2) % 4);
          break;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::runtime

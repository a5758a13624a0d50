// Whole jobs under each problem, by seed. A failure prints the command that replays it.
#include "tests/simulation/problems.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/simulation/cluster.h"

namespace sluice::simulation {
namespace {

constexpr uint64_t kSeeds = 60;

struct Mode {
  std::string name;
  ScenarioOptions options;
};

const std::vector<Mode>& Modes() {
  static const auto* const modes = new std::vector<Mode>{
      {"synchronous", {v1::SYNCHRONOUS, false}},
      {"bitexact", {v1::SYNCHRONOUS, true}},
      {"stragglers", {v1::SYNCHRONOUS, false, true}},
      {"copies", {v1::SYNCHRONOUS, false, false, false, false, false, true}},
      {"asynchronous", {v1::ASYNCHRONOUS, false}},
      {"bounded", {v1::BOUNDED_STALENESS, false}},
      {"allreduce", {v1::SYNCHRONOUS, false, false, false, false, true}},
  };
  return *modes;
}

class ProblemTest : public testing::TestWithParam<Problem> {};

TEST_P(ProblemTest, EveryJobFinishesExactly) {
  uint64_t seen = 0;
  for (const Mode& mode : Modes()) {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      Scenario scenario = MakeScenario(seed, mode.options);
      GetParam().apply(&scenario);
      const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
      ASSERT_EQ(outcome.failure, "")
          << Describe(scenario)
          << "\n  bazel run //tests/simulation:simulate -- --mode=" << mode.name
          << " --with=" << GetParam().name << " --first=" << seed << " --seeds=1 --trace";
      if (GetParam().seen != nullptr && GetParam().seen(outcome)) ++seen;
    }
  }
  // Enough seeds had the problem.
  if (GetParam().seen != nullptr) {
    EXPECT_GT(seen, kSeeds / 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, ProblemTest, testing::ValuesIn(Problems()),
                         [](const testing::TestParamInfo<Problem>& info) {
                           return info.param.name;
                         });

// Regression: when a shard had left an older coordinator and had not found another, the contract
// took its messages for messages to the older coordinator.
TEST(ProblemTest, FinishesSeedThatOnceFailed) {
  Scenario scenario = MakeScenario(427, {v1::ASYNCHRONOUS, false});
  ASSERT_TRUE(AddProblems("leave_shards,two_coordinators,liars", &scenario).ok());
  EXPECT_EQ(Cluster(scenario, Cluster::Tracing::kNone).Run().failure, "") << Describe(scenario);
}

// Regression of the checker: it compared a lease with the lease holders of the time when the worker
// got it. Where partition 0 has copies, or moves, the arbiter has raised the worker earlier, when
// it recorded the lease, and the lowest holder may have finished since.
TEST(ProblemTest, FinishesSeedsWithLeasesThatWaitForCopies) {
  Scenario copies =
      MakeScenario(1350, {v1::BOUNDED_STALENESS, false, false, false, false, false, true});
  ASSERT_TRUE(AddProblems("slow_connections", &copies).ok());
  Scenario moves = MakeScenario(67, {v1::BOUNDED_STALENESS, false, false, true});
  ASSERT_TRUE(
      AddProblems("liars,strangers,leave_shards,scaling,two_coordinators,readers", &moves).ok());
  for (const Scenario& scenario : {copies, moves}) {
    EXPECT_EQ(Cluster(scenario, Cluster::Tracing::kNone).Run().failure, "") << Describe(scenario);
  }
}

// Regression of the simulated parent: a worker whose stream broke while it was leaving counted as
// left, and then froze. The parent ended only frozen processes that were expelled.
TEST(ProblemTest, FinishesJobWhoseOnlyWorkerFreezesAfterItLeft) {
  Scenario scenario = MakeScenario(58, {v1::SYNCHRONOUS, false, false, false, false, false, true});
  ASSERT_TRUE(SetFaults("kill_shard=8,leave=10,cut_process=8,freeze_for_good=4", &scenario).ok());
  scenario.faults = 14;
  scenario.fault_spacing = 40;
  const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
  EXPECT_EQ(outcome.failure, "") << Describe(scenario);
  EXPECT_GT(outcome.replaced_frozen, 0u);
}

// Regression: an older SetDesired overtook a newer one, and the coordinator waited for a shard that
// the parent did not start.
TEST(ProblemTest, FinishesJobsThatScaleWhileShardsDie) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Scenario scenario = MakeScenario(seed, {v1::SYNCHRONOUS, false});
    ASSERT_TRUE(SetFaults("scale_shards=10,kill_shard=10", &scenario).ok());
    scenario.faults = 6;
    scenario.fault_spacing = 4;
    EXPECT_EQ(Cluster(scenario, Cluster::Tracing::kNone).Run().failure, "") << Describe(scenario);
  }
}

// A thawed coordinator expels no process whose messages it missed while it was frozen.
TEST(ProblemTest, FrozenAndThawedCoordinatorCostsNoAttempt) {
  for (const Mode& mode : Modes()) {
    for (const bool timers_first : {false, true}) {
      for (uint64_t seed = 1; seed <= 100; ++seed) {
        Scenario scenario = MakeScenario(seed, mode.options);
        ASSERT_TRUE(
            SetFaults("freeze_coordinator=10,kill_worker=10,join=2,leave=2", &scenario).ok());
        scenario.faults = 10;
        scenario.timers_first = timers_first;
        scenario.coordinator_freezes_are_harmless = true;
        const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
        ASSERT_EQ(outcome.failure, "")
            << Describe(scenario)
            << "\n  bazel run //tests/simulation:simulate -- --mode=" << mode.name
            << " --harmless --nfaults=10"
            << " --faults=freeze_coordinator=10,kill_worker=10,join=2,leave=2"
            << (timers_first ? " --with=timers_first" : "") << " --first=" << seed
            << " --seeds=1 --trace";
      }
    }
  }
}

// A coordinator that is cut off from all processes expels none of them, however long the cut lasts.
TEST(ProblemTest, CutOffCoordinatorCostsNoAttempt) {
  uint64_t cuts = 0;
  for (const Mode& mode : Modes()) {
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      Scenario scenario = MakeScenario(seed, mode.options);
      ASSERT_TRUE(SetFaults("cut_coordinator=10,kill_worker=6,join=2,leave=2", &scenario).ok());
      scenario.faults = 8;
      const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
      ASSERT_EQ(outcome.failure, "")
          << Describe(scenario)
          << "\n  bazel run //tests/simulation:simulate -- --mode=" << mode.name << " --nfaults=8"
          << " --faults=cut_coordinator=10,kill_worker=6,join=2,leave=2 --first=" << seed
          << " --seeds=1 --trace";
      cuts += outcome.cuts;
    }
  }
  EXPECT_GT(cuts, 300u);
}

// With second copies, a shard may die meanwhile too.
TEST(ProblemTest, DeathsWhileTheCoordinatorIsCutOffCostNoAttempt) {
  uint64_t cuts = 0;
  for (v1::Mode mode : {v1::SYNCHRONOUS, v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS}) {
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      Scenario scenario = MakeScenario(seed, {mode, false, false, false, false, false, true});
      ASSERT_TRUE(AddProblems("single_deaths,cut_coordinators", &scenario).ok());
      const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
      ASSERT_EQ(outcome.failure, "") << Describe(scenario);
      cuts += outcome.cuts;
    }
  }
  EXPECT_GT(cuts, 100u);
}

TEST(ProblemTest, NamesUnknownProblemOrFault) {
  Scenario scenario;
  EXPECT_EQ(AddProblems("frozen,nonsense", &scenario).message(),
            "there is no problem \"nonsense\"");
  EXPECT_EQ(SetFaults("kill_worker=3,sing=1", &scenario).message(),
            "\"sing=1\" is not the weight of a kind of fault: name=number");
  EXPECT_TRUE(SetFaults("kill_worker=3", &scenario).ok());
  EXPECT_EQ(scenario.kill_worker, 3u);
  EXPECT_EQ(scenario.kill_shard, 0u);
}

}  // namespace
}  // namespace sluice::simulation

// Whole jobs under faults, by seed. A failure prints the command that replays it.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/problems.h"

namespace sluice::simulation {
namespace {

struct Mode {
  std::string name;
  ScenarioOptions options;
};

class SimulationTest : public testing::TestWithParam<Mode> {};

TEST_P(SimulationTest, EveryJobFinishesExactlyDespiteFaults) {
  // Rows change only the workers' pulls, so fewer seeds suffice.
  const uint64_t seeds = GetParam().options.rows ? 100 : 300;
  uint64_t faults = 0;
  uint64_t views = 0;
  uint64_t attempts = 0;
  uint64_t promotions = 0;
  uint64_t larger_updates = 0;
  uint64_t sums = 0;
  uint64_t broken_sums = 0;
  uint64_t reductions = 0;
  uint64_t stopped = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const Scenario scenario = MakeScenario(seed, GetParam().options);
    const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
    ASSERT_EQ(outcome.failure, "")
        << Describe(scenario)
        << "\n  bazel run //tests/simulation:simulate -- --mode=" << GetParam().name
        << " --first=" << seed << " --seeds=1 --trace";
    faults += outcome.faults;
    views += outcome.views;
    attempts += outcome.attempts;
    promotions += outcome.promotions;
    larger_updates += outcome.larger_updates;
    sums += outcome.sums;
    broken_sums += outcome.broken_sums;
    reductions += outcome.reductions;
    stopped += outcome.stopped;
  }
  EXPECT_EQ(sums > seeds, GetParam().options.all_reduce) << sums;
  EXPECT_EQ(broken_sums > seeds / 10, GetParam().options.all_reduce) << broken_sums;
  EXPECT_EQ(larger_updates > 0, GetParam().options.batches_by_speed) << larger_updates;
  EXPECT_EQ(reductions > seeds, GetParam().options.decisions) << reductions;
  EXPECT_EQ(stopped > seeds / 5, GetParam().options.decisions) << stopped;
  // The scenarios contained enough faults.
  EXPECT_GT(faults, 2 * seeds);
  EXPECT_GT(views, 2 * seeds);
  if (GetParam().options.copies) {
    EXPECT_GT(promotions, seeds / 5);
  } else {
    EXPECT_GT(attempts, seeds + seeds / 20);
  }
}

TEST(CopiesTest, ProcessesThatDieOrLeaveOneAtATimeCostNoAttempt) {
  uint64_t promotions = 0;
  std::vector<ScenarioOptions> modes = {{v1::SYNCHRONOUS, false},
                                        {v1::SYNCHRONOUS, true},
                                        {v1::ASYNCHRONOUS, false},
                                        {v1::BOUNDED_STALENESS, false}};
  for (ScenarioOptions& options : modes) {
    options.copies = true;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      Scenario scenario = MakeScenario(seed, options);
      const bool slow = seed % 2 == 0;
      ASSERT_TRUE(
          AddProblems(slow ? "single_deaths,slow_connections" : "single_deaths", &scenario).ok());
      const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
      ASSERT_EQ(outcome.failure, "") << Describe(scenario);
      ASSERT_LE(outcome.attempts, 1u) << Describe(scenario);
      promotions += outcome.promotions;
    }
  }
  EXPECT_GT(promotions, 200u);
}

// Regression of the first two: the last version was treated as committed while a partition was one
// step behind.
TEST(SeedTest, FinishesSeedsThatOnceFailed) {
  const std::vector<std::pair<uint64_t, ScenarioOptions>> seeds = {
      {4446, {v1::SYNCHRONOUS, false}},
      {6762, {v1::SYNCHRONOUS, true}},
      {3801, {v1::BOUNDED_STALENESS, false}},
  };
  for (const auto& [seed, options] : seeds) {
    const Scenario scenario = MakeScenario(seed, options);
    EXPECT_EQ(Cluster(scenario, Cluster::Tracing::kNone).Run().failure, "") << Describe(scenario);
  }
}

// Regression: two successive coordinators took the same term, and the shards dropped the second one
// for good.
TEST(SeedTest, FinishesLargeSeedThatOnceFailed) {
  Scenario scenario = MakeScenario(170, {v1::SYNCHRONOUS, true});
  MakeLarge(&scenario);
  EXPECT_EQ(Cluster(scenario, Cluster::Tracing::kNone).Run().failure, "") << Describe(scenario);
}

// Regression of the checker: an Install applied the updates of four workers at once, and the
// checker expected at most three.
TEST(SeedTest, FinishesSeedWithLiarThatOnceFailed) {
  Scenario scenario = MakeScenario(830, {v1::BOUNDED_STALENESS, false});
  scenario.liars = 1;
  EXPECT_EQ(Cluster(scenario, Cluster::Tracing::kNone).Run().failure, "") << Describe(scenario);
}

TEST_P(SimulationTest, OneSeedGivesOneHistory) {
  for (uint64_t seed : {3, 8, 21}) {
    const Scenario scenario = MakeScenario(seed, GetParam().options);
    const Outcome first = Cluster(scenario, Cluster::Tracing::kNone).Run();
    const Outcome second = Cluster(scenario, Cluster::Tracing::kNone).Run();
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.simulated, second.simulated);
    EXPECT_EQ(first.views, second.views);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SimulationTest,
    testing::Values(
        Mode{"synchronous", {v1::SYNCHRONOUS, false}},
        Mode{"stragglers", {v1::SYNCHRONOUS, false, true}},
        Mode{"bitexact", {v1::SYNCHRONOUS, true}},
        Mode{"allreduce", {v1::SYNCHRONOUS, false, false, false, false, true}},
        Mode{"sync", {v1::SYNCHRONOUS, false, false, false, false, false, false, false, true}},
        Mode{"copiessync", {v1::SYNCHRONOUS, false, false, false, false, false, true, false, true}},
        Mode{"rowsallreduce", {v1::SYNCHRONOUS, false, false, true, false, true}},
        Mode{"rows", {v1::SYNCHRONOUS, false, false, true}},
        Mode{"copies", {v1::SYNCHRONOUS, false, false, false, false, false, true}},
        Mode{"copiesstragglers", {v1::SYNCHRONOUS, false, true, false, false, false, true}},
        Mode{"copiesrowsbitexact", {v1::SYNCHRONOUS, true, false, true, false, false, true}},
        Mode{"copiesasynchronous", {v1::ASYNCHRONOUS, false, false, false, false, false, true}},
        Mode{"copiesbounded", {v1::BOUNDED_STALENESS, false, false, false, false, false, true}},
        Mode{"decisions", {v1::SYNCHRONOUS, false, false, false, false, false, false, true}},
        Mode{"copiesdecisions", {v1::SYNCHRONOUS, true, false, true, false, false, true, true}},
        Mode{"rowsbitexact", {v1::SYNCHRONOUS, true, false, true}},
        Mode{"rowsstragglers", {v1::SYNCHRONOUS, false, true, true}},
        Mode{"rowsasynchronous", {v1::ASYNCHRONOUS, false, false, true}},
        Mode{"rowsbounded", {v1::BOUNDED_STALENESS, false, false, true}},
        Mode{"asynchronous", {v1::ASYNCHRONOUS, false}},
        Mode{"balanced", {v1::ASYNCHRONOUS, false, false, false, true}},
        Mode{"bounded", {v1::BOUNDED_STALENESS, false}}),
    [](const testing::TestParamInfo<Mode>& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::simulation

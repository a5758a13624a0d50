// Leaves out one rule of the protocol at a time, and expects the simulator to find the error.
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/simulation/mutations.h"

namespace sluice::simulation {
namespace {

// The rarest error is found at seed 917.
constexpr uint64_t kSeeds = 1500;

class MutationTest : public testing::TestWithParam<Mutation> {};

TEST_P(MutationTest, IsFound) {
  const std::string found = Find(GetParam(), kSeeds);
  EXPECT_NE(found, "") << "not found within " << kSeeds << " seeds";
  std::printf("%s\n", found.c_str());
}

INSTANTIATE_TEST_SUITE_P(Rules, MutationTest, testing::ValuesIn(Mutations()),
                         [](const testing::TestParamInfo<Mutation>& info) {
                           return info.param.name;
                         });

// The faults that the mutations add cause no error if all rules are kept.
TEST(MutationTest, SameFaultsCauseNoErrorWithoutMutation) {
  for (const Mutation& mutation : Mutations()) {
    for (const ScenarioOptions& mode : mutation.modes) {
      for (uint64_t seed = 1; seed <= 10; ++seed) {
        Scenario scenario = MakeScenario(seed, mode);
        mutation.apply(scenario);
        scenario.coordinator_rules = nullptr;
        scenario.shard_rules = nullptr;
        scenario.worker_rules = nullptr;
        const Outcome outcome = Cluster(scenario, Cluster::Tracing::kNone).Run();
        EXPECT_EQ(outcome.failure, "") << mutation.name << ", " << Describe(scenario);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::simulation

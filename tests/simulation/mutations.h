// Deliberate bugs: each of the protocol's rules left out, one at a time.
#ifndef SLUICE_TESTS_SIMULATION_MUTATIONS_H_
#define SLUICE_TESTS_SIMULATION_MUTATIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/cluster.h"

namespace sluice::simulation {

struct Mutation {
  std::string name;
  // In which modes the rule matters, the likeliest first.
  std::vector<ScenarioOptions> modes;
  // Sets the broken rules, and makes the faults likelier that the rule is about.
  std::function<void(Scenario&)> apply;
};

const std::vector<Mutation>& Mutations();

// The failure that the first seed which finds the mutation reports, with the seed; empty if none of
// `seeds` seeds does.
std::string Find(const Mutation& mutation, uint64_t seeds);

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_MUTATIONS_H_

// Deliberate bugs: each mutation leaves out one rule of the protocol.
#ifndef SLUICE_TESTS_SIMULATION_MUTATIONS_H_
#define SLUICE_TESTS_SIMULATION_MUTATIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/cluster.h"

namespace sluice::simulation {

struct Mutation {
  std::string name;
  // The modes in which the rule matters, the likeliest first.
  std::vector<ScenarioOptions> modes;
  // Sets the broken rules and makes the faults that the rule covers more likely.
  std::function<void(Scenario&)> apply;
};

const std::vector<Mutation>& Mutations();

// Returns the seed that first finds the mutation, with its failure; empty if none of `seeds` seeds
// finds it.
std::string Find(const Mutation& mutation, uint64_t seeds);

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_MUTATIONS_H_

// Problems that a simulated job may have in addition to the faults of every seed. Each has a name
// for the simulator's command line (--with=liars,damage).
#ifndef SLUICE_TESTS_SIMULATION_PROBLEMS_H_
#define SLUICE_TESTS_SIMULATION_PROBLEMS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/simulation/cluster.h"

namespace sluice::simulation {

struct Problem {
  std::string name;
  std::string what;  // for --help
  std::function<void(Scenario*)> apply;
  // Whether the problem occurred in a simulation.
  std::function<bool(const Outcome&)> seen;
};

const std::vector<Problem>& Problems();

// Names separated by commas. INVALID_ARGUMENT names the word that is not a problem.
absl::Status AddProblems(absl::string_view names, Scenario* scenario);
// "kill_worker=10,join=2": these kinds of fault, with these weights, and no others.
absl::Status SetFaults(absl::string_view weights, Scenario* scenario);

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_PROBLEMS_H_

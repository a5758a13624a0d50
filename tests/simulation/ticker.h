#ifndef SLUICE_TESTS_SIMULATION_TICKER_H_
#define SLUICE_TESTS_SIMULATION_TICKER_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/network.h"

namespace sluice::simulation {

// Calls a core's OnTick at its deadline.
class Ticker {
 public:
  // Plans a tick unless an earlier one is planned.
  void Plan(Cluster& cluster, const std::shared_ptr<Process>& process, absl::Time deadline,
            std::function<void()> tick);

 private:
  absl::Time planned_ = absl::InfiniteFuture();
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_TICKER_H_

#ifndef SLUICE_TESTS_SIMULATION_SIMULATED_CORE_H_
#define SLUICE_TESTS_SIMULATION_SIMULATED_CORE_H_

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "tests/simulation/cluster.h"

namespace sluice::simulation {

// The core of a process, in simulated time. The process has BeforeActions and AfterActions, and
// performs each kind of action with On.
template <typename Core, typename Process>
class SimulatedCore {
 public:
  // `args`: of the core.
  template <typename... Args>
  SimulatedCore(Cluster* cluster, Process* process, Args&&... args)
      : cluster_(*cluster), process_(*process), core_(std::forward<Args>(args)...) {}

  Core* operator->() { return &core_; }
  const Core* operator->() const { return &core_; }

  // Passes an event to the core, and performs the actions that follow.
  template <typename... Parameters, typename... Args>
  void Event(void (Core::*event)(Parameters...), Args&&... args) {
    (core_.*event)(std::forward<Args>(args)..., cluster_.scheduler().now());
    PerformActions();
  }

  void PerformActions() {
    if (!process_.alive()) return;
    process_.BeforeActions();
    for (const auto& action : core_.TakeActions()) {
      if (!process_.alive()) return;
      std::visit([this](const auto& a) { process_.On(a); }, action);
    }
    process_.AfterActions();
    if (process_.alive()) PlanTick();
  }

  void OnThaw() {
    if (cluster_.scenario().timers_first && process_.alive()) Event(&Core::OnTick);
  }

 private:
  // Plans a tick at the core's deadline, unless an earlier one is planned.
  void PlanTick() {
    absl::Time deadline = core_.NextDeadline();
    if (deadline == absl::InfiniteFuture() || deadline >= planned_) return;
    deadline = std::max(deadline, cluster_.scheduler().now() + absl::Microseconds(100));
    planned_ = deadline;
    cluster_.scheduler().At(deadline, [this, process = process_.shared_from_this(), deadline] {
      process->Handle([this, deadline] {
        if (planned_ != deadline) return;
        planned_ = absl::InfiniteFuture();
        Event(&Core::OnTick);
      });
    });
  }

  Cluster& cluster_;
  Process& process_;
  Core core_;
  absl::Time planned_ = absl::InfiniteFuture();
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_SIMULATED_CORE_H_

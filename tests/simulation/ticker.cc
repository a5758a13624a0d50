#include "tests/simulation/ticker.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/cluster.h"

namespace sluice::simulation {

void Ticker::Plan(Cluster& cluster, const std::shared_ptr<Process>& process, absl::Time deadline,
                  std::function<void()> tick) {
  if (deadline == absl::InfiniteFuture() || deadline >= planned_) return;
  deadline = std::max(deadline, cluster.scheduler().now() + absl::Microseconds(100));
  planned_ = deadline;
  cluster.scheduler().At(deadline, [this, process, deadline, tick = std::move(tick)] {
    process->Handle([this, deadline, tick] {
      if (planned_ != deadline) return;
      planned_ = absl::InfiniteFuture();
      tick();
    });
  });
}

}  // namespace sluice::simulation

// Whether a process still makes progress, for a liveness probe.
#ifndef SLUICE_SERVICES_COMMON_TIME_LIVENESS_H_
#define SLUICE_SERVICES_COMMON_TIME_LIVENESS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/common/threads/serial_executor.h"
#include "services/common/time/clock.h"

namespace sluice {

// Checks whether the executor that guards a core still handles events. The HTTP server of the probe
// has its own threads, so it answers even when the core is stuck.
//
// A check posts a beat to the executor unless an earlier one is still waiting there, and fails if
// that one has waited for longer than `patience`. So a check never blocks. Thread-safe.
class Liveness {
 public:
  // `executor` and `clock` must outlive it. `patience`: how long a beat may wait; a task of the
  // executor, such as the close of a large step, may take that long.
  Liveness(SerialExecutor* executor, absl::Duration patience, const Clock* clock);

  // OK, or UNAVAILABLE with the time for which the executor has handled no event. Does not block.
  absl::Status Check();

 private:
  struct Beat;

  SerialExecutor* const executor_;
  const absl::Duration patience_;
  const Clock* const clock_;
  const std::shared_ptr<Beat> beat_;  // the executor's task may outlive this
};

// Longer than any one event of a core takes. CoreShell uses it for every role.
inline constexpr absl::Duration kLivenessPatience = absl::Seconds(5);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TIME_LIVENESS_H_

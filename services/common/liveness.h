// Whether a process still does its work, for a liveness probe.
#ifndef SLUICE_SERVICES_COMMON_LIVENESS_H_
#define SLUICE_SERVICES_COMMON_LIVENESS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/common/serial_executor.h"

namespace sluice {

// How long an executor may take to come to a probe's task. Shorter than the probe waits for an
// answer, so that it is told what is wrong.
inline constexpr absl::Duration kLivenessPatience = absl::Seconds(4);

// OK if the executor runs a task within `patience`: what guards a core still comes to its events. An
// HTTP server answers from threads of its own, also where the core does not. UNAVAILABLE otherwise.
// Blocks, for `patience` at most; not from the executor's own tasks. Its executor need not outlive
// the task.
absl::Status CheckAlive(SerialExecutor* executor, absl::Duration patience);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_LIVENESS_H_

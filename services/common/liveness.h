// Whether a process still does its work, for a liveness probe.
#ifndef SLUICE_SERVICES_COMMON_LIVENESS_H_
#define SLUICE_SERVICES_COMMON_LIVENESS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/common/clock.h"
#include "services/common/serial_executor.h"

namespace sluice {

// Asks the executor that guards a core whether it still comes to its events. An HTTP server answers
// from threads of its own, also where the core does not.
//
// Each check looks at the beat that an earlier one has given the executor, and gives it the next:
// so it answers at once, and finds out with the first check after `patience`. Thread-safe.
class Liveness {
 public:
  // `executor` and `clock` must outlive it. `patience`: how long a beat may wait; a task of the
  // executor may take so long, as the close of a large step does.
  Liveness(SerialExecutor* executor, absl::Duration patience, const Clock* clock);

  // OK, or UNAVAILABLE with how long the executor has come to nothing. Does not block.
  absl::Status Check();

 private:
  struct Beat;

  SerialExecutor* const executor_;
  const absl::Duration patience_;
  const Clock* const clock_;
  const std::shared_ptr<Beat> beat_;  // the executor's task may outlive this
};

// Longer than any one event of a core takes.
inline constexpr absl::Duration kLivenessPatience = absl::Seconds(5);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_LIVENESS_H_

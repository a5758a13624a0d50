// The job's timers as durations; unset ones have defaults.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_BASE_TIMERS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_BASE_TIMERS_H_

#include <algorithm>

#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "services/protocol/timeouts.h"

namespace sluice::coordinator {

struct Timers {
  absl::Duration heartbeat;           // a process sends a heartbeat this often
  absl::Duration suspect;             // a process may return within this after its stream broke
  absl::Duration heartbeat_timeout;   // a frozen process is expelled after this
  absl::Duration pause;               // a shard must answer a Pause(Now) or an Install within this
  absl::Duration initialization;      // a worker must bring version 0 within this
  absl::Duration evaluation;          // a member must answer Evaluate within this
  absl::Duration suspend_checkpoint;  // the last checkpoint of a suspended job must end within this
  // At the start: wanted workers that are not ready this long after the last worker became ready,
  // or `gather_all` after the first one did, join later.
  absl::Duration gather = absl::Seconds(2);
  absl::Duration gather_all = absl::Seconds(30);
  // The processes of an attempt find a new coordinator within this, if they live.
  absl::Duration reconnect = absl::Seconds(10);
  // Joins within this are one view change.
  absl::Duration join = absl::Milliseconds(100);
  // While the coordinator waits for processes, it reads the claims this often: another coordinator
  // may have ended the job, or continued it.
  absl::Duration claims = absl::Seconds(2);
  // A failed operation on the storage is tried again after this.
  absl::Duration storage_retry = absl::Seconds(1);
  // A new division of the work must have been better for this long before it is installed.
  absl::Duration rebalance = absl::Seconds(5);
  // Training waits at a version that is due for evaluation while another version is evaluated; for
  // a slow checkpoint or a reader it waits at most this long.
  absl::Duration barrier = absl::Seconds(10);

  // The delay before the job's last checkpoint or its end record is written again, after this many
  // failures in a row.
  absl::Duration RetryDelay(int failures) const {
    return std::min(storage_retry * (1 << std::min(failures - 1, 10)), absl::Seconds(30));
  }
};

inline Timers TimersFrom(const v1::TimeoutSpec& spec) {
  Timers timers;
  timers.heartbeat = TimeoutOr(spec.heartbeat(), kDefaultHeartbeat);
  timers.suspect = TimeoutOr(spec.suspect(), kDefaultSuspect);
  timers.heartbeat_timeout = TimeoutOr(spec.heartbeat_timeout(), kDefaultHeartbeatTimeout);
  timers.pause = TimeoutOr(spec.pause(), kDefaultPause);
  timers.initialization = TimeoutOr(spec.initialization(), kDefaultInitialization);
  timers.evaluation = TimeoutOr(spec.evaluation(), kDefaultEvaluation);
  timers.suspend_checkpoint = TimeoutOr(spec.suspend_checkpoint(), kDefaultSuspendCheckpoint);
  return timers;
}

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_BASE_TIMERS_H_

// Timeouts of a job that does not set them (v1::TimeoutSpec), in seconds. The manifest's table
// prints them as its defaults.
#ifndef SLUICE_SERVICES_PROTOCOL_TIMEOUTS_H_
#define SLUICE_SERVICES_PROTOCOL_TIMEOUTS_H_

#include "absl/time/time.h"

namespace sluice {

inline constexpr double kDefaultHeartbeat = 0.5;
inline constexpr double kDefaultSuspect = 1;
inline constexpr double kDefaultHeartbeatTimeout = 5;
inline constexpr double kDefaultPause = 5;
inline constexpr double kDefaultInitialization = 120;
inline constexpr double kDefaultEvaluation = 600;
inline constexpr double kDefaultSuspendCheckpoint = 60;
// With dense aggregation AllReduce there is no limit.
inline constexpr double kDefaultGradients = 600;
inline constexpr double kDefaultStart = 60;
// A user's own program may need much time before it registers.
inline constexpr double kDefaultCommandStart = 600;

// A timeout of a job; `otherwise` where the job does not set it. Protobuf's 0 means that it does
// not.
inline absl::Duration TimeoutOr(double seconds, double otherwise) {
  return absl::Seconds(seconds > 0 ? seconds : otherwise);
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_TIMEOUTS_H_

// The number of samples in an asynchronous worker's update.
//
// Intuition: every update moves the parameters once, and is stale by the updates that other workers
// applied meanwhile. Workers that need the same time for an update are equally stale and have equal
// weight; so a worker's batch is proportional to its measured speed.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_BATCH_SIZE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_BATCH_SIZE_H_

#include <cstdint>
#include <vector>

namespace sluice::coordinator {

struct BatchBounds {
  uint64_t usual = 0;  // of a worker of mean speed; at least 1
  uint64_t min = 0;    // 0: 1
  uint64_t max = 0;    // not below min
};

// `speed` is that of one worker, `speeds` are those of all, in samples a second; a speed that is
// not positive is unknown. A worker of unknown speed gets the usual batch. The result is at least
// max(min, 1) and at most max.
uint64_t BatchSize(double speed, const std::vector<double>& speeds, const BatchBounds& bounds);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_BATCH_SIZE_H_

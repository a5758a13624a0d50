// How many samples an asynchronous worker's update has.
//
// Intuition: every update moves the parameters once, whoever makes it, and is stale by what the
// others applied meanwhile. Workers that take as long as each other for an update are equally stale
// and equally heard; so a worker's batch is its share of the measured speed.

#ifndef SLUICE_SERVICES_COORDINATOR_BATCH_SIZE_H_
#define SLUICE_SERVICES_COORDINATOR_BATCH_SIZE_H_

#include <cstdint>
#include <vector>

namespace sluice::coordinator {

struct BatchBounds {
  uint64_t usual = 0;  // of a worker of mean speed; at least 1
  uint64_t min = 0;    // 0: 1
  uint64_t max = 0;    // not below min
};

// `speed` in samples a second, that of one of the workers; `speeds`: of all. Those that are not
// positive are unknown; a worker of unknown speed gets the usual batch. The result is at least
// max(min, 1) and at most max.
uint64_t BatchSize(double speed, const std::vector<double>& speeds, const BatchBounds& bounds);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_BATCH_SIZE_H_

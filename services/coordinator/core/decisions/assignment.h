// Which worker computes which microbatches of a step.
//
// Intuition: each worker gets a contiguous range (it computes it as one batch), proportional to its
// measured speed. Every member gets at least one microbatch, because a member without work only
// adds a message to each step. With BitExact a range is sent as the roots of its maximal subtrees,
// so borders are moved to multiples of a power of two where that costs little balance.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_ASSIGNMENT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_ASSIGNMENT_H_

#include <cstdint>
#include <vector>

#include "services/protocol/interval_set.h"

namespace sluice::coordinator {

// Cuts [0, total) into one range per weight, in order. Weights that are not positive count as the
// mean of the others. Each range has at least one element if `total` allows it, and differs from
// its share by less than one (by more where `aligned` moves it). Without weights there are no
// ranges.
std::vector<Interval> Apportion(uint64_t total, const std::vector<double>& weights, bool aligned);

// How the microbatches of a step are divided among the members of a view.
struct Division {
  uint64_t microbatches = 0;
  bool aligned = false;  // BitExact: microbatches are computed one by one
  // The model cannot compute fewer samples at once: a range has as many in each step, or none.
  uint64_t smallest = 1;
  uint64_t microbatch_size = 1;
  std::vector<uint64_t> steps;  // the numbers of samples that a step may have
};

// Apportion, with borders moved to where no range is too small; then the last ranges may be empty.
std::vector<Interval> Divide(const Division& division, const std::vector<double>& weights);

// How many members get work in each full step.
uint64_t MostRanges(const Division& division);

// The time of a step with these ranges, divided by its time with the ranges that Divide would
// return now: 1 = equally good. Also 1 if a speed is unknown.
double Imbalance(const std::vector<Interval>& ranges, const std::vector<double>& speeds,
                 const Division& division);

// Above this imbalance the work is divided again, after Timers.rebalance.
inline constexpr double kRebalanceThreshold = 1.2;

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_ASSIGNMENT_H_

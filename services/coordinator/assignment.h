// Which worker computes which microbatches of a step.
//
// Intuition: each worker gets a contiguous range (it computes it as one batch), as long as its
// share of the measured speed; every member gets at least one microbatch, because a member without
// work only adds a message to each step. With BitExact a range is sent as the roots of its maximal
// subtrees, so borders are moved to multiples of a power of two where that costs little balance.

#ifndef SLUICE_SERVICES_COORDINATOR_ASSIGNMENT_H_
#define SLUICE_SERVICES_COORDINATOR_ASSIGNMENT_H_

#include <cstdint>
#include <vector>

#include "services/protocol/interval_set.h"

namespace sluice::coordinator {

// Cuts [0, total) into one range per weight, in order. Weights that are not positive count as the
// mean of the others. Each range has at least one element if there are enough, and differs from its
// share by less than one (more where `aligned` moves it). No weights: no ranges.
std::vector<Interval> Apportion(uint64_t total, const std::vector<double>& weights, bool aligned);

// How much longer a step takes with these ranges than with the ones that Apportion would give now:
// 1 = as good. 1 too if a speed is unknown.
double Imbalance(const std::vector<Interval>& ranges, const std::vector<double>& speeds,
                 bool aligned);

// Above this the work is divided anew (after a while).
inline constexpr double kRebalanceThreshold = 1.2;

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_ASSIGNMENT_H_

// Limits on what a worker may give: it observes them, and the receiver checks them.
#ifndef SLUICE_SERVICES_PROTOCOL_WORKER_LIMITS_H_
#define SLUICE_SERVICES_PROTOCOL_WORKER_LIMITS_H_

#include <cstddef>

namespace sluice {

// Limits of Ready: notes, and the bytes of a note and of each other text.
inline constexpr int kMaxNotes = 64;
inline constexpr size_t kMaxReadyTextBytes = 4096;
inline constexpr int kMaxDigests = 16;
inline constexpr size_t kMaxDigestNameBytes = 256;

// The program's own metrics: their number, the bytes of a name, and the bytes of all states of one
// evaluation, which one message carries.
inline constexpr int kMaxMetrics = 32;
inline constexpr size_t kMaxMetricNameBytes = 63;
inline constexpr size_t kMaxMetricStateBytes = size_t{8} << 20;

// A part of a sum over a step (StepSum): the bytes of its numbers and of its name.
inline constexpr size_t kMaxSumBytes = size_t{1} << 20;
inline constexpr size_t kMaxSumNameBytes = 512;

// A weight of samples in the mean over a step (Push.weight). The limit is far above what losses
// use, and far below what a sum over many workers could not represent.
inline constexpr double kMaxWeight = 1e30;
// A sum of weights below this counts as 0, so that its reciprocal is finite.
inline constexpr double kMinWeight = 1e-30;

// False for NaN.
constexpr bool IsWeight(double weight) { return weight >= 0 && weight <= kMaxWeight; }

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_WORKER_LIMITS_H_

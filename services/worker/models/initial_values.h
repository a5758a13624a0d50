// Values of version 0 as a function of (seed, tensor name, element): every worker that pushes them
// pushes the same.
#ifndef SLUICE_SERVICES_WORKER_MODELS_INITIAL_VALUES_H_
#define SLUICE_SERVICES_WORKER_MODELS_INITIAL_VALUES_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Fills `out` with elements offset, offset + 1, ... of a tensor whose elements are uniform in
// [-bound, bound):
//
//   (2 * UnitDouble(SplitMix64At(SplitMix64Mix(seed xor Fnv1a64(name)), element)) - 1) * bound
void FillUniform(uint64_t seed, absl::string_view name, double bound, uint64_t offset,
                 absl::Span<double> out);

// ... whose elements are normal, of mean 0 and standard deviation 1 (as PyTorch's embeddings): by
// the method of Box and Muller from the two uniform numbers of [0, 1)
//
//   u, v = UnitDouble(SplitMix64At(SplitMix64Mix(seed xor Fnv1a64(name)), 2 * element + 0, + 1))
//   sqrt(-2 * ln(1 - u)) * cos(2 * pi * v)
void FillNormal(uint64_t seed, absl::string_view name, uint64_t offset, absl::Span<double> out);

// The bound of PyTorch's own initial values for weight and bias of its linear and convolutional
// layers (kaiming_uniform_ with a = sqrt(5), torch/nn/modules/linear.py and conv.py): 1 /
// sqrt(inputs of one output).
double UniformBound(int64_t fan_in);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_INITIAL_VALUES_H_

// Sums of gradients in memory. Why along a tree: docs/decisions/bit-exact.md.
#ifndef SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_SUM_H_
#define SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_SUM_H_

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/common.pb.h"

namespace sluice::worker {

// left + right, element by element, in the elements' own type: 16-bit types are added as float32
// and rounded once (to nearest, ties to even). Addition is commutative to the bit, so a node of the
// reduction tree has the same bits wherever it is summed, as long as every process uses this rule.
//
// INVALID_ARGUMENT if the sizes differ, are not whole elements, or the type is not floating-point.
absl::StatusOr<absl::Cord> AddGradients(v1::DataType dtype, const absl::Cord& left,
                                        const absl::Cord& right);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_SUM_H_

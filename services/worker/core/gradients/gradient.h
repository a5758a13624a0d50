// The gradient of a tensor as a worker holds it: whole, or only the rows of an embedding table that
// the samples used.
#ifndef SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_H_
#define SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/model.pb.h"

namespace sluice::worker {

// Values are row-major, in the tensor's type. Cheap to copy.
struct Gradient {
  Gradient() = default;
  Gradient(absl::Cord values) : values(std::move(values)) {}  // NOLINT(google-explicit-constructor)
  Gradient(std::vector<uint64_t> rows, absl::Cord values)
      : values(std::move(values)),
        rows(std::make_shared<const std::vector<uint64_t>>(std::move(rows))) {}

  absl::Cord values;
  // Ascending; `values` holds these rows, all others are zeros. Null: `values` holds all rows.
  std::shared_ptr<const std::vector<uint64_t>> rows;
};

// INVALID_ARGUMENT, naming the tensor, if `gradient` does not fit the tensor.
absl::Status CheckGradient(const v1::TensorSpec& tensor, const Gradient& gradient);

// left + right, added element by element like AddGradients of gradient_sum.h; rows, if both are
// rows. Both must have passed CheckGradient.
absl::StatusOr<Gradient> AddGradients(const v1::TensorSpec& tensor, const Gradient& left,
                                      const Gradient& right);

// Elements [offset, offset + count) of the tensor's gradient, whole.
absl::Cord DenseElements(const v1::TensorSpec& tensor, const Gradient& gradient, uint64_t offset,
                         uint64_t count);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_H_

// Tensors as the service Stage carries them.
#ifndef SLUICE_SERVICES_WORKER_MODELS_STAGE_TENSOR_H_
#define SLUICE_SERVICES_WORKER_MODELS_STAGE_TENSOR_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "proto/stage.pb.h"

namespace sluice {

// A tensor with its own memory on the CPU. INVALID_ARGUMENT if the type is unknown, or shape and
// bytes do not match.
absl::StatusOr<at::Tensor> TensorOf(const v1::StageTensor& value);

// A copy of the values.
v1::StageTensor StageTensorOf(const at::Tensor& tensor);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_STAGE_TENSOR_H_

// The change that a forward pass makes to a buffer.
#ifndef SLUICE_SERVICES_WORKER_MODELS_BUFFER_CHANGE_H_
#define SLUICE_SERVICES_WORKER_MODELS_BUFFER_CHANGE_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// `after` minus `before`; undefined if nothing has changed. Numbers that are not finite are equal
// to themselves. FailedPrecondition names the buffer if the change cannot be expressed as a
// difference: the shape or type is another one, or a number that was not finite has become another.
absl::StatusOr<at::Tensor> BufferChange(const std::string& name, const at::Tensor& before,
                                        const at::Tensor& after);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_BUFFER_CHANGE_H_

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_MODEL_DIFFERENCE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_MODEL_DIFFERENCE_H_

#include <string>

#include "proto/control.pb.h"
#include "proto/model.pb.h"

namespace sluice::coordinator {

// The first difference between the two tables, as a clause that names the tensor ("tensor
// fc1.weight is float32[10, 192], not float32[10, 128]"). Empty: they are equal.
std::string Difference(const v1::TensorTable& expected, const v1::TensorTable& actual);
// The same for a worker's model and data.
std::string Difference(const v1::Ready& expected, const v1::Ready& actual);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_MODEL_DIFFERENCE_H_

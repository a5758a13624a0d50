#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_MODEL_DIFFERENCE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_MODEL_DIFFERENCE_H_

#include <google/protobuf/repeated_field.h>

#include <string>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/model.pb.h"

namespace sluice::coordinator {

// The first difference between the two tables, as a clause that names the tensor ("tensor
// fc1.weight is float32[10, 192], not float32[10, 128]"). Empty: they are equal.
std::string Difference(const v1::TensorTable& expected, const v1::TensorTable& actual);

using Digests = google::protobuf::RepeatedPtrField<v1::DataDigest>;
// The name of the first digest that both sides have and that differs; empty: none. A side without a
// digest cannot know it: an older checkpoint, or a program that reads other data in each run.
std::string OtherDigest(const Digests& expected, const Digests& actual);

// The first difference of a worker's model and data.
std::string Difference(const v1::Ready& expected, const v1::Ready& actual);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_MODEL_DIFFERENCE_H_

// Checks the structs of the C interface that describe a model, and converts them to messages.
#ifndef SLUICE_SERVICES_WORKER_LIBRARY_MODEL_INPUT_H_
#define SLUICE_SERVICES_WORKER_LIBRARY_MODEL_INPUT_H_

#include "include/sluice/worker.h"
#include "proto/control.pb.h"
#include "proto/model.pb.h"
#include "services/worker/library/call_result.h"

namespace sluice::worker {

// Whether a program was compiled with this library's header. INVALID_ARGUMENT if not, or if `given`
// is null.
template <typename Struct>
CallResult CheckStruct(const Struct* given, const char* name) {
  if (given == nullptr) return Invalid(name, " is NULL");
  if (given->struct_size != sizeof(Struct)) {
    return Invalid(name, "->struct_size is ", given->struct_size, ", not ", sizeof(Struct),
                   ": set it to sizeof, and compile with this library's header");
  }
  return {};
}

// Name, type, kind and shape; the initial value stays with the caller. INVALID_ARGUMENT says what
// is wrong.
CallResult ReadTensor(const sluice_tensor* given, v1::TensorSpec* spec);

// The notes, the smallest batch and the environment. INVALID_ARGUMENT names the field.
CallResult ReadModel(const sluice_model* given, v1::Ready* traits);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_LIBRARY_MODEL_INPUT_H_

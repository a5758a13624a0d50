#include "services/worker/library/model_input.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/common.pb.h"
#include "services/common/text/utf8.h"
#include "services/protocol/elements.h"
#include "services/protocol/worker_limits.h"

namespace sluice::worker {
namespace {

constexpr size_t kMaxDimensions = 64;
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 46;

CallResult ReadShape(const sluice_tensor& given, v1::TensorSpec* spec) {
  if (given.dimensions > kMaxDimensions) {
    return Invalid("tensor '", spec->name(), "' has ", given.dimensions, " dimensions: at most ",
                   kMaxDimensions, " are supported");
  }

  if (given.shape == nullptr && given.dimensions > 0) {
    return Invalid("the shape of tensor '", spec->name(), "' is NULL");
  }

  uint64_t bytes = ElementBytes(spec->dtype());
  for (size_t i = 0; i < given.dimensions; ++i) {
    const int64_t extent = given.shape[i];
    if (extent < 1 || bytes > kMaxTensorBytes / static_cast<uint64_t>(extent)) {
      return Invalid("dimension ", i, " of tensor '", spec->name(), "' is ", extent,
                     ": a tensor has at least one element and at most ", kMaxTensorBytes, " bytes");
    }

    bytes *= static_cast<uint64_t>(extent);
    spec->add_shape(extent);
  }
  return {};
}

CallResult ReadText(const char* what, const char* given, std::string* text) {
  text->assign(given == nullptr ? "" : given);
  if (text->size() > kMaxReadyTextBytes || !IsUtf8(*text)) {
    return Invalid(what, " must be UTF-8 of at most ", kMaxReadyTextBytes, " bytes");
  }
  return {};
}

}  // namespace

CallResult ReadTensor(const sluice_tensor* given, v1::TensorSpec* spec) {
  if (CallResult wrong = CheckStruct(given, "tensor"); !wrong.ok()) return wrong;
  if (given->name == nullptr || given->name[0] == '\0') return Invalid("a tensor has no name");
  if (given->initial == nullptr) return Invalid("the initial value of a tensor is NULL");

  spec->set_name(given->name);
  if (!IsUtf8(spec->name())) return Invalid("the name of a tensor is not UTF-8");

  if (given->dtype < SLUICE_FLOAT32 || given->dtype > SLUICE_INT64) {
    return Invalid("tensor '", spec->name(), "' has type ", given->dtype,
                   ": types are numbered from ", SLUICE_FLOAT32, " to ", SLUICE_INT64);
  }

  if (given->kind < SLUICE_PARAMETER || given->kind > SLUICE_COUNTER) {
    return Invalid("tensor '", spec->name(), "' has kind ", given->kind,
                   ": kinds are numbered from ", SLUICE_PARAMETER, " to ", SLUICE_COUNTER);
  }

  if ((given->kind == SLUICE_COUNTER) != (given->dtype == SLUICE_INT64)) {
    return Invalid("tensor '", spec->name(),
                   "': counters are INT64, parameters and buffers are floating point");
  }

  spec->set_dtype(static_cast<v1::DataType>(given->dtype));
  spec->set_kind(static_cast<v1::TensorKind>(given->kind));
  return ReadShape(*given, spec);
}

CallResult ReadModel(const sluice_model* given, v1::Ready* traits) {
  if (CallResult wrong = CheckStruct(given, "model"); !wrong.ok()) return wrong;
  if (given->note_count > kMaxNotes || (given->note_count > 0 && given->notes == nullptr)) {
    return Invalid("model->notes: ", given->note_count, " notes; at most ", kMaxNotes,
                   " are possible, and the list must not be NULL");
  }

  for (size_t i = 0; i < given->note_count; ++i) {
    if (CallResult wrong = ReadText("a note", given->notes[i], traits->add_notes()); !wrong.ok()) {
      return wrong;
    }
  }

  traits->set_smallest_batch(given->smallest_batch);
  v1::Environment& environment = *traits->mutable_environment();
  environment.set_threads(given->threads);

  CallResult read = ReadText("model->smallest_batch_module", given->smallest_batch_module,
                             traits->mutable_smallest_batch_module());
  if (read.ok()) read = ReadText("model->kernels", given->kernels, environment.mutable_kernels());
  if (read.ok()) read = ReadText("model->library", given->library, environment.mutable_library());
  return read;
}

}  // namespace sluice::worker

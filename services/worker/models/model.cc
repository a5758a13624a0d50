#include "services/worker/models/model.h"

#include "absl/strings/str_cat.h"

namespace sluice {

at::ScalarType ScalarTypeOf(v1::DataType dtype) {
  switch (dtype) {
    case v1::FLOAT32:
      return at::kFloat;
    case v1::FLOAT64:
      return at::kDouble;
    case v1::BFLOAT16:
      return at::kBFloat16;
    case v1::FLOAT16:
      return at::kHalf;
    case v1::INT64:
      return at::kLong;
    default:
      return at::ScalarType::Undefined;
  }
}

v1::DataType DataTypeOfTensor(const at::Tensor& tensor) {
  for (v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64, v1::BFLOAT16, v1::FLOAT16, v1::INT64}) {
    if (ScalarTypeOf(dtype) == tensor.scalar_type()) return dtype;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

void MoveTo(at::Device device, Model* model) {
  if (device.is_cpu()) return;
  for (const ModelTensor& tensor : model->tensors()) {
    at::Tensor value = tensor.value;
    value.set_data(value.detach().to(device));
  }
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelOptions& options, at::Device device) {
  const v1::ModelSpec& spec = options.spec;
  if (spec.type() == v1::ModelSpec::BUILTIN) {
    absl::StatusOr<std::unique_ptr<Model>> model = MakeBuiltinModel(options);
    if (model.ok()) MoveTo(device, model->get());
    return model;
  }

  if (spec.type() != v1::ModelSpec::TORCH_SCRIPT) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.type ", spec.type(), " is not known to this version"));
  }

  if (spec.dtype() != v1::DATA_TYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        "model.dtype is for built-in models: a TorchScript file has its own");
  }
  if (!spec.dimensions().empty()) {
    return absl::InvalidArgumentError(
        "model.dimensions are for built-in models: a TorchScript file has its own");
  }
  return LoadTorchScriptModel(spec.path(), device);
}

}  // namespace sluice

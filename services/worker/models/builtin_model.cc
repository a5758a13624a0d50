// The built-in architectures as models.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/worker/models/architecture.h"
#include "services/worker/models/model.h"

namespace sluice {
namespace {

class BuiltinModel final : public Model {
 public:
  BuiltinModel(std::unique_ptr<Architecture> architecture, at::ScalarType dtype, uint64_t seed)
      : architecture_(std::move(architecture)),
        parameters_(architecture_->Parameters()),
        dtype_(dtype),
        seed_(seed) {
    for (const Architecture::Parameter& parameter : parameters_) {
      at::Tensor value = at::zeros(parameter.shape, dtype);
      value.requires_grad_(TakesData());
      tensors_.push_back({parameter.name, v1::PARAMETER, value});
    }
  }

  const std::vector<ModelTensor>& tensors() const override { return tensors_; }

  at::Tensor Initial(size_t tensor) const override {
    const Architecture::Parameter& parameter = parameters_[tensor];
    at::Tensor value = at::empty(parameter.shape, dtype_);
    at::Tensor flat = value.view({-1});
    constexpr int64_t kChunk = 1 << 16;
    at::Tensor chunk = at::empty({std::min(kChunk, flat.size(0))}, at::kDouble);
    for (int64_t offset = 0; offset < flat.size(0); offset += kChunk) {
      const int64_t count = std::min(kChunk, flat.size(0) - offset);
      architecture_->FillInitial(
          parameter, seed_, offset,
          absl::MakeSpan(chunk.data_ptr<double>(), static_cast<size_t>(count)));
      flat.narrow(0, offset, count).copy_(chunk.narrow(0, 0, count));
    }
    return value;
  }

  bool TakesData() const override { return architecture_->OwnLoss() != LossKind::kNone; }

  std::vector<int64_t> InputShape() const override { return architecture_->InputShape(); }

  at::Tensor Forward(const at::Tensor& input) override {
    return architecture_->Forward(Values(), input, training_);
  }

  int64_t StateSize() const override { return architecture_->StateSize(); }

  at::Tensor ForwardFrom(const at::Tensor& input, at::Tensor* state) override {
    return architecture_->ForwardFrom(Values(), input, training_, state);
  }

  absl::StatusOr<LossKind> OwnLoss() const override { return architecture_->OwnLoss(); }

  at::Tensor ModuleLoss(const at::Tensor& /*output*/, const at::Tensor& /*target*/) override {
    return at::Tensor();
  }

  void SetTraining(bool training) override { training_ = training; }

  at::Tensor TakeBuffer(size_t tensor) override { return tensors_[tensor].value; }

 private:
  std::vector<at::Tensor> Values() const {
    std::vector<at::Tensor> values;
    for (const ModelTensor& tensor : tensors_) values.push_back(tensor.value);
    return values;
  }

  const std::unique_ptr<Architecture> architecture_;
  const std::vector<Architecture::Parameter> parameters_;
  const at::ScalarType dtype_;
  const uint64_t seed_;
  std::vector<ModelTensor> tensors_;
  bool training_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeBuiltinModel(const ModelOptions& options) {
  const v1::ModelSpec& spec = options.spec;
  DataShape data;
  data.outputs = options.outputs;
  data.inputs = options.sample_shape.empty() ? 0 : 1;
  for (int64_t dimension : options.sample_shape) data.inputs *= dimension;
  const std::map<std::string, int64_t> dimensions(spec.dimensions().begin(),
                                                  spec.dimensions().end());
  absl::StatusOr<std::unique_ptr<Architecture>> architecture =
      MakeArchitecture(spec.name(), dimensions, data);
  if (!architecture.ok()) return architecture.status();
  if (!options.sample_shape.empty() && options.tokens != (*architecture)->TakesTokens()) {
    return absl::InvalidArgumentError(
        options.tokens
            ? absl::StrCat("model.name is ", spec.name(),
                           ", which takes numbers, and the data is tokens: should be lstm-lm, or "
                           "a TorchScript model that takes tokens")
            : absl::StrCat("model.name is ", spec.name(),
                           ", which takes tokens, and the data is numbers: data.format should be "
                           "Text, or Synthetic with a `vocabulary`"));
  }
  const v1::DataType dtype = spec.dtype() == v1::DATA_TYPE_UNSPECIFIED ? v1::FLOAT32 : spec.dtype();
  const bool data_free = (*architecture)->OwnLoss() == LossKind::kNone;
  if (dtype == v1::INT64 || (data_free && dtype != v1::FLOAT32 && dtype != v1::FLOAT64)) {
    return absl::InvalidArgumentError(absl::StrCat("model.dtype is ", v1::DataType_Name(dtype),
                                                   ", which ", spec.name(), " does not have"));
  }
  return std::make_unique<BuiltinModel>(*std::move(architecture), ScalarTypeOf(dtype),
                                        options.seed);
}

}  // namespace sluice

// The built-in architectures as models.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/status_macros.h"
#include "services/protocol/stages.h"
#include "services/worker/models/architecture.h"
#include "services/worker/models/model.h"

namespace sluice {
namespace {

// A range of an architecture's layers. The range of all layers also exists for one without layers.
struct LayerRange {
  bool all = true;
  size_t first = 0;
  size_t last = 0;
};

bool IsOfLayer(const std::string& tensor, const std::string& layer) {
  return absl::StartsWith(tensor, absl::StrCat(layer, "."));
}

class BuiltinModel final : public Model {
 public:
  BuiltinModel(std::unique_ptr<Architecture> architecture, LayerRange range, at::ScalarType dtype,
               uint64_t seed)
      : architecture_(std::move(architecture)),
        range_(range),
        layers_(architecture_->Layers()),
        all_parameters_(architecture_->Parameters()),
        dtype_(dtype),
        seed_(seed) {
    for (size_t i = 0; i < all_parameters_.size(); ++i) {
      const Architecture::Parameter& parameter = all_parameters_[i];
      if (!Has(parameter.name)) continue;
      parameters_.push_back(parameter);
      places_.push_back(i);
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

  bool ChangesInput() const override { return false; }

  bool TakesData() const override { return architecture_->OwnLoss() != LossKind::kNone; }

  std::vector<size_t> RowTensors() const override {
    return range_.all ? architecture_->RowParameters() : std::vector<size_t>();
  }

  std::vector<int64_t> InputShape() const override {
    if (range_.all || range_.first == 0) return architecture_->InputShape();
    return layers_[range_.first].input_shape;
  }

  at::ScalarType InputType() const override { return dtype_; }

  at::Tensor Forward(const at::Tensor& input) override {
    if (range_.all) return architecture_->Forward(Values(), input, training_);
    return architecture_->ForwardLayers(Values(), input, range_.first, range_.last, training_);
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
  bool Has(const std::string& tensor) const {
    if (range_.all) return true;
    for (size_t layer = range_.first; layer <= range_.last; ++layer) {
      if (IsOfLayer(tensor, layers_[layer].name)) return true;
    }
    return false;
  }

  // By place in the whole architecture; values outside of these layers are undefined.
  std::vector<at::Tensor> Values() const {
    std::vector<at::Tensor> values(all_parameters_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) values[places_[i]] = tensors_[i].value;
    return values;
  }

  const std::unique_ptr<Architecture> architecture_;
  const LayerRange range_;
  const std::vector<Architecture::Layer> layers_;
  const std::vector<Architecture::Parameter> all_parameters_;
  std::vector<Architecture::Parameter> parameters_;
  std::vector<size_t> places_;  // of parameters_ in all_parameters_
  const at::ScalarType dtype_;
  const uint64_t seed_;
  std::vector<ModelTensor> tensors_;
  bool training_ = false;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

size_t IndexOf(const std::vector<Architecture::Layer>& layers, const std::string& name) {
  size_t index = 0;
  while (index < layers.size() && layers[index].name != name) ++index;
  return index;
}

// The layers of each stage: successive ranges, in the order of the forward pass.
absl::StatusOr<std::vector<LayerRange>> CutLayers(const v1::ModelSpec& spec,
                                                  const Architecture& architecture) {
  const std::vector<Architecture::Layer> layers = architecture.Layers();
  if (layers.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.stages: ", spec.name(),
                     " cannot be cut; leave `stages` out, and one shard runs it"));
  }

  // Checks the names of the layers.
  v1::TensorTable table;
  for (const Architecture::Parameter& parameter : architecture.Parameters()) {
    table.add_tensors()->set_name(parameter.name);
  }
  RETURN_IF_ERROR(StageOfTensors(table, spec).status());

  std::vector<LayerRange> ranges;
  size_t next = 0;
  for (int stage = 0; stage < spec.stages_size(); ++stage) {
    const size_t first = next;
    for (const std::string& name : spec.stages(stage).layers()) {
      const size_t layer = IndexOf(layers, name);
      if (layer != next) {
        return absl::InvalidArgumentError(
            absl::StrCat("model.stages[", stage, "]: layer '", name, "' takes samples of shape ",
                         ShapeText(layers[layer].input_shape), ", but is given ",
                         ShapeText(layers[next].input_shape), ": should be '", layers[next].name,
                         "', the next in the order of the forward pass"));
      }
      ++next;
    }
    ranges.push_back({false, first, next - 1});
  }
  return ranges;
}

absl::StatusOr<std::unique_ptr<Model>> MakeBuiltinStages(const ModelOptions& options,
                                                         const uint32_t* stage) {
  const v1::ModelSpec& spec = options.spec;
  DataShape data;
  data.outputs = options.outputs;
  data.inputs = options.sample_shape.empty() ? 0 : 1;
  for (int64_t dimension : options.sample_shape) data.inputs *= dimension;

  const std::map<std::string, int64_t> dimensions(spec.dimensions().begin(),
                                                  spec.dimensions().end());
  ASSIGN_OR_RETURN(std::unique_ptr<Architecture> architecture,
                   MakeArchitecture(spec.name(), dimensions, data));

  if (!options.sample_shape.empty() && options.tokens != architecture->TakesTokens()) {
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
  const bool data_free = architecture->OwnLoss() == LossKind::kNone;
  if (dtype == v1::INT64 || (data_free && dtype != v1::FLOAT32 && dtype != v1::FLOAT64)) {
    return absl::InvalidArgumentError(absl::StrCat("model.dtype is ", v1::DataType_Name(dtype),
                                                   ", which ", spec.name(), " does not have"));
  }

  LayerRange range;
  if (stage != nullptr && spec.stages_size() > 0) {
    ASSIGN_OR_RETURN(std::vector<LayerRange> ranges, CutLayers(spec, *architecture));
    if (*stage >= ranges.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", *stage, " of ", ranges.size(), " model.stages"));
    }
    range = ranges[*stage];
  }

  return std::make_unique<BuiltinModel>(std::move(architecture), range, ScalarTypeOf(dtype),
                                        options.seed);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeBuiltinModel(const ModelOptions& options) {
  return MakeBuiltinStages(options, nullptr);
}

absl::StatusOr<std::unique_ptr<Model>> MakeStageModel(const ModelOptions& options, uint32_t stage,
                                                      at::Device device) {
  if (options.spec.type() == v1::ModelSpec::BUILTIN) {
    absl::StatusOr<std::unique_ptr<Model>> model = MakeBuiltinStages(options, &stage);
    if (model.ok()) MoveTo(device, model->get());
    return model;
  }
  if (options.spec.stages_size() > 1) {
    return absl::InvalidArgumentError(
        "model.stages: a TorchScript file runs as a whole; leave `stages` out");
  }
  return MakeModel(options, device);
}

}  // namespace sluice

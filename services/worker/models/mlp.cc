// A multilayer perceptron: linear in -> hidden -> relu -> linear hidden -> out, which are logits.
// Dimensions: in (the data's, or 784), hidden (256), out (the data's, or 10).
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include "services/common/status_macros.h"
#include "services/worker/models/architecture.h"

namespace sluice {
namespace {

class Mlp final : public Architecture {
 public:
  Mlp(int64_t in, int64_t hidden, int64_t out) : in_(in), hidden_(hidden), out_(out) {}

  std::vector<Parameter> Parameters() const override {
    return {{"fc1.weight", {hidden_, in_}, UniformBound(in_)},
            {"fc1.bias", {hidden_}, UniformBound(in_)},
            {"fc2.weight", {out_, hidden_}, UniformBound(hidden_)},
            {"fc2.bias", {out_}, UniformBound(hidden_)}};
  }

  std::vector<int64_t> InputShape() const override { return {in_}; }

  LossKind OwnLoss() const override { return LossKind::kCrossEntropy; }

  std::vector<Layer> Layers() const override { return {{"fc1", {in_}}, {"fc2", {hidden_}}}; }

  at::Tensor Forward(absl::Span<const at::Tensor> p, const at::Tensor& input,
                     bool training) const override {
    return ForwardLayers(p, input, 0, 1, training);
  }

  at::Tensor ForwardLayers(absl::Span<const at::Tensor> p, const at::Tensor& input, size_t first,
                           size_t last, bool /*training*/) const override {
    at::Tensor x = input;
    if (first == 0) x = at::relu(at::linear(x, p[0], p[1]));
    return last == 0 ? x : at::linear(x, p[2], p[3]);
  }

 private:
  const int64_t in_;
  const int64_t hidden_;
  const int64_t out_;
};

}  // namespace

ArchitectureOr MakeMlp(Dimensions& dimensions, const DataShape& data) {
  ASSIGN_OR_RETURN(const auto in, dimensions.Take("in", data.inputs > 0 ? data.inputs : 784));
  ASSIGN_OR_RETURN(const auto hidden, dimensions.Take("hidden", 256));
  ASSIGN_OR_RETURN(const auto out, dimensions.Take("out", data.outputs > 0 ? data.outputs : 10));
  return std::make_unique<Mlp>(in, hidden, out);
}

}  // namespace sluice

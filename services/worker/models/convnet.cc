// The smallest convolutional net that learns MNIST:
// conv 1 -> 3, kernel 3 -> max-pool 3 -> relu -> linear 192 -> 10 -> log-softmax.
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include "services/worker/models/architecture.h"

namespace sluice {
namespace {

class Convnet final : public Architecture {
 public:
  std::vector<Parameter> Parameters() const override {
    return {{"conv.weight", {3, 1, 3, 3}, UniformBound(9)},
            {"conv.bias", {3}, UniformBound(9)},
            {"fc.weight", {10, 192}, UniformBound(192)},
            {"fc.bias", {10}, UniformBound(192)}};
  }

  std::vector<int64_t> InputShape() const override { return {1, 28, 28}; }

  LossKind OwnLoss() const override { return LossKind::kNll; }

  std::vector<Layer> Layers() const override { return {{"conv", {1, 28, 28}}, {"fc", {3, 8, 8}}}; }

  at::Tensor Forward(absl::Span<const at::Tensor> p, const at::Tensor& input,
                     bool training) const override {
    return ForwardLayers(p, input, 0, 1, training);
  }

  at::Tensor ForwardLayers(absl::Span<const at::Tensor> p, const at::Tensor& input, size_t first,
                           size_t last, bool /*training*/) const override {
    at::Tensor x = input;
    if (first == 0) x = at::relu(at::max_pool2d(at::conv2d(x, p[0], p[1]), 3));
    if (last == 0) return x;
    return at::log_softmax(at::linear(x.reshape({x.size(0), 192}), p[2], p[3]), 1);
  }
};

}  // namespace

ArchitectureOr MakeConvnet(Dimensions& /*dimensions*/, const DataShape& /*data*/) {
  return std::make_unique<Convnet>();
}

}  // namespace sluice

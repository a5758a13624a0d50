// The net of PyTorch's tutorial on a parameter server with RPC:
// conv 1 -> 32, kernel 3 -> relu -> conv 32 -> 64, kernel 3 -> max-pool 2 -> dropout2d 0.25 ->
// linear 9216 -> 128 -> relu -> dropout2d 0.5 -> linear 128 -> 10 -> log-softmax.
// The example mnist/main.py of pytorch/examples has the same names and shapes, and one more relu
// after conv2. sluice.models.MnistNet is this net in Python.
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include "services/worker/models/architecture.h"
#include "services/worker/models/dropout.h"

namespace sluice {
namespace {

class MnistNet final : public Architecture {
 public:
  std::vector<Parameter> Parameters() const override {
    return {{"conv1.weight", {32, 1, 3, 3}, UniformBound(9)},
            {"conv1.bias", {32}, UniformBound(9)},
            {"conv2.weight", {64, 32, 3, 3}, UniformBound(288)},
            {"conv2.bias", {64}, UniformBound(288)},
            {"fc1.weight", {128, 9216}, UniformBound(9216)},
            {"fc1.bias", {128}, UniformBound(9216)},
            {"fc2.weight", {10, 128}, UniformBound(128)},
            {"fc2.bias", {10}, UniformBound(128)}};
  }

  std::vector<int64_t> InputShape() const override { return {1, 28, 28}; }

  LossKind OwnLoss() const override { return LossKind::kNll; }

  std::vector<Layer> Layers() const override {
    return {{"conv1", {1, 28, 28}}, {"conv2", {32, 26, 26}}, {"fc1", {64, 12, 12}}, {"fc2", {128}}};
  }

  at::Tensor Forward(absl::Span<const at::Tensor> p, const at::Tensor& input,
                     bool training) const override {
    return ForwardLayers(p, input, 0, 3, training);
  }

  at::Tensor ForwardLayers(absl::Span<const at::Tensor> p, const at::Tensor& input, size_t first,
                           size_t last, bool training) const override {
    at::Tensor x = input;
    const auto has = [&](size_t layer) { return first <= layer && layer <= last; };
    if (has(0)) x = at::relu(at::conv2d(x, p[0], p[1]));
    if (has(1)) {
      x = at::max_pool2d(at::conv2d(x, p[2], p[3]), 2);
      x = FeatureDropout(x, 0.25, training);
    }
    if (has(2)) {
      x = at::relu(at::linear(x.reshape({x.size(0), 9216}), p[4], p[5]));
      // The features of a matrix are single numbers, so feature dropout is plain dropout here;
      // newer versions of LibTorch refuse feature dropout on a matrix.
      x = Dropout(x, 0.5, training);
    }
    if (has(3)) x = at::log_softmax(at::linear(x, p[6], p[7]), 1);
    return x;
  }
};

}  // namespace

ArchitectureOr MakeMnistNet(Dimensions& /*dimensions*/, const DataShape& /*data*/) {
  return std::make_unique<MnistNet>();
}

}  // namespace sluice

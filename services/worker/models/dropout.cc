#include "services/worker/models/dropout.h"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/feature_dropout.h>

#include <utility>
#include <vector>

namespace sluice {
namespace {

// The thread's innermost ScopedDropoutGenerator's; undefined: none.
thread_local at::Generator scoped_generator;

bool Scoped() { return scoped_generator.defined(); }

at::TensorOptions OnCpu(const at::Tensor& input) { return input.options().device(at::kCPU); }

// As LibTorch does it: the noise includes the scale of the numbers that are kept. The noise, which
// is on the CPU, has the same numbers for every device of the input.
at::Tensor WithNoise(const at::Tensor& input, const at::Tensor& noise, double p) {
  noise.bernoulli_(1 - p, scoped_generator);
  noise.div_(1 - p);
  return input.mul(noise.to(input.device()));
}

}  // namespace

ScopedDropoutGenerator::ScopedDropoutGenerator(at::Generator generator) {
  scoped_generator = std::move(generator);
}

ScopedDropoutGenerator::~ScopedDropoutGenerator() { scoped_generator = at::Generator(); }

at::Tensor Dropout(const at::Tensor& input, double p, bool training) {
  if (!training || !Scoped()) return at::dropout(input, p, training);
  return WithNoise(input, at::empty_like(input, OnCpu(input)), p);
}

at::Tensor FeatureDropout(const at::Tensor& input, double p, bool training) {
  if (!training || !Scoped()) return at::feature_dropout(input, p, training);
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[0] = input.size(0);
  shape[1] = input.size(1);
  return WithNoise(input, at::empty(shape, OnCpu(input)), p);
}

}  // namespace sluice

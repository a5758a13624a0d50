// Dropout that draws from a generator of the caller's choice.
//
// Intuition. LibTorch has one default generator for a process, which is right for a worker: it
// computes one batch at a time. A shard that computes for several workers at once would mix their
// random numbers, so there each forward pass has its own generator.
#ifndef SLUICE_SERVICES_WORKER_MODELS_DROPOUT_H_
#define SLUICE_SERVICES_WORKER_MODELS_DROPOUT_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace sluice {

// While it lives, the functions below draw from `generator`, one of the CPU, on the thread that
// made it. With the same seed it gives the numbers of the CPU's default generator, on a GPU too.
// Not nested.
class ScopedDropoutGenerator {
 public:
  explicit ScopedDropoutGenerator(at::Generator generator);
  ~ScopedDropoutGenerator();

  ScopedDropoutGenerator(const ScopedDropoutGenerator&) = delete;
  ScopedDropoutGenerator& operator=(const ScopedDropoutGenerator&) = delete;
};

// torch.nn.functional.dropout: each number is zeroed with probability p, the others are scaled.
at::Tensor Dropout(const at::Tensor& input, double p, bool training);

// torch.nn.functional.dropout2d: zeroes whole channels of [n, c, ...].
at::Tensor FeatureDropout(const at::Tensor& input, double p, bool training);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_DROPOUT_H_

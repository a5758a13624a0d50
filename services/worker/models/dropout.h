// Dropout that draws from a generator of the caller's choice.
//
// Intuition. LibTorch has one default generator for a process, which is right for a worker: it
// computes one batch at a time. A shard that computes for several workers at once would mix their
// numbers, so there each forward pass has a generator of its own.
#ifndef SLUICE_SERVICES_WORKER_MODELS_DROPOUT_H_
#define SLUICE_SERVICES_WORKER_MODELS_DROPOUT_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace sluice {

// While it lives, the functions below draw from `generator` on the thread that made it, on the CPU.
// Equally seeded, it gives what the default generator gives. Not nested.
class ScopedDropoutGenerator {
 public:
  explicit ScopedDropoutGenerator(at::Generator generator);
  ~ScopedDropoutGenerator();

  ScopedDropoutGenerator(const ScopedDropoutGenerator&) = delete;
  ScopedDropoutGenerator& operator=(const ScopedDropoutGenerator&) = delete;
};

// torch.nn.functional.dropout: each number is left out with probability p, the others are scaled.
at::Tensor Dropout(const at::Tensor& input, double p, bool training);

// torch.nn.functional.dropout2d: whole channels [n, c, ...] are left out.
at::Tensor FeatureDropout(const at::Tensor& input, double p, bool training);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_DROPOUT_H_

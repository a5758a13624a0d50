// Losses and what is counted with them. A sample's loss is what PyTorch's function of that name
// gives for the sample alone, so the mean over samples is PyTorch's default reduction.
#ifndef SLUICE_SERVICES_WORKER_MODELS_LOSS_H_
#define SLUICE_SERVICES_WORKER_MODELS_LOSS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/worker/data/batch.h"

namespace sluice {

enum class LossKind {
  kNone,     // a model without data
  kModule,   // the method `loss(output, target)` of a TorchScript module: the mean over the samples
  kForward,  // what a TorchScript module's `forward(input, target)` returns: the mean as above
  kNll,      // negative log likelihood; the model gives log-probabilities
  kCrossEntropy,  // the model gives logits
  kMse,
  kBinaryCrossEntropyWithLogits,
};

// nll, crossEntropy, mse, binaryCrossEntropyWithLogits; InvalidArgument otherwise.
absl::StatusOr<LossKind> ParseLoss(const std::string& name);

// The batch's labels or targets as a tensor over the batch's memory, which must outlive it. On the
// CPU. Classes are int64, targets float32.
at::Tensor TargetTensor(const Batch& batch);

// Checks that a model's output of these sizes can be compared with the batch's labels.
// InvalidArgument names what does not fit: kind of label, shapes, or the first label without an
// output. Call before the functions below.
absl::Status CheckLabels(LossKind loss, at::IntArrayRef output_sizes, const Batch& batch);

// The sum of the samples' losses, differentiable, for every kind that has a name. The loss of a
// sample with several labels is their mean.
at::Tensor LossSum(LossKind loss, const at::Tensor& output, const at::Tensor& target);

// The samples whose class was predicted; nothing unless loss and labels are about one class per
// sample.
std::optional<int64_t> CountCorrect(LossKind loss, const at::Tensor& output,
                                    const at::Tensor& target);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_LOSS_H_

#include "services/worker/compute/objective.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<LossKind> ChooseLoss(const std::string& name, const v1::ModelSpec& spec,
                                    const Model& model) {
  const absl::StatusOr<LossKind> own = model.OwnLoss();
  if (name.empty() || !model.TakesData()) return own;

  if (own.ok() && *own == LossKind::kForward) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loss is ", name,
        ", and the module's forward(input, target) takes the target, so it "
        "computes the loss itself: leave loss out, or have forward take the input alone"));
  }

  absl::StatusOr<LossKind> loss = ParseLoss(name);
  if (!loss.ok()) return loss;
  const bool built_in = spec.type() == v1::ModelSpec::BUILTIN;
  // Such training would diverge towards minus infinity.
  if (built_in && *loss == LossKind::kNll && *own != LossKind::kNll) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loss is nll, which needs log-probabilities, and ", spec.name(),
        " does not give them: should be ", *own == LossKind::kMse ? "mse" : "crossEntropy"));
  }
  return loss;
}

absl::Status NoGradientError() {
  return absl::FailedPreconditionError(
      "the loss depends on no parameter, so nothing would be trained: the model should not compute "
      "its output under no_grad, from detached tensors, or through operators without a gradient "
      "only (such as argmax)");
}

at::Tensor Objective::SumOfLosses(const at::Tensor& output, const at::Tensor& target) const {
  if (loss_ != LossKind::kModule) return LossSum(loss_, output, target);
  return module_->ModuleLoss(output, target).mul(static_cast<double>(target.size(0)));
}

std::pair<at::Tensor, double> Objective::ValueOfForward(const GradientRequest& request,
                                                        const at::Tensor& input,
                                                        const at::Tensor& target) const {
  const int64_t samples = target.size(0);
  const bool whole = request.reduction == Reduction::kSumOfSamples;
  const int64_t size = whole ? samples
                             : static_cast<int64_t>(std::min<uint64_t>(
                                   request.microbatch_size, static_cast<uint64_t>(samples)));

  at::Tensor objective;
  double loss_sum = 0;
  for (int64_t begin = 0; begin < samples; begin += size) {
    const int64_t count = std::min(size, samples - begin);
    const at::Tensor mean =
        module_->ForwardLoss(input.narrow(0, begin, count), target.narrow(0, begin, count));
    loss_sum += mean.item<double>() * static_cast<double>(count);
    const at::Tensor value = whole ? mean.mul(static_cast<double>(count)) : mean;
    objective = objective.defined() ? objective.add(value) : value;
  }
  return {objective, loss_sum};
}

std::pair<at::Tensor, double> Objective::Value(const GradientRequest& request,
                                               const at::Tensor& output,
                                               const at::Tensor& target) const {
  if (request.reduction == Reduction::kSumOfSamples) {
    at::Tensor sum = SumOfLosses(output, target);
    const double value = sum.item<double>();
    return {sum, value};
  }

  at::Tensor objective;
  double loss_sum = 0;
  const int64_t samples = target.size(0);
  const auto size = static_cast<int64_t>(
      std::min<uint64_t>(request.microbatch_size, static_cast<uint64_t>(samples)));

  for (int64_t begin = 0; begin < samples; begin += size) {
    const int64_t count = std::min(size, samples - begin);
    const at::Tensor sum =
        SumOfLosses(output.narrow(0, begin, count), target.narrow(0, begin, count));
    loss_sum += sum.item<double>();
    const at::Tensor mean = sum.div(static_cast<double>(count));
    objective = objective.defined() ? objective.add(mean) : mean;
  }
  return {objective, loss_sum};
}

BatchMetrics Objective::Metrics(const Batch& batch, double loss_sum, const at::Tensor& output,
                                const at::Tensor& target) const {
  BatchMetrics metrics;
  metrics.loss_sum = loss_sum;
  metrics.samples = batch.samples;
  const std::optional<int64_t> correct = CountCorrect(loss_, output.detach(), target);
  metrics.has_correct = correct.has_value();
  metrics.correct = correct.value_or(0);
  return metrics;
}

}  // namespace sluice

#include "services/worker/models/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

std::string ShapeText(at::IntArrayRef sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes.begin(), sizes.end(), ", "), "]");
}

const char* NameOf(LossKind loss) {
  switch (loss) {
    case LossKind::kNone:
    case LossKind::kModule:
    case LossKind::kForward:
      return "of the model";
    case LossKind::kNll:
      return "nll";
    case LossKind::kCrossEntropy:
      return "crossEntropy";
    case LossKind::kMse:
      return "mse";
    case LossKind::kBinaryCrossEntropyWithLogits:
      return "binaryCrossEntropyWithLogits";
  }
  return "";
}

absl::Status CheckClasses(LossKind loss, int64_t classes, const Batch& batch) {
  for (size_t i = 0; i < batch.classes.size(); ++i) {
    if (batch.classes[i] >= 0 && batch.classes[i] < classes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "loss ", NameOf(loss), ": label ", batch.classes[i], " of sample ", i / batch.class_width,
        " of the batch is not in [0, ", classes, "), the classes that the model distinguishes"));
  }
  return absl::OkStatus();
}

bool IsMultiClass(LossKind loss) {
  return loss == LossKind::kNll || loss == LossKind::kCrossEntropy;
}

}  // namespace

absl::StatusOr<LossKind> ParseLoss(const std::string& name) {
  for (LossKind loss : {LossKind::kNll, LossKind::kCrossEntropy, LossKind::kMse,
                        LossKind::kBinaryCrossEntropyWithLogits}) {
    if (name == NameOf(loss)) return loss;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "loss is '", name, "': should be nll, crossEntropy, mse or binaryCrossEntropyWithLogits"));
}

at::Tensor TargetTensor(const Batch& batch) {
  // from_blob takes writable memory; nothing writes it.
  if (!batch.classes.empty()) {
    std::vector<int64_t> shape = {static_cast<int64_t>(batch.samples)};
    if (batch.class_width > 1) shape.push_back(batch.class_width);
    return at::from_blob(const_cast<int64_t*>(batch.classes.data()), shape, at::kLong);
  }
  return at::from_blob(const_cast<float*>(batch.targets.data()),
                       {static_cast<int64_t>(batch.samples), batch.target_width}, at::kFloat);
}

absl::Status CheckLabels(LossKind loss, at::IntArrayRef output_sizes, const Batch& batch) {
  const auto samples = static_cast<int64_t>(batch.samples);
  const auto mismatch = [&](const std::string& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss ", NameOf(loss), ": the model's output has shape ",
                     ShapeText(output_sizes), ": should be ", wanted));
  };
  int64_t numbers = 1;
  for (int64_t size : output_sizes) numbers *= size;

  if (IsMultiClass(loss)) {
    if (batch.classes.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "loss ", NameOf(loss), " needs classes, and the data has numbers to predict"));
    }
    const bool sequences = output_sizes.size() == 3 && output_sizes[1] == batch.class_width;
    const bool single = output_sizes.size() == 2 && batch.class_width == 1;
    if ((!sequences && !single) || output_sizes[0] != samples) {
      return mismatch(batch.class_width == 1
                          ? absl::StrCat("[", samples, ", number of classes]")
                          : absl::StrCat("[", samples, ", ", batch.class_width,
                                         " (labels of a sample), number of classes]"));
    }
    return CheckClasses(loss, output_sizes.back(), batch);
  }

  if (loss == LossKind::kModule) return absl::OkStatus();
  if (batch.class_width > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss ", NameOf(loss),
                     " has one label for a sample, and the data has a class for each token: should "
                     "be crossEntropy or nll"));
  }
  if (!batch.classes.empty() && loss == LossKind::kMse) {
    return absl::InvalidArgumentError(
        "loss mse needs numbers to predict, and the data has classes");
  }

  const int64_t width = batch.classes.empty() ? batch.target_width : 1;
  if (output_sizes.empty() || output_sizes[0] != samples || numbers != samples * width) {
    return mismatch(ShapeText({samples, width}));
  }
  return CheckClasses(loss, 2, batch);
}

at::Tensor LossSum(LossKind loss, const at::Tensor& raw_output, const at::Tensor& target) {
  // Sums in half precision would lose too much.
  const at::Tensor output = raw_output.element_size() < 4 ? raw_output.to(at::kFloat) : raw_output;
  if (output.dim() == 3 && IsMultiClass(loss)) {
    // A sample's loss is the mean over its places.
    const at::Tensor sum = LossSum(loss, output.flatten(0, 1), target.reshape({-1}));
    return sum.div(static_cast<double>(output.size(1)));
  }

  switch (loss) {
    case LossKind::kNll:
      return at::nll_loss(output, target, {}, at::Reduction::Sum);
    case LossKind::kCrossEntropy:
      return at::nll_loss(at::log_softmax(output, 1), target, {}, at::Reduction::Sum);
    default:
      break;
  }

  const at::Tensor wanted = target.to(output.scalar_type()).reshape(output.sizes());
  const double numbers_of_a_sample = static_cast<double>(output.numel()) / output.size(0);
  if (loss == LossKind::kMse) {
    return at::mse_loss(output, wanted, at::Reduction::Sum).div(numbers_of_a_sample);
  }
  return at::binary_cross_entropy_with_logits(output, wanted, {}, {}, at::Reduction::Sum)
      .div(numbers_of_a_sample);
}

std::optional<int64_t> CountCorrect(LossKind loss, const at::Tensor& output,
                                    const at::Tensor& target) {
  const bool classes = !target.is_floating_point();
  const bool sequences = (IsMultiClass(loss) && output.dim() == 3) || (classes && target.dim() > 1);
  if (sequences) return std::nullopt;
  const bool one_of_many = IsMultiClass(loss) || (loss == LossKind::kModule && classes &&
                                                  output.dim() == 2 && output.size(1) > 1);
  if (one_of_many) return at::argmax(output, 1).eq(target).sum().item<int64_t>();
  if (loss == LossKind::kBinaryCrossEntropyWithLogits && output.numel() == output.size(0)) {
    return output.reshape({-1}).gt(0).eq(target.reshape({-1}).gt(0.5)).sum().item<int64_t>();
  }
  return std::nullopt;
}

}  // namespace sluice

// Computes from a model's output the value to differentiate and the values to report.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_OBJECTIVE_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_OBJECTIVE_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/models/loss.h"
#include "services/worker/models/model.h"

namespace sluice {

// The loss of a job (`name`), or if that is empty the model's own. InvalidArgument for a loss that
// does not exist or does not fit the model.
absl::StatusOr<LossKind> ChooseLoss(const std::string& name, const v1::ModelSpec& spec,
                                    const Model& model);

// The error of a loss that depends on no parameter.
absl::Status NoGradientError();

// Immutable; LibTorch's errors leave its functions as exceptions.
class Objective {
 public:
  // `module` must outlive it. It is used for the loss only if `loss` is kModule or kForward;
  // otherwise it may be null.
  Objective(LossKind loss, Model* module) : loss_(loss), module_(module) {}

  LossKind loss() const { return loss_; }

  // The sum of the samples' losses. Not if `loss` is kForward.
  at::Tensor SumOfLosses(const at::Tensor& output, const at::Tensor& target) const;

  // The value to differentiate, by the request's reduction, and the sum of losses.
  std::pair<at::Tensor, double> Value(const GradientRequest& request, const at::Tensor& output,
                                      const at::Tensor& target) const;

  // The same if `loss` is kForward: runs the forward pass, once for each microbatch if their means
  // are summed.
  std::pair<at::Tensor, double> ValueOfForward(const GradientRequest& request,
                                               const at::Tensor& input,
                                               const at::Tensor& target) const;

  BatchMetrics Metrics(const Batch& batch, double loss_sum, const at::Tensor& output,
                       const at::Tensor& target) const;

 private:
  const LossKind loss_;
  Model* const module_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_OBJECTIVE_H_

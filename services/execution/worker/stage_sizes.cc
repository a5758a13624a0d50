#include "services/execution/worker/stage_sizes.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <memory>

#include "services/common/status_macros.h"
#include "services/protocol/stages.h"
#include "services/worker/compute/torch_support.h"
#include "services/worker/models/model.h"

namespace sluice {
namespace {

uint64_t BytesOf(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
}

// Converts an input as the shard does.
at::Tensor InputFor(const Model& model, const at::Tensor& given) {
  std::vector<int64_t> shape = model.InputShape();
  if (shape.empty()) shape.assign(given.sizes().begin() + 1, given.sizes().end());
  shape.insert(shape.begin(), 1);
  return given.reshape(shape).to(given.is_floating_point() ? model.InputType()
                                                           : given.scalar_type());
}

}  // namespace

absl::StatusOr<std::vector<StageSizes>> MeasureStages(const v1::JobSpec& job,
                                                      const std::vector<int64_t>& sample_shape,
                                                      int64_t outputs, bool tokens) {
  ModelOptions options;
  options.spec = job.model();
  options.seed = job.training().seed();
  options.sample_shape = sample_shape;
  options.outputs = outputs;
  options.tokens = tokens;

  return Catching([&]() -> absl::StatusOr<std::vector<StageSizes>> {
    at::NoGradGuard no_grad;
    std::vector<int64_t> shape = sample_shape;
    shape.insert(shape.begin(), 1);
    at::Tensor value = at::zeros(shape, tokens ? at::kLong : at::kFloat);
    std::vector<StageSizes> sizes;

    // Each stage's output is the next one's input.
    for (uint32_t stage = 0; stage < StageCount(job.model()); ++stage) {
      ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                       MakeStageModel(options, stage, at::kCPU));
      model->SetTraining(false);

      StageSizes& entry = sizes.emplace_back();
      entry.input_bytes = BytesOf(value);
      value = model->Forward(InputFor(*model, value));
      entry.output_bytes = BytesOf(value);
    }
    return sizes;
  });
}

}  // namespace sluice

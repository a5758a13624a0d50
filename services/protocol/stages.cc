#include "services/protocol/stages.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice {
namespace {

absl::StatusOr<std::map<std::string, uint32_t>> StageOfLayers(const v1::ModelSpec& model) {
  std::map<std::string, uint32_t> stages;
  for (int stage = 0; stage < model.stages_size(); ++stage) {
    if (model.stages(stage).layers().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("model.stages[", stage, "] has no layers"));
    }
    for (const std::string& layer : model.stages(stage).layers()) {
      const auto [place, is_new] = stages.emplace(layer, static_cast<uint32_t>(stage));
      if (is_new) continue;
      return absl::InvalidArgumentError(absl::StrCat("model.stages[", stage, "]: layer '", layer,
                                                     "' is in model.stages[", place->second,
                                                     "] already"));
    }
  }
  return stages;
}

std::string LayerOf(const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  return dot == std::string::npos ? tensor : tensor.substr(0, dot);
}

std::string LayersOf(const v1::TensorTable& table) {
  std::string layers;
  std::string last;
  for (const v1::TensorSpec& tensor : table.tensors()) {
    std::string layer = LayerOf(tensor.name());
    if (layer == last) continue;
    absl::StrAppend(&layers, layers.empty() ? "" : ", ", layer);
    last = std::move(layer);
  }
  return layers;
}

}  // namespace

uint32_t StageCount(const v1::ModelSpec& model) {
  return static_cast<uint32_t>(std::max(1, model.stages_size()));
}

absl::StatusOr<std::vector<uint32_t>> StageOfTensors(const v1::TensorTable& table,
                                                     const v1::ModelSpec& model) {
  std::vector<uint32_t> stage_of(static_cast<size_t>(table.tensors_size()), 0);
  if (model.stages().empty()) return stage_of;

  ASSIGN_OR_RETURN(const auto stages, StageOfLayers(model));
  std::map<std::string, uint32_t> unknown = stages;

  for (int t = 0; t < table.tensors_size(); ++t) {
    const std::string& name = table.tensors(t).name();
    const auto found = std::find_if(stages.begin(), stages.end(), [&](const auto& stage) {
      return absl::StartsWith(name, absl::StrCat(stage.first, "."));
    });
    if (found == stages.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer '", LayerOf(name), "' of the model is in none of model.stages"));
    }
    stage_of[static_cast<size_t>(t)] = found->second;
    unknown.erase(found->first);
  }

  if (unknown.empty()) return stage_of;
  return absl::InvalidArgumentError(
      absl::StrCat("model.stages[", unknown.begin()->second, "]: the model has no layer '",
                   unknown.begin()->first, "'; it has ", LayersOf(table)));
}

absl::StatusOr<v1::Layout> MakeStagedLayout(const v1::TensorTable& table,
                                            const v1::ModelSpec& model, uint32_t partitions) {
  ASSIGN_OR_RETURN(const auto stage_of, StageOfTensors(table, model));

  const uint32_t stages = StageCount(model);
  if (partitions < stages || partitions > kMaxPartitions) {
    return absl::InvalidArgumentError(absl::StrCat("partitions is ", partitions, "; with ", stages,
                                                   " model.stages it must be from ", stages, " to ",
                                                   kMaxPartitions));
  }

  v1::Layout layout;
  layout.set_partitions(partitions);
  for (uint32_t stage = 0; stage < stages; ++stage) {
    for (int t = 0; t < table.tensors_size(); ++t) {
      if (stage_of[static_cast<size_t>(t)] != stage) continue;
      const uint64_t count = ElementCount(table.tensors(t));
      // Blocks are as large as possible: a layer computes with a block's memory in place.
      const uint64_t step = kMaxBlockBytes / ElementBytes(table.tensors(t).dtype());
      for (uint64_t offset = 0; offset < count; offset += step) {
        v1::Block& block = *layout.add_blocks();
        block.set_tensor(static_cast<uint32_t>(t));
        block.set_offset(offset);
        block.set_count(std::min(step, count - offset));
        block.set_partition(stage);
      }
    }
  }
  return layout;
}

absl::Status CheckStagedLayout(const v1::TensorTable& table, const v1::ModelSpec& model,
                               const v1::Layout& layout) {
  ASSIGN_OR_RETURN(const auto stage_of, StageOfTensors(table, model));
  for (const v1::Block& block : layout.blocks()) {
    if (block.tensor() >= stage_of.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the checkpoint has a block of tensor ",
                                                     block.tensor(), " of ", stage_of.size()));
    }

    const uint32_t stage = stage_of[block.tensor()];
    if (block.partition() == stage) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint has '", table.tensors(static_cast<int>(block.tensor())).name(),
                     "' in partition ", block.partition(), ", and model.stages[", stage,
                     "] must be whole in partition ", stage,
                     ": it is of a job with other stages, or with training.execution: Worker"));
  }
  return absl::OkStatus();
}

}  // namespace sluice

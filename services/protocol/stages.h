// Server-side execution: the tensors of each stage of a model, and their partitions.
//
// Intuition. A stage is computed by the one shard that owns all of its tensors, and moves with
// them. A partition is the unit of ownership, so each stage is one partition: stage 0 is partition
// 0, and so on; further partitions are empty. A shard that gets a partition thereby gets its stage.
#ifndef SLUICE_SERVICES_PROTOCOL_STAGES_H_
#define SLUICE_SERVICES_PROTOCOL_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace sluice {

// Stages of a model: at least one.
uint32_t StageCount(const v1::ModelSpec& model);

// The stage of each tensor. A tensor belongs to the layer that its name begins with ("conv1" of
// "conv1.weight"). INVALID_ARGUMENT names a layer without tensors, a layer that is named twice, a
// stage without layers, or a tensor whose layer is in no stage.
absl::StatusOr<std::vector<uint32_t>> StageOfTensors(const v1::TensorTable& table,
                                                     const v1::ModelSpec& model);

// Requires a valid table. Errors as StageOfTensors, and INVALID_ARGUMENT if there are fewer
// partitions than stages.
absl::StatusOr<v1::Layout> MakeStagedLayout(const v1::TensorTable& table,
                                            const v1::ModelSpec& model, uint32_t partitions);

// Checks that a layout of this table (a checkpoint's) has each stage in its own partition. Errors
// as StageOfTensors, and FAILED_PRECONDITION if it has not.
absl::Status CheckStagedLayout(const v1::TensorTable& table, const v1::ModelSpec& model,
                               const v1::Layout& layout);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_STAGES_H_

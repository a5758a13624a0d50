// A checkpoint's optimizer state as whole tensors: assembled from partition files, and written as
// the partition files of a checkpoint that a job can begin with.
#ifndef SLUICE_SERVICES_CHECKPOINT_OPTIMIZER_STATE_H_
#define SLUICE_SERVICES_CHECKPOINT_OPTIMIZER_STATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/model.pb.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/storage.h"

namespace sluice {

// An array of optimizer state beside a tensor, such as Adam's exp_avg.
struct Slot {
  std::string name;
  double initial_value = 0;  // of every element, before the first update
};

// The slots of a tensor's optimizer, in its order.
using SlotsOf = std::function<std::vector<Slot>(const v1::TensorSpec&)>;

// The optimizer state of one tensor.
struct TensorState {
  uint64_t updates = 0;  // of the tensor's most updated block
  uint64_t fewest = 0;   // of its least updated block
  std::vector<SafetensorsArray>
      slots;  // of the tensor's shape, named as Slot; none without updates
};

// The state of each tensor of the table, in its order. Blocks that were never updated have the
// slots' initial values. DATA_LOSS names the damaged file and what is wrong with it.
absl::StatusOr<std::vector<TensorState>> ReadOptimizerState(
    CheckpointStorage& storage, const v1::CheckpointIndex& checkpoint_index,
    const SlotsOf& slots_of);

// Writes a checkpoint with the index's table and layout, and its index: sets `files` of
// `checkpoint_index`. `tensors` and `states` are in the table's order, with the table's types and
// shapes; the slots of a tensor that was updated are those of its optimizer, in its order. Durable
// when it returns OK. INVALID_ARGUMENT, before anything is written: tensors and states do not match
// the table. Otherwise the errors of the storage.
absl::Status WriteCheckpoint(CheckpointStorage& storage, v1::CheckpointIndex* checkpoint_index,
                             const std::vector<SafetensorsArray>& tensors,
                             const std::vector<TensorState>& states);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_OPTIMIZER_STATE_H_

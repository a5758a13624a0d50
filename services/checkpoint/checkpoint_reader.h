// Assembles the whole tensors of a checkpoint from the partitions' files.
#ifndef SLUICE_SERVICES_CHECKPOINT_CHECKPOINT_READER_H_
#define SLUICE_SERVICES_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/checkpoint.pb.h"
#include "proto/model.pb.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/storage.h"

namespace sluice {

// Assembles tensors from blocks that are added in any order. Holds every tensor whole in memory.
// Not thread-safe.
class TensorAssembler {
 public:
  // INVALID_ARGUMENT if table and layout do not match.
  static absl::StatusOr<TensorAssembler> Create(const v1::TensorTable& table,
                                                const v1::Layout& layout);

  // The raw bytes of block number `block`. INVALID_ARGUMENT for a wrong number or size.
  absl::Status Add(uint32_t block, const absl::Cord& bytes);

  // In the table's order. DATA_LOSS names a tensor with missing blocks.
  absl::StatusOr<std::vector<SafetensorsArray>> Take();

 private:
  TensorAssembler(const v1::TensorTable& table, const v1::Layout& layout);

  v1::TensorTable table_;
  v1::Layout layout_;
  std::vector<std::string> content_;  // of each tensor
  std::vector<bool> added_;           // by block
};

// "fc1.weight[4096:8192]", the name of a block's array in a partition's file. The same rule as
// ShardModel::BlockName, from the checkpoint's own table.
std::string BlockName(const v1::CheckpointIndex& checkpoint_index, const v1::Block& block);

// The number of each block, by that name.
std::map<std::string, uint32_t> BlocksByName(const v1::CheckpointIndex& checkpoint_index);

// Every tensor of the table. DATA_LOSS names the damaged file and what is wrong with it.
absl::StatusOr<std::vector<SafetensorsArray>> ReadCheckpointTensors(
    CheckpointStorage& storage, const v1::CheckpointIndex& checkpoint_index);

// A whole checkpoint in memory, and how it was found.
struct NewestCheckpoint {
  RestorePoint point;
  std::vector<SafetensorsArray> tensors;
};

// FindRestorePoint and the checkpoint's tensors. Works while the job trains and deletes checkpoints
// that it has replaced. NOT_FOUND if no checkpoint is whole; the message says what is wrong with
// each.
absl::StatusOr<NewestCheckpoint> ReadNewestCheckpoint(CheckpointStorage& storage);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_CHECKPOINT_READER_H_

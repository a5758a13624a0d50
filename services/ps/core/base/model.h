#ifndef SLUICE_SERVICES_PS_CORE_BASE_MODEL_H_
#define SLUICE_SERVICES_PS_CORE_BASE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/ps/optimizer/groups.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice::ps {

// One block of the layout, with everything that a shard needs to know about it.
struct BlockInfo {
  uint32_t index = 0;  // in the layout
  uint32_t partition = 0;
  uint32_t tensor = 0;
  uint64_t offset = 0;  // of its first element, in the tensor
  uint64_t count = 0;   // of elements
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
  v1::TensorKind kind = v1::PARAMETER;
  v1::DataType sum_dtype = v1::DATA_TYPE_UNSPECIFIED;  // of gradient sums and optimizer state
  size_t bytes = 0;
  size_t sum_bytes = 0;
  size_t group = 0;  // of the optimizer's parameter groups
  // Elements whose gradient is zero do not change, so rows of a table can be updated by themselves.
  bool rows_apart = false;
};

// The structure of a job's state: its tensors, how they are divided, and how they are updated.
//
// Immutable; thread-safe.
class ShardModel {
 public:
  // INVALID_ARGUMENT if the layout does not fit the table, or the optimizer or its schedule is
  // invalid.
  static absl::StatusOr<std::shared_ptr<const ShardModel>> Create(
      const v1::JobSpec& job, const v1::TensorTable& table, const v1::Layout& layout,
      const OptimizerLibraries& libraries = {});

  // Number of partitions in the layout, empty ones included.
  uint32_t partitions() const { return static_cast<uint32_t>(first_block_.size() - 1); }
  // The layout's blocks, by BlockInfo::index.
  size_t blocks() const { return blocks_.size(); }
  const BlockInfo& block(size_t index) const { return blocks_[index]; }

  // A partition's blocks are those from FirstBlock(p) up to FirstBlock(p + 1).
  uint32_t FirstBlock(uint32_t partition) const { return first_block_[partition]; }
  uint32_t BlockCount(uint32_t partition) const {
    return first_block_[partition + 1] - first_block_[partition];
  }
  bool IsEmpty(uint32_t partition) const { return BlockCount(partition) == 0; }
  // Partitions that have blocks, ascending.
  const std::vector<uint32_t>& filled() const { return filled_; }

  // The name that the tensor has in PyTorch's state_dict.
  const std::string& TensorName(const BlockInfo& block) const {
    return table_.tensors(static_cast<int>(block.tensor)).name();
  }
  // "fc1.weight[4096:8192]".
  std::string BlockName(const BlockInfo& block) const;

  // The inputs of Create, unchanged.
  const v1::TensorTable& table() const { return table_; }
  const v1::Layout& layout() const { return layout_; }
  // Identifies table and layout together. Views and partition files name it, so that a shard
  // recognizes those of another layout.
  uint64_t layout_hash() const { return layout_hash_; }
  // Bytes of the parameters, buffers and counters of all partitions, without optimizer state.
  uint64_t total_bytes() const { return total_bytes_; }

  // The optimizer and its settings for this block (ParameterGroups).
  const ParameterGroups::Group& group(const BlockInfo& block) const { return groups_[block.group]; }

 private:
  ShardModel(ParameterGroups groups, v1::TensorTable table, v1::Layout layout);

  const ParameterGroups groups_;
  const v1::TensorTable table_;
  const v1::Layout layout_;
  const uint64_t layout_hash_;
  uint64_t total_bytes_ = 0;
  std::vector<BlockInfo> blocks_;
  std::vector<uint32_t> first_block_;  // one more than partitions
  std::vector<uint32_t> filled_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_MODEL_H_

// How a job's tensors are divided into blocks and placed on partitions.
//
// Intuition: a partition is the unit of ownership, copies, moves and checkpoints. All partitions
// should have about the same number of bytes, whatever the tensors' sizes. So tensors are divided
// into blocks of about total / 64 bytes (small models: few blocks; large ones: 1 MiB), and blocks
// are assigned to partitions largest first, each to the partition with the fewest bytes. The layout
// is a pure function of the tensor table, so that every process computes the same one.

#ifndef SLUICE_SERVICES_PROTOCOL_LAYOUT_H_
#define SLUICE_SERVICES_PROTOCOL_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/common.pb.h"
#include "proto/model.pb.h"

namespace sluice {

// The number of partitions of a job that does not set it. A shard without a partition has no work,
// so it also bounds the useful number of shards.
inline constexpr uint32_t kDefaultPartitions = 64;
inline constexpr uint32_t kMaxPartitions = 4096;
// Bounds of the size that blocks aim at; a block may be smaller, but not larger.
inline constexpr uint64_t kMinBlockBytes = 256 << 10;
inline constexpr uint64_t kMaxBlockBytes = 1 << 20;
// A frame carries whole blocks of one partition, up to this many payload bytes.
inline constexpr uint64_t kMaxFramePayloadBytes = 2 << 20;

// Product of the shape; 1 for a scalar.
uint64_t ElementCount(const v1::TensorSpec& tensor);

// Checks that the table can be a job's state: names unique and not empty, types known, extents not
// negative, no more than 2^40 bytes, and counters integer, everything else floating-point.
// INVALID_ARGUMENT names the tensor.
absl::Status ValidateTable(const v1::TensorTable& table);

// Requires a valid table; INVALID_ARGUMENT otherwise, or for partitions outside [1,
// kMaxPartitions].
absl::StatusOr<v1::Layout> MakeLayout(const v1::TensorTable& table, uint32_t partitions);

// Checks that every element of every tensor is in exactly one block, and that the blocks are in
// order.
absl::Status ValidateLayout(const v1::TensorTable& table, const v1::Layout& layout);

// Equal layouts of equal tables have equal hashes, on every machine.
uint64_t LayoutHash(const v1::TensorTable& table, const v1::Layout& layout);

uint64_t BlockBytes(const v1::TensorTable& table, const v1::Block& block);

// Frequent queries of a layout, computed once. Does not refer to the arguments afterwards.
// Immutable: any thread.
class LayoutIndex {
 public:
  LayoutIndex(const v1::TensorTable& table, const v1::Layout& layout);

  uint32_t partitions() const { return static_cast<uint32_t>(blocks_of_partition_.size()); }
  uint32_t blocks() const { return static_cast<uint32_t>(bytes_.size()); }

  // Blocks of a partition, ascending; those of a tensor, by offset.
  const std::vector<uint32_t>& BlocksOfPartition(uint32_t partition) const {
    return blocks_of_partition_[partition];
  }
  const std::vector<uint32_t>& BlocksOfTensor(uint32_t tensor) const {
    return blocks_of_tensor_[tensor];
  }
  uint64_t bytes(uint32_t block) const { return bytes_[block]; }
  uint64_t PartitionBytes(uint32_t partition) const { return partition_bytes_[partition]; }
  bool IsEmpty(uint32_t partition) const { return blocks_of_partition_[partition].empty(); }

 private:
  std::vector<std::vector<uint32_t>> blocks_of_partition_;
  std::vector<std::vector<uint32_t>> blocks_of_tensor_;
  std::vector<uint64_t> bytes_;
  std::vector<uint64_t> partition_bytes_;
};

// Partition -> position in a list of `shards` shards, by bytes: largest partition first, each to
// the shard with the fewest bytes.
std::vector<uint32_t> PlacePartitions(const LayoutIndex& index, uint32_t shards);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_LAYOUT_H_

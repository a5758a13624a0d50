// The file of a partition in a checkpoint: one safetensors file, which Python can read without
// Sluice.
//
//   bytes 0..7       length H of the header, little endian
//   bytes 8..8+H     JSON: name -> {"dtype", "shape", "data_offsets"}, and "__metadata__"
//   the rest         the arrays, one after the other, little endian
//
// A block of a tensor is an array "fc1.weight[4096:8192]" (elements, row-major); its optimizer
// state follows as "fc1.weight[4096:8192]/exp_avg", unless the block has never been updated. Blocks
// are in the layout's order. `__metadata__` (strings only, as the format requires):
//   format "sluice-partition-1", partition, version, layout_hash (hexadecimal), counts (updates of
//   each block, separated by spaces), clocks (asynchronous: a JSON array of [worker, clock, first
//   sample, end of samples], the worker hexadecimal), state_hash (hexadecimal), step_hashes (state
//   hashes after recent steps, if the job records them; services/protocol/step_hashes.h).
#ifndef SLUICE_SERVICES_PS_CORE_STATE_PARTITION_FILE_H_
#define SLUICE_SERVICES_PS_CORE_STATE_PARTITION_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/checkpoint.pb.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/partition.h"

namespace sluice::ps {

// "partition-00012.safetensors".
std::string PartitionFileName(uint32_t partition);

// A partition's file, over the content's own memory, and its entry in the checkpoint index (name
// PartitionFileName, size, CRC32C of the whole file, state hash). Reads the whole content once, at
// memory speed. Any thread.
struct EncodedPartition {
  absl::Cord bytes;
  v1::PartitionFile file;
};
EncodedPartition EncodePartition(const PartitionContent& content);

// XXH3 over the blocks in order: parameters, optimizer state, counts. Partitions with equal hashes
// are bit-identical.
uint64_t StateHash(const PartitionContent& content);

// Reads back what EncodePartition wrote for a partition of the same tensors and layout. Checks
// everything (size and CRC32C against `file`, header, names, types, sizes, state hash); DATA_LOSS
// names the file and the damaged part. The content has its own blocks, and no step_hashes: training
// never reads them.
absl::StatusOr<std::shared_ptr<PartitionContent>> DecodePartition(
    std::shared_ptr<const ShardModel> model, const v1::PartitionFile& file, const absl::Cord& bytes,
    BlockPool& pool);

// The state of a copy, and memory that was taken from the system for its next version.
struct ReceivedCopy {
  std::shared_ptr<PartitionContent> content;
  std::vector<BlockRef> memory;
};
// Any thread.
absl::StatusOr<std::shared_ptr<ReceivedCopy>> ReadReceivedCopy(const ReadCopy& read);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_PARTITION_FILE_H_

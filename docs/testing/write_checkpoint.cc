// Writes a small checkpoint with the code of the real programs, for a test of what the pages state
// about the format.
//
//   write_checkpoint DIRECTORY
//
// Element i of `fc.weight` (70 x 100, float32) is i, that of `fc.bias` (70, float64) is 0.5 * i;
// `steps` is a counter at 7. Three partitions, so that the weight is in several files.

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/storage.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"
#include "services/protocol/layout.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/block_update.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {
namespace {

constexpr uint64_t kStep = 7;

v1::TensorTable MakeTable() {
  v1::TensorTable table;
  const auto add = [&](const char* name, std::initializer_list<int64_t> shape, v1::DataType dtype,
                       v1::TensorKind kind) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    for (int64_t extent : shape) tensor.add_shape(extent);
    tensor.set_dtype(dtype);
    tensor.set_kind(kind);
  };
  add("fc.weight", {1120, 100}, v1::FLOAT32, v1::PARAMETER);
  add("fc.bias", {70}, v1::FLOAT64, v1::PARAMETER);
  add("steps", {}, v1::INT64, v1::COUNTER);
  return table;
}

BlockState MakeBlock(const BlockInfo& info, BlockPool& pool) {
  MutableBlockRef values = pool.Take(info.bytes);
  for (uint64_t i = 0; i < info.count; ++i) {
    const uint64_t element = info.offset + i;
    if (info.dtype == v1::FLOAT32) values->MutableAs<float>()[i] = static_cast<float>(element);
    if (info.dtype == v1::FLOAT64)
      values->MutableAs<double>()[i] = 0.5 * static_cast<double>(element);
    if (info.dtype == v1::INT64) values->MutableAs<int64_t>()[i] = kStep;
  }
  BlockState state = InitialBlock(std::move(values));
  if (info.kind != v1::PARAMETER) return state;
  // Momentum: state that a reader of parameters has to pass over.
  MutableBlockRef momentum = pool.Take(info.sum_bytes);
  std::memset(momentum->mutable_bytes().data(), 0, momentum->size());
  state.slots[0] = std::move(momentum);
  state.count = kStep;
  return state;
}

absl::Status Write(const std::string& directory) {
  v1::JobSpec job;
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  job.mutable_optimizer()->set_learning_rate(0.1);
  job.mutable_optimizer()->set_momentum(0.9);
  v1::CheckpointIndex checkpoint_index;
  checkpoint_index.set_format_version(kCheckpointFormatVersion);
  checkpoint_index.mutable_checkpoint()->set_attempt(1);
  checkpoint_index.mutable_checkpoint()->set_step(kStep);
  *checkpoint_index.mutable_table() = MakeTable();
  ASSIGN_OR_RETURN(v1::Layout layout, MakeLayout(checkpoint_index.table(), 3));
  *checkpoint_index.mutable_layout() = layout;
  ASSIGN_OR_RETURN(std::shared_ptr<const ShardModel> model,
                   ShardModel::Create(job, checkpoint_index.table(), layout));

  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::unique_ptr<CheckpointStorage> storage =
      MakeLocalStorage(files.get(), directory, "test");
  const std::shared_ptr<BlockPool> pool = BlockPool::Create(/*max_idle_bytes=*/0);
  for (uint32_t partition : model->filled()) {
    PartitionContent content;
    content.model = model;
    content.partition = partition;
    content.version = kStep;
    const uint32_t first = model->FirstBlock(partition);
    for (uint32_t i = 0; i < model->BlockCount(partition); ++i) {
      content.blocks.push_back(MakeBlock(model->block(first + i), *pool));
    }
    const EncodedPartition encoded = EncodePartition(content);
    RETURN_IF_ERROR(
        storage->WriteFile(checkpoint_index.checkpoint(), encoded.file.name(), encoded.bytes));
    *checkpoint_index.add_files() = encoded.file;
  }
  return storage->WriteCheckpointIndex(checkpoint_index);
}

}  // namespace
}  // namespace sluice::ps

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_checkpoint DIRECTORY\n");
    return 2;
  }
  const absl::Status status = sluice::ps::Write(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "write_checkpoint: %s\n", status.ToString().c_str());
  return 1;
}

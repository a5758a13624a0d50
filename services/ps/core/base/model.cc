#include "services/ps/core/base/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice::ps {

absl::StatusOr<std::shared_ptr<const ShardModel>> ShardModel::Create(
    const v1::JobSpec& job, const v1::TensorTable& table, const v1::Layout& layout,
    const OptimizerLibraries& libraries) {
  RETURN_IF_ERROR(ValidateTable(table));
  RETURN_IF_ERROR(ValidateLayout(table, layout));
  ASSIGN_OR_RETURN(ParameterGroups groups, ParameterGroups::Create(job.optimizer(), libraries));
  return std::shared_ptr<const ShardModel>(new ShardModel(std::move(groups), table, layout));
}

ShardModel::ShardModel(ParameterGroups groups, v1::TensorTable table, v1::Layout layout)
    : groups_(std::move(groups)),
      table_(std::move(table)),
      layout_(std::move(layout)),
      layout_hash_(LayoutHash(table_, layout_)) {
  std::vector<size_t> group_of_tensor;
  group_of_tensor.reserve(table_.tensors_size());
  for (const v1::TensorSpec& tensor : table_.tensors()) {
    group_of_tensor.push_back(groups_.IndexOf(tensor.name()));
  }

  first_block_.assign(layout_.partitions() + 1, 0);
  for (const v1::Block& block : layout_.blocks()) {
    const v1::TensorSpec& tensor = table_.tensors(static_cast<int>(block.tensor()));
    BlockInfo info;
    info.index = static_cast<uint32_t>(blocks_.size());
    info.partition = block.partition();
    info.tensor = block.tensor();
    info.offset = block.offset();
    info.count = block.count();
    info.dtype = tensor.dtype();
    info.kind = tensor.kind();
    info.sum_dtype = ComputeDataType(tensor.dtype());
    info.bytes = block.count() * ElementBytes(info.dtype);
    info.sum_bytes = block.count() * ElementBytes(info.sum_dtype);
    info.group = group_of_tensor[block.tensor()];
    info.rows_apart =
        info.kind == v1::PARAMETER && groups_[info.group].optimizer->KeepsWhereGradientIsZero();
    total_bytes_ += info.bytes;
    SLUICE_DCHECK(blocks_.empty() || blocks_.back().partition <= info.partition,
                  "blocks are numbered by partition");
    ++first_block_[info.partition + 1];
    blocks_.push_back(info);
  }

  for (uint32_t p = 0; p < layout_.partitions(); ++p) {
    if (first_block_[p + 1] > 0) filled_.push_back(p);
    first_block_[p + 1] += first_block_[p];
  }
  SLUICE_DCHECK(first_block_.back() == blocks_.size(), "each block belongs to one partition");
}

std::string ShardModel::BlockName(const BlockInfo& block) const {
  return absl::StrCat(TensorName(block), "[", block.offset, ":", block.offset + block.count, "]");
}

}  // namespace sluice::ps

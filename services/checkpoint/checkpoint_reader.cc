#include "services/checkpoint/checkpoint_reader.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice {

absl::StatusOr<TensorAssembler> TensorAssembler::Create(const v1::TensorTable& table,
                                                        const v1::Layout& layout) {
  RETURN_IF_ERROR(ValidateTable(table));
  RETURN_IF_ERROR(ValidateLayout(table, layout));
  return TensorAssembler(table, layout);
}

TensorAssembler::TensorAssembler(const v1::TensorTable& table, const v1::Layout& layout)
    : table_(table), layout_(layout), added_(static_cast<size_t>(layout.blocks_size())) {
  for (const v1::TensorSpec& tensor : table.tensors()) {
    content_.emplace_back(ElementCount(tensor) * ElementBytes(tensor.dtype()), '\0');
  }
}

absl::Status TensorAssembler::Add(uint32_t block, const absl::Cord& bytes) {
  if (block >= added_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no block ", block));
  }

  const v1::Block& place = layout_.blocks(static_cast<int>(block));
  const v1::TensorSpec& tensor = table_.tensors(static_cast<int>(place.tensor()));
  const uint64_t element = ElementBytes(tensor.dtype());
  if (bytes.size() != place.count() * element) {
    return absl::InvalidArgumentError(absl::StrCat("a block of ", tensor.name(), " has ",
                                                   bytes.size(), " bytes instead of ",
                                                   place.count() * element));
  }

  char* to = content_[place.tensor()].data() + place.offset() * element;
  for (const absl::string_view chunk : bytes.Chunks()) {
    std::memcpy(to, chunk.data(), chunk.size());
    to += chunk.size();
  }
  added_[block] = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SafetensorsArray>> TensorAssembler::Take() {
  for (size_t block = 0; block < added_.size(); ++block) {
    if (added_[block]) continue;
    const uint32_t tensor = layout_.blocks(static_cast<int>(block)).tensor();
    return absl::DataLossError(absl::StrCat(
        "a part of tensor ", table_.tensors(static_cast<int>(tensor)).name(), " is missing"));
  }

  std::vector<SafetensorsArray> arrays;
  for (int i = 0; i < table_.tensors_size(); ++i) {
    const v1::TensorSpec& tensor = table_.tensors(i);
    arrays.push_back({tensor.name(),
                      tensor.dtype(),
                      {tensor.shape().begin(), tensor.shape().end()},
                      absl::Cord(std::move(content_[static_cast<size_t>(i)]))});
  }
  return arrays;
}

std::string BlockName(const v1::CheckpointIndex& checkpoint_index, const v1::Block& block) {
  return absl::StrCat(checkpoint_index.table().tensors(static_cast<int>(block.tensor())).name(),
                      "[", block.offset(), ":", block.offset() + block.count(), "]");
}

std::map<std::string, uint32_t> BlocksByName(const v1::CheckpointIndex& checkpoint_index) {
  std::map<std::string, uint32_t> blocks;
  for (int i = 0; i < checkpoint_index.layout().blocks_size(); ++i) {
    blocks[BlockName(checkpoint_index, checkpoint_index.layout().blocks(i))] =
        static_cast<uint32_t>(i);
  }
  return blocks;
}

absl::StatusOr<std::vector<SafetensorsArray>> ReadCheckpointTensors(
    CheckpointStorage& storage, const v1::CheckpointIndex& checkpoint_index) {
  ASSIGN_OR_RETURN(TensorAssembler assembler,
                   TensorAssembler::Create(checkpoint_index.table(), checkpoint_index.layout()),
                   absl::DataLossError(_.message()));

  const std::map<std::string, uint32_t> blocks = BlocksByName(checkpoint_index);
  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    const auto damaged = [&](const absl::Status& status) {
      return absl::DataLossError(absl::StrCat(file.name(), ": ", status.message()));
    };
    ASSIGN_OR_RETURN(const absl::Cord content,
                     storage.ReadFile(checkpoint_index.checkpoint(), file));
    ASSIGN_OR_RETURN(const std::vector<SafetensorsArray> arrays, ReadSafetensors(content),
                     damaged(_));

    for (const SafetensorsArray& array : arrays) {
      const auto block = blocks.find(array.name);
      if (block == blocks.end()) continue;  // optimizer state
      const v1::Block& place = checkpoint_index.layout().blocks(static_cast<int>(block->second));
      const v1::DataType dtype =
          checkpoint_index.table().tensors(static_cast<int>(place.tensor())).dtype();
      if (array.dtype != dtype) {
        return damaged(absl::InvalidArgumentError(
            absl::StrCat(array.name, " is of another type than ", SafetensorsTypeName(dtype))));
      }
      RETURN_IF_ERROR(assembler.Add(block->second, array.bytes), damaged(_));
    }
  }
  return assembler.Take();
}

absl::StatusOr<NewestCheckpoint> ReadNewestCheckpoint(CheckpointStorage& storage) {
  for (int search = 1;; ++search) {
    ASSIGN_OR_RETURN(RestorePoint point, FindRestorePoint(storage));
    if (!point.found) {
      std::string text = "there is no whole checkpoint";
      for (const std::string& damaged : point.damaged) absl::StrAppend(&text, "\n  ", damaged);
      return absl::NotFoundError(text);
    }

    absl::StatusOr<std::vector<SafetensorsArray>> tensors =
        ReadCheckpointTensors(storage, point.checkpoint_index);
    if (tensors.ok()) return NewestCheckpoint{std::move(point), *std::move(tensors)};

    const bool deleted =
        absl::IsNotFound(storage.ReadCheckpointIndex(point.checkpoint_index.checkpoint()).status());
    if (!deleted || search == kMaxSearches) return tensors.status();
  }
}

}  // namespace sluice

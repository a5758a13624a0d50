#include "services/protocol/layout.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxTableBytes = uint64_t{1} << 40;
constexpr int kMaxTensors = 1 << 20;

// Deals items to bins, largest first, each to the bin with the smallest sum so far; ties go to the
// lower number. Longest-processing-time rule (Graham, "Bounds on multiprocessing timing anomalies",
// 1969): at most 4/3 of the best balance.
std::vector<uint32_t> DealLargestFirst(const std::vector<uint64_t>& sizes, uint32_t bins) {
  std::vector<uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sizes[a] > sizes[b]; });

  using Bin = std::pair<uint64_t, uint32_t>;  // bytes, number
  std::priority_queue<Bin, std::vector<Bin>, std::greater<Bin>> least;
  for (uint32_t bin = 0; bin < bins; ++bin) least.push({0, bin});

  std::vector<uint32_t> bin_of(sizes.size());
  for (const uint32_t item : order) {
    Bin bin = least.top();
    least.pop();
    bin_of[item] = bin.second;
    bin.first += sizes[item];
    least.push(bin);
  }
  return bin_of;
}

// Elements in a block of this tensor, for blocks of about this size in bytes.
uint64_t ElementsPerBlock(const v1::TensorSpec& tensor, uint64_t block_bytes) {
  return std::max<uint64_t>(1, block_bytes / ElementBytes(tensor.dtype()));
}

absl::Status ValidateTensor(const v1::TensorSpec& tensor) {
  if (tensor.name().empty()) return absl::InvalidArgumentError("a tensor has no name");
  const auto fail = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name(), "' ", why));
  };

  if (ElementBytes(tensor.dtype()) == 0) return fail("has an unknown data type");
  const bool integer = tensor.dtype() == v1::INT64;
  if (integer != (tensor.kind() == v1::COUNTER)) {
    return fail(integer ? "is int64: only counters may be" : "is a counter and must be int64");
  }

  uint64_t elements = 1;
  for (const int64_t extent : tensor.shape()) {
    if (extent < 0) return fail(absl::StrCat("has a negative extent ", extent));
    if (extent != 0 && elements > kMaxTableBytes / static_cast<uint64_t>(extent)) {
      return fail(absl::StrCat("is too large: a model has at most ", kMaxTableBytes,
                               " bytes (kMaxTableBytes)"));
    }
    elements *= static_cast<uint64_t>(extent);
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t ElementCount(const v1::TensorSpec& tensor) {
  uint64_t count = 1;
  for (const int64_t extent : tensor.shape()) count *= static_cast<uint64_t>(extent);
  return count;
}

absl::Status ValidateTable(const v1::TensorTable& table) {
  if (table.tensors_size() > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", table.tensors_size(),
                                                   " tensors; at most ", kMaxTensors,
                                                   " are supported (kMaxTensors)"));
  }

  std::set<std::string> names;
  uint64_t bytes = 0;
  for (const v1::TensorSpec& tensor : table.tensors()) {
    RETURN_IF_ERROR(ValidateTensor(tensor));
    if (!names.insert(tensor.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has two tensors named '", tensor.name(), "'"));
    }
    bytes += ElementCount(tensor) * ElementBytes(tensor.dtype());
    if (bytes > kMaxTableBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model is larger than ", kMaxTableBytes, " bytes (kMaxTableBytes)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Layout> MakeLayout(const v1::TensorTable& table, uint32_t partitions) {
  RETURN_IF_ERROR(ValidateTable(table));
  if (partitions < 1 || partitions > kMaxPartitions) {
    return absl::InvalidArgumentError(
        absl::StrCat("partitions is ", partitions, "; it must be from 1 to ", kMaxPartitions));
  }

  uint64_t total = 0;
  for (const v1::TensorSpec& tensor : table.tensors()) {
    total += ElementCount(tensor) * ElementBytes(tensor.dtype());
  }
  // 64 is part of the definition of the block size and does not depend on the number of
  // partitions: layouts with other numbers of partitions have the same blocks.
  const uint64_t block_bytes = std::clamp(total / 64, kMinBlockBytes, kMaxBlockBytes);

  std::vector<v1::Block> blocks;
  std::vector<uint64_t> sizes;
  for (int t = 0; t < table.tensors_size(); ++t) {
    const v1::TensorSpec& tensor = table.tensors(t);
    const uint64_t count = ElementCount(tensor);
    const uint64_t step = ElementsPerBlock(tensor, block_bytes);
    for (uint64_t offset = 0; offset < count; offset += step) {
      v1::Block& block = blocks.emplace_back();
      block.set_tensor(t);
      block.set_offset(offset);
      block.set_count(std::min(step, count - offset));
      sizes.push_back(block.count() * ElementBytes(tensor.dtype()));
    }
  }

  const std::vector<uint32_t> partition_of = DealLargestFirst(sizes, partitions);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i].set_partition(partition_of[i]);
  // The blocks are already in the order of (tensor, offset).
  std::stable_sort(blocks.begin(), blocks.end(), [](const v1::Block& a, const v1::Block& b) {
    return a.partition() < b.partition();
  });

  v1::Layout layout;
  layout.set_partitions(partitions);
  for (v1::Block& block : blocks) *layout.add_blocks() = std::move(block);
  return layout;
}

absl::Status ValidateLayout(const v1::TensorTable& table, const v1::Layout& layout) {
  RETURN_IF_ERROR(ValidateTable(table));
  if (layout.partitions() < 1 || layout.partitions() > kMaxPartitions) {
    return absl::InvalidArgumentError("the layout's number of partitions is out of range");
  }

  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> ranges(table.tensors_size());
  const v1::Block* previous = nullptr;
  for (int i = 0; i < layout.blocks_size(); ++i) {
    const v1::Block& block = layout.blocks(i);
    const auto fail = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("block ", i, " of the layout ", why));
    };
    if (block.tensor() >= static_cast<uint32_t>(table.tensors_size())) {
      return fail("names a tensor that does not exist");
    }
    if (block.partition() >= layout.partitions()) return fail("names an unknown partition");
    const uint64_t count = ElementCount(table.tensors(block.tensor()));
    if (block.count() == 0 || block.offset() >= count || block.count() > count - block.offset()) {
      return fail("is outside its tensor");
    }
    if (previous != nullptr &&
        std::make_tuple(previous->partition(), previous->tensor(), previous->offset()) >=
            std::make_tuple(block.partition(), block.tensor(), block.offset())) {
      return fail("is out of order");
    }

    previous = &block;
    ranges[block.tensor()].push_back({block.offset(), block.count()});
  }

  for (int t = 0; t < table.tensors_size(); ++t) {
    std::sort(ranges[t].begin(), ranges[t].end());
    uint64_t next = 0;
    for (const auto& [offset, count] : ranges[t]) {
      if (offset != next) break;
      next += count;
    }
    if (next != ElementCount(table.tensors(t))) {
      return absl::InvalidArgumentError(absl::StrCat("the layout does not cover tensor '",
                                                     table.tensors(t).name(), "' exactly once"));
    }
  }
  return absl::OkStatus();
}

uint64_t LayoutHash(const v1::TensorTable& table, const v1::Layout& layout) {
  // Hashes a canonical text, because protobuf does not guarantee the same bytes everywhere.
  std::string text = absl::StrCat("partitions ", layout.partitions(), "\n");
  for (const v1::TensorSpec& tensor : table.tensors()) {
    absl::StrAppend(&text, tensor.name().size(), ":", tensor.name(), " ", tensor.dtype(), " ",
                    tensor.kind());
    for (const int64_t extent : tensor.shape()) absl::StrAppend(&text, " ", extent);
    text += "\n";
  }

  for (const v1::Block& block : layout.blocks()) {
    absl::StrAppend(&text, block.partition(), " ", block.tensor(), " ", block.offset(), " ",
                    block.count(), "\n");
  }
  return XXH3_64bits(text.data(), text.size());
}

uint64_t BlockBytes(const v1::TensorTable& table, const v1::Block& block) {
  return block.count() * ElementBytes(table.tensors(block.tensor()).dtype());
}

LayoutIndex::LayoutIndex(const v1::TensorTable& table, const v1::Layout& layout)
    : blocks_of_partition_(layout.partitions()),
      blocks_of_tensor_(table.tensors_size()),
      partition_bytes_(layout.partitions(), 0) {
  for (int i = 0; i < layout.blocks_size(); ++i) {
    const v1::Block& block = layout.blocks(i);
    blocks_of_partition_[block.partition()].push_back(i);
    blocks_of_tensor_[block.tensor()].push_back(i);
    bytes_.push_back(BlockBytes(table, block));
    partition_bytes_[block.partition()] += bytes_.back();
  }

  // Requests come for ranges of a tensor, so its blocks are in order.
  for (std::vector<uint32_t>& blocks : blocks_of_tensor_) {
    std::sort(blocks.begin(), blocks.end(), [&](uint32_t a, uint32_t b) {
      return layout.blocks(a).offset() < layout.blocks(b).offset();
    });
  }
}

std::vector<uint32_t> PlacePartitions(const LayoutIndex& index, uint32_t shards) {
  std::vector<uint64_t> sizes(index.partitions());
  for (uint32_t p = 0; p < index.partitions(); ++p) sizes[p] = index.PartitionBytes(p);
  return DealLargestFirst(sizes, shards);
}

}  // namespace sluice

#include "services/checkpoint/optimizer_state.h"

#include <xxhash.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice {
namespace {

constexpr char kPartitionFormat[] = "sluice-partition-1";

std::string Hexadecimal(uint64_t value) { return absl::StrFormat("%016x", value); }

v1::DataType SlotType(const v1::TensorSpec& tensor) { return ComputeDataType(tensor.dtype()); }

// `count` elements with this value, as the file has them.
std::string Filled(v1::DataType dtype, uint64_t count, double value) {
  const auto single = static_cast<float>(value);
  const size_t element = ElementBytes(dtype);
  const void* const from = dtype == v1::FLOAT64 ? static_cast<const void*>(&value) : &single;

  std::string bytes(count * element, '\0');
  for (uint64_t i = 0; i < count && value != 0; ++i) {
    std::memcpy(bytes.data() + i * element, from, element);
  }
  return bytes;
}

// Assembles the state of all tensors, file by file.
class StateAssembler {
 public:
  StateAssembler(const v1::CheckpointIndex& checkpoint_index, const SlotsOf& slots_of)
      : table_(checkpoint_index.table()),
        layout_(checkpoint_index.layout()),
        blocks_(BlocksByName(checkpoint_index)) {
    for (const v1::TensorSpec& tensor : table_.tensors()) {
      Tensor& state = tensors_.emplace_back();
      if (tensor.kind() != v1::PARAMETER) continue;

      state.slots = slots_of(tensor);
      for (const Slot& slot : state.slots) {
        state.content.push_back(Filled(SlotType(tensor), ElementCount(tensor), slot.initial_value));
      }
    }
  }

  absl::Status Add(uint32_t partition, const absl::Cord& content) {
    std::map<std::string, std::string> metadata;
    ASSIGN_OR_RETURN(const std::vector<SafetensorsArray> arrays,
                     ReadSafetensors(content, &metadata));
    RETURN_IF_ERROR(AddCounts(partition, metadata["counts"]));
    for (const SafetensorsArray& array : arrays) RETURN_IF_ERROR(AddArray(array));
    return absl::OkStatus();
  }

  std::vector<TensorState> Take() {
    std::vector<TensorState> states;
    for (int i = 0; i < table_.tensors_size(); ++i) {
      const v1::TensorSpec& spec = table_.tensors(i);
      Tensor& tensor = tensors_[static_cast<size_t>(i)];
      TensorState& state = states.emplace_back();

      state.updates = tensor.updates;
      state.fewest = tensor.seen ? tensor.fewest : 0;

      for (size_t slot = 0; slot < tensor.slots.size() && state.updates > 0; ++slot) {
        state.slots.push_back({tensor.slots[slot].name,
                               SlotType(spec),
                               {spec.shape().begin(), spec.shape().end()},
                               absl::Cord(std::move(tensor.content[slot]))});
      }
    }
    return states;
  }

 private:
  struct Tensor {
    std::vector<Slot> slots;
    std::vector<std::string> content;  // of each slot
    bool seen = false;
    uint64_t updates = 0;
    uint64_t fewest = 0;
  };

  absl::Status AddCounts(uint32_t partition, const std::string& text) {
    const std::vector<absl::string_view> counts = absl::StrSplit(text, ' ', absl::SkipEmpty());
    size_t next = 0;
    for (const v1::Block& block : layout_.blocks()) {
      if (block.partition() != partition) continue;
      uint64_t count = 0;
      if (next >= counts.size() || !absl::SimpleAtoi(counts[next++], &count)) {
        return absl::InvalidArgumentError("'counts' of its metadata is not that of its blocks");
      }

      Tensor& tensor = tensors_[block.tensor()];
      tensor.updates = std::max(tensor.updates, count);
      tensor.fewest = tensor.seen ? std::min(tensor.fewest, count) : count;
      tensor.seen = true;
    }
    return absl::OkStatus();
  }

  absl::Status AddArray(const SafetensorsArray& array) {
    const size_t slash = array.name.rfind('/');
    if (slash == std::string::npos || blocks_.count(array.name) > 0) return absl::OkStatus();

    const auto found = blocks_.find(array.name.substr(0, slash));
    if (found == blocks_.end()) return absl::OkStatus();

    const v1::Block& block = layout_.blocks(static_cast<int>(found->second));
    const v1::TensorSpec& spec = table_.tensors(static_cast<int>(block.tensor()));
    Tensor& tensor = tensors_[block.tensor()];

    for (size_t slot = 0; slot < tensor.slots.size(); ++slot) {
      if (array.name.substr(slash + 1) != tensor.slots[slot].name) continue;
      const size_t element = ElementBytes(SlotType(spec));
      if (array.dtype != SlotType(spec) || array.bytes.size() != block.count() * element) {
        return absl::InvalidArgumentError(
            absl::StrCat("array ", array.name, " has another type or size than its block"));
      }
      char* to = tensor.content[slot].data() + block.offset() * element;
      for (const absl::string_view chunk : array.bytes.Chunks()) {
        std::memcpy(to, chunk.data(), chunk.size());
        to += chunk.size();
      }
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("array ", array.name, " is of another optimizer than the job's"));
  }

  const v1::TensorTable& table_;
  const v1::Layout& layout_;
  const std::map<std::string, uint32_t> blocks_;
  std::vector<Tensor> tensors_;
};

// The blocks of a partition as its file has them.
struct PartitionArrays {
  std::vector<SafetensorsArray> arrays;
  std::vector<uint64_t> counts;
};

SafetensorsArray Part(const SafetensorsArray& whole, const v1::Block& block, std::string name) {
  const size_t element = ElementBytes(whole.dtype);
  return {std::move(name),
          whole.dtype,
          {static_cast<int64_t>(block.count())},
          whole.bytes.Subcord(block.offset() * element, block.count() * element)};
}

std::map<uint32_t, PartitionArrays> Divide(const v1::CheckpointIndex& checkpoint_index,
                                           const std::vector<SafetensorsArray>& tensors,
                                           const std::vector<TensorState>& states) {
  std::map<uint32_t, PartitionArrays> partitions;
  for (const v1::Block& block : checkpoint_index.layout().blocks()) {
    PartitionArrays& partition = partitions[block.partition()];
    const SafetensorsArray& tensor = tensors[block.tensor()];
    const TensorState& state = states[block.tensor()];
    const std::string name = BlockName(checkpoint_index, block);

    partition.arrays.push_back(Part(tensor, block, name));
    partition.counts.push_back(state.updates);
    for (const SafetensorsArray& slot : state.slots) {
      partition.arrays.push_back(Part(slot, block, absl::StrCat(name, "/", slot.name)));
    }
  }
  return partitions;
}

// Over all arrays in order, then each count as 8 bytes, little endian.
uint64_t StateHash(const PartitionArrays& partition) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                      &XXH3_freeState);
  XXH3_64bits_reset(hash.get());

  for (const SafetensorsArray& array : partition.arrays) {
    for (const absl::string_view chunk : array.bytes.Chunks()) {
      XXH3_64bits_update(hash.get(), chunk.data(), chunk.size());
    }
  }

  for (const uint64_t count : partition.counts) {
    char bytes[8];
    for (size_t i = 0; i < sizeof(bytes); ++i) bytes[i] = static_cast<char>(count >> (8 * i));
    XXH3_64bits_update(hash.get(), bytes, sizeof(bytes));
  }
  return XXH3_64bits_digest(hash.get());
}

absl::Status CheckMatches(const v1::TensorTable& table,
                          const std::vector<SafetensorsArray>& tensors,
                          const std::vector<TensorState>& states) {
  const auto count = static_cast<size_t>(table.tensors_size());
  bool same = tensors.size() == count && states.size() == count;

  for (size_t i = 0; i < count && same; ++i) {
    const v1::TensorSpec& spec = table.tensors(static_cast<int>(i));
    const uint64_t elements = ElementCount(spec);
    same = tensors[i].name == spec.name() && tensors[i].dtype == spec.dtype() &&
           tensors[i].bytes.size() == elements * ElementBytes(spec.dtype());
    for (const SafetensorsArray& slot : states[i].slots) {
      same = same && slot.dtype == SlotType(spec) &&
             slot.bytes.size() == elements * ElementBytes(slot.dtype);
    }
  }

  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError("tensors and state are not those of the table");
}

}  // namespace

absl::StatusOr<std::vector<TensorState>> ReadOptimizerState(
    CheckpointStorage& storage, const v1::CheckpointIndex& checkpoint_index,
    const SlotsOf& slots_of) {
  RETURN_IF_ERROR(ValidateCheckpointIndex(checkpoint_index));
  StateAssembler assembler(checkpoint_index, slots_of);

  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    ASSIGN_OR_RETURN(const absl::Cord content,
                     storage.ReadFile(checkpoint_index.checkpoint(), file));
    RETURN_IF_ERROR(assembler.Add(file.partition(), content),
                    absl::DataLossError(absl::StrCat(file.name(), ": ", _.message())));
  }
  return assembler.Take();
}

absl::Status WriteCheckpoint(CheckpointStorage& storage, v1::CheckpointIndex* checkpoint_index,
                             const std::vector<SafetensorsArray>& tensors,
                             const std::vector<TensorState>& states) {
  RETURN_IF_ERROR(CheckMatches(checkpoint_index->table(), tensors, states));

  const v1::CheckpointRef& ref = checkpoint_index->checkpoint();
  const std::string layout_hash =
      Hexadecimal(LayoutHash(checkpoint_index->table(), checkpoint_index->layout()));
  checkpoint_index->clear_files();
  for (const auto& [number, partition] : Divide(*checkpoint_index, tensors, states)) {
    const uint64_t state_hash = StateHash(partition);
    const absl::Cord content =
        WriteSafetensors(partition.arrays, {{"format", kPartitionFormat},
                                            {"partition", absl::StrCat(number)},
                                            {"version", absl::StrCat(ref.step())},
                                            {"layout_hash", layout_hash},
                                            {"counts", absl::StrJoin(partition.counts, " ")},
                                            {"clocks", "[]"},
                                            {"state_hash", Hexadecimal(state_hash)}});

    v1::PartitionFile& file = *checkpoint_index->add_files();
    file.set_partition(number);
    file.set_name(absl::StrFormat("partition-%05d.safetensors", number));
    file.set_bytes(content.size());
    file.set_crc32c(Crc32c(content));
    file.set_state_hash(state_hash);
    RETURN_IF_ERROR(storage.WriteFile(ref, file.name(), content));
  }
  return storage.WriteCheckpointIndex(*checkpoint_index);
}

}  // namespace sluice

#include "services/ps/core/state/partition_file.h"

#include <xxhash.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/bulk_memory.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/protocol/step_hashes.h"

namespace sluice::ps {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kFormat = "sluice-partition-1";
constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderAlignment = 64;                    // of the first array in the file
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // the format's own limit
constexpr size_t kMaxHeaderDepth = 8;                      // its deepest value is an extent

absl::string_view TypeName(v1::DataType dtype) {
  switch (dtype) {
    case v1::FLOAT32:
      return "F32";
    case v1::FLOAT64:
      return "F64";
    case v1::BFLOAT16:
      return "BF16";
    case v1::FLOAT16:
      return "F16";
    case v1::INT64:
      return "I64";
    default:
      return "";
  }
}

absl::Span<const SlotSpec> Slots(const ShardModel& model, const BlockInfo& info) {
  if (info.kind != v1::PARAMETER) return {};
  return model.group(info).optimizer->slots();
}

// One array of a file: a block's parameters or one slot of its optimizer state.
struct Array {
  std::string name;
  v1::DataType dtype;
  size_t place;  // of the block, in the partition
  int slot;      // -1: the parameters
  size_t bytes;
};

// The arrays of a partition whose blocks have these update counts, in the file's order.
std::vector<Array> ArraysOf(const ShardModel& model, uint32_t partition,
                            const std::vector<uint64_t>& counts) {
  SLUICE_DCHECK(counts.size() == model.BlockCount(partition), "a partition is saved whole");

  std::vector<Array> arrays;
  for (size_t place = 0; place < counts.size(); ++place) {
    const BlockInfo& info = model.block(model.FirstBlock(partition) + place);
    const std::string name = model.BlockName(info);
    arrays.push_back({name, info.dtype, place, -1, info.bytes});
    if (counts[place] == 0) continue;

    const absl::Span<const SlotSpec> slots = Slots(model, info);
    for (size_t i = 0; i < slots.size(); ++i) {
      arrays.push_back({absl::StrCat(name, "/", slots[i].name), info.sum_dtype, place,
                        static_cast<int>(i), info.sum_bytes});
    }
  }
  return arrays;
}

std::vector<uint64_t> CountsOf(const PartitionContent& content) {
  std::vector<uint64_t> counts;
  for (const BlockState& block : content.blocks) counts.push_back(block.count);
  return counts;
}

const BlockRef& BlockOf(const PartitionContent& content, const Array& array) {
  const BlockState& block = content.blocks[array.place];
  const BlockRef& array_block = array.slot < 0 ? block.parameters : block.slots[array.slot];
  SLUICE_DCHECK(array_block != nullptr, "an updated block has all of its optimizer state");
  SLUICE_DCHECK(array_block->size() == array.bytes, "an array has the size of its block");
  return array_block;
}

std::string Hexadecimal(uint64_t value) { return absl::StrFormat("%016x", value); }

std::string ClocksText(const std::vector<v1::ClockRecord>& clocks) {
  Json list = Json::array();
  for (const v1::ClockRecord& record : clocks) {
    list.push_back(Json::array({Hexadecimal(record.worker()), record.clock(),
                                record.samples().begin(), record.samples().end()}));
  }
  return list.dump();
}

std::string LengthPrefix(uint64_t length) {
  std::string prefix(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) {
    prefix[i] = static_cast<char>(length >> (8 * i) & 0xff);
  }
  return prefix;
}

// ---------------------------------------------------------------- reading

// Errors of reading a file, with the file's name.
class FileReader {
 public:
  FileReader(const ShardModel& model, const v1::PartitionFile& file, const absl::Cord& bytes)
      : model_(model), file_(file), bytes_(bytes) {}

  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(file_.name(), " is damaged: ", what));
  }

  absl::Status ReadHeader();
  absl::Status ReadMetadata(PartitionContent* content);
  absl::Status ReadArrays(BlockPool& pool, PartitionContent* content);
  const std::string& state_hash() const { return state_hash_; }

 private:
  absl::Status ReadClocks(const std::string& text, PartitionContent* content) const;
  absl::StatusOr<std::string> Metadata(const char* key) const;

  const ShardModel& model_;
  const v1::PartitionFile& file_;
  const absl::Cord& bytes_;
  Json header_;
  uint64_t data_begin_ = 0;
  std::vector<uint64_t> counts_;
  std::string state_hash_;
};

absl::Status FileReader::ReadHeader() {
  if (bytes_.size() != file_.bytes()) {
    return Damaged(absl::StrCat("it has ", bytes_.size(), " bytes, the checkpoint index says ",
                                file_.bytes()));
  }
  if (const uint32_t crc = Crc32c(bytes_); crc != file_.crc32c()) {
    return Damaged(
        absl::StrFormat("its CRC32C is %08x, the checkpoint index says %08x", crc, file_.crc32c()));
  }

  if (bytes_.size() < kLengthBytes) return Damaged("it ends within the header's length");

  const std::string prefix(bytes_.Subcord(0, kLengthBytes));
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(prefix[i])) << (8 * i);
  }
  if (length > kMaxHeaderBytes || length > bytes_.size() - kLengthBytes) {
    return Damaged(absl::StrCat("its length field gives the header ", length, " bytes"));
  }

  data_begin_ = kLengthBytes + length;
  const std::string text(bytes_.Subcord(kLengthBytes, length));
  RETURN_IF_ERROR(CheckJsonText(text, kMaxHeaderDepth),
                  Damaged(absl::StrCat("its header: ", _.message())));

  header_ = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header_.is_object()) return Damaged("its header is not a JSON object");
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileReader::Metadata(const char* key) const {
  const auto metadata = header_.find("__metadata__");
  if (metadata != header_.end() && metadata->is_object()) {
    const auto value = metadata->find(key);
    if (value != metadata->end() && value->is_string()) return value->get<std::string>();
  }
  return Damaged(absl::StrCat("__metadata__ has no text '", key, "'"));
}

absl::Status FileReader::ReadClocks(const std::string& text, PartitionContent* content) const {
  absl::Status wrong = Damaged("'clocks' of __metadata__ is not a list of records");
  if (!CheckJsonText(text, kMaxHeaderDepth).ok()) return wrong;
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return wrong;

  for (const Json& entry : list) {
    uint64_t worker = 0;
    if (!entry.is_array() || entry.size() != 4 || !entry[0].is_string() ||
        !absl::SimpleHexAtoi(entry[0].get<std::string>(), &worker) ||
        !entry[1].is_number_unsigned() || !entry[2].is_number_unsigned() ||
        !entry[3].is_number_unsigned()) {
      return wrong;
    }
    v1::ClockRecord& record = content->clocks.emplace_back();
    record.set_worker(worker);
    record.set_clock(entry[1].get<uint64_t>());
    record.mutable_samples()->set_begin(entry[2].get<uint64_t>());
    record.mutable_samples()->set_end(entry[3].get<uint64_t>());
  }
  return absl::OkStatus();
}

absl::Status FileReader::ReadMetadata(PartitionContent* content) {
  std::vector<std::string> values;
  for (const char* key :
       {"format", "partition", "version", "layout_hash", "counts", "clocks", "state_hash"}) {
    ASSIGN_OR_RETURN(std::string value, Metadata(key));
    values.push_back(std::move(value));
  }

  if (values[0] != kFormat) {
    return Damaged(absl::StrCat("its format is '", values[0], "', not '", kFormat, "'"));
  }

  if (!absl::SimpleAtoi(values[1], &content->partition) ||
      content->partition != file_.partition() || content->partition >= model_.partitions()) {
    return Damaged(absl::StrCat("it holds partition ", values[1], ", not ", file_.partition()));
  }

  if (!absl::SimpleAtoi(values[2], &content->version)) {
    return Damaged(absl::StrCat("'", values[2], "' is not a version"));
  }
  if (values[3] != Hexadecimal(model_.layout_hash())) {
    return absl::FailedPreconditionError(
        absl::StrCat(file_.name(), " is of a model with other tensors or another layout"));
  }

  for (absl::string_view text : absl::StrSplit(values[4], ' ', absl::SkipEmpty())) {
    uint64_t count = 0;
    if (!absl::SimpleAtoi(text, &count)) return Damaged("'counts' of __metadata__ is not numeric");
    counts_.push_back(count);
  }
  if (counts_.size() != model_.BlockCount(content->partition)) {
    return Damaged(absl::StrCat("it holds ", counts_.size(), " blocks, the partition has ",
                                model_.BlockCount(content->partition)));
  }

  state_hash_ = values[6];
  return ReadClocks(values[5], content);
}

absl::Status FileReader::ReadArrays(BlockPool& pool, PartitionContent* content) {
  content->blocks.resize(counts_.size());
  const std::vector<Array> arrays = ArraysOf(model_, content->partition, counts_);
  if (header_.size() != arrays.size() + 1) {
    return Damaged(absl::StrCat("it holds ", header_.size() - 1, " arrays, not ", arrays.size()));
  }

  uint64_t begin = 0;
  for (const Array& array : arrays) {
    const auto entry = header_.find(array.name);
    if (entry == header_.end()) return Damaged(absl::StrCat("'", array.name, "' is missing"));
    const BlockInfo& info = model_.block(model_.FirstBlock(content->partition) + array.place);
    const Json expected = {{"dtype", TypeName(array.dtype)},
                           {"shape", {info.count}},
                           {"data_offsets", {begin, begin + array.bytes}}};
    if (*entry != expected) {
      return Damaged(
          absl::StrCat("'", array.name, "' is ", entry->dump(), ", not ", expected.dump()));
    }

    if (bytes_.size() - data_begin_ < begin + array.bytes) {
      return Damaged(absl::StrCat("it ends within '", array.name, "'"));
    }

    MutableBlockRef block = pool.Take(array.bytes);
    RETURN_IF_ERROR(
        CopyPayload(bytes_.Subcord(data_begin_ + begin, array.bytes), block->mutable_bytes()));
    begin += array.bytes;
    BlockState& state = content->blocks[array.place];
    state.count = counts_[array.place];
    (array.slot < 0 ? state.parameters : state.slots[array.slot]) = std::move(block);
  }

  if (bytes_.size() - data_begin_ != begin) return Damaged("it is longer than its arrays");
  return absl::OkStatus();
}

}  // namespace

std::string PartitionFileName(uint32_t partition) {
  return absl::StrFormat("partition-%05d.safetensors", partition);
}

uint64_t StateHash(const PartitionContent& content) {
  XXH3_state_t* const hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  const ShardModel& model = *content.model;
  const auto add = [hash](const BlockRef& block) {
    XXH3_64bits_update(hash, block->bytes().data(), block->bytes().size());
  };

  // The order of the file's arrays.
  for (size_t place = 0; place < content.blocks.size(); ++place) {
    const BlockState& block = content.blocks[place];
    add(block.parameters);
    if (block.count == 0) continue;
    const BlockInfo& info = model.block(model.FirstBlock(content.partition) + place);
    for (size_t i = 0; i < Slots(model, info).size(); ++i) add(block.slots[i]);
  }

  for (uint64_t count : CountsOf(content)) {
    const std::string text = LengthPrefix(count);
    XXH3_64bits_update(hash, text.data(), text.size());
  }

  const uint64_t digest = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return digest;
}

EncodedPartition EncodePartition(const PartitionContent& content) {
  const ShardModel& model = *content.model;
  const std::vector<uint64_t> counts = CountsOf(content);
  const uint64_t state_hash = StateHash(content);

  Json header;
  header["__metadata__"] = {{"format", kFormat},
                            {"partition", absl::StrCat(content.partition)},
                            {"version", absl::StrCat(content.version)},
                            {"layout_hash", Hexadecimal(model.layout_hash())},
                            {"counts", absl::StrJoin(counts, " ")},
                            {"clocks", ClocksText(content.clocks)},
                            {"state_hash", Hexadecimal(state_hash)}};
  if (!content.step_hashes.empty()) {
    header["__metadata__"]["step_hashes"] = StepHashesText(content.step_hashes);
  }

  absl::Cord data;
  for (const Array& array : ArraysOf(model, content.partition, counts)) {
    const BlockInfo& info = model.block(model.FirstBlock(content.partition) + array.place);
    SLUICE_DCHECK(!TypeName(array.dtype).empty(), "the file format has a name for the type");
    header[array.name] = {{"dtype", TypeName(array.dtype)},
                          {"shape", {info.count}},
                          {"data_offsets", {data.size(), data.size() + array.bytes}}};
    data.Append(CordOver(BlockOf(content, array)));
  }

  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  const size_t rest = (kLengthBytes + text.size()) % kHeaderAlignment;
  if (rest != 0) text.append(kHeaderAlignment - rest, ' ');

  EncodedPartition encoded;
  encoded.bytes.Append(LengthPrefix(text.size()));
  encoded.bytes.Append(std::move(text));
  encoded.bytes.Append(std::move(data));
  encoded.file.set_partition(content.partition);
  encoded.file.set_name(PartitionFileName(content.partition));
  encoded.file.set_bytes(encoded.bytes.size());
  encoded.file.set_crc32c(Crc32c(encoded.bytes));
  encoded.file.set_state_hash(state_hash);
  return encoded;
}

absl::StatusOr<std::shared_ptr<PartitionContent>> DecodePartition(
    std::shared_ptr<const ShardModel> model, const v1::PartitionFile& file, const absl::Cord& bytes,
    BlockPool& pool) {
  auto content = std::make_shared<PartitionContent>();
  content->model = std::move(model);

  FileReader reader(*content->model, file, bytes);
  RETURN_IF_ERROR(reader.ReadHeader());
  RETURN_IF_ERROR(reader.ReadMetadata(content.get()));
  RETURN_IF_ERROR(reader.ReadArrays(pool, content.get()));

  const uint64_t hash = StateHash(*content);
  if (Hexadecimal(hash) != reader.state_hash() || hash != file.state_hash()) {
    return reader.Damaged(absl::StrCat("its content hashes to ", Hexadecimal(hash),
                                       ", the file says ", reader.state_hash(),
                                       ", the checkpoint index ", Hexadecimal(file.state_hash())));
  }
  return content;
}

absl::StatusOr<std::shared_ptr<ReceivedCopy>> ReadReceivedCopy(const ReadCopy& read) {
  auto copy = std::make_shared<ReceivedCopy>();
  ASSIGN_OR_RETURN(copy->content, DecodePartition(read.model, read.file, read.bytes, *read.pool));

  // Memory for the copy's first update is touched now, on this thread, not while a step waits.
  const auto reserve = [&](const BlockRef& like) {
    if (like == nullptr) return;
    MutableBlockRef block = read.pool->Take(like->size());
    TouchPages(block->mutable_bytes());
    copy->memory.push_back(std::move(block));
  };
  for (const BlockState& block : copy->content->blocks) {
    reserve(block.parameters);
    for (const BlockRef& slot : block.slots) reserve(slot);
  }
  return copy;
}

}  // namespace sluice::ps

#include "services/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/json_text.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 64;
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // the format's own limit
constexpr size_t kMaxHeaderDepth = 8;  // its deepest value is an extent: object, array, shape
constexpr char kMetadata[] = "__metadata__";

struct TypeRow {
  v1::DataType dtype;
  absl::string_view name;
  uint64_t bytes;
};
constexpr TypeRow kTypes[] = {{v1::FLOAT32, "F32", 4},
                              {v1::FLOAT64, "F64", 8},
                              {v1::BFLOAT16, "BF16", 2},
                              {v1::FLOAT16, "F16", 2},
                              {v1::INT64, "I64", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "BOOL", 1},
                              {v1::DATA_TYPE_UNSPECIFIED, "U8", 1},
                              {v1::DATA_TYPE_UNSPECIFIED, "I8", 1},
                              {v1::DATA_TYPE_UNSPECIFIED, "I16", 2},
                              {v1::DATA_TYPE_UNSPECIFIED, "I32", 4},
                              {v1::DATA_TYPE_UNSPECIFIED, "C64", 8}};

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a whole safetensors file: ", what));
}

bool IsUnsigned(const Json& value) { return value.is_number_unsigned(); }

// Reads one entry of the header; its offset in the data goes to `begin`.
absl::StatusOr<SafetensorsArray> ReadEntry(const std::string& name, const Json& entry,
                                           const absl::Cord& data, uint64_t* begin) {
  const auto bad = [&](absl::string_view what) {
    return Damaged(absl::StrCat("array ", name, ": ", what));
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets") || !entry["dtype"].is_string()) {
    return bad("dtype, shape or data_offsets is missing");
  }

  SafetensorsArray array;
  array.name = name;
  const std::string type = entry["dtype"].get<std::string>();
  const auto row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                [&](const TypeRow& candidate) { return candidate.name == type; });
  if (row == std::end(kTypes)) return bad(absl::StrCat("unknown dtype ", type));
  array.dtype = row->dtype;
  if (row->dtype == v1::DATA_TYPE_UNSPECIFIED) array.other_type = type;

  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), IsUnsigned)) {
    return bad("its shape is not a list of sizes");
  }

  uint64_t bytes = row->bytes;
  for (const Json& extent : shape) {
    const uint64_t size = extent.get<uint64_t>();
    if (size > data.size() && data.size() > 0) return bad("its shape is larger than the file");
    // Nothing above the file's size matters, so nothing overflows.
    bytes = std::min(bytes, data.size() + 1) * size;
    array.shape.push_back(static_cast<int64_t>(size));
  }

  if (!offsets.is_array() || offsets.size() != 2 ||
      !std::all_of(offsets.begin(), offsets.end(), IsUnsigned)) {
    return bad("data_offsets are not two numbers");
  }
  *begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  if (*begin > end || end > data.size()) return bad("it is outside of the file");
  if (end - *begin != bytes) return bad("its size does not fit its shape");

  array.bytes = data.Subcord(*begin, end - *begin);
  return array;
}

}  // namespace

absl::string_view SafetensorsTypeName(v1::DataType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype && dtype != v1::DATA_TYPE_UNSPECIFIED) return row.name;
  }
  return "";
}

absl::Cord WriteSafetensors(const std::vector<SafetensorsArray>& arrays,
                            const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  absl::Cord data;
  for (const SafetensorsArray& array : arrays) {
    const std::string type =
        array.other_type.empty() ? std::string(SafetensorsTypeName(array.dtype)) : array.other_type;
    header[array.name] = {{"dtype", type},
                          {"shape", array.shape},
                          {"data_offsets", {data.size(), data.size() + array.bytes.size()}}};
    data.Append(array.bytes);
  }

  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize(
      (kLengthBytes + text.size() + kAlignment - 1) / kAlignment * kAlignment - kLengthBytes, ' ');

  const uint64_t length = text.size();
  char prefix[kLengthBytes];
  for (size_t i = 0; i < kLengthBytes; ++i) prefix[i] = static_cast<char>(length >> (8 * i));

  absl::Cord file(absl::string_view(prefix, sizeof(prefix)));
  file.Append(text);
  file.Append(std::move(data));
  return file;
}

absl::StatusOr<std::vector<SafetensorsArray>> ReadSafetensors(
    const absl::Cord& file, std::map<std::string, std::string>* metadata) {
  if (file.size() < kLengthBytes) return Damaged("it is too short");
  const std::string prefix(file.Subcord(0, kLengthBytes));
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<unsigned char>(prefix[i])} << (8 * i);
  }

  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    return Damaged("its header is longer than the file");
  }

  const std::string text(file.Subcord(kLengthBytes, length));
  RETURN_IF_ERROR(CheckJsonText(text, kMaxHeaderDepth),
                  Damaged(absl::StrCat("its header: ", _.message())));
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged("its header is not JSON");

  const absl::Cord data = file.Subcord(kLengthBytes + length, file.size());
  std::vector<std::pair<uint64_t, SafetensorsArray>> found;

  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      for (const auto& [key, value] : entry.items()) {
        if (metadata != nullptr && value.is_string()) (*metadata)[key] = value.get<std::string>();
      }
      continue;
    }
    uint64_t begin = 0;
    ASSIGN_OR_RETURN(SafetensorsArray array, ReadEntry(name, entry, data, &begin));
    found.emplace_back(begin, std::move(array));
  }

  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<SafetensorsArray> arrays;
  arrays.reserve(found.size());
  for (auto& [begin, array] : found) arrays.push_back(std::move(array));
  return arrays;
}

}  // namespace sluice

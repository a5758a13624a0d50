#include "services/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 64;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxHeaderDepth = 8;  // its deepest value is an extent: object, array, shape
constexpr char kMetadata[] = "__metadata__";

struct TypeRow {
  v1::DataType dtype;
  absl::string_view name;
  uint64_t bits;
};
constexpr TypeRow kTypes[] = {{v1::FLOAT32, "F32", 32},
                              {v1::FLOAT64, "F64", 64},
                              {v1::BFLOAT16, "BF16", 16},
                              {v1::FLOAT16, "F16", 16},
                              {v1::INT64, "I64", 64},
                              {v1::DATA_TYPE_UNSPECIFIED, "BOOL", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "U8", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "I8", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "F8_E5M2", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "F8_E4M3", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "F8_E8M0", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "F8_E5M2FNUZ", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "F8_E4M3FNUZ", 8},
                              {v1::DATA_TYPE_UNSPECIFIED, "F4", 4},
                              {v1::DATA_TYPE_UNSPECIFIED, "F6_E2M3", 6},
                              {v1::DATA_TYPE_UNSPECIFIED, "F6_E3M2", 6},
                              {v1::DATA_TYPE_UNSPECIFIED, "I16", 16},
                              {v1::DATA_TYPE_UNSPECIFIED, "U16", 16},
                              {v1::DATA_TYPE_UNSPECIFIED, "I32", 32},
                              {v1::DATA_TYPE_UNSPECIFIED, "U32", 32},
                              {v1::DATA_TYPE_UNSPECIFIED, "U64", 64},
                              {v1::DATA_TYPE_UNSPECIFIED, "C64", 64}};

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a whole safetensors file: ", what));
}

bool IsUnsigned(const Json& value) { return value.is_number_unsigned(); }

// Parses the header. Where a key comes twice the last value counts, but these must come once: the
// metadata, and the fields of an array.
absl::StatusOr<Json> ParseHeader(const std::string& text) {
  // The parser would skip a byte order mark, and take a zero byte for the end.
  if (absl::StartsWith(text, "\xEF\xBB\xBF") || absl::StrContains(text, '\0')) {
    return Damaged("its header is not JSON");
  }

  std::string repeated;
  std::set<std::string> seen;  // the metadata, and fields of the current array
  bool in_metadata = false;
  const auto check = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event != Json::parse_event_t::key || depth > 2) return true;
    const auto& key = parsed.get_ref<const std::string&>();
    if (depth == 1) {
      seen.erase("dtype");
      seen.erase("shape");
      seen.erase("data_offsets");
      in_metadata = key == kMetadata;
    }
    const bool once =
        depth == 1 ? in_metadata
                   : !in_metadata && (key == "dtype" || key == "shape" || key == "data_offsets");
    if (once && !seen.insert(key).second) repeated = key;
    return true;
  };

  Json header = Json::parse(text, check, /*allow_exceptions=*/false);
  if (!repeated.empty()) return Damaged(absl::StrCat("its header has ", repeated, " twice"));
  if (!header.is_object()) return Damaged("its header is not JSON");
  return header;
}

// Reads the header's metadata into `out`, if that is not null.
absl::Status ReadMetadata(const Json& metadata, std::map<std::string, std::string>* out) {
  if (metadata.is_null()) return absl::OkStatus();
  const auto is_text = [](const Json& value) { return value.is_string(); };
  if (!metadata.is_object() || !std::all_of(metadata.begin(), metadata.end(), is_text)) {
    return Damaged(absl::StrCat(kMetadata, " is not a map of texts"));
  }

  if (out == nullptr) return absl::OkStatus();
  for (const auto& [key, value] : metadata.items()) (*out)[key] = value.get<std::string>();
  return absl::OkStatus();
}

// Sorts the arrays by their offsets. Together they have every byte of the data once.
absl::StatusOr<std::vector<SafetensorsArray>> InOrder(
    std::vector<std::pair<uint64_t, SafetensorsArray>> found, uint64_t data_bytes) {
  const auto place = [](const auto& entry) {
    return std::make_pair(entry.first, entry.first + entry.second.bytes.size());
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });

  std::vector<SafetensorsArray> arrays;
  arrays.reserve(found.size());
  uint64_t end = 0;
  for (auto& entry : found) {
    if (entry.first != end) {
      return Damaged(absl::StrCat("array ", entry.second.name, " begins at byte ", entry.first,
                                  " of the data, not at ", end,
                                  ": arrays have no bytes in common and none between them"));
    }
    end = place(entry).second;
    arrays.push_back(std::move(entry.second));
  }

  if (end != data_bytes) {
    return Damaged(absl::StrCat(data_bytes - end, " bytes behind its last array are of no array"));
  }
  return arrays;
}

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

  uint64_t bits = 1;
  for (const Json& extent : shape) {
    const auto size = extent.get<uint64_t>();
    if (__builtin_mul_overflow(bits, size, &bits)) return bad("its shape has too many elements");
    array.shape.push_back(static_cast<int64_t>(size));
  }
  if (__builtin_mul_overflow(bits, row->bits, &bits)) return bad("its shape has too many elements");
  if (bits % 8 != 0) {
    return bad(absl::StrCat("its ", bits, " bits are not whole bytes"));
  }

  if (!offsets.is_array() || offsets.size() != 2 ||
      !std::all_of(offsets.begin(), offsets.end(), IsUnsigned)) {
    return bad("data_offsets are not two numbers");
  }
  *begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  if (*begin > end || end > data.size()) return bad("it is outside of the file");
  if (end - *begin != bits / 8) return bad("its size does not fit its shape");

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

  if (length > kMaxHeaderBytes) {
    return Damaged(absl::StrCat("its header has more than ", kMaxHeaderBytes, " bytes"));
  }
  if (length > file.size() - kLengthBytes) return Damaged("its header is longer than the file");

  const std::string text(file.Subcord(kLengthBytes, length));
  RETURN_IF_ERROR(CheckJsonText(text, kMaxHeaderDepth),
                  Damaged(absl::StrCat("its header: ", _.message())));
  ASSIGN_OR_RETURN(const Json header, ParseHeader(text));

  const absl::Cord data = file.Subcord(kLengthBytes + length, file.size());
  std::vector<std::pair<uint64_t, SafetensorsArray>> found;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      RETURN_IF_ERROR(ReadMetadata(entry, metadata));
      continue;
    }
    uint64_t begin = 0;
    ASSIGN_OR_RETURN(SafetensorsArray array, ReadEntry(name, entry, data, &begin));
    found.emplace_back(begin, std::move(array));
  }
  return InOrder(std::move(found), data.size());
}

}  // namespace sluice

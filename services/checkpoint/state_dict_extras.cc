#include "services/checkpoint/state_dict_extras.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr char kFormat[] = "sluice-state-dict-extras-1";
constexpr absl::string_view kAliasPrefix = "alias:";

// The file's last line: the checksum of everything before it.
std::string ChecksumLine(const absl::Cord& content) {
  return absl::StrFormat("crc32c %08x\n", Crc32c(content));
}

}  // namespace

absl::Cord WriteStateDictExtras(const StateDictExtras& extras) {
  std::map<std::string, std::string> metadata = {{"format", kFormat}};
  for (const auto& [name, of] : extras.aliases) metadata[absl::StrCat(kAliasPrefix, name)] = of;
  absl::Cord file = WriteSafetensors(extras.constants, metadata);
  file.Append(ChecksumLine(file));
  return file;
}

absl::StatusOr<StateDictExtras> ReadStateDictExtras(const absl::Cord& file) {
  const size_t line = ChecksumLine(absl::Cord()).size();
  if (file.size() < line) return absl::InvalidArgumentError("it is too short");
  const absl::Cord content = file.Subcord(0, file.size() - line);
  if (file.Subcord(content.size(), line) != ChecksumLine(content)) {
    return absl::InvalidArgumentError("its CRC32C is not the one that it states");
  }

  std::map<std::string, std::string> metadata;
  ASSIGN_OR_RETURN(std::vector<SafetensorsArray> arrays, ReadSafetensors(content, &metadata));

  if (metadata["format"] != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("its format is '", metadata["format"], "': should be ", kFormat));
  }

  StateDictExtras extras;
  extras.constants = std::move(arrays);
  for (const auto& [key, of] : metadata) {
    if (!absl::StartsWith(key, kAliasPrefix)) continue;
    extras.aliases[key.substr(kAliasPrefix.size())] = of;
  }
  return extras;
}

absl::Status AddExtras(const StateDictExtras& extras, std::vector<SafetensorsArray>* tensors) {
  std::map<std::string, const SafetensorsArray*> trained;
  for (const SafetensorsArray& tensor : *tensors) trained[tensor.name] = &tensor;

  std::vector<SafetensorsArray> added = extras.constants;
  for (const auto& [name, of] : extras.aliases) {
    const auto found = trained.find(of);
    if (found == trained.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is a second name of '", of, "', which is not in the model"));
    }
    added.push_back(*found->second);
    added.back().name = name;
  }

  for (const SafetensorsArray& array : added) {
    if (trained.count(array.name) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", array.name, "' is a tensor that the job trains"));
  }

  for (SafetensorsArray& array : added) tensors->push_back(std::move(array));
  return absl::OkStatus();
}

}  // namespace sluice

// Writes JSON values as YAML that people read and apply. Strings, and so `text`, are valid UTF-8.
#ifndef SLUICE_SERVICES_MANIFEST_PRINT_YAML_WRITER_H_
#define SLUICE_SERVICES_MANIFEST_PRINT_YAML_WRITER_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice::api {

// Plain if the string reads as itself, else in quotes.
std::string YamlString(absl::string_view text);

enum class ScalarLists { kInBlocks, kOnOneLine };

// Maps and lists in blocks, with keys in their order; scalars in the shortest form that reads as
// the same value. `value` is an object. Ends with a line break.
std::string BlockYaml(const nlohmann::ordered_json& value,
                      ScalarLists lists = ScalarLists::kInBlocks);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_PRINT_YAML_WRITER_H_

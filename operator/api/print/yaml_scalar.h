// Single values as YAML.
#ifndef SLUICE_OPERATOR_API_PRINT_YAML_SCALAR_H_
#define SLUICE_OPERATOR_API_PRINT_YAML_SCALAR_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice::api {

// Plain if the string reads as itself, else in quotes; `text` is valid UTF-8.
std::string YamlString(absl::string_view text);

// A string, number or boolean; the shortest form that reads as the same value.
std::string YamlScalar(const nlohmann::json& value);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_PRINT_YAML_SCALAR_H_

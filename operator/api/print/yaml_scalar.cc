#include "operator/api/print/yaml_scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "operator/api/yaml_document.h"

namespace sluice::api {

std::string YamlString(absl::string_view text) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  };
  const bool safe = !text.empty() && text.front() != '-' && text.front() != '.' &&
                    std::all_of(text.begin(), text.end(), plain) &&
                    ResolvePlainScalar(text) == YamlNode::Kind::kString;
  if (safe) return std::string{text};
  // A JSON string is a quoted YAML string.
  return nlohmann::json(std::string{text})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string YamlScalar(const nlohmann::json& value) {
  if (value.is_string()) return YamlString(value.get<std::string>());
  if (!value.is_number_float()) return value.dump();
  char buffer[64];
  const std::to_chars_result end =
      std::to_chars(buffer, buffer + sizeof(buffer), value.get<double>());
  return std::string(buffer, end.ptr);
}

}  // namespace sluice::api

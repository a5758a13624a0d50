#include "operator/api/crd/block_yaml.h"

#include "absl/strings/str_cat.h"
#include "operator/api/print/yaml_scalar.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

std::string Scalar(const Json& value) {
  if (value.is_object()) return "{}";
  if (value.is_array()) return "[]";
  return YamlScalar(nlohmann::json(value));
}

bool IsBlock(const Json& value) { return value.is_structured() && !value.empty(); }

void Append(const Json& value, size_t indent, std::string* out) {
  const std::string margin(indent, ' ');
  if (value.is_object()) {
    for (const auto& [key, entry] : value.items()) {
      absl::StrAppend(out, margin, YamlString(key), ":");
      if (!IsBlock(entry)) {
        absl::StrAppend(out, " ", Scalar(entry), "\n");
      } else {
        out->append("\n");
        Append(entry, indent + 2, out);
      }
    }
    return;
  }
  for (const Json& item : value) {
    if (!IsBlock(item)) {
      absl::StrAppend(out, margin, "- ", Scalar(item), "\n");
      continue;
    }
    // The first line of the item follows the dash.
    std::string text;
    Append(item, indent + 2, &text);
    text[indent] = '-';
    out->append(text);
  }
}

}  // namespace

std::string BlockYaml(const nlohmann::ordered_json& value) {
  std::string text;
  Append(value, 0, &text);
  return text;
}

}  // namespace sluice::api

#include "services/manifest/print/yaml_writer.h"

#include <yaml-cpp/emitter.h>
#include <yaml-cpp/emittermanip.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "services/manifest/yaml_document.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

void EmitString(const std::string& text, YAML::Emitter* out) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  };
  const bool safe = !text.empty() && text.front() != '-' && text.front() != '.' &&
                    std::all_of(text.begin(), text.end(), plain) &&
                    ResolvePlainScalar(text) == YamlKind::kString;
  if (!safe) *out << YAML::DoubleQuoted;
  *out << text;
}

void EmitScalar(const Json& value, YAML::Emitter* out) {
  if (value.is_string()) {
    EmitString(value.get<std::string>(), out);
  } else if (value.is_null()) {
    *out << YAML::Null;
  } else if (value.is_number_float()) {
    char buffer[64];
    const std::to_chars_result end =
        std::to_chars(buffer, buffer + sizeof(buffer), value.get<double>());
    *out << std::string(buffer, end.ptr);
  } else {
    *out << value.dump();
  }
}

void Emit(const Json& value, ScalarLists lists, YAML::Emitter* out) {
  if (!value.is_structured()) return EmitScalar(value, out);
  const bool one_line = lists == ScalarLists::kOnOneLine && value.is_array() &&
                        std::none_of(value.begin(), value.end(),
                                     [](const Json& item) { return item.is_structured(); });
  if (one_line || value.empty()) *out << YAML::Flow;
  *out << (value.is_object() ? YAML::BeginMap : YAML::BeginSeq);
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) EmitString(key, out);
    Emit(item, lists, out);
  }
  *out << (value.is_object() ? YAML::EndMap : YAML::EndSeq);
}

}  // namespace

std::string YamlString(absl::string_view text) {
  YAML::Emitter out;
  EmitString(std::string(text), &out);
  return out.c_str();
}

std::string BlockYaml(const Json& value, ScalarLists lists) {
  YAML::Emitter out;
  Emit(value, lists, &out);
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace sluice::api

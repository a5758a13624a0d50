#include "services/manifest/print/field_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::api {

std::string TypeText(const SchemaNode& node) {
  const FieldType type = node.field->type;
  if (node.item == nullptr) return std::string(FieldTypeName(type));
  return absl::StrCat(FieldTypeName(type), " of ", FieldTypeName(node.item->field->type), "s");
}

std::string BoundsText(const Field& field) {
  std::vector<std::string> bounds;
  const auto format = [](std::string* out, const std::string& value) {
    absl::StrAppend(out, "`", value, "`");
  };
  if (!field.values.empty()) bounds.push_back(absl::StrJoin(field.values, ", ", format));
  if (field.minimum.has_value()) {
    bounds.push_back(
        absl::StrCat(field.exclusive_minimum ? "more than " : "at least ", *field.minimum));
  }
  if (field.maximum.has_value()) {
    // Large bounds only keep arithmetic in range; readers do not need them.
    if (*field.maximum < 1e5) {
      bounds.push_back(
          absl::StrCat(field.exclusive_maximum ? "less than " : "at most ", *field.maximum));
    }
  }
  const bool list = field.type == FieldType::kList;
  if (list && field.min_size == field.max_size) {
    bounds.push_back(absl::StrCat("exactly ", field.min_size, " items"));
  } else if (list && field.max_size < 1000) {
    bounds.push_back(absl::StrCat("at most ", field.max_size, " items"));
  } else if (field.type == FieldType::kString && field.values.empty() && !field.is_path &&
             field.max_size < 100) {
    bounds.push_back(absl::StrCat("at most ", field.max_size,
                                  field.max_size == 1 ? " character" : " characters"));
  }
  if (!field.pattern_message.empty() && !field.is_path) bounds.push_back(field.pattern_message);
  return absl::StrJoin(bounds, ", ");
}

std::string DefaultText(const Field& field) {
  std::string text;
  for (const Field::DefaultCase& one : field.default_cases) {
    absl::StrAppend(&text, text.empty() ? "" : ", else ", one.json,
                    one.names.empty() ? "" : " for ", JoinWords(one.names));
  }
  if (!field.implied_default.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : " ", field.implied_default);
  }
  if (!text.empty()) return text;
  if (field.default_json.empty() || field.type == FieldType::kObject) return "";
  if (field.type != FieldType::kString) return field.default_json;
  return absl::StrCat("`", nlohmann::json::parse(field.default_json).get<std::string>(), "`");
}

}  // namespace sluice::api

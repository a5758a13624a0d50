// A job in normal form: the fields that have values, in the order of the table.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/api/codec.h"
#include "operator/api/field_table.h"
#include "operator/api/print/print.h"
#include "operator/api/print/yaml_scalar.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

void AppendFields(const Json& object, const SchemaNode& schema, const std::string& indent,
                  std::string* out);

bool IsScalarList(const Json& list) {
  for (const Json& item : list) {
    if (item.is_structured()) return false;
  }
  return true;
}

void AppendValue(const Json& value, const SchemaNode& schema, const std::string& indent,
                 std::string* out) {
  const FieldType type = schema.field->type;
  if (schema.field->open) {
    // JSON is YAML.
    absl::StrAppend(out, " ", value.dump(), "\n");
  } else if (type == FieldType::kObject) {
    out->append("\n");
    AppendFields(value, schema, indent + "  ", out);
  } else if (type == FieldType::kMap) {
    out->append("\n");
    for (const auto& [key, entry] : value.items()) {
      absl::StrAppend(out, indent, "  ", YamlString(key), ": ", YamlScalar(entry), "\n");
    }
  } else if (type == FieldType::kList && IsScalarList(value)) {
    const auto format = [](std::string* text, const Json& item) { text->append(YamlScalar(item)); };
    absl::StrAppend(out, " [", absl::StrJoin(value, ", ", format), "]\n");
  } else if (type == FieldType::kList) {
    out->append("\n");
    for (const Json& item : value) {
      std::string fields;
      AppendFields(item, *schema.item, indent + "    ", &fields);
      // The first field follows the dash.
      fields[indent.size() + 2] = '-';
      out->append(fields);
    }
  } else {
    absl::StrAppend(out, " ", YamlScalar(value), "\n");
  }
}

void AppendFields(const Json& object, const SchemaNode& schema, const std::string& indent,
                  std::string* out) {
  for (const SchemaNode* child : schema.children) {
    const auto found = object.find(child->name);
    if (found == object.end() || (found->is_structured() && found->empty())) continue;
    absl::StrAppend(out, indent, child->name, ":");
    AppendValue(*found, *child, indent, out);
  }
}

}  // namespace

std::string ToManifestYaml(const TrainingJob& job) {
  std::string text;
  AppendFields(ToJson(job), Schema(), "", &text);
  return text;
}

}  // namespace sluice::api

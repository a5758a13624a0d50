// A job in normal form: the fields that have values, in the order of the table.
#include "services/manifest/codec.h"
#include "services/manifest/field_table.h"
#include "services/manifest/print/print.h"
#include "services/manifest/print/yaml_writer.h"

namespace sluice::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson InOrder(const nlohmann::json& value, const SchemaNode& schema) {
  if (value.is_array() && schema.item != nullptr) {
    OrderedJson list = OrderedJson::array();
    for (const nlohmann::json& item : value) list.push_back(InOrder(item, *schema.item));
    return list;
  }
  if (schema.children.empty()) return value;
  OrderedJson object = OrderedJson::object();
  for (const SchemaNode* child : schema.children) {
    const auto found = value.find(child->name);
    if (found == value.end() || (found->is_structured() && found->empty())) continue;
    object[child->name] = InOrder(*found, *child);
  }
  return object;
}

}  // namespace

std::string ToManifestYaml(const TrainingJob& job) {
  return BlockYaml(InOrder(ToJson(job), Schema()), ScalarLists::kOnOneLine);
}

}  // namespace sluice::api

#include "operator/crd/crd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/manifest/field_table.h"
#include "services/manifest/print/yaml_writer.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

// Writes integers without a fraction.
Json Number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

Json CelRule(std::string rule, std::string message, const std::string& field_path) {
  Json json = {{"rule", std::move(rule)}, {"message", std::move(message)}};
  if (!field_path.empty()) json["fieldPath"] = field_path;
  return json;
}

// `text` as a CEL literal in which backslashes are not escapes.
std::string RawLiteral(absl::string_view text) { return absl::StrCat("r'", text, "'"); }

void AddType(const SchemaNode& node, Json* schema) {
  const Field& field = *node.field;
  switch (field.type) {
    case FieldType::kObject:
    case FieldType::kMap:
      (*schema)["type"] = "object";
      break;
    case FieldType::kList:
      (*schema)["type"] = "array";
      break;
    case FieldType::kString:
      (*schema)["type"] = "string";
      if (!field.format.empty()) (*schema)["format"] = field.format;
      break;
    case FieldType::kInteger:
      (*schema)["type"] = "integer";
      (*schema)["format"] =
          field.maximum.has_value() && *field.maximum <= std::numeric_limits<int32_t>::max()
              ? "int32"
              : "int64";
      break;
    case FieldType::kNumber:
      (*schema)["type"] = "number";
      (*schema)["format"] = "double";
      break;
    case FieldType::kBoolean:
      (*schema)["type"] = "boolean";
      break;
  }
}

void AddBounds(const Field& field, Json* schema) {
  if (!field.values.empty()) (*schema)["enum"] = field.values;
  if (field.minimum.has_value()) (*schema)["minimum"] = Number(*field.minimum);
  if (field.exclusive_minimum) (*schema)["exclusiveMinimum"] = true;
  if (field.maximum.has_value()) (*schema)["maximum"] = Number(*field.maximum);
  if (field.exclusive_maximum) (*schema)["exclusiveMaximum"] = true;

  const char* noun = field.type == FieldType::kString ? "Length"
                     : field.type == FieldType::kList ? "Items"
                                                      : "Properties";
  if (field.min_size > 0) (*schema)[absl::StrCat("min", noun)] = field.min_size;
  if (field.max_size > 0) (*schema)[absl::StrCat("max", noun)] = field.max_size;

  if (!field.item_key.empty()) {
    (*schema)["x-kubernetes-list-type"] = "map";
    (*schema)["x-kubernetes-list-map-keys"] = {field.item_key};
  }
}

// Whether the object has every field of its own that the rule reads. Parts of a schedule are like a
// schedule, but have no parts; the rules about these hold for them without being asked.
bool HasFieldsOf(const Rule& rule, const SchemaNode& node) {
  std::vector<std::string> pieces = absl::StrSplit(rule.holds.cel(), "self.");
  pieces[0] = rule.field;
  return absl::c_all_of(pieces, [&](absl::string_view piece) {
    const auto end = std::find_if_not(piece.begin(), piece.end(), absl::ascii_isalnum);
    return node.Child({piece.data(), static_cast<size_t>(end - piece.begin())}) != nullptr;
  });
}

// All expressions of `node`.
Json CelRules(const SchemaNode& node) {
  Json rules = Json::array();
  const Field& field = *node.field;
  if (!field.pattern.empty()) {
    rules.push_back(CelRule(absl::StrCat("self.matches(", RawLiteral(field.pattern), ")"),
                            field.pattern_message, ""));
  }

  for (const Rule& rule : Rules()) {
    const bool like = rule.scope == field.like && HasFieldsOf(rule, node);
    if (rule.scope == field.path || like) {
      rules.push_back(CelRule(rule.holds.cel(), rule.message, absl::StrCat(".", rule.field)));
    }
  }

  for (const FixedField& fixed : FixedFields()) {
    if (fixed.scope == field.path) {
      rules.push_back(CelRule(fixed.cel, fixed.message, absl::StrCat(".", fixed.field)));
    }
  }
  return rules;
}

// Includes the defaults of the fields below, because expressions are evaluated on the object as it
// is here.
Json Default(const SchemaNode& node) {
  nlohmann::json value = nlohmann::json::parse(node.field->default_json);
  if (node.field->type == FieldType::kObject) ApplyDefaults(node, &value);
  return Json(value);
}

Json SchemaOf(const SchemaNode& node);

void AddChildren(const SchemaNode& node, Json* schema) {
  Json required = Json::array();
  Json properties = Json::object();
  for (const SchemaNode* child : node.children) {
    if (child->field->required) required.push_back(child->name);
    properties[child->name] = SchemaOf(*child);
  }
  if (!required.empty()) (*schema)["required"] = std::move(required);
  if (!properties.empty()) (*schema)["properties"] = std::move(properties);
}

Json SchemaOf(const SchemaNode& node) {
  const Field& field = *node.field;
  Json schema = {{"description", field.description}};
  AddType(node, &schema);
  if (!field.default_json.empty()) schema["default"] = Default(node);
  AddBounds(field, &schema);
  if (field.open) schema["x-kubernetes-preserve-unknown-fields"] = true;

  Json rules = CelRules(node);
  if (!rules.empty()) schema["x-kubernetes-validations"] = std::move(rules);
  AddChildren(node, &schema);

  if (node.item != nullptr) {
    schema[field.type == FieldType::kMap ? "additionalProperties" : "items"] = SchemaOf(*node.item);
  }
  return schema;
}

// API servers have their own schema of metadata; only the name may be restricted further, and only
// by expressions outside of metadata.
Json RootSchema() {
  Json properties = {
      {"apiVersion", {{"description", FindSchema("apiVersion")->field->description}}},
      {"kind", {{"description", FindSchema("kind")->field->description}}}};
  for (auto& [name, schema] : properties.items()) schema["type"] = "string";

  const Field& name = *FindSchema("metadata.name")->field;
  properties["metadata"] = {
      {"type", "object"},
      {"properties", {{"name", {{"type", "string"}, {"maxLength", name.max_size}}}}}};
  properties["spec"] = SchemaOf(*FindSchema("spec"));
  properties["status"] = SchemaOf(*StatusSchema().children[0]);

  return {{"description",
           "A TrainingJob trains a PyTorch model with a parameter server: shards hold the "
           "parameters, workers compute gradients."},
          {"type", "object"},
          {"required", {"spec"}},
          {"x-kubernetes-validations",
           {CelRule(absl::StrCat("self.metadata.name.matches(", RawLiteral(name.pattern), ")"),
                    name.pattern_message, ".metadata.name")}},
          {"properties", std::move(properties)}};
}

Json Column(const char* name, const char* type, const char* description, const char* path,
            int priority = 0) {
  Json column = {{"name", name}, {"type", type}, {"description", description}, {"jsonPath", path}};
  if (priority > 0) column["priority"] = priority;
  return column;
}

Json Columns() {
  return {Column("Status", "string", "State of the job.", ".status.summary"),
          Column("Step", "integer", "Committed steps.", ".status.training.step"),
          Column("Metric", "string", "The last evaluation.", ".status.training.metric"),
          Column("PS", "integer", "Shards that serve.", ".status.parameterServer.readyReplicas"),
          Column("Workers", "integer", "Workers that train.", ".status.worker.readyReplicas"),
          Column("Restarts", "integer", "Re-created pods.", ".status.restarts.total"),
          Column("Steps", "integer", "Steps after which the job is complete.",
                 ".status.training.totalSteps", 1),
          Column("Loss", "number", "Mean loss of recent steps.", ".status.training.loss", 1),
          Column("Samples/s", "number", "Samples applied per second.",
                 ".status.training.samplesPerSecond", 1),
          Column("Attempt", "integer",
                 "Number of the attempt; each restoration or resumption begins the next one.",
                 ".status.attempt", 1),
          Column("Checkpoint", "integer", "Step of the newest checkpoint.",
                 ".status.checkpoint.step", 1),
          Column("Age", "date", "", ".metadata.creationTimestamp")};
}

bool IsRate(const SchemaNode& node) { return ChangeOf(node.field->path) == Change::kRate; }

bool HasChangeable(const SchemaNode& node) {
  if (IsRate(node)) return true;
  return absl::c_any_of(node.children,
                        [](const SchemaNode* child) { return HasChangeable(*child); }) ||
         (node.item != nullptr && HasChangeable(*node.item));
}

// `self` and `old`: variables that hold the object around the field. `equal`: of two values.
std::string SameField(const SchemaNode& node, const std::string& self, const std::string& old,
                      const std::string& equal) {
  if (node.field->required || !node.field->default_json.empty()) return equal;
  const std::string& name = node.name;
  return absl::StrCat("has(", self, ".", name, ") == has(", old, ".", name, ") && (!has(", self,
                      ".", name, ") || ", equal, ")");
}

std::string SameField(const SchemaNode& node, const std::string& self, const std::string& old) {
  return SameField(node, self, old,
                   absl::StrCat(self, ".", node.name, " == ", old, ".", node.name));
}

// A list of objects whose items may change in part: each item is like one of the old items. Lists
// are not sets, but a rule can name no item by its place.
std::string SameItems(const SchemaNode& list) {
  std::vector<std::string> same;
  for (const SchemaNode* child : list.item->children) {
    if (IsRate(*child)) continue;
    same.push_back(absl::StrCat("(", SameField(*child, "item", "old"), ")"));
  }
  const std::string& name = list.name;
  return SameField(list, "self", "oldSelf",
                   absl::StrCat("self.", name, ".size() == oldSelf.", name, ".size() && self.",
                                name, ".all(item, oldSelf.", name, ".exists(old, ",
                                absl::StrJoin(same, " && "), "))"));
}

// Adds the rules for a fixed field, or, if fields below it may change, for all others below it.
void AddFixed(const SchemaNode& node, std::vector<FixedField>* fixed) {
  const Field& field = *node.field;
  const size_t dot = field.path.rfind('.');
  if (IsRate(node)) return;

  const bool in_part = HasChangeable(node);
  if (in_part && node.item == nullptr) {
    for (const SchemaNode* child : node.children) AddFixed(*child, fixed);
    return;
  }

  std::string cel = in_part ? SameItems(node) : SameField(node, "self", "oldSelf");
  if (!field.changeable_while.empty()) {
    cel = absl::StrCat("(", field.changeable_while, ") || (", cel, ")");
  }
  const char* const what =
      in_part
          ? "` is fixed for the life of a job, except learning rates, weight decays and schedules"
          : "` is fixed for the life of a job";

  fixed->push_back(
      {field.path.substr(0, dot), node.name, std::move(cel),
       absl::StrCat("`", node.name, what, "; create a job with another name instead")});
}

}  // namespace

std::vector<FixedField> FixedFields() {
  std::vector<FixedField> fixed;
  for (const Field& field : Fields()) {
    // API servers themselves keep the name of an object.
    if (!IsFixed(field.change) || !absl::StartsWith(field.path, "spec.")) continue;
    const std::string around = field.path.substr(0, field.path.rfind('.'));
    if (!IsFixed(ChangeOf(around))) AddFixed(*FindSchema(field.path), &fixed);
  }
  return fixed;
}

nlohmann::ordered_json CustomResourceDefinition() {
  return {{"apiVersion", "apiextensions.k8s.io/v1"},
          {"kind", "CustomResourceDefinition"},
          {"metadata", {{"name", "trainingjobs.sluice.dev"}}},
          {"spec",
           {{"group", "sluice.dev"},
            {"scope", "Namespaced"},
            {"names",
             {{"plural", "trainingjobs"},
              {"singular", "trainingjob"},
              {"kind", "TrainingJob"},
              {"listKind", "TrainingJobList"},
              {"shortNames", {"stj"}},
              {"categories", {"all"}}}},
            {"versions",
             {{{"name", "v1alpha1"},
               {"served", true},
               {"storage", true},
               {"subresources",
                {{"status", Json::object()},
                 {"scale",
                  {{"specReplicasPath", ".spec.worker.replicas"},
                   {"statusReplicasPath", ".status.worker.replicas"},
                   {"labelSelectorPath", ".status.worker.selector"}}}}},
               {"additionalPrinterColumns", Columns()},
               {"schema", {{"openAPIV3Schema", RootSchema()}}}}}}}}};
}

std::string CustomResourceDefinitionYaml() {
  return absl::StrCat(
      "# Generated from the table of the manifest's fields by tools/regenerate.sh; a test compares "
      "them.\n",
      BlockYaml(CustomResourceDefinition()));
}

}  // namespace sluice::api

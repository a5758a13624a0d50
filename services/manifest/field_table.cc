#include "services/manifest/field_table.h"

#include <deque>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/manifest/field_builder.h"

namespace sluice::api {
namespace {

struct SchemaTree {
  explicit SchemaTree(const std::vector<Field>& fields) {
    for (const Field& field : fields) Insert(field);
  }

  // Parents are inserted before their children.
  void Insert(const Field& field) {
    SchemaNode* node = &nodes.emplace_back();
    node->field = &field;
    by_path[field.path] = node;
    if (absl::EndsWith(field.path, "[]") || absl::EndsWith(field.path, "{}")) {
      node->name = field.path.substr(field.path.size() - 2);
      by_path.at(field.path.substr(0, field.path.size() - 2))->item = node;
      return;
    }
    const size_t dot = field.path.rfind('.');
    node->name = dot == std::string::npos ? field.path : field.path.substr(dot + 1);
    SchemaNode* parent = dot == std::string::npos ? &root : by_path.at(field.path.substr(0, dot));
    parent->children.push_back(node);
  }

  SchemaNode root;
  std::deque<SchemaNode> nodes;
  std::unordered_map<std::string, SchemaNode*> by_path;
};

const SchemaTree& Tree() {
  static const SchemaTree& tree = *new SchemaTree(Fields());
  return tree;
}

}  // namespace

absl::string_view FieldTypeName(FieldType type) {
  switch (type) {
    case FieldType::kObject:
      return "object";
    case FieldType::kList:
      return "list";
    case FieldType::kMap:
      return "map";
    case FieldType::kString:
      return "string";
    case FieldType::kInteger:
      return "integer";
    case FieldType::kNumber:
      return "number";
    case FieldType::kBoolean:
      return "boolean";
  }
  return "unknown";
}

bool HasType(const nlohmann::json& value, FieldType type) {
  constexpr double kMaxExact = 9007199254740992.0;
  switch (type) {
    case FieldType::kObject:
    case FieldType::kMap:
      return value.is_object();
    case FieldType::kList:
      return value.is_array();
    case FieldType::kString:
      return value.is_string();
    case FieldType::kInteger:
      if (value.is_number_integer()) return value.is_number_unsigned() || value.get<int64_t>() >= 0;
      return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMaxExact;
    case FieldType::kNumber:
      return value.is_number();
    case FieldType::kBoolean:
      return value.is_boolean();
  }
  return false;
}

std::string JoinWords(const std::vector<std::string>& words) {
  if (words.size() < 2) return absl::StrJoin(words, "");
  return absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " and ", words.back());
}

const std::vector<Field>& Fields() {
  static const std::vector<Field>& all = *[] {
    auto* fields = new std::vector<Field>(ObjectAndDataFields());
    std::vector<Field> rest = TrainingFields();
    fields->insert(fields->end(), std::make_move_iterator(rest.begin()),
                   std::make_move_iterator(rest.end()));
    return fields;
  }();
  return all;
}

nlohmann::json MinimalManifest() {
  return nlohmann::json::parse(R"({
    "apiVersion": "sluice.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "example"},
    "spec": {
      "model": {"name": "mlp"},
      "data": {"format": "IDX", "source": {"path": "/data"}},
      "optimizer": {"name": "SGD"},
      "training": {"steps": 100}
    }
  })");
}

const SchemaNode* SchemaNode::Child(absl::string_view child) const {
  for (const SchemaNode* candidate : children) {
    if (candidate->name == child) return candidate;
  }
  return nullptr;
}

const SchemaNode& Schema() { return Tree().root; }

const SchemaNode& StatusSchema() {
  static const SchemaTree& tree = *new SchemaTree(StatusFields());
  return tree.root;
}

Change ChangeOf(absl::string_view path) {
  // All items of a list have one row.
  std::string row;
  bool in_index = false;
  for (char c : path) {
    if (c == ']') in_index = false;
    if (!in_index) row.push_back(c);
    if (c == '[') in_index = true;
  }
  while (!row.empty()) {
    const SchemaNode* node = FindSchema(row);
    if (node != nullptr && node->field->change != Change::kFree) return node->field->change;
    const size_t end = row.find_last_of(".[");
    row.resize(end == std::string::npos ? 0 : end);
  }
  return Change::kFree;
}

const SchemaNode* FindSchema(absl::string_view path) {
  const auto found = Tree().by_path.find(std::string{path});
  return found == Tree().by_path.end() ? nullptr : found->second;
}

void ApplyDefaults(const SchemaNode& schema, nlohmann::json* value) {
  if (schema.item != nullptr && value->is_structured()) {
    for (nlohmann::json& item : *value) ApplyDefaults(*schema.item, &item);
  }
  if (!value->is_object()) return;
  for (const SchemaNode* child : schema.children) {
    const Field& field = *child->field;
    auto found = value->find(child->name);
    if (found == value->end()) {
      if (field.default_json.empty()) continue;
      nlohmann::json made = nlohmann::json::parse(field.default_json);
      if (field.type == FieldType::kNumber) made = made.get<double>();
      found = value->emplace(child->name, std::move(made)).first;
    }
    ApplyDefaults(*child, &*found);
  }
}

nlohmann::json DependentDefault(const Field& field, const nlohmann::json& object) {
  for (const Field::DefaultCase& one : field.default_cases) {
    const auto by = object.find(field.default_by);
    const bool fits =
        one.names.empty() || (by != object.end() && by->is_string() &&
                              absl::c_linear_search(one.names, by->get<std::string>()));
    if (fits) return nlohmann::json::parse(one.json);
  }
  return nullptr;
}

bool IsAllowed(const SchemaNode& row, const nlohmann::json& object) {
  const std::string& path = row.field->like.empty() ? row.field->path : row.field->like;
  return absl::c_all_of(Rules(), [&](const Rule& rule) {
    return rule.field != row.name || absl::StrCat(rule.scope, ".", rule.field) != path ||
           rule.holds(object);
  });
}

}  // namespace sluice::api

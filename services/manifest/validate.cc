#include "services/manifest/validate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/common/text/web_address.h"
#include "services/manifest/field_table.h"
#include "services/manifest/suggest.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;
using Kind = YamlNode::Kind;

// Fields that an API server or kubectl adds; a job read back from a cluster may have them.
constexpr absl::string_view kIgnoredFields[] = {
    "status",
    "metadata.creationTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.deletionTimestamp",
    "metadata.finalizers",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.ownerReferences",
    "metadata.resourceVersion",
    "metadata.selfLink",
    "metadata.uid",
};

std::string Quoted(absl::string_view name) {
  return absl::StrCat("`", absl::Utf8SafeCEscape(name.substr(0, 64)), "`");
}

std::string FormatBound(double bound) { return absl::StrCat(bound); }

std::string Plural(size_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

absl::string_view SizeNoun(FieldType type) {
  if (type == FieldType::kString) return "character";
  return type == FieldType::kList ? "item" : "entrie";
}

// Characters, not bytes, as a schema's maxLength counts.
size_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// Whether `path` is `scope` or below it.
bool IsWithin(absl::string_view path, absl::string_view scope) {
  if (!absl::StartsWith(path, scope)) return false;
  return path.size() == scope.size() || path[scope.size()] == '.' || path[scope.size()] == '[';
}

class Validator {
 public:
  explicit Validator(const std::string& base_directory) : base_directory_(base_directory) {}

  ValidatedObject Run(const YamlNode& root) {
    ValidatedObject result;
    places_[""] = root.place;
    if (root.kind != Kind::kMap) {
      Report(root.place, "", absl::StrCat("a TrainingJob is a map, not ", root.Describe()));
    } else {
      result.object = Object(root, Schema(), "");
      CheckRules(result.object);
    }
    std::stable_sort(problems_.begin(), problems_.end(), [](const Problem& a, const Problem& b) {
      return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
    });
    result.problems = std::move(problems_);
    return result;
  }

 private:
  void Report(Place place, std::string path, std::string message) {
    problems_.push_back({place, std::move(path), std::move(message)});
  }

  std::nullopt_t Refuse(const YamlNode& node, const std::string& path, std::string message) {
    const auto known = places_.find(path);
    Report(known == places_.end() ? node.place : known->second, path, std::move(message));
    return std::nullopt;
  }

  static std::string Join(const std::string& path, absl::string_view name) {
    return path.empty() ? std::string{name} : absl::StrCat(path, ".", name);
  }

  // Returns nullopt if the value was rejected.
  std::optional<Json> Value(const YamlNode& node, const SchemaNode& schema,
                            const std::string& path) {
    const Field& field = *schema.field;
    if (node.kind == Kind::kNull) {
      return Refuse(node, path, "has no value; give one or leave it out");
    }
    switch (field.type) {
      case FieldType::kObject:
        if (node.kind != Kind::kMap) return WrongType(node, path, "must be a map of fields");
        if (field.open) return AnyValue(node, path);
        return Object(node, schema, path);
      case FieldType::kMap:
        if (node.kind != Kind::kMap) return WrongType(node, path, "must be a map");
        return MapValue(node, schema, path);
      case FieldType::kList:
        if (node.kind != Kind::kList) return WrongType(node, path, "must be a list");
        return ListValue(node, schema, path);
      case FieldType::kString:
        return StringValue(node, field, path);
      case FieldType::kInteger:
        return IntegerValue(node, field, path);
      case FieldType::kNumber:
        return NumberValue(node, field, path);
      case FieldType::kBoolean:
        if (node.kind != Kind::kBoolean) return WrongType(node, path, "must be true or false");
        return BooleanValue(node);
    }
    return std::nullopt;
  }

  // A value of any shape; empty values are left out, as kubectl does. Returns nullopt after a
  // problem.
  std::optional<Json> AnyValue(const YamlNode& node, const std::string& path) {
    static const Field& any = *new Field;
    places_[path] = node.place;
    Json value;
    switch (node.kind) {
      case Kind::kNull:
        return value;
      case Kind::kBoolean:
        return BooleanValue(node);
      case Kind::kInteger:
        return IntegerValue(node, any, path);
      case Kind::kNumber:
        return NumberValue(node, any, path);
      case Kind::kString:
        return Json(node.text);
      case Kind::kList:
        value = Json::array();
        for (size_t i = 0; i < node.items.size(); ++i) {
          std::optional<Json> item = AnyValue(*node.items[i], absl::StrCat(path, "[", i, "]"));
          if (!item.has_value()) return std::nullopt;
          value.push_back(*std::move(item));
        }
        return value;
      case Kind::kMap:
        value = Json::object();
        for (const YamlNode::Entry& entry : node.entries) {
          std::optional<Json> item =
              AnyValue(*entry.value, Join(path, absl::Utf8SafeCEscape(entry.key.substr(0, 64))));
          if (!item.has_value()) return std::nullopt;
          if (!item->is_null()) value[entry.key] = *std::move(item);
        }
        return value;
    }
    return std::nullopt;
  }

  static Json BooleanValue(const YamlNode& node) {
    return Json(absl::EqualsIgnoreCase(node.text, "true") ||
                absl::EqualsIgnoreCase(node.text, "yes") ||
                absl::EqualsIgnoreCase(node.text, "on"));
  }

  std::nullopt_t WrongType(const YamlNode& node, const std::string& path,
                           absl::string_view wanted) {
    return Refuse(node, path, absl::StrCat(wanted, ", not ", node.Describe()));
  }

  Json Object(const YamlNode& node, const SchemaNode& schema, const std::string& path) {
    Json object = Json::object();
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string child_path = Join(path, entry.key);
      const SchemaNode* child = schema.Child(entry.key);
      if (child == nullptr) {
        if (std::find(std::begin(kIgnoredFields), std::end(kIgnoredFields), child_path) ==
            std::end(kIgnoredFields)) {
          Report(entry.key_place, Join(path, absl::Utf8SafeCEscape(entry.key.substr(0, 64))),
                 UnknownField(entry.key, schema, path));
        }
        continue;
      }
      places_[child_path] = entry.key_place;
      std::optional<Json> value = Value(*entry.value, *child, child_path);
      if (value.has_value()) object[entry.key] = *std::move(value);
    }
    for (const SchemaNode* child : schema.children) {
      if (!child->field->required || node.Find(child->name) != nullptr) continue;
      std::string message = "is required, but missing";
      if (!child->field->examples.empty()) {
        absl::StrAppend(&message, "; e.g. `", child->name, ": ", child->field->examples[0].yaml,
                        "`");
      }
      Report(places_[path], Join(path, child->name), std::move(message));
    }
    ApplyDefaults(schema, &object);
    return object;
  }

  static std::string UnknownField(absl::string_view name, const SchemaNode& schema,
                                  const std::string& path) {
    std::vector<std::string> spellings, meant, here;
    for (const SchemaNode* child : schema.children) {
      here.push_back(child->name);
      spellings.push_back(child->name);
      meant.push_back(child->name);
      for (const std::string& alias : child->field->aliases) {
        spellings.push_back(alias);
        meant.push_back(child->name);
      }
    }
    const int closest = ClosestName(name, spellings);
    if (closest >= 0)
      return absl::StrCat("unknown field; did you mean ", Quoted(meant[closest]), "?");
    for (const Field& field : Fields()) {
      const size_t dot = field.path.rfind('.');
      if (dot == std::string::npos || field.path.substr(dot + 1) != name) continue;
      return absl::StrCat("unknown field; ", Quoted(name), " belongs in `",
                          field.path.substr(0, dot), "`");
    }
    return absl::StrCat("unknown field; ", path.empty() ? "a TrainingJob" : Quoted(path), " has ",
                        absl::StrJoin(here, ", "));
  }

  std::optional<Json> MapValue(const YamlNode& node, const SchemaNode& schema,
                               const std::string& path) {
    if (!CheckSize(node, *schema.field, path, node.entries.size())) return std::nullopt;
    Json object = Json::object();
    bool good = true;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string entry_path = Join(path, absl::Utf8SafeCEscape(entry.key.substr(0, 64)));
      places_[entry_path] = entry.key_place;
      if (entry.key.empty() || entry.key.size() > kMaxKeyBytes) {
        Report(entry.key_place, entry_path,
               absl::StrCat("a name must have 1 to ", kMaxKeyBytes, " characters"));
        good = false;
        continue;
      }
      std::optional<Json> value = Value(*entry.value, *schema.item, entry_path);
      if (value.has_value()) {
        object[entry.key] = *std::move(value);
      } else {
        good = false;
      }
    }
    if (!good) return std::nullopt;
    return object;
  }

  std::optional<Json> ListValue(const YamlNode& node, const SchemaNode& schema,
                                const std::string& path) {
    if (!CheckSize(node, *schema.field, path, node.items.size())) return std::nullopt;
    Json list = Json::array();
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      places_[item_path] = node.items[i]->place;
      std::optional<Json> value = Value(*node.items[i], *schema.item, item_path);
      if (!value.has_value()) return std::nullopt;
      list.push_back(*std::move(value));
    }
    return list;
  }

  bool CheckSize(const YamlNode& node, const Field& field, const std::string& path, size_t size) {
    std::string noun(SizeNoun(field.type));
    if (size < field.min_size) {
      if (size == 0 && field.type == FieldType::kString) {
        Refuse(node, path, "must not be empty");
      } else {
        Refuse(node, path,
               absl::StrCat("must have at least ", Plural(field.min_size, noun), ", not ", size));
      }
      return false;
    }
    if (field.max_size != 0 && size > field.max_size) {
      Refuse(node, path,
             absl::StrCat("must have at most ", Plural(field.max_size, noun), ", not ", size));
      return false;
    }
    return true;
  }

  std::optional<Json> StringValue(const YamlNode& node, const Field& field,
                                  const std::string& path) {
    if (node.kind != Kind::kString) {
      const bool scalar = node.kind != Kind::kList && node.kind != Kind::kMap;
      return Refuse(node, path,
                    absl::StrCat("must be a string, not ", node.Describe(),
                                 scalar ? "; put it in quotes" : ""));
    }
    if (!field.values.empty()) return EnumValue(node, field, path);
    if (absl::StrContains(node.text, '\0'))
      return Refuse(node, path, "must not contain a NUL character");
    if (!CheckSize(node, field, path, CountCharacters(node.text))) return std::nullopt;
    if (field.matches != nullptr && !field.matches(node.text)) {
      return Refuse(node, path, absl::StrCat(field.pattern_message, "; this is ", node.Describe()));
    }
    if (field.is_path && !base_directory_.empty() && !IsWebAddress(node.text)) {
      const std::filesystem::path joined = std::filesystem::path(base_directory_) / node.text;
      return Json(joined.lexically_normal().string());
    }
    return Json(node.text);
  }

  std::optional<Json> EnumValue(const YamlNode& node, const Field& field, const std::string& path) {
    if (std::find(field.values.begin(), field.values.end(), node.text) != field.values.end()) {
      return Json(node.text);
    }
    std::string message =
        absl::StrCat("must be ", field.values.size() > 1 ? "one of " : "",
                     absl::StrJoin(field.values, ", "), ", not ", node.Describe());
    const int closest = ClosestName(node.text, field.values);
    if (closest >= 0 && field.values.size() > 1) {
      absl::StrAppend(&message, "; did you mean ", Quoted(field.values[closest]), "?");
    }
    return Refuse(node, path, std::move(message));
  }

  std::optional<Json> IntegerValue(const YamlNode& node, const Field& field,
                                   const std::string& path) {
    int64_t value = 0;
    if (node.kind == Kind::kInteger) {
      absl::string_view digits = node.text;
      if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
      if (digits.size() > 1 && digits[0] == '0') {
        return Refuse(
            node, path,
            absl::StrCat("must be in decimal, without leading zeros; this is ", node.Describe()));
      }
      if (!absl::SimpleAtoi(node.text, &value)) {
        return Refuse(node, path, "must be an integer of at most 64 bits");
      }
    } else {
      // 1e6 and 2.0 are integers too.
      double number = 0;
      if (node.kind != Kind::kNumber || !absl::SimpleAtod(node.text, &number) ||
          !(std::abs(number) <= 9007199254740992.0) || number != std::floor(number)) {
        return WrongType(node, path, "must be an integer");
      }
      value = static_cast<int64_t>(number);
    }
    if (!CheckRange(node, field, path, static_cast<double>(value))) return std::nullopt;
    return Json(value);
  }

  std::optional<Json> NumberValue(const YamlNode& node, const Field& field,
                                  const std::string& path) {
    double value = 0;
    if (node.kind != Kind::kNumber && node.kind != Kind::kInteger) {
      return WrongType(node, path, "must be a number");
    }
    if (!absl::SimpleAtod(node.text, &value) || !std::isfinite(value)) {
      return WrongType(node, path, "must be a finite decimal number");
    }
    if (!CheckRange(node, field, path, value)) return std::nullopt;
    return Json(value);
  }

  bool CheckRange(const YamlNode& node, const Field& field, const std::string& path, double value) {
    std::string bound;
    if (field.minimum.has_value() &&
        (field.exclusive_minimum ? value <= *field.minimum : value < *field.minimum)) {
      bound = absl::StrCat(field.exclusive_minimum ? "more than " : "at least ",
                           FormatBound(*field.minimum));
    } else if (field.maximum.has_value() &&
               (field.exclusive_maximum ? value >= *field.maximum : value > *field.maximum)) {
      bound = absl::StrCat(field.exclusive_maximum ? "less than " : "at most ",
                           FormatBound(*field.maximum));
    }
    if (bound.empty()) return true;
    Refuse(node, path, absl::StrCat("must be ", bound, ", not ", node.text.substr(0, 64)));
    return false;
  }

  void CheckRules(const Json& root) {
    const std::vector<Problem> of_fields = problems_;
    for (const Rule& rule : Rules()) {
      const Json* scope = &root;
      for (absl::string_view part : absl::StrSplit(rule.scope, '.')) {
        const auto found = scope->find(std::string{part});
        scope = found == scope->end() ? nullptr : &*found;
        if (scope == nullptr) break;
      }
      if (scope != nullptr) CheckRule(rule, *scope, rule.scope, of_fields);
    }
    CheckRulesInLists(Schema(), root, "", of_fields);
  }

  // The rules of objects that are like another one.
  void CheckRulesInLists(const SchemaNode& schema, const Json& value, const std::string& path,
                         const std::vector<Problem>& of_fields) {
    if (schema.field != nullptr && !schema.field->like.empty()) {
      for (const Rule& rule : Rules()) {
        if (rule.scope == schema.field->like) CheckRule(rule, value, path, of_fields);
      }
    }
    for (const SchemaNode* child : schema.children) {
      const auto found = value.find(child->name);
      if (found == value.end()) continue;
      CheckRulesInLists(*child, *found, Join(path, child->name), of_fields);
    }
    if (schema.item == nullptr || !value.is_array()) return;
    for (size_t i = 0; i < value.size(); ++i) {
      CheckRulesInLists(*schema.item, value[i], absl::StrCat(path, "[", i, "]"), of_fields);
    }
  }

  // `of_fields`: the problems of fields by themselves.
  void CheckRule(const Rule& rule, const Json& scope, const std::string& scope_path,
                 const std::vector<Problem>& of_fields) {
    const bool clean =
        std::none_of(of_fields.begin(), of_fields.end(),
                     [&](const Problem& problem) { return IsWithin(problem.path, scope_path); });
    if (!clean || rule.holds(scope)) return;
    const std::string path = absl::StrCat(scope_path, ".", rule.field);
    Report(NearestPlace(path), path, rule.message);
  }

  // The place of `path`, or else of the innermost object around it that the manifest has.
  Place NearestPlace(std::string path) const {
    while (true) {
      const auto found = places_.find(path);
      if (found != places_.end()) return found->second;
      const size_t dot = path.rfind('.');
      path.resize(dot == std::string::npos ? 0 : dot);
    }
  }

  static constexpr size_t kMaxKeyBytes = 316;  // of labels: a DNS name, a slash, 63 characters

  const std::string& base_directory_;
  std::map<std::string, Place> places_;  // of names, by path; of list items
  std::vector<Problem> problems_;
};

}  // namespace

ValidatedObject Validate(const YamlNode& root, const std::string& base_directory) {
  return Validator(base_directory).Run(root);
}

}  // namespace sluice::api

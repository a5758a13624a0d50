#include "services/manifest/validate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
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

constexpr size_t kMaxShownBytes = 60;

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

// A value of the tree, which is checked in place.
struct Node {
  Json& json;
  YamlToken token;

  // A scalar as written.
  std::string Text() const {
    if (json.is_string()) return json.get<std::string>();
    return token.text.empty() ? json.dump() : token.text;
  }

  // For messages: "the string \"abc\"", "the number 1.5", "a list", "a map"; long strings are
  // truncated.
  std::string Describe() const {
    if (json.is_array()) return "a list";
    if (json.is_object()) return "a map";
    if (json.is_null()) return "empty";
    std::string shown = Text();
    if (shown.size() > kMaxShownBytes) {
      size_t cut = kMaxShownBytes;
      while (cut > 0 && (static_cast<unsigned char>(shown[cut]) & 0xc0) == 0x80) --cut;
      shown = absl::StrCat(shown.substr(0, cut), "...");
    }
    if (json.is_boolean()) return absl::StrCat("the boolean ", shown);
    if (json.is_number()) return absl::StrCat("the number ", shown);
    // As JSON, which is a quoted YAML string.
    return absl::StrCat("the string ",
                        Json(shown).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
};

class Validator {
 public:
  Validator(const YamlTokens& tokens, const std::string& base_directory)
      : tokens_(tokens), base_directory_(base_directory) {}

  ValidatedObject Run(YamlValue root) {
    ValidatedObject result;
    const Node node{root.json, root.token};
    if (!root.json.is_object()) {
      Refuse(node, "", absl::StrCat("a TrainingJob is a map, not ", node.Describe()));
    } else {
      CheckObject(node, Schema(), "");
      result.written = root.json;
      ApplyDefaults(Schema(), &root.json);
      CheckRules(root);
      result.object = std::move(root.json);
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

  bool Refuse(const Node& node, const std::string& path, std::string message) {
    Report(node.token.name, path, std::move(message));
    return false;
  }

  static std::string Join(const std::string& path, absl::string_view name) {
    return path.empty() ? std::string{name} : absl::StrCat(path, ".", name);
  }
  // The same with a name that may be anything.
  static std::string JoinAny(const std::string& path, const std::string& name) {
    return Join(path, absl::Utf8SafeCEscape(name.substr(0, 64)));
  }

  Node ItemOf(const Node& list, size_t i) const {
    return {list.json[i], tokens_.Find(list.token, absl::StrCat("[", i, "]"))};
  }

  // Returns false if the value was rejected.
  bool CheckValue(const Node& node, const SchemaNode& schema, const std::string& path) {
    const Field& field = *schema.field;
    if (node.json.is_null()) return Refuse(node, path, "has no value; give one or leave it out");
    switch (field.type) {
      case FieldType::kObject:
        if (!node.json.is_object()) return WrongType(node, path, "must be a map of fields");
        if (field.open) return CheckAny(node, path);
        CheckObject(node, schema, path);
        return true;
      case FieldType::kMap:
        if (!node.json.is_object()) return WrongType(node, path, "must be a map");
        return CheckMap(node, schema, path);
      case FieldType::kList:
        if (!node.json.is_array()) return WrongType(node, path, "must be a list");
        return CheckList(node, schema, path);
      case FieldType::kString:
        return CheckString(node, field, path);
      case FieldType::kInteger:
        return CheckInteger(node, field, path);
      case FieldType::kNumber:
        return CheckNumber(node, field, path);
      case FieldType::kBoolean:
        return node.json.is_boolean() || WrongType(node, path, "must be true or false");
    }
    return false;
  }

  // A value of any shape; empty values of maps are left out, as kubectl does.
  bool CheckAny(Node node, const std::string& path) {
    static const Field& any = *new Field;
    node.token.name = node.token.place;
    if (node.json.is_number()) {
      return ResolvePlainScalar(node.Text()) == YamlKind::kInteger ? CheckInteger(node, any, path)
                                                                   : CheckNumber(node, any, path);
    }
    for (size_t i = 0; node.json.is_array() && i < node.json.size(); ++i) {
      if (!CheckAny(ItemOf(node, i), absl::StrCat(path, "[", i, "]"))) return false;
    }
    if (!node.json.is_object()) return true;
    for (auto it = node.json.begin(); it != node.json.end();) {
      if (!CheckAny({*it, tokens_.Find(node.token, it.key())}, JoinAny(path, it.key()))) {
        return false;
      }
      it = it->is_null() ? node.json.erase(it) : std::next(it);
    }
    return true;
  }

  bool WrongType(const Node& node, const std::string& path, absl::string_view wanted) {
    return Refuse(node, path, absl::StrCat(wanted, ", not ", node.Describe()));
  }

  void CheckObject(const Node& node, const SchemaNode& schema, const std::string& path) {
    for (auto it = node.json.begin(); it != node.json.end();) {
      const Node value{*it, tokens_.Find(node.token, it.key())};
      const SchemaNode* child = schema.Child(it.key());
      if (child != nullptr) {
        CheckValue(value, *child, Join(path, it.key()));
      } else if (std::find(std::begin(kIgnoredFields), std::end(kIgnoredFields),
                           Join(path, it.key())) == std::end(kIgnoredFields)) {
        Refuse(value, JoinAny(path, it.key()), UnknownField(it.key(), schema, path));
      } else {
        it = node.json.erase(it);
        continue;
      }
      ++it;
    }
    for (const SchemaNode* child : schema.children) {
      if (!child->field->required || node.json.contains(child->name)) continue;
      std::string message = "is required, but missing";
      if (!child->field->examples.empty()) {
        absl::StrAppend(&message, "; e.g. `", child->name, ": ", child->field->examples[0].yaml,
                        "`");
      }
      Refuse(node, Join(path, child->name), std::move(message));
    }
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

  bool CheckMap(const Node& node, const SchemaNode& schema, const std::string& path) {
    if (!CheckSize(node, *schema.field, path, node.json.size())) return false;
    bool good = true;
    for (auto& [key, json] : node.json.items()) {
      const Node entry{json, tokens_.Find(node.token, key)};
      const std::string entry_path = JoinAny(path, key);
      if (key.empty() || key.size() > kMaxKeyBytes) {
        good = Refuse(entry, entry_path,
                      absl::StrCat("a name must have 1 to ", kMaxKeyBytes, " characters"));
      } else if (!CheckValue(entry, *schema.item, entry_path)) {
        good = false;
      }
    }
    return good;
  }

  bool CheckList(const Node& node, const SchemaNode& schema, const std::string& path) {
    if (!CheckSize(node, *schema.field, path, node.json.size())) return false;
    for (size_t i = 0; i < node.json.size(); ++i) {
      if (!CheckValue(ItemOf(node, i), *schema.item, absl::StrCat(path, "[", i, "]"))) return false;
    }
    return true;
  }

  bool CheckSize(const Node& node, const Field& field, const std::string& path, size_t size) {
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

  bool CheckString(const Node& node, const Field& field, const std::string& path) {
    if (!node.json.is_string()) {
      return Refuse(node, path,
                    absl::StrCat("must be a string, not ", node.Describe(),
                                 node.json.is_structured() ? "" : "; put it in quotes"));
    }
    const std::string text = node.Text();
    if (!field.values.empty()) return CheckEnum(node, field, path);
    if (absl::StrContains(text, '\0')) {
      return Refuse(node, path, "must not contain a NUL character");
    }
    if (!CheckSize(node, field, path, CountCharacters(text))) return false;
    if (field.matches != nullptr && !field.matches(text)) {
      return Refuse(node, path, absl::StrCat(field.pattern_message, "; this is ", node.Describe()));
    }
    if (field.is_path && !base_directory_.empty() && !IsWebAddress(text)) {
      const std::filesystem::path joined = std::filesystem::path(base_directory_) / text;
      node.json = joined.lexically_normal().string();
    }
    return true;
  }

  bool CheckEnum(const Node& node, const Field& field, const std::string& path) {
    if (std::find(field.values.begin(), field.values.end(), node.Text()) != field.values.end()) {
      return true;
    }
    std::string message =
        absl::StrCat("must be ", field.values.size() > 1 ? "one of " : "",
                     absl::StrJoin(field.values, ", "), ", not ", node.Describe());
    const int closest = ClosestName(node.Text(), field.values);
    if (closest >= 0 && field.values.size() > 1) {
      absl::StrAppend(&message, "; did you mean ", Quoted(field.values[closest]), "?");
    }
    return Refuse(node, path, std::move(message));
  }

  bool CheckInteger(const Node& node, const Field& field, const std::string& path) {
    if (!node.json.is_number()) return WrongType(node, path, "must be an integer");
    const std::string text = node.Text();
    int64_t value = 0;
    if (ResolvePlainScalar(text) == YamlKind::kInteger) {
      absl::string_view digits = text;
      if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
      if (digits.size() > 1 && digits[0] == '0') {
        return Refuse(
            node, path,
            absl::StrCat("must be in decimal, without leading zeros; this is ", node.Describe()));
      }
      if (!absl::SimpleAtoi(text, &value)) {
        return Refuse(node, path, "must be an integer of at most 64 bits");
      }
    } else {
      // 1e6 and 2.0 are integers too.
      double number = 0;
      if (!absl::SimpleAtod(text, &number) || !(std::abs(number) <= 9007199254740992.0) ||
          number != std::floor(number)) {
        return WrongType(node, path, "must be an integer");
      }
      value = static_cast<int64_t>(number);
    }
    if (!CheckRange(node, field, path, static_cast<double>(value))) return false;
    node.json = value;
    return true;
  }

  bool CheckNumber(const Node& node, const Field& field, const std::string& path) {
    if (!node.json.is_number()) return WrongType(node, path, "must be a number");
    double value = 0;
    if (!absl::SimpleAtod(node.Text(), &value) || !std::isfinite(value)) {
      return WrongType(node, path, "must be a finite decimal number");
    }
    if (!CheckRange(node, field, path, value)) return false;
    node.json = value;
    return true;
  }

  bool CheckRange(const Node& node, const Field& field, const std::string& path, double value) {
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
    Refuse(node, path, absl::StrCat("must be ", bound, ", not ", node.Text().substr(0, 64)));
    return false;
  }

  void CheckRules(YamlValue& root) {
    const std::vector<Problem> of_fields = problems_;
    for (const Rule& rule : Rules()) {
      Json* scope = &root.json;
      YamlToken token = root.token;
      for (absl::string_view part : absl::StrSplit(rule.scope, '.')) {
        const auto found = scope->find(std::string{part});
        scope = found == scope->end() ? nullptr : &*found;
        if (scope == nullptr) break;
        token = tokens_.Find(token, std::string{part});
      }
      if (scope != nullptr) CheckRule(rule, {*scope, token}, rule.scope, of_fields);
    }
    CheckRulesInLists(Schema(), {root.json, root.token}, "", of_fields);
  }

  // The rules of objects that are like another one.
  void CheckRulesInLists(const SchemaNode& schema, const Node& node, const std::string& path,
                         const std::vector<Problem>& of_fields) {
    if (schema.field != nullptr && !schema.field->like.empty()) {
      for (const Rule& rule : Rules()) {
        if (rule.scope == schema.field->like) CheckRule(rule, node, path, of_fields);
      }
    }
    for (const SchemaNode* child : schema.children) {
      const auto found = node.json.find(child->name);
      if (found == node.json.end()) continue;
      CheckRulesInLists(*child, {*found, tokens_.Find(node.token, child->name)},
                        Join(path, child->name), of_fields);
    }
    if (schema.item == nullptr || !node.json.is_array()) return;
    for (size_t i = 0; i < node.json.size(); ++i) {
      CheckRulesInLists(*schema.item, ItemOf(node, i), absl::StrCat(path, "[", i, "]"), of_fields);
    }
  }

  // `of_fields`: the problems of fields by themselves.
  void CheckRule(const Rule& rule, const Node& scope, const std::string& scope_path,
                 const std::vector<Problem>& of_fields) {
    const bool clean =
        std::none_of(of_fields.begin(), of_fields.end(),
                     [&](const Problem& problem) { return IsWithin(problem.path, scope_path); });
    if (!clean || rule.holds(scope.json)) return;
    YamlToken token = scope.token;
    for (absl::string_view part : absl::StrSplit(rule.field, '.')) {
      token = tokens_.Find(token, std::string{part});
    }
    Report(token.name, absl::StrCat(scope_path, ".", rule.field), rule.message);
  }

  static constexpr size_t kMaxKeyBytes = 316;  // of labels: a DNS name, a slash, 63 characters

  const YamlTokens& tokens_;
  const std::string& base_directory_;
  std::vector<Problem> problems_;
};

}  // namespace

ValidatedObject Validate(YamlValue root, const YamlTokens& tokens,
                         const std::string& base_directory) {
  return Validator(tokens, base_directory).Run(std::move(root));
}

}  // namespace sluice::api

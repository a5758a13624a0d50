// Explains one field, like `kubectl explain`.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/manifest/field_table.h"
#include "services/manifest/print/field_text.h"
#include "services/manifest/print/print.h"
#include "services/manifest/suggest.h"
#include "services/manifest/training_job.h"

namespace sluice::api {
namespace {

constexpr size_t kLineBytes = 80;

// Wraps words into lines of at most kLineBytes, each after `indent`.
std::string Wrapped(absl::string_view text, absl::string_view indent) {
  std::string out;
  std::string line;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > kLineBytes) {
      absl::StrAppend(&out, indent, line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  if (!line.empty()) absl::StrAppend(&out, indent, line, "\n");
  return out;
}

// Replaces a list or map by its items.
const SchemaNode* Descend(const SchemaNode& from, const std::vector<std::string>& parts) {
  const SchemaNode* node = &from;
  for (const std::string& part : parts) {
    if (node->item != nullptr) node = node->item;
    node = node->Child(part);
    if (node == nullptr) return nullptr;
  }
  return node;
}

std::vector<std::string> Parts(absl::string_view path) {
  std::vector<std::string> parts = absl::StrSplit(path, '.', absl::SkipEmpty());
  for (std::string& part : parts) part.resize(std::min(part.size(), part.find('[')));
  if (!parts.empty()) {
    const std::string kind = absl::AsciiStrToLower(parts[0]);
    if (kind == "trainingjob" || kind == "trainingjobs" || kind == "stj") {
      parts.erase(parts.begin());
    }
  }
  return parts;
}

absl::Status NoSuchField(absl::string_view path, const std::vector<std::string>& parts) {
  std::vector<std::string> leaves, near;
  const std::string leaf = parts.empty() ? "" : parts.back();
  for (const Field& field : Fields())
    leaves.push_back(field.path.substr(field.path.rfind('.') + 1));
  const int closest = ClosestName(leaf, leaves);
  for (size_t i = 0; closest >= 0 && i < leaves.size(); ++i) {
    const bool same = leaves[i] == leaves[static_cast<size_t>(closest)];
    if (same && Fields()[i].like.empty()) near.push_back(Fields()[i].path);
  }
  return absl::NotFoundError(absl::StrCat(
      "a TrainingJob has no field ", absl::Utf8SafeCEscape(path.substr(0, 100)),
      near.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(near, " or "), "?")));
}

void AppendRules(const std::string& path, std::string* out) {
  std::string rules;
  for (const Rule& rule : Rules()) {
    if (rule.scope == path || absl::StrCat(rule.scope, ".", rule.field) == path) {
      absl::StrAppend(&rules, Wrapped(rule.message, "  "));
    }
  }
  if (!rules.empty()) absl::StrAppend(out, "\nRULES:\n", rules);
}

}  // namespace

absl::StatusOr<std::string> ExplainField(absl::string_view path) {
  const std::vector<std::string> parts = Parts(path);
  const SchemaNode* node = Descend(Schema(), parts);
  if (node == nullptr) node = Descend(*FindSchema("spec"), parts);
  if (node == nullptr) return NoSuchField(path, parts);

  const Field* const top = node->field;
  std::string out = absl::StrCat("KIND:     ", kKind, "\nVERSION:  ", kApiVersion, "\n");
  if (node->field != nullptr) {
    const Field& field = *node->field;
    absl::StrAppend(&out, "FIELD:    ", field.path, " <", TypeText(*node), ">",
                    field.required ? " required" : "", "\n\nDESCRIPTION:\n",
                    Wrapped(field.description, "  "));
    const std::string bounds = BoundsText(field);
    if (!bounds.empty()) absl::StrAppend(&out, "\nALLOWED:\n", Wrapped(bounds, "  "));
    const std::string fallback = DefaultText(field);
    if (!fallback.empty()) absl::StrAppend(&out, "\nDEFAULT:\n", Wrapped(fallback, "  "));
    if (!field.examples.empty()) {
      absl::StrAppend(&out, "\nEXAMPLE:\n  ", node->name, ": ", field.examples[0].yaml, "\n");
    }
    if (node->item != nullptr) node = node->item;
  }
  if (!node->children.empty()) out += "\nFIELDS:\n";
  for (const SchemaNode* child : node->children) {
    absl::StrAppend(&out, "  ", child->name, " <", TypeText(*child), ">",
                    child->field->required ? " required" : "", "\n",
                    Wrapped(child->field->description, "    "));
    const std::string fallback = DefaultText(*child->field);
    if (!fallback.empty())
      absl::StrAppend(&out, Wrapped(absl::StrCat("Default: ", fallback), "    "));
  }
  if (top != nullptr) AppendRules(top->path, &out);
  return out;
}

}  // namespace sluice::api

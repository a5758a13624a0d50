// The reference of all fields, as Markdown.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/manifest/field_table.h"
#include "services/manifest/print/field_text.h"
#include "services/manifest/print/print.h"
#include "services/manifest/training_job.h"

namespace sluice::api {
namespace {

// Text for a table cell.
std::string Cell(const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

// The object that has the fields of a node: the node itself, or the items of a list.
const SchemaNode* FieldsOf(const SchemaNode& node) {
  if (!node.children.empty()) return &node;
  return node.item != nullptr && !node.item->children.empty() ? node.item : nullptr;
}

void AppendRow(const SchemaNode& node, std::string* out) {
  const Field& field = *node.field;
  std::string text = absl::StrCat(field.cluster_only ? "*Clusters only.* " : "", field.description);
  const std::string bounds = BoundsText(field);
  // The description usually explains the values of an enumeration.
  if (!bounds.empty()) absl::StrAppend(&text, " (", bounds, ")");
  if (!field.examples.empty()) absl::StrAppend(&text, " Example: `", field.examples[0].yaml, "`");
  const std::string fallback = field.required ? "*required*" : DefaultText(field);
  absl::StrAppend(out, "| `", node.name, "` | ", TypeText(node), " | ", Cell(fallback), " | ",
                  Cell(text), " |\n");
}

void AppendSection(const SchemaNode& node, std::string* out) {
  const std::string path = node.field == nullptr ? "" : node.field->path;
  absl::StrAppend(out, "## ", path.empty() ? "TrainingJob" : path, "\n\n");
  if (!path.empty()) {
    absl::StrAppend(out, node.field->cluster_only ? "*Clusters only.* " : "",
                    node.field->description, "\n\n");
  }
  out->append("| field | type | default | meaning |\n| --- | --- | --- | --- |\n");
  for (const SchemaNode* child : node.children) AppendRow(*child, out);
  out->append("\n");
  bool first = true;
  for (const Rule& rule : Rules()) {
    if (rule.scope != path) continue;
    absl::StrAppend(out, first ? "Rules:\n\n" : "", "- `", rule.field, "`: ", rule.message, "\n");
    first = false;
  }
  if (!first) out->append("\n");
  for (const SchemaNode* child : node.children) {
    const SchemaNode* const below = FieldsOf(*child);
    const bool like_another = below != nullptr && !below->children[0]->field->like.empty();
    if (below != nullptr && !like_another) AppendSection(*below, out);
  }
}

}  // namespace

std::string ReferenceMarkdown() {
  std::string text =
      absl::StrCat("# TrainingJob (", kApiVersion, ")\n\n",
                   "All fields of a manifest, generated from the table that validates it. Relative "
                   "paths are relative to the manifest's directory; `~` and environment variables "
                   "are not expanded. Times are in seconds. *Clusters only* marks a field that "
                   "only clusters use, with all fields in it: `sluice run` ignores it.\n\n");
  AppendSection(Schema(), &text);
  return text;
}

}  // namespace sluice::api

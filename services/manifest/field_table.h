// The one table of TrainingJob's fields and rules.
//
// Everything that depends on the fields is generated from it: the checks of `sluice run` and
// `sluice validate` (validate.h), the conversion to v1::JobSpec and back (codec.h), the reference
// and `sluice explain` (print/), and the schema of the custom resource. A field or value that is
// not implemented is not in the table. A test runs every example through the checks.
//
// docs/decisions/field-table.md says why it is C++, and not options of the fields in job.proto.
//
// There are two kinds of entries. A Field limits one value by itself (type, range, length,
// pattern), as an OpenAPI schema can. A Rule relates fields: an expression that is evaluated here
// and printed as CEL for API servers, with examples on which both must agree. Both see the object
// with its defaults filled in.
#ifndef SLUICE_SERVICES_MANIFEST_FIELD_TABLE_H_
#define SLUICE_SERVICES_MANIFEST_FIELD_TABLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/manifest/expression.h"

namespace sluice::api {

enum class FieldType { kObject, kList, kMap, kString, kInteger, kNumber, kBoolean };

// Whether the value is of the type; integers are at least 0, and 64.0 is one.
bool HasType(const nlohmann::json& value, FieldType type);

// "string", "integer", ...: the names in OpenAPI; kMap is an "object" there.
absl::string_view FieldTypeName(FieldType type);

// How a job that has begun, or continues from its checkpoints, may change a field and everything
// below it. A row that is kFree has the value of the closest object around it that is not.
enum class Change {
  kFree,    // it may change: no checkpoint depends on it
  kLength,  // it may change, and decides how long the job trains
  kRate,    // it may change: each step is computed with the value of its own time, and no state
            // depends on it
  kFixed,   // it stays the same for the life of the job, because a checkpoint depends on it
  kShape,   // as kFixed; with another value, parameters or optimizer state have another form, so
            // that no job with that value can begin with the checkpoint
};

struct Example {
  std::string yaml;
  // For an invalid example: a part of the problem's message.
  std::string message;
};

struct Field {
  // "spec.training.steps"; "[]" means the items of a list, "{}" the values of a map.
  std::string path;
  FieldType type;
  std::string description;
  std::string since = "v0.1";

  bool required = false;
  // JSON; as in a schema, it applies if the parent object exists and this field does not.
  std::string default_json;
  // A default that depends on other fields: the first case that names the value of `default_by`, a
  // field beside this one, or that has no names. It applies only where the rules about this field
  // allow the field: `betas` has a default for Adam alone.
  struct DefaultCase {
    std::vector<std::string> names;
    std::string json;
  };
  std::string default_by;
  std::vector<DefaultCase> default_cases;
  // Words about the default, for readers: in addition to a default above, or, if code computes the
  // default, instead of it.
  std::string implied_default;

  std::vector<std::string> values;  // of an enumeration; kString
  std::optional<double> minimum;
  std::optional<double> maximum;
  bool exclusive_minimum = false;
  bool exclusive_maximum = false;
  size_t min_size = 0;  // characters of a string, items of a list, entries of a map
  size_t max_size = 0;  // 0: only for types without a size
  std::string pattern;  // regular expression for the schema,
  bool (*matches)(absl::string_view) = nullptr;  // the same as a predicate,
  std::string pattern_message;                   // and in words ("must be ...")
  std::string format;                            // of a string, as in OpenAPI: "date-time"
  // For kList: items are distinguished by this field.
  std::string item_key;

  bool is_path = false;  // relative values are relative to the manifest's directory
  // For kObject: it may have any fields. It is a part of a Kubernetes object, which API servers
  // check.
  bool open = false;
  // Only clusters use it and everything below it; `sluice run` ignores it.
  bool cluster_only = false;
  Change change = Change::kFree;
  // For a fixed field: CEL over `oldSelf`, the object that contains it. While that is true, API
  // servers allow changes: no cluster can have started the job.
  std::string changeable_while;

  // The field of v1::JobSpec with the value, in the message of the object around this row or in the
  // message around that one; for a list also one field for each item. Empty: the field of the same
  // name (`Seconds` may be missing at its end) in the message of the object; if there is none, the
  // fields of an object are in the message around it, and any other value is not in the job.
  std::vector<std::string> proto;
  bool inverted = false;  // the field of the job has the opposite value

  // Other common spellings ("lr"); used for suggestions only.
  std::vector<std::string> aliases;

  // The optimizers that have this option; empty: all of them, or the field is not an option. A rule
  // is generated from it, with examples that have the value `option_example` (JSON).
  std::vector<std::string> optimizers;
  std::string option_example;

  // The path of the field that this one, in an item of a list, is like: the rules about that field
  // hold for this one too.
  std::string like;

  std::vector<Example> examples;
  std::vector<Example> invalid;
  // The context that the examples need: a JSON merge patch on a minimal manifest.
  std::string context;
};

struct Rule {
  std::string scope;  // path of the object that is `self`
  // The field that the problem names, relative to scope ("steps"); may be absent in the object.
  std::string field;
  // Called only if everything below `scope` is valid by itself.
  Expr holds;
  std::string message;
  // Examples: JSON merge patches on the scope of a minimal manifest,
  std::vector<std::string> passing;
  std::vector<std::string> failing;
  // applied after this patch on the whole manifest.
  std::string context;
};

// "a, b and c".
std::string JoinWords(const std::vector<std::string>& words);

// Parents come before children, in the order for readers.
const std::vector<Field>& Fields();
const std::vector<Rule>& Rules();
// The fields below "status", which an operator writes. Never read from manifests.
const std::vector<Field>& StatusFields();

// The smallest valid manifest: the base for examples.
nlohmann::json MinimalManifest();

// The fields as a tree.
struct SchemaNode {
  const Field* field = nullptr;             // null for the root only
  std::string name;                         // last part of the path
  std::vector<const SchemaNode*> children;  // of an object, in the table's order
  const SchemaNode* item = nullptr;         // of a list or map

  const SchemaNode* Child(absl::string_view name) const;
};
const SchemaNode& Schema();
const SchemaNode& StatusSchema();  // its only child is "status"
// Finds a node by Field::path; null if there is none.
const SchemaNode* FindSchema(absl::string_view path);

// How a job may change the value at `path` ("spec.model.name",
// "spec.optimizer.groups[0].momentum").
Change ChangeOf(absl::string_view path);

inline bool IsFixed(Change change) { return change == Change::kFixed || change == Change::kShape; }

// Fills in the defaults of fields that `value`, which is at `schema`, and the objects in it do not
// have. As in an API server, no defaults are filled in below an object that is missing and has no
// default itself.
void ApplyDefaults(const SchemaNode& schema, nlohmann::json* value);

// The default by Field::default_cases of a field of `object`; null if there is none.
nlohmann::json DependentDefault(const Field& field, const nlohmann::json& object);

// Whether the rules of `object` about its field `row` hold; `object` has the field.
bool IsAllowed(const SchemaNode& row, const nlohmann::json& object);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_FIELD_TABLE_H_

// Notation for the rows of the table, one call each:
//
//   add(Integer("spec.training.steps", "Steps to train for.", Min(1), Good("1000")));
//
// and for its rules. Only for files that contain rows or rules.
#ifndef SLUICE_OPERATOR_API_FIELD_BUILDER_H_
#define SLUICE_OPERATOR_API_FIELD_BUILDER_H_

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "operator/api/expression.h"
#include "operator/api/field_table.h"

namespace sluice::api {

// Sets members of a Field; their comments are in field_table.h.
using Attribute = std::function<void(Field&)>;

inline Attribute Required() {
  return [](Field& field) { field.required = true; };
}
inline Attribute Default(std::string json) {
  return [=](Field& field) { field.default_json = json; };
}
inline Attribute DefaultBy(std::string other, std::vector<Field::DefaultCase> cases) {
  return [=](Field& field) { field.default_by = other, field.default_cases = cases; };
}
// For every value of the fields beside it with which the rules allow this one.
inline Attribute DefaultWhereAllowed(std::string json) { return DefaultBy("", {{{}, json}}); }
inline Attribute Implied(std::string words) {
  return [=](Field& field) { field.implied_default = words; };
}
inline Attribute OneOf(std::vector<std::string> values) {
  return [=](Field& field) { field.values = values; };
}
inline Attribute Min(double least) {
  return [=](Field& field) { field.minimum = least; };
}
inline Attribute Max(double most) {
  return [=](Field& field) { field.maximum = most; };
}
inline Attribute Above(double bound) {
  return [=](Field& field) { field.minimum = bound, field.exclusive_minimum = true; };
}
inline Attribute Below(double bound) {
  return [=](Field& field) { field.maximum = bound, field.exclusive_maximum = true; };
}
inline Attribute Size(size_t least, size_t most) {
  return [=](Field& field) { field.min_size = least, field.max_size = most; };
}
inline Attribute Pattern(std::string regex, bool (*matches)(absl::string_view),
                         std::string message) {
  return [=](Field& field) {
    field.pattern = regex;
    field.matches = matches;
    field.pattern_message = message;
  };
}
// A path in the file system.
inline Attribute Path() {
  return [](Field& field) {
    field.is_path = true;
    Size(1, 4096)(field);
    Pattern(
        "^[^~$]",
        [](absl::string_view path) { return !path.empty() && path[0] != '~' && path[0] != '$'; },
        "must not begin with `~` or `$`, which are not expanded; write the whole path")(field);
  };
}
inline Attribute Format(std::string format) {
  return [=](Field& field) { field.format = format; };
}
inline Attribute Open() {
  return [](Field& field) { field.open = true; };
}
inline Attribute ItemKey(std::string key) {
  return [=](Field& field) { field.item_key = key; };
}
inline Attribute ClusterOnly() {
  return [](Field& field) { field.cluster_only = true; };
}
inline Attribute Fixed() {
  return [](Field& field) { field.fixed = true; };
}
inline Attribute FixedUnless(std::string cel) {
  return [=](Field& field) { field.fixed = true, field.changeable_while = cel; };
}
inline Attribute Proto(std::string place) {
  return [=](Field& field) { field.proto = place; };
}
inline Attribute Alias(std::string spelling) {
  return [=](Field& field) { field.aliases.push_back(spelling); };
}
// An example, and one that is refused with a message that has this part.
inline Attribute Good(std::string yaml) {
  return [=](Field& field) { field.examples.push_back({yaml, ""}); };
}
inline Attribute Bad(std::string yaml, std::string message) {
  return [=](Field& field) { field.invalid.push_back({yaml, message}); };
}
inline Attribute Context(std::string patch) {
  return [=](Field& field) { field.context = patch; };
}

inline Field Row(FieldType type, std::string path, std::string description,
                 std::initializer_list<Attribute> attributes) {
  Field field;
  field.type = type;
  field.path = std::move(path);
  field.description = std::move(description);
  for (const Attribute& set : attributes) set(field);
  return field;
}
template <typename... Attributes>
Field Object(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kObject, std::move(path), std::move(description), {attributes...});
}
template <typename... Attributes>
Field List(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kList, std::move(path), std::move(description), {attributes...});
}
template <typename... Attributes>
Field Map(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kMap, std::move(path), std::move(description), {attributes...});
}
template <typename... Attributes>
Field String(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kString, std::move(path), std::move(description), {attributes...});
}
template <typename... Attributes>
Field Integer(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kInteger, std::move(path), std::move(description), {attributes...});
}
template <typename... Attributes>
Field Number(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kNumber, std::move(path), std::move(description), {attributes...});
}
template <typename... Attributes>
Field Boolean(std::string path, std::string description, const Attributes&... attributes) {
  return Row(FieldType::kBoolean, std::move(path), std::move(description), {attributes...});
}

// Adds rows to the table.
class FieldAdder {
 public:
  explicit FieldAdder(std::vector<Field>* fields) : fields_(fields) {}
  void operator()(Field field) const { fields_->push_back(std::move(field)); }

 private:
  std::vector<Field>* const fields_;
};

// Adds rules about fields of one object.
class RuleAdder {
 public:
  RuleAdder(std::string scope, std::vector<Rule>* rules)
      : scope_(std::move(scope)), rules_(rules) {}

  // The arguments are Rule's.
  void operator()(std::string field, Expr holds, std::string message,
                  std::vector<std::string> passing, std::vector<std::string> failing,
                  std::string context = "") const {
    rules_->push_back({scope_, std::move(field), std::move(holds), std::move(message),
                       std::move(passing), std::move(failing), std::move(context)});
  }

 private:
  const std::string scope_;
  std::vector<Rule>* const rules_;
};

// The parts of the table, in the order of Fields(): metadata, model and data; then everything about
// training.
std::vector<Field> ObjectAndDataFields();
std::vector<Field> TrainingFields();

// Cluster-only rows, for the tables above: `<role>.template`;
void AddPodTemplate(const std::string& role, absl::string_view container, const FieldAdder& add);
// the coordinator's pod; the volume of `spec.data.source`; the claim of `spec.checkpoint.storage`;
void AddCoordinator(const FieldAdder& add);
void AddDataVolume(const FieldAdder& add);
void AddCheckpointClaim(const FieldAdder& add);
// the bounds of `<role>.replicas`;
void AddReplicaBounds(const std::string& role, const std::string& processes, const FieldAdder& add);
// where the layers are computed (fields_execution.cc);
void AddStages(const FieldAdder& add);
void AddExecution(const FieldAdder& add);
void AddExecutionRules(std::vector<Rule>* rules);
// `training.dense`;
void AddDense(const FieldAdder& add);
void AddDenseRules(std::vector<Rule>* rules);
// `training.stragglers`, and the rules for it and for `data.partitioning`.
void AddStragglers(const FieldAdder& add);
void AddStragglerRules(std::vector<Rule>* rules);
void AddBatchSizeRules(std::vector<Rule>* rules);
void AddPartitioningRules(std::vector<Rule>* rules);
// `cpu`, `cuda` or `cuda:<number>`;
bool IsDeviceName(absl::string_view text);
// and the deadlines of a job on a cluster, its cleanup, and its node failures.
void AddClusterLimits(const FieldAdder& add);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_FIELD_BUILDER_H_

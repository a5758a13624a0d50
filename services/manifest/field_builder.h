// Notation for the rows of the table, one call each:
//
//   add(Integer("spec.training.steps", "Steps to train for.", Min(1), Good("1000")));
//
// and for its rules. Only for files that contain rows or rules.
#ifndef SLUICE_SERVICES_MANIFEST_FIELD_BUILDER_H_
#define SLUICE_SERVICES_MANIFEST_FIELD_BUILDER_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/manifest/expression.h"
#include "services/manifest/field_table.h"

namespace sluice::api {

// Sets members of a Field; their comments are in field_table.h.
using Attribute = std::function<void(Field&)>;

template <typename Value>
Attribute Set(Value Field::*member, Value value) {
  return [member, content = std::move(value)](Field& field) { field.*member = content; };
}
inline Attribute Both(Attribute first, Attribute second) {
  return [one = std::move(first), other = std::move(second)](Field& field) {
    one(field);
    other(field);
  };
}

inline Attribute Required() { return Set(&Field::required, true); }
inline Attribute Default(std::string json) { return Set(&Field::default_json, std::move(json)); }
inline Attribute DefaultBy(std::string other, std::vector<Field::DefaultCase> cases) {
  return Both(Set(&Field::default_by, std::move(other)),
              Set(&Field::default_cases, std::move(cases)));
}
// The default for every value of the neighbouring fields for which the rules allow this field.
inline Attribute DefaultWhereAllowed(std::string json) {
  return DefaultBy("", {{{}, std::move(json)}});
}
inline Attribute Implied(std::string words) {
  return Set(&Field::implied_default, std::move(words));
}
inline Attribute OneOf(std::vector<std::string> values) {
  return Set(&Field::values, std::move(values));
}
inline Attribute Min(double least) { return Set(&Field::minimum, std::optional<double>(least)); }
inline Attribute Max(double most) { return Set(&Field::maximum, std::optional<double>(most)); }
inline Attribute Above(double bound) {
  return Both(Min(bound), Set(&Field::exclusive_minimum, true));
}
inline Attribute Below(double bound) {
  return Both(Max(bound), Set(&Field::exclusive_maximum, true));
}
inline Attribute Size(size_t least, size_t most) {
  return Both(Set(&Field::min_size, least), Set(&Field::max_size, most));
}
inline Attribute Pattern(std::string regex, bool (*matches)(absl::string_view),
                         std::string message) {
  return Both(
      Set(&Field::pattern, std::move(regex)),
      Both(Set(&Field::matches, matches), Set(&Field::pattern_message, std::move(message))));
}
// A path in the file system.
inline Attribute Path() {
  const auto matches = [](absl::string_view path) {
    return !path.empty() && path[0] != '~' && path[0] != '$';
  };
  return Both(
      Both(Set(&Field::is_path, true), Size(1, 4096)),
      Pattern("^[^~$]", matches,
              "must not begin with `~` or `$`, which are not expanded; write the whole path"));
}
// The name of a metric of evaluations: fields_decisions.cc.
Attribute MetricName();
inline Attribute Format(std::string format) { return Set(&Field::format, std::move(format)); }
inline Attribute Open() { return Set(&Field::open, true); }
inline Attribute ItemKey(std::string key) { return Set(&Field::item_key, std::move(key)); }
inline Attribute ClusterOnly() { return Set(&Field::cluster_only, true); }
// How a job may change the field (Change).
inline Attribute Fixed() { return Set(&Field::change, Change::kFixed); }
inline Attribute Shapes() { return Set(&Field::change, Change::kShape); }
inline Attribute Length() { return Set(&Field::change, Change::kLength); }
inline Attribute Rate() { return Set(&Field::change, Change::kRate); }
inline Attribute FixedUnless(std::string cel) {
  return Both(Fixed(), Set(&Field::changeable_while, std::move(cel)));
}
inline Attribute Proto(std::vector<std::string> fields) {
  return Set(&Field::proto, std::move(fields));
}
inline Attribute InverseOf(std::string field) {
  return Both(Proto({std::move(field)}), Set(&Field::inverted, true));
}
inline Attribute OptionOf(std::vector<std::string> optimizers, std::string json) {
  return Both(Set(&Field::optimizers, std::move(optimizers)),
              Set(&Field::option_example, std::move(json)));
}
inline Attribute Context(std::string patch) { return Set(&Field::context, std::move(patch)); }
inline Attribute Alias(std::string spelling) {
  return [name = std::move(spelling)](Field& field) { field.aliases.push_back(name); };
}
// A valid example; an invalid example, and a part of the message with which it is refused.
inline Attribute Good(std::string yaml) {
  return [example = std::move(yaml)](Field& field) { field.examples.push_back({example, ""}); };
}
inline Attribute Bad(std::string yaml, std::string message) {
  return [example = std::move(yaml), error = std::move(message)](Field& field) {
    field.invalid.push_back({example, error});
  };
}

// Makes a row of its type: path, description, attributes.
template <FieldType kType>
struct RowOf {
  template <typename... Attributes>
  Field operator()(std::string path, std::string description,
                   const Attributes&... attributes) const {
    Field field;
    field.type = kType;
    field.path = std::move(path);
    field.description = std::move(description);
    (attributes(field), ...);
    return field;
  }
};
inline constexpr RowOf<FieldType::kObject> Object{};
inline constexpr RowOf<FieldType::kList> List{};
inline constexpr RowOf<FieldType::kMap> Map{};
inline constexpr RowOf<FieldType::kString> String{};
inline constexpr RowOf<FieldType::kInteger> Integer{};
inline constexpr RowOf<FieldType::kNumber> Number{};
inline constexpr RowOf<FieldType::kBoolean> Boolean{};

// Adds rows to the table.
class FieldAdder {
 public:
  explicit FieldAdder(std::vector<Field>* fields) : fields_(fields) {}
  void operator()(Field field) const { fields_->push_back(std::move(field)); }
  const std::vector<Field>& rows() const { return *fields_; }  // so far

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

// Rows and rules for the tables above, by file. Cluster-only fields (fields_cluster.cc): the pod
// template `<role>.template`;
void AddPodTemplate(const std::string& role, absl::string_view container, const FieldAdder& add);
// the coordinator's pod, the volume of `spec.data.source`, the claim of `spec.checkpoint.storage`;
void AddCoordinator(const FieldAdder& add);
void AddDataVolume(const FieldAdder& add);
void AddCheckpointClaim(const FieldAdder& add);
// the bounds of `<role>.replicas`;
void AddReplicaBounds(const std::string& role, const std::string& processes, const FieldAdder& add);
// the deadlines of a job on a cluster, its cleanup, and its node failures.
void AddClusterLimits(const FieldAdder& add);

// The optimizer and its groups (fields_optimizer.cc).
void AddOptimizer(const FieldAdder& add);
void AddGroups(const FieldAdder& add);
void AddOptimizerRules(std::vector<Rule>* rules);
// Its schedule, and that of a group (fields_schedule.cc).
void AddSchedule(const FieldAdder& add);
void AddScheduleOfGroups(const FieldAdder& add);
void AddScheduleRules(std::vector<Rule>* rules);
// Where the layers are computed (fields_execution.cc), and `debug`.
void AddStages(const FieldAdder& add);
void AddExecution(const FieldAdder& add);
void AddDebug(const FieldAdder& add);
void AddExecutionRules(std::vector<Rule>* rules);
// `training.dense` (fields_dense.cc).
void AddDense(const FieldAdder& add);
void AddDenseRules(std::vector<Rule>* rules);
// `training.sync` (fields_sync.cc).
void AddSync(const FieldAdder& add);
void AddSyncRules(std::vector<Rule>* rules);
// `training.stragglers`, and the rules for it, for the batch sizes and for `data.partitioning`
// (fields_stragglers.cc).
void AddStragglers(const FieldAdder& add);
void AddPlateau(const FieldAdder& add);
void AddStopping(const FieldAdder& add);
void AddKeepBest(const FieldAdder& add);
void AddStragglerRules(std::vector<Rule>* rules);
void AddDecisionRules(std::vector<Rule>* rules);
void AddBatchSizeRules(std::vector<Rule>* rules);
void AddPartitioningRules(std::vector<Rule>* rules);

// Whether the text is `cpu`, `cuda` or `cuda:<number>`.
bool IsDeviceName(absl::string_view text);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_FIELD_BUILDER_H_

// Notation for the rows of the table: Integer("spec.training.steps", "Steps to train
// for.").Min(1).Example("1000"). Only for files that contain rows.
#ifndef SLUICE_OPERATOR_API_FIELD_BUILDER_H_
#define SLUICE_OPERATOR_API_FIELD_BUILDER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "operator/api/field_table.h"

namespace sluice::api {

class FieldBuilder {
 public:
  FieldBuilder(FieldType type, std::string path, std::string description) {
    field_.type = type;
    field_.path = std::move(path);
    field_.description = std::move(description);
  }
  // NOLINTNEXTLINE(google-explicit-constructor): rows are listed as Fields.
  operator Field() const { return field_; }

  FieldBuilder& Required() { return field_.required = true, *this; }
  FieldBuilder& Default(std::string json) { return field_.default_json = std::move(json), *this; }
  FieldBuilder& Implied(std::string words) {
    return field_.implied_default = std::move(words), *this;
  }
  FieldBuilder& OneOf(std::vector<std::string> values) {
    return field_.values = std::move(values), *this;
  }
  FieldBuilder& Min(double least) { return field_.minimum = least, *this; }
  FieldBuilder& Max(double most) { return field_.maximum = most, *this; }
  FieldBuilder& Above(double bound) { return field_.exclusive_minimum = true, Min(bound); }
  FieldBuilder& Below(double bound) { return field_.exclusive_maximum = true, Max(bound); }
  FieldBuilder& Size(size_t least, size_t most) {
    return field_.min_size = least, field_.max_size = most, *this;
  }
  FieldBuilder& Pattern(std::string regex, bool (*matches)(absl::string_view),
                        std::string message) {
    field_.pattern = std::move(regex);
    field_.matches = matches;
    field_.pattern_message = std::move(message);
    return *this;
  }
  // A path in the file system.
  FieldBuilder& Path() {
    field_.is_path = true;
    return Size(1, 4096).Pattern(
        "^[^~$]",
        [](absl::string_view path) { return !path.empty() && path[0] != '~' && path[0] != '$'; },
        "must not begin with `~` or `$`, which are not expanded; write the whole path");
  }
  FieldBuilder& Format(std::string format) { return field_.format = std::move(format), *this; }
  FieldBuilder& Open() { return field_.open = true, *this; }
  FieldBuilder& ItemKey(std::string key) { return field_.item_key = std::move(key), *this; }
  FieldBuilder& ClusterOnly() { return field_.cluster_only = true, *this; }
  FieldBuilder& Fixed() { return field_.fixed = true, *this; }
  FieldBuilder& FixedUnless(std::string cel) {
    return field_.changeable_while = std::move(cel), Fixed();
  }
  FieldBuilder& Alias(std::string spelling) {
    return field_.aliases.push_back(std::move(spelling)), *this;
  }
  FieldBuilder& Example(std::string yaml) {
    return field_.examples.push_back({std::move(yaml), ""}), *this;
  }
  FieldBuilder& Invalid(std::string yaml, std::string message) {
    return field_.invalid.push_back({std::move(yaml), std::move(message)}), *this;
  }
  FieldBuilder& Context(std::string patch) { return field_.context = std::move(patch), *this; }

 private:
  Field field_;
};

inline FieldBuilder Object(std::string path, std::string description) {
  return FieldBuilder(FieldType::kObject, std::move(path), std::move(description));
}
inline FieldBuilder List(std::string path, std::string description) {
  return FieldBuilder(FieldType::kList, std::move(path), std::move(description));
}
inline FieldBuilder Map(std::string path, std::string description) {
  return FieldBuilder(FieldType::kMap, std::move(path), std::move(description));
}
inline FieldBuilder String(std::string path, std::string description) {
  return FieldBuilder(FieldType::kString, std::move(path), std::move(description));
}
inline FieldBuilder Integer(std::string path, std::string description) {
  return FieldBuilder(FieldType::kInteger, std::move(path), std::move(description));
}
inline FieldBuilder Number(std::string path, std::string description) {
  return FieldBuilder(FieldType::kNumber, std::move(path), std::move(description));
}
inline FieldBuilder Boolean(std::string path, std::string description) {
  return FieldBuilder(FieldType::kBoolean, std::move(path), std::move(description));
}

// The parts of the table, in the order of Fields(): metadata, model and data; then everything about
// training.
std::vector<Field> ObjectAndDataFields();
std::vector<Field> TrainingFields();

// Cluster-only rows, for the tables above: `<role>.template`;
void AddPodTemplate(const std::string& role, absl::string_view container,
                    std::vector<Field>* fields);
// the coordinator's pod; the volume of `spec.data.source`; the claim of `spec.checkpoint.storage`;
void AddCoordinator(std::vector<Field>* fields);
void AddDataVolume(std::vector<Field>* fields);
void AddCheckpointClaim(std::vector<Field>* fields);
// the bounds of `<role>.replicas`;
void AddReplicaBounds(const std::string& role, const std::string& processes,
                      std::vector<Field>* fields);
// where the layers are computed (fields_execution.cc);
void AddStages(std::vector<Field>* fields);
void AddExecution(std::vector<Field>* fields);
void AddExecutionRules(std::vector<Rule>* rules);
// `training.dense`;
void AddDense(std::vector<Field>* fields);
void AddDenseRules(std::vector<Rule>* rules);
// `training.stragglers`, and the rules for it and for `data.partitioning`.
void AddStragglers(std::vector<Field>* fields);
void AddStragglerRules(std::vector<Rule>* rules);
void AddBatchSizeRules(std::vector<Rule>* rules);
void AddPartitioningRules(std::vector<Rule>* rules);
// `cpu`, `cuda` or `cuda:<number>`;
bool IsDeviceName(absl::string_view text);
// and the deadlines of a job on a cluster, its cleanup, and its node failures.
void AddClusterLimits(std::vector<Field>* fields);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_FIELD_BUILDER_H_

#include "services/ps/optimizer/groups.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/ps/optimizer/schedule.h"

namespace sluice {
namespace {

// Sets the fields of the spec that the group sets, by their names.
void SetOptions(const v1::OptimizerSpec::Group& group, v1::OptimizerSpec* spec) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  const google::protobuf::Reflection& from = *group.GetReflection();
  const google::protobuf::Reflection& to = *spec->GetReflection();
  from.ListFields(group, &fields);

  for (const auto* field : fields) {
    const auto* const target = spec->GetDescriptor()->FindFieldByName(field->name());
    if (target == nullptr) continue;  // patterns
    switch (field->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
        to.SetDouble(spec, target, from.GetDouble(group, field));
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
        to.SetBool(spec, target, from.GetBool(group, field));
        break;
      default:
        break;
    }
  }
}

v1::OptimizerSpec Effective(const v1::OptimizerSpec& spec, const v1::OptimizerSpec::Group& group) {
  v1::OptimizerSpec effective;
  if (group.has_name()) {
    effective.set_name(group.name());
    effective.set_clip_norm(spec.clip_norm());
    *effective.mutable_schedule() = spec.schedule();
  } else {
    effective = spec;
    effective.clear_groups();
  }

  SetOptions(group, &effective);
  if (group.has_schedule()) *effective.mutable_schedule() = group.schedule();
  return effective;
}

absl::Status CheckName(const v1::OptimizerSpec::Group& group) {
  if (!group.has_name()) return absl::OkStatus();
  if (group.name() == v1::OptimizerSpec::ADD || group.name() == v1::OptimizerSpec::PLUGIN) {
    return absl::InvalidArgumentError("name is Add or Plugin, which a group cannot have");
  }
  if (group.has_learning_rate()) return absl::OkStatus();
  return absl::InvalidArgumentError("learningRate is missing, which a group with a name must have");
}

// Whether a step uses StepArguments::momentum.
bool HasMomentum(const v1::OptimizerSpec& spec) {
  switch (spec.name()) {
    case v1::OptimizerSpec::SGD:
    case v1::OptimizerSpec::RMS_PROP:
      return spec.momentum() > 0;
    case v1::OptimizerSpec::ADAM:
    case v1::OptimizerSpec::ADAM_W:
    case v1::OptimizerSpec::R_ADAM:
    case v1::OptimizerSpec::ADAMAX:
    case v1::OptimizerSpec::LION:
      return true;
    default:
      return false;
  }
}

absl::Status CheckSchedule(const v1::OptimizerSpec& spec, absl::string_view path) {
  RETURN_IF_ERROR(ValidateSchedule(spec.schedule(), path));
  if (!spec.schedule().has_cycle_momentum() || HasMomentum(spec)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   ".cycleMomentum needs SGD or RMSprop with a momentum, Adam, AdamW, RAdam, "
                   "Adamax or Lion; a group may have a schedule of its own"));
}

absl::Status CheckPatterns(const v1::OptimizerSpec::Group& group) {
  if (group.patterns().empty()) {
    return absl::InvalidArgumentError("patterns is empty, must have at least one");
  }
  for (const std::string& pattern : group.patterns()) {
    if (pattern.empty()) {
      return absl::InvalidArgumentError("patterns has an empty string, which matches no name");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ParameterGroups::Group> MakeGroup(const v1::OptimizerSpec& spec,
                                                 const v1::OptimizerSpec::Group& group,
                                                 const OptimizerLibraries& libraries) {
  RETURN_IF_ERROR(CheckName(group));
  v1::OptimizerSpec effective = Effective(spec, group);
  RETURN_IF_ERROR(
      CheckSchedule(effective, group.has_schedule() ? "schedule" : "optimizer.schedule"));
  ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> optimizer, MakeOptimizer(effective, libraries));
  return ParameterGroups::Group{std::move(effective), std::move(optimizer)};
}

}  // namespace

absl::StatusOr<ParameterGroups> ParameterGroups::Create(const v1::OptimizerSpec& spec,
                                                        const OptimizerLibraries& libraries) {
  // First, so that an error in the optimizer itself is not reported for a group.
  ASSIGN_OR_RETURN(Group rest, MakeGroup(spec, v1::OptimizerSpec::Group(), libraries));

  ParameterGroups groups;
  for (int i = 0; i < spec.groups_size(); ++i) {
    absl::Status status = CheckPatterns(spec.groups(i));
    if (status.ok()) {
      absl::StatusOr<Group> group = MakeGroup(spec, spec.groups(i), libraries);
      status = group.status();
      if (group.ok()) groups.groups_.push_back(*std::move(group));
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer.groups[", i, "]: ", status.message()));
    }

    const auto& patterns = spec.groups(i).patterns();
    groups.patterns_.emplace_back(patterns.begin(), patterns.end());
  }

  groups.groups_.push_back(std::move(rest));
  return groups;
}

double ParameterGroups::Group::LearningRate(uint64_t step) const {
  return spec.learning_rate() * ScheduleFactor(spec.schedule(), step);
}

std::optional<double> ParameterGroups::Group::Momentum(uint64_t step) const {
  return ScheduleMomentum(spec.schedule(), step);
}

size_t ParameterGroups::IndexOf(absl::string_view tensor) const {
  const auto matches = [tensor](const std::string& pattern) {
    return GlobMatches(pattern, tensor);
  };
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (std::any_of(patterns_[i].begin(), patterns_[i].end(), matches)) return i;
  }
  return patterns_.size();
}

// Only the last star must be tried again: it can match everything that an earlier star could.
bool GlobMatches(absl::string_view pattern, absl::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = absl::string_view::npos;  // the last star seen
  size_t star_end = 0;                    // in the name, after its current match
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }

  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace sluice

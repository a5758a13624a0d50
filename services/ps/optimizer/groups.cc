#include "services/ps/optimizer/groups.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

v1::OptimizerSpec Effective(const v1::OptimizerSpec& spec, const v1::OptimizerSpec::Group& group) {
  v1::OptimizerSpec effective = spec;
  effective.clear_groups();
  if (group.has_learning_rate()) effective.set_learning_rate(group.learning_rate());
  if (group.has_weight_decay()) effective.set_weight_decay(group.weight_decay());
  if (group.has_momentum()) effective.set_momentum(group.momentum());
  return effective;
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
  v1::OptimizerSpec effective = Effective(spec, group);
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

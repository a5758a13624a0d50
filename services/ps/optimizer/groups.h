#ifndef SLUICE_SERVICES_PS_OPTIMIZER_GROUPS_H_
#define SLUICE_SERVICES_PS_OPTIMIZER_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice {

// The optimizer's parameter groups. A tensor belongs to the first group of which a pattern matches
// its name, else to the default group. A group's own values replace the optimizer's; a group with a
// name has that optimizer, with exactly the group's own values, and the job's schedule unless it
// has its own. Each group has one Optimizer, so groups may differ in their slots (no momentum, no
// buffer).
//
// Immutable; thread-safe.
class ParameterGroups {
 public:
  struct Group {
    v1::OptimizerSpec spec;  // effective values; `groups` is empty
    std::unique_ptr<const Optimizer> optimizer;

    // At a step (asynchronous: at an update's ordinal).
    double LearningRate(uint64_t step) const;
    std::optional<double> Momentum(uint64_t step) const;  // StepArguments::momentum
  };

  // INVALID_ARGUMENT names the group and the field for a value out of range, an empty group or
  // pattern, or a schedule that is invalid or does not fit the optimizer.
  static absl::StatusOr<ParameterGroups> Create(const v1::OptimizerSpec& spec,
                                                const OptimizerLibraries& libraries = {});

  // Number of groups, including the default one, which is the last.
  size_t size() const { return groups_.size(); }
  const Group& operator[](size_t index) const { return groups_[index]; }

  // The group of a tensor. Tries every pattern, so call it once per tensor.
  size_t IndexOf(absl::string_view tensor) const;
  const Group& For(absl::string_view tensor) const { return groups_[IndexOf(tensor)]; }

 private:
  ParameterGroups() = default;

  std::vector<std::vector<std::string>> patterns_;  // of all groups but the default one
  std::vector<Group> groups_;
};

// Whether a whole name matches a glob: '*' matches any characters (dots too), '?' matches one,
// every other character matches itself. Case-sensitive; without escapes.
bool GlobMatches(absl::string_view pattern, absl::string_view name);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PS_OPTIMIZER_GROUPS_H_

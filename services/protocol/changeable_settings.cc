#include "services/protocol/changeable_settings.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace sluice {
namespace {

constexpr absl::string_view kChangeable[] = {"learningRate", "weightDecay", "schedule", "plateau"};

// Options of an optimizer that decide which state it has.
constexpr absl::string_view kOfState[] = {"name", "momentum", "amsgrad", "centered", "library"};

}  // namespace

bool IsChangeableSetting(absl::string_view path) {
  if (!absl::ConsumePrefix(&path, "spec.optimizer.")) return false;
  if (absl::StartsWith(path, "groups[")) {
    const size_t end = path.find("].");
    if (end == absl::string_view::npos) return false;
    path.remove_prefix(end + 2);
  }
  return absl::c_linear_search(kChangeable, path.substr(0, path.find_first_of(".[")));
}

bool ShapesCheckpoint(absl::string_view path) {
  if (absl::StartsWith(path, "spec.model.") || absl::StartsWith(path, "spec.optimizer.groups")) {
    return true;
  }
  return absl::ConsumePrefix(&path, "spec.optimizer.") && absl::c_linear_search(kOfState, path);
}

}  // namespace sluice

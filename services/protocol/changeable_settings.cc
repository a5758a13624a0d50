#include "services/protocol/changeable_settings.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace sluice {
namespace {

constexpr absl::string_view kChangeable[] = {"learningRate", "weightDecay", "schedule", "plateau"};

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

}  // namespace sluice

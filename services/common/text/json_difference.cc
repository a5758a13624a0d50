#include "services/common/text/json_difference.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

bool HasOnlyObjects(const Json* array) {
  return array != nullptr && array->is_array() &&
         std::all_of(array->begin(), array->end(),
                     [](const Json& item) { return item.is_object(); });
}

void Compare(const std::string& path, const Json* before, const Json* after,
             std::vector<JsonDifference>* differences) {
  if (before != nullptr && after != nullptr && *before == *after) return;
  if (HasOnlyObjects(before) && HasOnlyObjects(after) && before->size() == after->size()) {
    for (size_t i = 0; i < before->size(); ++i) {
      Compare(absl::StrCat(path, "[", i, "]"), &before->at(i), &after->at(i), differences);
    }
    return;
  }

  const bool objects =
      (before == nullptr || before->is_object()) && (after == nullptr || after->is_object());
  if (!objects) {
    differences->push_back({path, before, after});
    return;
  }

  std::set<std::string> names;
  for (const Json* side : {before, after}) {
    if (side == nullptr) continue;
    for (const auto& member : side->items()) names.insert(member.key());
  }

  for (const std::string& name : names) {
    const auto child = [&](const Json* side) -> const Json* {
      return side != nullptr && side->contains(name) ? &side->at(name) : nullptr;
    };
    Compare(path.empty() ? name : absl::StrCat(path, ".", name), child(before), child(after),
            differences);
  }
}

}  // namespace

std::vector<JsonDifference> JsonDifferences(const std::string& path, const Json& before,
                                            const Json& after) {
  std::vector<JsonDifference> differences;
  Compare(path, &before, &after, &differences);
  return differences;
}

}  // namespace sluice

#include "operator/local/resume.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/api/codec.h"
#include "operator/api/field_table.h"

namespace sluice::local {
namespace {

using Json = nlohmann::json;

bool MayChange(absl::string_view path) {
  if (absl::StartsWith(path, "spec.")) return !api::IsFixed(path);
  return absl::StartsWith(path, "metadata.labels") ||
         absl::StartsWith(path, "metadata.annotations");
}

void Compare(const std::string& path, const Json* before, const Json* after,
             std::vector<ManifestChange>* changes) {
  if (before != nullptr && after != nullptr && *before == *after) return;
  const bool objects =
      (before == nullptr || before->is_object()) && (after == nullptr || after->is_object());
  if (objects) {
    std::set<std::string> keys;
    for (const Json* side : {before, after}) {
      if (side == nullptr) continue;
      for (const auto& entry : side->items()) keys.insert(entry.key());
    }
    for (const std::string& key : keys) {
      const auto child = [&](const Json* side) -> const Json* {
        return side != nullptr && side->contains(key) ? &side->at(key) : nullptr;
      };
      Compare(path.empty() ? key : absl::StrCat(path, ".", key), child(before), child(after),
              changes);
    }
    return;
  }
  const auto text = [](const Json* side) { return side == nullptr ? "(unset)" : side->dump(); };
  changes->push_back({path, text(before), text(after), MayChange(path)});
}

}  // namespace

std::vector<ManifestChange> CompareJobs(const api::TrainingJob& before,
                                        const api::TrainingJob& after) {
  Json old_json = api::ToJson(before);
  Json new_json = api::ToJson(after);
  for (Json* json : {&old_json, &new_json}) (*json)["metadata"].erase("uid");
  std::vector<ManifestChange> changes;
  Compare("", &old_json, &new_json, &changes);
  return changes;
}

}  // namespace sluice::local

#include "operator/local/resume.h"

#include "absl/strings/match.h"
#include "operator/api/codec.h"
#include "operator/api/field_table.h"
#include "services/common/json_difference.h"

namespace sluice::local {
namespace {

using Json = nlohmann::json;

bool MayChange(absl::string_view path) {
  if (absl::StartsWith(path, "spec.")) return !api::IsFixed(path);
  return absl::StartsWith(path, "metadata.labels") ||
         absl::StartsWith(path, "metadata.annotations");
}

std::string ValueText(const Json* value) { return value == nullptr ? "(unset)" : value->dump(); }

}  // namespace

std::vector<ManifestChange> CompareJobs(const api::TrainingJob& before,
                                        const api::TrainingJob& after) {
  Json old_json = api::ToJson(before);
  Json new_json = api::ToJson(after);
  for (Json* json : {&old_json, &new_json}) (*json)["metadata"].erase("uid");
  std::vector<ManifestChange> changes;
  for (const JsonDifference& each : JsonDifferences("", old_json, new_json)) {
    changes.push_back(
        {each.path, ValueText(each.before), ValueText(each.after), MayChange(each.path)});
  }
  return changes;
}

}  // namespace sluice::local

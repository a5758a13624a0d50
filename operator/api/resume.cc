#include "operator/api/resume.h"

#include "absl/strings/match.h"
#include "operator/api/codec.h"
#include "operator/api/field_table.h"
#include "services/common/json_difference.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

bool MayChange(absl::string_view path) {
  if (absl::StartsWith(path, "spec.")) return !IsFixed(path);
  return absl::StartsWith(path, "metadata.labels") ||
         absl::StartsWith(path, "metadata.annotations");
}

std::string ValueText(const Json* value) { return value == nullptr ? "(unset)" : value->dump(); }

}  // namespace

std::vector<ManifestChange> CompareJobs(const TrainingJob& before, const TrainingJob& after) {
  Json old_json = ToJson(before);
  Json new_json = ToJson(after);
  for (Json* json : {&old_json, &new_json}) (*json)["metadata"].erase("uid");
  // ToJson leaves it out where there are too few shards.
  old_json["spec"]["parameterServer"]["copies"] = before.spec.parameter_server().copies();
  new_json["spec"]["parameterServer"]["copies"] = after.spec.parameter_server().copies();
  std::vector<ManifestChange> changes;
  for (const JsonDifference& each : JsonDifferences("", old_json, new_json)) {
    changes.push_back(
        {each.path, ValueText(each.before), ValueText(each.after), MayChange(each.path)});
  }
  return changes;
}

}  // namespace sluice::api

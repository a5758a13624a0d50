#include "services/manifest/resume.h"

#include <utility>

#include "services/common/text/json_difference.h"
#include "services/manifest/codec.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

std::string ValueText(const Json* value) { return value == nullptr ? "(unset)" : value->dump(); }

// The fields of `object` that are recorded, and those below them; null if there are none.
Json RecordedPart(const SchemaNode& schema, const Json& object) {
  Json part;
  for (const SchemaNode* child : schema.children) {
    // The record is a file of this storage.
    if (child->field->path == "spec.checkpoint.storage") continue;
    const auto found = object.find(child->name);
    if (found == object.end()) continue;
    const bool whole = child->field->change != Change::kFree;
    Json value = whole ? *found : found->is_object() ? RecordedPart(*child, *found) : Json();
    if (!value.is_null()) part[child->name] = std::move(value);
  }
  return part;
}

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
    const Change change = ChangeOf(each.path);
    changes.push_back(
        {each.path, ValueText(each.before), ValueText(each.after), !IsFixed(change), change});
  }
  return changes;
}

Json RecordedSettings(const v1::JobSpec& job) {
  TrainingJob described;
  described.spec = job;
  return {{"spec", RecordedPart(*FindSchema("spec"), ToJson(described)["spec"])}};
}

}  // namespace sluice::api

#include "services/manifest/testing/example_manifests.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace sluice::api {

using Json = nlohmann::json;

Json PatchedManifest(const std::string& patch) {
  Json manifest = MinimalManifest();
  if (!patch.empty()) manifest.merge_patch(Json::parse(patch));
  return manifest;
}

std::string ManifestWith(const Field& field, const std::string& value) {
  Json manifest = PatchedManifest(field.context);
  const Json::json_pointer place(absl::StrCat("/", absl::StrReplaceAll(field.path, {{".", "/"}})));
  manifest[place] = "@here@";
  if (value.empty()) manifest[place.parent_pointer()].erase(place.back());
  return absl::StrReplaceAll(manifest.dump(), {{"\"@here@\"", value}});
}

std::string ManifestWith(const Rule& rule, const std::string& example) {
  Json manifest = PatchedManifest(rule.context);
  Json patch = Json::parse(example);
  const std::vector<std::string> parts = absl::StrSplit(rule.scope, '.');
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) patch = {{*part, patch}};
  manifest.merge_patch(patch);
  return manifest.dump();
}

}  // namespace sluice::api

// There are two lists of the fields that a checkpoint depends on: the field table's, by which
// CompareJobs rejects changes, and that of claims (ClaimSettings).

#include "operator/api/resume.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "operator/api/codec.h"
#include "operator/api/field_table.h"
#include "operator/api/manifest.h"
#include "operator/api/testing/example_manifests.h"
#include "services/checkpoint/existing_job.h"
#include "services/protocol/changeable_settings.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

// The content of a claim for manifests with each value of the field that the table knows, and for
// one without the field.
std::set<std::string> SettingsOfEachValue(const Field& field) {
  const Json::json_pointer place(absl::StrCat("/", absl::StrReplaceAll(field.path, {{".", "/"}})));
  std::set<std::string> settings;
  for (const Example& example : field.examples) {
    const std::string with = ManifestWith(field, example.yaml);
    const ParsedManifest parsed = ParseManifest(with, {"job.yaml", ""});
    EXPECT_TRUE(parsed.ok()) << with;
    settings.insert(ClaimSettings(parsed.job.spec));
    // These manifests need not be valid.
    Json job = ToJson(parsed.job);
    for (const std::string& value : field.values) {
      job[place] = value;
      settings.insert(ClaimSettings(FromJson(job).spec));
    }
    if (job.contains(place)) job[place.parent_pointer()].erase(place.back());
    settings.insert(ClaimSettings(FromJson(job).spec));
  }
  return settings;
}

bool IsOfClusters(absl::string_view path) {
  for (size_t end = path.size(); end != absl::string_view::npos; end = path.rfind('.', end - 1)) {
    const SchemaNode* node = FindSchema(path.substr(0, end));
    if (node != nullptr && node->field->cluster_only) return true;
  }
  return false;
}

TEST(ResumeTest, AClaimRecordsTheFixedSettingsTheLengthAndTheRates) {
  int recorded = 0;
  for (const Field& field : Fields()) {
    const bool item = absl::StrContains(field.path, "[]") || absl::StrContains(field.path, "{}");
    if (field.examples.empty() || item || IsOfClusters(field.path)) continue;
    // The claim is in that directory.
    if (absl::StartsWith(field.path, "spec.checkpoint.storage")) continue;
    const bool differs = SettingsOfEachValue(field).size() > 1;
    const bool kept =
        IsFixed(field.path) || IsLengthSetting(field.path) || IsChangeableSetting(field.path);
    EXPECT_EQ(differs, kept) << field.path;
    recorded += differs;
  }
  EXPECT_GT(recorded, 40);
}

TEST(ResumeTest, ANewNumberOfShardsIsTheOnlyChange) {
  const auto with_shards = [](const char* count) {
    const std::string text =
        ManifestWith(*FindSchema("spec.parameterServer.replicas")->field, count);
    return ParseManifest(text, {"job.yaml", ""}).job;
  };
  for (const auto& [before, after] : {std::pair("1", "2"), std::pair("2", "1")}) {
    const std::vector<ManifestChange> changes =
        CompareJobs(with_shards(before), with_shards(after));
    ASSERT_EQ(changes.size(), 1u) << before;
    EXPECT_EQ(changes[0].path, "spec.parameterServer.replicas");
    EXPECT_EQ(changes[0].before, before);
    EXPECT_EQ(changes[0].after, after);
  }
}

}  // namespace
}  // namespace sluice::api

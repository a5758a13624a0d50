#include "services/manifest/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "services/checkpoint/existing_job.h"
#include "services/manifest/codec.h"
#include "services/manifest/field_table.h"
#include "services/manifest/manifest.h"
#include "services/manifest/testing/example_manifests.h"

namespace sluice::api {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

bool IsOfClusters(absl::string_view path) {
  for (size_t end = path.size(); end != absl::string_view::npos; end = path.rfind('.', end - 1)) {
    const SchemaNode* node = FindSchema(path.substr(0, end));
    if (node != nullptr && node->field->cluster_only) return true;
  }
  return false;
}

// Rows that have a value of their own in a claim, or could have one.
bool IsSetting(const Field& field) {
  return absl::StartsWith(field.path, "spec.") && field.type != FieldType::kObject &&
         !absl::EndsWith(field.path, "[]") && !absl::EndsWith(field.path, "{}") &&
         !IsOfClusters(field.path) && !absl::StartsWith(field.path, "spec.checkpoint.storage");
}

// Two different values. They need not be those of a valid manifest.
std::pair<Json, Json> TwoValues(const SchemaNode& row) {
  const Field& field = *row.field;
  if (!field.values.empty()) return {field.values[0], field.values[1]};
  switch (field.type) {
    case FieldType::kBoolean:
      return {true, false};
    case FieldType::kInteger:
      return {field.minimum.value_or(0) + 1, field.minimum.value_or(0) + 2};
    case FieldType::kNumber: {
      const double low = field.minimum.value_or(0);
      const double range = field.maximum.value_or(low + 1) - low;
      return {low + range / 4, low + range / 2};
    }
    case FieldType::kMap: {
      const auto [first, second] = TwoValues(*row.item);
      return {Json::object({{"a", first}}), Json::object({{"a", second}})};
    }
    case FieldType::kList: {
      if (row.item->field->type == FieldType::kObject) {
        return {Json::array({Json::object()}), Json::array({Json::object(), Json::object()})};
      }
      const auto [first, second] = TwoValues(*row.item);
      const size_t size = std::max<size_t>(field.min_size, 1);
      return {Json(size, first), Json(size, second)};
    }
    default:
      return {"first", "second"};
  }
}

// The manifest around a row, with one item in each list around it.
Json ManifestAround(const Field& field) {
  std::string path = field.like.empty() ? field.path : field.like;
  absl::StrReplaceAll({{"spec.optimizer.groups[].", "spec.optimizer."}}, &path);
  const SchemaNode* const original = FindSchema(path);
  Json manifest = PatchedManifest(original == nullptr ? "" : original->field->context);
  Json& optimizer = manifest["spec"]["optimizer"];
  Json group = {{"patterns", Json::array({"a"})}};
  if (absl::StrContains(field.path, "schedule.parts[].")) {
    Json chained = {{"type", "Chained"}};
    chained["parts"].push_back(optimizer["schedule"]);
    optimizer["schedule"] = std::move(chained);
  }
  if (absl::StrContains(field.path, "groups[].schedule.")) {
    group["schedule"] = optimizer["schedule"];
    optimizer.erase("schedule");
  }
  if (absl::StrContains(field.path, "groups[].")) optimizer["groups"].push_back(std::move(group));
  return manifest;
}

std::string Text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// A job before and after a change of one field, and the expected message.
struct Changed {
  std::string path;
  TrainingJob before, after;
  Json old_value, new_value;  // as the manifests have them

  std::string Claimed() const {
    v1::Claim claim;
    claim.set_attempt(1);
    claim.set_job(FullJobName(before.spec));
    claim.set_settings(ClaimSettings(before.spec));
    v1::JobSpec job = after.spec;
    job.set_uid("u2");
    RestorePoint point;
    point.found = true;
    return JudgeExisting(job, {claim}, point).message;
  }
};

Changed ChangeOne(const SchemaNode& row) {
  Changed changed;
  changed.path = absl::StrReplaceAll(row.field->path, {{"[]", "[0]"}});
  const Json::json_pointer place(
      absl::StrCat("/", absl::StrReplaceAll(row.field->path, {{"[]", "/0"}, {".", "/"}})));
  const auto [first, second] = TwoValues(row);
  for (const bool is_first : {true, false}) {
    Json manifest = ManifestAround(*row.field);
    manifest["metadata"]["uid"] = "u1";
    manifest[place] = is_first ? first : second;
    TrainingJob& job = is_first ? changed.before : changed.after;
    job = FromJson(manifest);
    const Json written = ToJson(job);
    if (!written.contains(place)) continue;
    (is_first ? changed.old_value : changed.new_value) = written[place];
  }
  if (row.field->type == FieldType::kMap) {
    absl::StrAppend(&changed.path, ".a");
    changed.old_value = Json(changed.old_value)["a"];
    changed.new_value = Json(changed.new_value)["a"];
  }
  return changed;
}

TEST(ResumeTest, EveryFieldThatACheckpointRecordsIsNamedAsInTheManifest) {
  int recorded = 0;
  for (const Field& field : Fields()) {
    if (!IsSetting(field)) continue;
    const Changed changed = ChangeOne(*FindSchema(field.path));
    ASSERT_NE(changed.old_value, changed.new_value) << field.path;
    const Change may = ChangeOf(field.path);
    if (may == Change::kFree) {
      EXPECT_EQ(ClaimSettings(changed.before.spec), ClaimSettings(changed.after.spec))
          << field.path;
      continue;
    }
    ++recorded;
    EXPECT_THAT(changed.Claimed(),
                HasSubstr(absl::StrCat(changed.path, " ", Text(changed.old_value), " -> ",
                                       Text(changed.new_value))));
    bool compared = false;
    for (const ManifestChange& each : CompareJobs(changed.before, changed.after)) {
      if (each.path != changed.path) continue;
      compared = true;
      EXPECT_EQ(each.before, changed.old_value.dump()) << field.path;
      EXPECT_EQ(each.after, changed.new_value.dump()) << field.path;
      EXPECT_EQ(each.allowed, may == Change::kLength || may == Change::kRate) << field.path;
      EXPECT_EQ(each.change, may) << field.path;
    }
    EXPECT_TRUE(compared) << field.path;
  }
  EXPECT_GT(recorded, 100);
}

TEST(ResumeTest, ClaimedSettingsAreAManifestThatAnyReleaseReads) {
  const ParsedManifest parsed = ParseManifest(MinimalManifest().dump(), {});
  const Json settings = RecordedSettings(parsed.job.spec);
  EXPECT_EQ(settings["spec"]["optimizer"]["name"], "SGD");
  EXPECT_EQ(settings["spec"]["training"]["steps"], 100);
  EXPECT_FALSE(settings["spec"].contains("worker"));
  EXPECT_FALSE(settings["spec"].contains("checkpoint"));
  EXPECT_EQ(RecordedSettings(FromJson(settings).spec), settings);
}

TEST(ResumeTest, ANewNumberOfShardsIsTheOnlyChange) {
  const auto with_shards = [](const char* count) {
    const std::string text =
        ManifestWith(*FindSchema("spec.parameterServer.replicas")->field, count);
    return ParseManifest(text, "").job;
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

TEST(ResumeTest, NameAndNamespaceNeverChangeAndLabelsDo) {
  const auto with = [](const char* patch) {
    return ParseManifest(PatchedManifest(patch).dump(), "").job;
  };
  for (const auto& [patch, allowed] :
       {std::pair(R"({"metadata":{"name":"b"}})", false),
        std::pair(R"({"metadata":{"namespace":"b"}})", false),
        std::pair(R"({"metadata":{"labels":{"a":"b"}}})", true),
        std::pair(R"({"metadata":{"annotations":{"a":"b"}}})", true)}) {
    const std::vector<ManifestChange> changes = CompareJobs(with("{}"), with(patch));
    ASSERT_EQ(changes.size(), 1u) << patch;
    EXPECT_EQ(changes[0].allowed, allowed) << patch;
  }
}

}  // namespace
}  // namespace sluice::api

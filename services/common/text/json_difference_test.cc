#include "services/common/text/json_difference.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

std::vector<std::string> Lines(const std::string& path, const char* before, const char* after) {
  const Json old_json = Json::parse(before);
  const Json new_json = Json::parse(after);
  const auto text = [](const Json* value) { return value == nullptr ? "-" : value->dump(); };
  std::vector<std::string> lines;
  for (const JsonDifference& each : JsonDifferences(path, old_json, new_json)) {
    lines.push_back(absl::StrCat(each.path, " ", text(each.before), " ", text(each.after)));
  }
  return lines;
}

using LineList = std::vector<std::string>;

TEST(JsonDifferenceTest, ListsChangedAddedAndRemovedFieldsByName) {
  EXPECT_EQ(
      Lines("", R"({"c": 1, "a": 1, "same": {"x": 1}})", R"({"b": 2, "a": "1", "same": {"x": 1}})"),
      (LineList{"a 1 \"1\"", "b - 2", "c 1 -"}));
}

TEST(JsonDifferenceTest, ListsOfAsManyObjectsAreComparedItemByItem) {
  EXPECT_EQ(Lines("", R"({"a": [{"x": 1}, {"x": 2}]})", R"({"a": [{"x": 1}, {"x": 3, "y": 4}]})"),
            (LineList{"a[1].x 2 3", "a[1].y - 4"}));
  EXPECT_EQ(Lines("", R"({"a": [{"x": 1}], "b": [1]})", R"({"a": [], "b": [{"x": 1}]})"),
            (LineList{R"(a [{"x":1}] [])", R"(b [1] [{"x":1}])"}));
}

TEST(JsonDifferenceTest, PathsBeginWithPathOfObjects) {
  EXPECT_EQ(Lines("spec", R"({"training": {"steps": 1}})", R"({"training": {"steps": 2}})"),
            LineList{"spec.training.steps 1 2"});
}

TEST(JsonDifferenceTest, ListsObjectOfOneSideFieldByField) {
  EXPECT_EQ(Lines("", R"({"a": {"x": 1, "y": {"z": 2}}})", "{}"),
            (LineList{"a.x 1 -", "a.y.z 2 -"}));
}

TEST(JsonDifferenceTest, ComparesArraysAndValuesOfDifferentKindsAsWhole) {
  EXPECT_EQ(Lines("", R"({"a": [1, 2], "b": {"x": 1}})", R"({"a": [1, 3], "b": [1]})"),
            (LineList{"a [1,2] [1,3]", "b {\"x\":1} [1]"}));
}

}  // namespace
}  // namespace sluice

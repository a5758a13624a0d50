#include "operator/kube/object.h"

#include <gtest/gtest.h>

namespace sluice::kube {
namespace {

const Json& Pod() {
  static const auto* const pod = new Json(Json::parse(R"({
      "status": {"phase": "Running", "conditions": [
          7, {"status": "True"}, {"type": "Ready", "status": "True"}, {"type": "Ready"}]}})"));
  return *pod;
}

TEST(ObjectTest, ReadsAListOrNothing) {
  EXPECT_EQ(GetList(Pod(), {"status", "conditions"}).size(), 4u);
  for (const Json& object : {Pod(), Json(), Json(7), Json::array()}) {
    EXPECT_TRUE(GetList(object, {"status", "phase"}).empty());
    EXPECT_TRUE(GetList(object, {"status", "absent"}).empty());
  }
}

TEST(ObjectTest, FindsTheFirstItemWithAValue) {
  const Json* found = FindItem(Pod(), {"status", "conditions"}, "type", "Ready");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(GetString(*found, {"status"}), "True");
  EXPECT_EQ(FindItem(Pod(), {"status", "conditions"}, "type", "Scheduled"), nullptr);
  EXPECT_EQ(FindItem(Pod(), {"status", "phase"}, "type", "Ready"), nullptr);
}

}  // namespace
}  // namespace sluice::kube

#include "services/common/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(JsonDepth, CountsOpenListsAndObjects) {
  EXPECT_EQ(JsonDepth("1"), 0u);
  EXPECT_EQ(JsonDepth(R"({"a": [1, [2]], "b": {}})"), 3u);
  EXPECT_EQ(JsonDepth("[][][]"), 1u);
  EXPECT_EQ(JsonDepth(std::string(100'000, '[')), 100'000u);
}

TEST(JsonDepth, PassesOverStrings) {
  EXPECT_EQ(JsonDepth(R"("[[[[")"), 0u);
  EXPECT_EQ(JsonDepth(R"(["\"[[", "\\", []])"), 2u);
}

TEST(JsonDepth, TakesTextThatIsNotJson) {
  EXPECT_EQ(JsonDepth("]]]]["), 1u);
  EXPECT_EQ(JsonDepth("\"\\"), 0u);
}

}  // namespace
}  // namespace sluice

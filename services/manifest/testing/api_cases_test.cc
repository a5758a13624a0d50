#include "services/manifest/testing/api_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace sluice::api {
namespace {

TEST(ApiCases, HaveDistinctNamesAndExpectedTextsOfRefusals) {
  std::set<std::string> names;
  for (const ApiCase& one : ApiCases()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_EQ(one.words.empty(), one.accepted) << one.name;
  }
}

TEST(ApiCases, CoverMoreThanSixtyMistakes) {
  int refused = 0, accepted = 0;
  for (const ApiCase& one : ApiCases()) ++(one.accepted ? accepted : refused);
  EXPECT_GT(refused, 150);
  EXPECT_GT(accepted, 100);
}

TEST(ApiCases, TranslateOurMessagesIntoTheServers) {
  for (const ApiCase& one : ApiCases()) {
    if (one.name == "manifest.too_small") {
      EXPECT_THAT(one.words, ::testing::ElementsAre("spec.training.steps",
                                                    "should be greater than or equal to 1"));
    }
    if (one.name == "manifest.two_ends") {
      EXPECT_THAT(one.words, ::testing::ElementsAre("spec.training.epochs",
                                                    "give `steps` or `epochs`, not both"));
    }
  }
}

}  // namespace
}  // namespace sluice::api

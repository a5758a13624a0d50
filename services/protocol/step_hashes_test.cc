#include "services/protocol/step_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(StepHashesTest, ParsesWhatItWrites) {
  const std::string text = StepHashesText({{9, 0x1a}, {10, UINT64_MAX}, {UINT64_MAX, 0}});
  EXPECT_EQ(text, "9:000000000000001a 10:ffffffffffffffff 18446744073709551615:0000000000000000");
  const auto hashes = ParseStepHashes(text);
  ASSERT_TRUE(hashes.ok()) << hashes.status();
  EXPECT_EQ(StepHashesText(*hashes), text);
  EXPECT_EQ(hashes->at(0).step, 9u);
  EXPECT_EQ(hashes->at(1).hash, UINT64_MAX);
}

TEST(StepHashesTest, EmptyTextHasNoHashes) {
  EXPECT_EQ(StepHashesText({}), "");
  const auto hashes = ParseStepHashes("");
  ASSERT_TRUE(hashes.ok());
  EXPECT_TRUE(hashes->empty());
}

TEST(StepHashesTest, RejectsOtherTexts) {
  for (const char* text : {"7", "7:", "7:12", ":000000000000001a", "x:000000000000001a",
                           "7:000000000000001g", "7:0x0000000000001a", "-1:000000000000001a",
                           "7:000000000000001a:1", "18446744073709551616:000000000000001a"}) {
    EXPECT_EQ(ParseStepHashes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(StepHashesTest, ErrorOfBytesThatAreNoTextIsText) {
  EXPECT_EQ(ParseStepHashes("7:\xff\x01").status().message(),
            "'7:\\xff\\x01' is not a step and its state hash");
}

TEST(StepHashesTest, RejectsStepsThatDoNotAscend) {
  const auto hashes = ParseStepHashes("7:000000000000001a 7:000000000000001a");
  EXPECT_THAT(hashes.status().message(), ::testing::HasSubstr("step 7 follows step 7"));
}

TEST(StepHashesTest, RejectsMoreThanItsBound) {
  std::vector<StepHash> hashes(kMaxStepHashes);
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i].step = i;
  EXPECT_TRUE(ParseStepHashes(StepHashesText(hashes)).ok());
  hashes.push_back({hashes.size(), 0});
  EXPECT_FALSE(ParseStepHashes(StepHashesText(hashes)).ok());
}

}  // namespace
}  // namespace sluice

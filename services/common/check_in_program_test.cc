// Linked as a program is, without //third_party:gtest: debug checks are off.

#include <gtest/gtest.h>

#include "services/common/check.h"

namespace sluice {
namespace {

TEST(CheckInProgramTest, DebugChecksAreOffUnlessAssertionsAreBuiltIn) {
  EXPECT_EQ(DebugChecksAreOn(), kBuiltWithAssertions);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

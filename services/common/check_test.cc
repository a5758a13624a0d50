#include "services/common/check.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(CheckTest, DebugChecksAreOnInTests) { EXPECT_TRUE(DebugChecksAreOn()); }

TEST(CheckTest, WithoutDebugChecksConditionIsNotEvaluated) {
  int evaluated = 0;
  const auto fails = [&] { return ++evaluated == 0; };
  {
    const WithoutDebugChecks off;
    SLUICE_DCHECK(fails(), "nothing is evaluated");
  }
  EXPECT_EQ(evaluated, 0);
  EXPECT_TRUE(DebugChecksAreOn());
}

TEST(CheckDeathTest, ViolatedDebugCheckEndsTheTestWithPlaceAndReason) {
  const int samples = 3;
  SLUICE_DCHECK(samples == 3, "every sample is counted once");
  EXPECT_DEATH(SLUICE_DCHECK(samples == 4, "every sample is counted once"),
               "check_test.cc:[0-9]+: every sample is counted once: \\(samples == 4\\) is false");
}

}  // namespace
}  // namespace sluice

#include "services/common/arithmetic/splitmix64.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(SplitMix64Test, MatchesPublishedSequence) {
  // The reference implementation's first outputs for seed 1234567.
  EXPECT_EQ(SplitMix64At(1234567, 0), 6457827717110365317u);
  EXPECT_EQ(SplitMix64At(1234567, 1), 3203168211198807973u);
  EXPECT_EQ(SplitMix64At(1234567, 2), 9817491932198370423u);
}

TEST(SplitMix64Test, UnitDoublesAreFromZeroToJustBelowOne) {
  EXPECT_EQ(UnitDouble(0), 0.0);
  EXPECT_EQ(UnitDouble(uint64_t{1} << 63), 0.5);
  EXPECT_LT(UnitDouble(~uint64_t{0}), 1.0);
}

TEST(Fnv1a64Test, MatchesPublishedValues) {
  EXPECT_EQ(Fnv1a64(""), 0xCBF29CE484222325u);
  EXPECT_EQ(Fnv1a64("a"), 0xAF63DC4C8601EC8Cu);
  EXPECT_EQ(Fnv1a64("foobar"), 0x85944171F73967E8u);
}

}  // namespace
}  // namespace sluice

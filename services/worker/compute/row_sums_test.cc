#include "services/worker/compute/row_sums.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/common/arithmetic/half.h"
#include "services/worker/compute/testing/recording_sink.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RowSumsTest, AddsRepeatedRows) {
  const std::vector<int64_t> named = {7, 2, 7};
  const std::vector<float> values = {1, 2, 10, 20, 100, 200};
  const RowSums sums = SumRows(v1::FLOAT32, named, values.data(), 2);
  EXPECT_THAT(sums.rows, ElementsAre(2, 7));
  EXPECT_THAT(Elements(sums.values), ElementsAre(10, 20, 101, 202));
}

TEST(RowSumsTest, AddsInOrderOfTheSamples) {
  const std::vector<int64_t> named = {0, 0, 0};
  const std::vector<float> values = {1e8f, -1e8f, 1};
  EXPECT_THAT(Elements(SumRows(v1::FLOAT32, named, values.data(), 1).values), ElementsAre(1));
  const std::vector<float> other = {1, 1e8f, -1e8f};
  EXPECT_THAT(Elements(SumRows(v1::FLOAT32, named, other.data(), 1).values), ElementsAre(0));
}

TEST(RowSumsTest, RoundsSixteenBitTypesAtEachAddition) {
  const std::vector<int64_t> named = {3, 3, 3};
  const BFloat16 half_unit = ToBFloat16(1.0f);
  const std::vector<BFloat16> values = {ToBFloat16(256.0f), half_unit, half_unit};
  const RowSums sums = SumRows(v1::BFLOAT16, named, values.data(), 1);
  EXPECT_EQ(ToFloat(Elements<BFloat16>(sums.values)[0]), 256);
}

TEST(RowSumsTest, NoRowsGiveNoSums) {
  const RowSums sums = SumRows(v1::FLOAT64, {}, nullptr, 4);
  EXPECT_THAT(sums.rows, IsEmpty());
  EXPECT_TRUE(sums.values.empty());
}

}  // namespace
}  // namespace sluice

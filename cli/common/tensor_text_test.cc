#include "cli/common/tensor_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;

SafetensorsArray Zeros(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  return {name, v1::FLOAT32, shape, absl::Cord(std::string(static_cast<size_t>(elements) * 4, 0))};
}

TEST(TensorTableTest, ListsTensorsWithShapeAndType) {
  EXPECT_THAT(TensorTableLines({Zeros("conv1.weight", {2, 3}), Zeros("b", {2})}, false, {}),
              ElementsAre("NAME          SHAPE   TYPE    ", "conv1.weight  [2, 3]  float32 ",
                          "b             [2]     float32 "));
}

TEST(TensorTableTest, ListsOwnersOfARunningJobsTensors) {
  EXPECT_THAT(TensorTableLines({Zeros("conv1.weight", {2, 3}), Zeros("b", {2})}, false,
                               {{"conv1.weight", "ps-0, ps-1"}, {"b", "ps-1"}}),
              ElementsAre("NAME          SHAPE   TYPE      OWNER     ",
                          "conv1.weight  [2, 3]  float32   ps-0, ps-1",
                          "b             [2]     float32   ps-1      "));
}

TEST(WatchTextTest, ShowsFirstValuesOfOneTensor) {
  EXPECT_EQ(WatchText({Zeros("w", {2, 2})}, 3), "w 0 0 0 and 1 more");
  EXPECT_EQ(WatchText({Zeros("w", {3})}, 3), "w 0 0 0");
}

TEST(WatchTextTest, ShowsStatisticsOfSeveralTensors) {
  SafetensorsArray two = Zeros("b", {1});
  const float value = 4;
  two.bytes = absl::Cord(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
  EXPECT_EQ(WatchText({Zeros("w", {3}), two}, 3), "2 tensors, 4 values, mean 1, deviation 1.732");
}

}  // namespace
}  // namespace sluice::cli

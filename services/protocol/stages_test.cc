#include "services/protocol/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "services/protocol/layout.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::TensorTable Table() {
  v1::TensorTable table;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    for (int64_t extent : shape) tensor.add_shape(extent);
    tensor.set_dtype(v1::FLOAT32);
    tensor.set_kind(v1::PARAMETER);
  };
  add("conv1.weight", {32, 1, 3, 3});
  add("conv1.bias", {32});
  add("fc1.weight", {128, 9216});
  add("fc1.bias", {128});
  return table;
}

v1::ModelSpec Stages(const std::vector<std::vector<std::string>>& stages) {
  v1::ModelSpec model;
  for (const auto& layers : stages) {
    v1::ModelSpec::Stage& stage = *model.add_stages();
    for (const std::string& layer : layers) stage.add_layers(layer);
  }
  return model;
}

std::string ErrorOf(const v1::ModelSpec& model) {
  const auto stages = StageOfTensors(Table(), model);
  return stages.ok() ? "" : std::string(stages.status().message());
}

TEST(StagesTest, AllTensorsAreInOneStageWithoutStages) {
  EXPECT_EQ(StageCount(v1::ModelSpec()), 1u);
  EXPECT_THAT(*StageOfTensors(Table(), v1::ModelSpec()), ElementsAre(0, 0, 0, 0));
}

TEST(StagesTest, TensorBelongsToStageOfItsLayer) {
  EXPECT_THAT(*StageOfTensors(Table(), Stages({{"conv1"}, {"fc1"}})), ElementsAre(0, 0, 1, 1));
}

TEST(StagesTest, NamesUnknownLayerAndKnownLayers) {
  EXPECT_THAT(ErrorOf(Stages({{"conv1"}, {"fc1", "fc9"}})),
              HasSubstr("model.stages[1]: the model has no layer 'fc9'; it has conv1, fc1"));
}

TEST(StagesTest, NamesLayerInNoStage) {
  EXPECT_THAT(ErrorOf(Stages({{"conv1"}})), HasSubstr("layer 'fc1' of the model is in none"));
}

TEST(StagesTest, NamesLayerInTwoStagesAndBothStages) {
  EXPECT_THAT(ErrorOf(Stages({{"conv1"}, {"fc1", "conv1"}})),
              HasSubstr("model.stages[1]: layer 'conv1' is in model.stages[0] already"));
}

TEST(StagesTest, NamesStageWithoutLayers) {
  EXPECT_THAT(ErrorOf(Stages({{"conv1", "fc1"}, {}})), HasSubstr("model.stages[1] has no layers"));
}

TEST(StagesTest, EachStageIsItsOwnPartition) {
  const v1::ModelSpec model = Stages({{"conv1"}, {"fc1"}});
  const auto layout = MakeStagedLayout(Table(), model, 64);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_TRUE(ValidateLayout(Table(), *layout).ok()) << ValidateLayout(Table(), *layout);
  EXPECT_TRUE(CheckStagedLayout(Table(), model, *layout).ok());
  const LayoutIndex index(Table(), *layout);
  EXPECT_EQ(index.PartitionBytes(0), (32 * 9 + 32) * 4u);
  EXPECT_EQ(index.PartitionBytes(1), (128 * 9216 + 128) * 4u);
  const std::vector<uint32_t> owner = PlacePartitions(index, 2);
  EXPECT_NE(owner[0], owner[1]) << "two stages on two shards";
}

TEST(StagesTest, RejectsFewerPartitionsThanStages) {
  const auto layout = MakeStagedLayout(Table(), Stages({{"conv1"}, {"fc1"}}), 1);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StagesTest, RejectsLayoutThatScattersStage) {
  const v1::ModelSpec model = Stages({{"conv1"}, {"fc1"}});
  const absl::Status status = CheckStagedLayout(Table(), model, *MakeLayout(Table(), 8));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

// A checkpoint's layout comes from a file.
TEST(StagesTest, RejectsLayoutWithBlockOfNoTensor) {
  const v1::ModelSpec model = Stages({{"conv1"}, {"fc1"}});
  v1::Layout layout = *MakeStagedLayout(Table(), model, 2);
  layout.mutable_blocks(0)->set_tensor(1'000'000);
  const absl::Status status = CheckStagedLayout(Table(), model, layout);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace sluice

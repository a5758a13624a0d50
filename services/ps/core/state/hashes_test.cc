#include "services/ps/core/state/hashes.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "services/protocol/layout.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {
namespace {

// A partition of one tensor to which each close adds the contribution.
class StateHashesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    v1::JobSpec job;
    job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADD);
    v1::TensorTable table;
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("w");
    tensor.add_shape(4);
    tensor.set_dtype(v1::FLOAT32);
    model = *ShardModel::Create(job, table, *MakeLayout(table, 1));
    partition = MakePartition(0);
  }

  std::unique_ptr<Partition> MakePartition(uint64_t version) {
    MutableBlockRef block = pool->Take(model->block(0).bytes);
    for (char& byte : block->mutable_bytes()) byte = 0;
    BlockState state;
    state.parameters = std::move(block);
    return std::make_unique<Partition>(model, 0, version, std::vector<BlockState>{state});
  }

  void Close(float value) {
    const std::vector<float> values(4, value);
    partition->Reset(1);
    ReceivedBlock block;
    block.payload = absl::Cord(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                                 values.size() * sizeof(float)));
    Partition::Source source;
    source.microbatches = {0, 1};
    ASSERT_TRUE(partition->Add(source, block, *pool).ok());
    ASSERT_TRUE(partition->Complete(0, {1, 1, 1}, true).ok());
    UpdateArguments arguments;
    arguments.schedule_step = partition->version();
    ASSERT_TRUE(partition->Close(arguments, *pool, runner).ok());
  }

  std::vector<StepHash> HashesOf(uint64_t version) const {
    const std::shared_ptr<PartitionContent> content = partition->Pin(version);
    hashes.FillIn(content.get());
    return content->step_hashes;
  }

  const std::shared_ptr<BlockPool> pool = BlockPool::Create(1 << 20);
  InlineRunner runner;
  std::shared_ptr<const ShardModel> model;
  std::unique_ptr<Partition> partition;
  StateHashes hashes;
};

TEST_F(StateHashesTest, RecordsHashOfEveryVersion) {
  std::vector<uint64_t> expected;
  for (int i = 1; i <= 3; ++i) {
    partition->DropUndo();
    Close(1);
    hashes.OnVersion(*partition, 1);
    expected.push_back(StateHash(*partition->Pin(partition->version())));
  }
  const std::vector<StepHash> recorded = HashesOf(3);
  ASSERT_EQ(recorded.size(), 3u);
  for (size_t i = 0; i < recorded.size(); ++i) {
    EXPECT_EQ(recorded[i].step, i + 1);
    EXPECT_EQ(recorded[i].hash, expected[i]);
  }
  EXPECT_NE(expected[1], expected[2]);
}

TEST_F(StateHashesTest, ContentHasOnlyHashesUpToItsVersion) {
  for (int i = 1; i <= 3; ++i) {
    partition->DropUndo();
    Close(1);
    hashes.OnVersion(*partition, 1);
  }
  EXPECT_EQ(HashesOf(2).size(), 2u);  // the undo
}

TEST_F(StateHashesTest, RecordsOnlyMultiplesOfInterval) {
  for (int i = 1; i <= 5; ++i) {
    partition->DropUndo();
    Close(1);
    hashes.OnVersion(*partition, 2);
  }
  const std::vector<StepHash> recorded = HashesOf(5);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].step, 2u);
  EXPECT_EQ(recorded[1].step, 4u);
}

TEST_F(StateHashesTest, RecordsNothingUnlessAsked) {
  Close(1);
  hashes.OnVersion(*partition, 0);
  EXPECT_TRUE(HashesOf(1).empty());
}

TEST_F(StateHashesTest, VersionThatWasTakenBackIsReplaced) {
  Close(1);
  hashes.OnVersion(*partition, 1);
  partition->DropUndo();
  Close(1);
  hashes.OnVersion(*partition, 1);
  const uint64_t before = HashesOf(2).back().hash;

  partition->RollBack();
  EXPECT_EQ(HashesOf(1).size(), 1u);
  Close(2);
  hashes.OnVersion(*partition, 1);
  const std::vector<StepHash> recorded = HashesOf(2);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_NE(recorded[1].hash, before);
  EXPECT_EQ(recorded[1].hash, StateHash(*partition->Pin(2)));
}

TEST_F(StateHashesTest, KeepsTheNewestUpToItsBound) {
  const uint64_t steps = kMaxStepHashes + 5;
  for (uint64_t i = 1; i <= steps; ++i) {
    partition->DropUndo();
    Close(1);
    hashes.OnVersion(*partition, 1);
  }
  const std::vector<StepHash> recorded = HashesOf(steps);
  ASSERT_EQ(recorded.size(), kMaxStepHashes);
  EXPECT_EQ(recorded.front().step, 6u);
  EXPECT_EQ(recorded.back().step, steps);
}

}  // namespace
}  // namespace sluice::ps

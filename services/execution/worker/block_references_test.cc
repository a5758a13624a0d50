#include "services/execution/worker/block_references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

using Buffer = BlockReferences::Buffer;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

absl::Cord Reference(uint64_t handle, uint64_t shard = 1) {
  v1::BlockReference reference;
  reference.set_handle(handle);
  reference.set_shard(shard);
  reference.set_address("host:" + std::to_string(shard));
  return absl::Cord(reference.SerializeAsString());
}

class BlockReferencesTest : public ::testing::Test {
 protected:
  void Set(Buffer buffer, uint32_t tensor, uint64_t offset, const absl::Cord& bytes) {
    const absl::Status status = references_.Set(buffer, tensor, offset, bytes);
    EXPECT_TRUE(status.ok()) << status;
  }
  BlockReferences::Pass Collect(Buffer buffer, const std::vector<uint32_t>& tensors) {
    const auto pass = references_.Collect(buffer, tensors);
    EXPECT_TRUE(pass.ok()) << pass.status();
    return pass.value_or(BlockReferences::Pass());
  }

  BlockReferences references_{2};
};

TEST_F(BlockReferencesTest, PassNamesTheBlocksOfItsTensorsByOffset) {
  Set(Buffer::kIncoming, 0, 8, Reference(2));
  Set(Buffer::kIncoming, 0, 0, Reference(1));
  Set(Buffer::kIncoming, 1, 0, Reference(3));
  references_.Swap();
  const BlockReferences::Pass pass = Collect(Buffer::kCurrent, {0});
  EXPECT_EQ(pass.shard, 1u);
  EXPECT_EQ(pass.address, "host:1");
  EXPECT_THAT(pass.handles, ElementsAre(1, 2));
  EXPECT_THAT(pass.live, UnorderedElementsAre(1, 2, 3)) << "of all tensors";
  EXPECT_EQ(pass.newest, 3u);
}

TEST_F(BlockReferencesTest, BlockInNoBufferIsNotLiveButTheNewestIsKept) {
  Set(Buffer::kIncoming, 0, 0, Reference(1));
  references_.Swap();
  Set(Buffer::kIncoming, 0, 0, Reference(2));
  Set(Buffer::kIncoming, 0, 0, Reference(3));  // replaces the second
  Set(Buffer::kEvaluation, 0, 0, Reference(4));
  const BlockReferences::Pass pass = Collect(Buffer::kCurrent, {0});
  EXPECT_THAT(pass.handles, ElementsAre(1));
  EXPECT_THAT(pass.live, UnorderedElementsAre(1, 3, 4));
  EXPECT_EQ(pass.newest, 4u);
}

TEST_F(BlockReferencesTest, ReportsToEachShardItsOwnLiveBlocks) {
  Set(Buffer::kEvaluation, 0, 0, Reference(7, 1));
  Set(Buffer::kEvaluation, 1, 0, Reference(3, 2));
  EXPECT_THAT(Collect(Buffer::kEvaluation, {0}).live, ElementsAre(7));
  EXPECT_EQ(Collect(Buffer::kEvaluation, {1}).newest, 3u);
}

TEST_F(BlockReferencesTest, RejectsAStageOnTwoShardsNamingBoth) {
  Set(Buffer::kEvaluation, 0, 0, Reference(1, 1));
  Set(Buffer::kEvaluation, 1, 0, Reference(1, 2));
  const absl::Status status = references_.Collect(Buffer::kEvaluation, {0, 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("host:1 and host:2"));
}

TEST_F(BlockReferencesTest, RejectsBytesThatAreNotAReferenceOrHaveNoPlace) {
  EXPECT_EQ(references_.Set(Buffer::kIncoming, 0, 0, absl::Cord("\xff")).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(references_.Set(Buffer::kCurrent, 0, 0, Reference(1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(references_.Set(Buffer::kIncoming, 2, 0, Reference(1)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(references_.Collect(Buffer::kCurrent, {0}).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "nothing was pulled";
}

}  // namespace
}  // namespace sluice

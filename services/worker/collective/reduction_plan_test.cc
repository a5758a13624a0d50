#include "services/worker/collective/reduction_plan.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/worker/collective/testing/tables.h"

namespace sluice::worker {
namespace {

const std::vector<std::pair<int64_t, v1::DataType>>& kMixed =
    *new std::vector<std::pair<int64_t, v1::DataType>>{
        {1000000, v1::FLOAT32}, {3, v1::BFLOAT16}, {700000, v1::FLOAT64}, {1, v1::FLOAT32}};

TEST(ReductionPlanTest, EveryBlockOfItsTensorsIsInOnePart) {
  const v1::TensorTable table = MakeTable(kMixed);
  const v1::Layout layout = *MakeLayout(table, 8);
  const ReductionPlan plan = MakeReductionPlan(table, layout, {0, 1, 3}, {7, 8, 9}, 1);
  std::set<uint32_t> blocks;
  uint64_t elements = 0;
  for (const ReductionPlan::Part& part : plan.parts) {
    for (const ReductionPlan::Piece& piece : part.pieces) {
      EXPECT_TRUE(blocks.insert(piece.block).second);
      const v1::Block& block = layout.blocks(static_cast<int>(piece.block));
      EXPECT_EQ(plan.tensors[piece.place], block.tensor());
      EXPECT_EQ(piece.offset, block.offset());
      EXPECT_NE(block.tensor(), 2u) << "the plan does not include tensor 2";
      elements += piece.count;
    }
  }
  EXPECT_EQ(elements, 1000000u + 3 + 1);
}

TEST(ReductionPlanTest, PartSizesDifferByAtMostOneBlock) {
  const v1::TensorTable table = MakeTable(kMixed);
  const v1::Layout layout = *MakeLayout(table, 8);
  const ReductionPlan plan = MakeReductionPlan(table, layout, {0, 1, 2, 3}, {7, 8, 9}, 0);
  std::vector<uint64_t> bytes;
  for (const ReductionPlan::Part& part : plan.parts) bytes.push_back(part.bytes);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, kMaxBlockBytes);
}

TEST(ReductionPlanTest, PiecesAreContiguousAndAligned) {
  const v1::TensorTable table = MakeTable(kMixed);
  const v1::Layout layout = *MakeLayout(table, 8);
  const ReductionPlan plan = MakeReductionPlan(table, layout, {0, 1, 2, 3}, {7, 8}, 0);
  for (const ReductionPlan::Part& part : plan.parts) {
    uint64_t end = 0;
    for (const ReductionPlan::Piece& piece : part.pieces) {
      EXPECT_EQ(piece.at % 8, 0u);
      EXPECT_GE(piece.at, end);
      EXPECT_LT(piece.at, end + 8);
      end = piece.at + piece.count * ElementBytes(piece.dtype);
    }
    EXPECT_LE(end, part.bytes);
    EXPECT_LT(part.bytes, end + 8);
  }
}

TEST(ReductionPlanTest, MembersHaveTheSamePlanAndAnyOtherInputChangesIt) {
  const v1::TensorTable table = MakeTable(kMixed);
  const v1::Layout layout = *MakeLayout(table, 8);
  const uint64_t hash = MakeReductionPlan(table, layout, {0, 1, 3}, {7, 8}, 0).hash;
  EXPECT_EQ(MakeReductionPlan(table, layout, {0, 1, 3}, {7, 8}, 1).hash, hash);
  EXPECT_NE(MakeReductionPlan(table, layout, {0, 1, 2, 3}, {7, 8}, 0).hash, hash)
      << "other tensors";
  EXPECT_NE(MakeReductionPlan(table, layout, {0, 1, 3}, {7, 8, 9}, 0).hash, hash)
      << "other members";
  EXPECT_NE(MakeReductionPlan(table, *MakeLayout(table, 4), {0, 1, 3}, {7, 8}, 0).hash, hash)
      << "another layout";
}

TEST(ReductionPlanTest, MoreMembersThanBlocksLeavesSomeWithoutAPart) {
  const v1::TensorTable table = MakeTable({{5, v1::FLOAT32}});
  const v1::Layout layout = *MakeLayout(table, 2);
  const ReductionPlan plan = MakeReductionPlan(table, layout, {0}, {7, 8, 9}, 2);
  EXPECT_EQ(plan.parts[0].pieces.size(), 1u);
  EXPECT_TRUE(plan.own().pieces.empty());
  EXPECT_EQ(plan.own().bytes, 0u);
}

}  // namespace
}  // namespace sluice::worker

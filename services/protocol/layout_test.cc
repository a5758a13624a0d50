#include "services/protocol/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {
namespace {

using ::testing::HasSubstr;

v1::TensorTable Table(std::vector<std::pair<std::string, std::vector<int64_t>>> tensors) {
  v1::TensorTable table;
  for (const auto& [name, shape] : tensors) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::FLOAT32);
    for (const int64_t extent : shape) tensor.add_shape(extent);
  }
  return table;
}

TEST(LayoutTest, EveryElementIsInExactlyOneBlock) {
  const v1::TensorTable table =
      Table({{"a", {1000, 1000}}, {"b", {3}}, {"scalar", {}}, {"empty", {0, 5}}, {"c", {70001}}});
  for (const uint32_t partitions : {1u, 2u, 64u, 1000u}) {
    const auto layout = MakeLayout(table, partitions);
    ASSERT_TRUE(layout.ok());
    EXPECT_TRUE(ValidateLayout(table, *layout).ok()) << ValidateLayout(table, *layout);
  }
}

TEST(LayoutTest, BlocksOfLargeModelAreOneMebibyte) {
  const v1::TensorTable table = Table({{"w", {100 << 18}}});  // 100 MiB
  const auto layout = MakeLayout(table, 64);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->blocks_size(), 100);
  for (const v1::Block& block : layout->blocks()) EXPECT_EQ(BlockBytes(table, block), 1u << 20);
}

TEST(LayoutTest, BalancesPartitionsOfLargeModelByBytes) {
  const v1::TensorTable table =
      Table({{"embedding", {10000, 256}}, {"lstm", {2048, 768}}, {"out", {10000, 512}}});
  const auto layout = MakeLayout(table, 16);
  ASSERT_TRUE(layout.ok());
  const LayoutIndex index(table, *layout);
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (uint32_t p = 0; p < 16; ++p) {
    least = std::min(least, index.PartitionBytes(p));
    most = std::max(most, index.PartitionBytes(p));
  }
  EXPECT_LE(most, least * 3 / 2);
}

TEST(LayoutTest, AssignsPartitionsToShardsByBytes) {
  const v1::TensorTable table = Table({{"w", {1 << 20}}, {"b", {10}}});
  const auto layout = MakeLayout(table, 64);
  ASSERT_TRUE(layout.ok());
  const LayoutIndex index(table, *layout);
  const std::vector<uint32_t> owner = PlacePartitions(index, 3);
  std::vector<uint64_t> bytes(3, 0);
  for (uint32_t p = 0; p < 64; ++p) bytes[owner[p]] += index.PartitionBytes(p);
  EXPECT_LE(
      *std::max_element(bytes.begin(), bytes.end()) - *std::min_element(bytes.begin(), bytes.end()),
      kMinBlockBytes);
}

TEST(LayoutTest, HashDistinguishesLayouts) {
  const v1::TensorTable table = Table({{"w", {100000}}});
  const auto a = MakeLayout(table, 4);
  const auto b = MakeLayout(table, 5);
  EXPECT_EQ(LayoutHash(table, *a), LayoutHash(table, *MakeLayout(table, 4)));
  EXPECT_NE(LayoutHash(table, *a), LayoutHash(table, *b));
  EXPECT_NE(LayoutHash(table, *a), LayoutHash(Table({{"v", {100000}}}), *a));
}

TEST(LayoutTest, RejectsInvalidTablesByName) {
  EXPECT_THAT(ValidateTable(Table({{"a", {1}}, {"a", {2}}})).message(), HasSubstr("'a'"));
  EXPECT_THAT(ValidateTable(Table({{"w", {-1}}})).message(), HasSubstr("negative extent -1"));
  EXPECT_THAT(ValidateTable(Table({{"w", {1 << 30, 1 << 30}}})).message(), HasSubstr("too large"));
  v1::TensorTable table = Table({{"n", {}}});
  table.mutable_tensors(0)->set_dtype(v1::INT64);
  EXPECT_THAT(ValidateTable(table).message(), HasSubstr("only counters"));
  table.mutable_tensors(0)->set_kind(v1::COUNTER);
  EXPECT_TRUE(ValidateTable(table).ok());
  table.mutable_tensors(0)->set_dtype(v1::DATA_TYPE_UNSPECIFIED);
  EXPECT_THAT(ValidateTable(table).message(), HasSubstr("unknown data type"));
  EXPECT_FALSE(MakeLayout(Table({{"w", {1}}}), 0).ok());
}

TEST(LayoutTest, RejectsLayoutsThatDoNotFitTable) {
  const v1::TensorTable table = Table({{"w", {100000}}});
  const v1::Layout good = *MakeLayout(table, 4);
  v1::Layout layout = good;
  layout.mutable_blocks()->RemoveLast();
  EXPECT_THAT(ValidateLayout(table, layout).message(), HasSubstr("'w'"));
  layout = good;
  layout.mutable_blocks(0)->set_tensor(1);
  EXPECT_FALSE(ValidateLayout(table, layout).ok());
  layout = good;
  layout.mutable_blocks()->SwapElements(0, 1);
  EXPECT_THAT(ValidateLayout(table, layout).message(), HasSubstr("out of order"));
  layout = good;
  layout.mutable_blocks(0)->set_count(UINT64_MAX);
  EXPECT_FALSE(ValidateLayout(table, layout).ok());
}

}  // namespace
}  // namespace sluice

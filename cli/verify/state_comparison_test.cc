#include "cli/verify/state_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::verify {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SafetensorsArray Array(const std::string& name, const std::vector<float>& values) {
  SafetensorsArray array;
  array.name = name;
  array.shape = {static_cast<int64_t>(values.size())};
  array.bytes = absl::Cord(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                             values.size() * sizeof(float)));
  return array;
}

SavedPartition Saved(std::vector<SafetensorsArray> arrays, std::vector<StepHash> hashes = {}) {
  SavedPartition saved;
  saved.partition = 3;
  saved.arrays = std::move(arrays);
  saved.step_hashes = std::move(hashes);
  return saved;
}

TEST(ComparePartitionsTest, EqualPartitionsHaveNoDifference) {
  const SavedPartition saved = Saved({Array("w[0:2]", {1, 2})}, {{11, 5}, {12, 6}});
  const PartitionComparison comparison = ComparePartitions(saved, saved, 10, 12);
  EXPECT_TRUE(comparison.equal());
  EXPECT_EQ(comparison.hashes, 2u);
  EXPECT_EQ(FirstDifference({comparison}, 10, 12), std::nullopt);
}

TEST(ComparePartitionsTest, NamesArraysThatDifferAndTheLargestDifference) {
  const PartitionComparison comparison = ComparePartitions(
      Saved({Array("a[0:2]", {1, 2}), Array("b[0:2]", {100, 2}), Array("c[0:1]", {7})}),
      Saved({Array("a[0:2]", {1, 2.125}), Array("b[0:2]", {150, 2}), Array("c[0:1]", {7})}), 10,
      12);
  EXPECT_THAT(comparison.arrays, ElementsAre("a[0:2]", "b[0:2]"));
  EXPECT_EQ(comparison.largest_array, "b[0:2]");
  EXPECT_THAT(comparison.largest, DoubleNear(0.5, 1e-9));  // relative to 100
}

TEST(ComparePartitionsTest, DifferencesThatNoToleranceCovers) {
  const auto largest = [](const SafetensorsArray& before, const SafetensorsArray& after) {
    return ComparePartitions(Saved({before}), Saved({after}), 0, 1).largest;
  };
  EXPECT_TRUE(std::isinf(largest(Array("w", {1}), Array("w", {kNan}))));
  EXPECT_TRUE(std::isinf(largest(Array("w", {1}), Array("w", {1, 2}))));
  EXPECT_TRUE(std::isinf(largest(Array("w", {1}), Array("v", {1}))));
  EXPECT_EQ(largest(Array("w", {kNan}), Array("w", {-kNan})), 0);

  SafetensorsArray count = Array("n", {1, 2});
  count.dtype = v1::INT64;
  SafetensorsArray other = Array("n", {1, 3});
  other.dtype = v1::INT64;
  EXPECT_TRUE(std::isinf(largest(count, other)));

  SavedPartition counted = Saved({});
  counted.counts = "3";
  const PartitionComparison comparison = ComparePartitions(counted, Saved({}), 0, 1);
  EXPECT_THAT(comparison.arrays, ElementsAre("counts"));
  EXPECT_TRUE(std::isinf(comparison.largest));
}

TEST(ComparePartitionsTest, FindsFirstStepWhoseHashesDiffer) {
  const PartitionComparison comparison = ComparePartitions(
      Saved({}, {{9, 0}, {10, 0}, {11, 1}, {12, 2}, {13, 3}, {14, 4}}),
      Saved({}, {{9, 7}, {10, 7}, {11, 1}, {12, 2}, {13, 7}, {14, 7}, {15, 7}}), 10, 14);
  EXPECT_EQ(comparison.hashes, 4u);  // those of the interval
  EXPECT_EQ(comparison.first_step, 13u);
  EXPECT_EQ(comparison.equal_until, 12u);
}

TEST(FirstDifferenceTest, NamesStepAndPartitionsByHashes) {
  PartitionComparison late;
  late.partition = 1;
  late.arrays = {"b[0:2]"};
  late.first_step = 14;
  late.equal_until = 13;
  PartitionComparison early = late;
  early.partition = 2;
  early.arrays = {"w[0:2]", "w[0:2]/exp_avg"};
  early.first_step = 13;
  early.equal_until = 12;
  PartitionComparison same_step = early;
  same_step.partition = 5;

  const std::optional<Difference> difference = FirstDifference({late, early, same_step}, 10, 20);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->after, 12u);
  EXPECT_EQ(difference->step, 13u);
  EXPECT_FALSE(difference->stored);
  EXPECT_THAT(difference->partitions, ElementsAre(2, 5));
  EXPECT_THAT(difference->arrays, ElementsAre("w[0:2]", "w[0:2]/exp_avg"));
  EXPECT_EQ(DifferenceText(*difference), "partitions 2, 5 after step 13 (w[0:2], w[0:2]/exp_avg)");
}

TEST(FirstDifferenceTest, WithoutHashesOnlyTheIntervalIsKnown) {
  const PartitionComparison comparison =
      ComparePartitions(Saved({Array("w[0:1]", {1})}), Saved({Array("w[0:1]", {2})}), 10, 20);
  const std::optional<Difference> difference = FirstDifference({comparison}, 10, 20);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(DifferenceText(*difference), "partition 3 between the steps 10 and 20 (w[0:1])");
}

TEST(FirstDifferenceTest, HashesThatEndEarlyNarrowTheInterval) {
  const PartitionComparison comparison =
      ComparePartitions(Saved({Array("w[0:1]", {1})}, {{12, 1}, {15, 2}, {18, 3}}),
                        Saved({Array("w[0:1]", {2})}, {{12, 1}, {15, 2}, {18, 3}}), 10, 20);
  const std::optional<Difference> difference = FirstDifference({comparison}, 10, 20);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->after, 18u);
  EXPECT_EQ(difference->step, 20u);
  EXPECT_FALSE(difference->stored);
}

TEST(FirstDifferenceTest, RecognizesCheckpointThatWasChangedAfterwards) {
  const PartitionComparison comparison =
      ComparePartitions(Saved({Array("w[0:1]", {1})}, {{19, 1}, {20, 2}}),
                        Saved({Array("w[0:1]", {2})}, {{19, 1}, {20, 2}}), 10, 20);
  const std::optional<Difference> difference = FirstDifference({comparison}, 10, 20);
  ASSERT_TRUE(difference.has_value());
  EXPECT_TRUE(difference->stored);
  EXPECT_EQ(difference->step, 20u);
  EXPECT_EQ(DifferenceText(*difference), "partition 3 after step 20 (w[0:1])");
}

TEST(FirstDifferenceTest, StateThatDiffersInBetweenIsReported) {
  const PartitionComparison comparison = ComparePartitions(
      Saved({}, {{11, 1}, {12, 2}, {13, 3}}), Saved({}, {{11, 1}, {12, 7}, {13, 3}}), 10, 13);
  const std::optional<Difference> difference = FirstDifference({comparison}, 10, 13);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(DifferenceText(*difference), "partition 3 after step 12");
}

TEST(DifferenceTextTest, ListsAreShort) {
  Difference difference;
  difference.step = 1;
  difference.partitions = {0, 1, 2, 3, 4};
  EXPECT_EQ(DifferenceText(difference), "partitions 0, 1, 2 and 2 more after step 1");
}

TEST(CompareBeginningTest, NamesPartitionWhoseFileDiffersFromTheRecordedHash) {
  v1::CheckpointIndex from;
  from.mutable_checkpoint()->set_step(10);
  from.mutable_table()->add_tensors()->set_name("w");
  for (uint32_t partition = 0; partition < 2; ++partition) {
    v1::PartitionFile& file = *from.add_files();
    file.set_partition(partition);
    file.set_state_hash(100 + partition);
    v1::Block& block = *from.mutable_layout()->add_blocks();
    block.set_partition(partition);
    block.set_offset(partition * 4);
    block.set_count(4);
  }
  EXPECT_EQ(CompareBeginning(from, {{0, {{10, 100}, {11, 5}}}, {1, {{10, 101}}}}), std::nullopt);
  EXPECT_EQ(CompareBeginning(from, {{0, {{11, 5}}}}), std::nullopt);  // not covered

  const std::optional<Difference> difference =
      CompareBeginning(from, {{0, {{10, 100}}}, {1, {{9, 1}, {10, 7}}}});
  ASSERT_TRUE(difference.has_value());
  EXPECT_TRUE(difference->stored);
  EXPECT_EQ(DifferenceText(*difference), "partition 1 after step 10 (w[4:8])");
}

TEST(HashIntervalTest, IsTheStepsBetweenTwoHashes) {
  EXPECT_EQ(HashInterval({}), 0u);
  EXPECT_EQ(HashInterval({{0, {}}}), 0u);
  EXPECT_EQ(HashInterval({{0, {{10, 0}, {15, 0}}}, {1, {{10, 0}}}}), 5u);
}

}  // namespace
}  // namespace sluice::verify

#include "services/worker/core/gradients/step_gradients.h"

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::TensorTable OneTensor(v1::DataType dtype = v1::FLOAT64) {
  v1::TensorTable table;
  v1::TensorSpec& tensor = *table.add_tensors();
  tensor.set_name("w");
  tensor.add_shape(1);
  tensor.set_dtype(dtype);
  return table;
}

absl::Cord Number(double value) {
  return absl::Cord(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}

double ValueOf(const absl::Cord& cord) {
  const std::string bytes(cord);
  double value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

MicrobatchRange Range(uint64_t begin, uint64_t end) { return {begin, end}; }

class StepGradientsTest : public testing::Test {
 protected:
  // The gradient of each microbatch is its own bit, so a sum shows which microbatches are in it.
  void Compute(StepGradients& gradients, const std::vector<MicrobatchRange>& ranges) {
    for (const MicrobatchRange& range : ranges) {
      double sum = 0;
      for (uint64_t m = range.begin; m < range.end; ++m) sum += static_cast<double>(1ull << m);
      ASSERT_TRUE(gradients.Resolve(range, 0, Number(sum)).ok());
      computed_ += range.size();
    }
  }
  static double Bits(const MicrobatchRange& range) {
    return static_cast<double>((1ull << range.end) - (1ull << range.begin));
  }

  const v1::TensorTable table_ = OneTensor();
  const WorkerRules rules_{};
  uint64_t computed_ = 0;
};

TEST(MaximalSubtreesTest, AlignedRangesOfPowersOfTwoCoverTheSet) {
  EXPECT_THAT(MaximalSubtrees({Range(0, 8)}), ElementsAre(Range(0, 8)));
  EXPECT_THAT(MaximalSubtrees({Range(3, 8)}), ElementsAre(Range(3, 4), Range(4, 8)));
  EXPECT_THAT(MaximalSubtrees({Range(1, 6)}), ElementsAre(Range(1, 2), Range(2, 4), Range(4, 6)));
  EXPECT_THAT(MaximalSubtrees({}), IsEmpty());
}

TEST(MaximalSubtreesTest, AdjacentRangesCountAsOne) {
  EXPECT_THAT(MaximalSubtrees({Range(0, 2), Range(2, 4)}), ElementsAre(Range(0, 4)));
}

TEST(MaximalSubtreesTest, OneRangeHasAtMostTwiceTheLogarithmOfTheTree) {
  for (uint64_t begin = 0; begin < 64; ++begin) {
    for (uint64_t end = begin + 1; end <= 64; ++end) {
      EXPECT_LE(MaximalSubtrees({Range(begin, end)}).size(), 12u) << begin << " " << end;
    }
  }
}

TEST_F(StepGradientsTest, ContiguousMicrobatchesAreOnePartialSum) {
  StepGradients gradients(&table_, /*tree=*/false, &rules_);
  EXPECT_THAT(gradients.Assign({Range(0, 3), Range(5, 6)}), ElementsAre(Range(0, 3), Range(5, 6)));
  EXPECT_THAT(gradients.partial_sums(), ElementsAre(Range(0, 3), Range(5, 6)));
}

TEST_F(StepGradientsTest, PartialSumIsCompleteWhenEveryTensorIsResolved) {
  StepGradients gradients(&table_, /*tree=*/false, &rules_);
  Compute(gradients, gradients.Assign({Range(0, 2)}));
  EXPECT_TRUE(gradients.IsComplete());
  EXPECT_EQ(ValueOf(gradients.Get(Range(0, 2), 0).gradient->values), 3);
}

TEST_F(StepGradientsTest, LargerAssignmentKeepsPartialSumsAndComputesTheRest) {
  StepGradients gradients(&table_, /*tree=*/false, &rules_);
  Compute(gradients, gradients.Assign({Range(2, 4)}));
  EXPECT_THAT(gradients.Assign({Range(0, 6)}), ElementsAre(Range(0, 2), Range(4, 6)));
  EXPECT_THAT(gradients.partial_sums(), ElementsAre(Range(0, 2), Range(2, 4), Range(4, 6)));
}

TEST_F(StepGradientsTest, RecomputesPartialSumPartlyOutsideNewAssignment) {
  StepGradients gradients(&table_, /*tree=*/false, &rules_);
  Compute(gradients, gradients.Assign({Range(0, 4)}));
  EXPECT_THAT(gradients.Assign({Range(0, 3)}), ElementsAre(Range(0, 3)));
  EXPECT_FALSE(gradients.Get(Range(0, 3), 0).resolved);
}

TEST_F(StepGradientsTest, CounterNeedsNoGradient) {
  v1::TensorTable table = OneTensor();
  table.mutable_tensors(0)->set_kind(v1::COUNTER);
  StepGradients gradients(&table, /*tree=*/false, &rules_);
  gradients.Assign({Range(0, 4)});
  EXPECT_TRUE(gradients.IsComplete());
}

TEST_F(StepGradientsTest, WithTreeComputesMicrobatchesSeparatelyAndSumsUpwards) {
  StepGradients gradients(&table_, /*tree=*/true, &rules_);
  const auto leaves = gradients.Assign({Range(0, 3)});
  EXPECT_THAT(leaves, ElementsAre(Range(0, 1), Range(1, 2), Range(2, 3)));
  Compute(gradients, leaves);
  EXPECT_THAT(gradients.partial_sums(), ElementsAre(Range(0, 2), Range(2, 3)));
  EXPECT_EQ(ValueOf(gradients.Get(Range(0, 2), 0).gradient->values), 3);
  EXPECT_EQ(ValueOf(gradients.Get(Range(2, 3), 0).gradient->values), 4);
}

TEST_F(StepGradientsTest, SumsOfTreeDoNotDependOnTheWorkerThatSums) {
  // In float32 these four have different sums in different orders.
  const std::vector<float> values = {1e8f, 3.7f, -1e8f, 2.9f};
  const auto number = [](float value) {
    return absl::Cord(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
  };
  const v1::TensorTable table = OneTensor(v1::FLOAT32);
  StepGradients whole(&table, /*tree=*/true, &rules_);
  whole.Assign({Range(0, 4)});
  for (uint64_t m : {3, 1, 0, 2}) {
    ASSERT_TRUE(whole.Resolve(Range(m, m + 1), 0, number(values[m])).ok());
  }
  const float expected = (values[0] + values[1]) + (values[2] + values[3]);
  EXPECT_EQ(whole.Get(Range(0, 4), 0).gradient->values, number(expected));
}

TEST_F(StepGradientsTest, SumWithoutGradientInOneHalfIsTheOtherHalf) {
  StepGradients gradients(&table_, /*tree=*/true, &rules_);
  gradients.Assign({Range(0, 2)});
  ASSERT_TRUE(gradients.Resolve(Range(0, 1), 0, std::nullopt).ok());
  ASSERT_TRUE(gradients.Resolve(Range(1, 2), 0, Number(2)).ok());
  EXPECT_EQ(ValueOf(gradients.Get(Range(0, 2), 0).gradient->values), 2);
}

TEST_F(StepGradientsTest, HeldSubtreesBecomePartsOfLargerOne) {
  StepGradients gradients(&table_, /*tree=*/true, &rules_);
  Compute(gradients, gradients.Assign({Range(0, 2)}));
  const auto rest = gradients.Assign({Range(0, 4)});
  EXPECT_THAT(rest, ElementsAre(Range(2, 3), Range(3, 4)));
  Compute(gradients, rest);
  EXPECT_EQ(ValueOf(gradients.Get(Range(0, 4), 0).gradient->values), 15);
}

TEST_F(StepGradientsTest, NeverSendsSubtreePartlyOutsideNewAssignment) {
  StepGradients gradients(&table_, /*tree=*/true, &rules_);
  Compute(gradients, gradients.Assign({Range(0, 4)}));
  EXPECT_THAT(gradients.Assign({Range(1, 4)}), ElementsAre(Range(1, 2), Range(2, 3), Range(3, 4)));
  EXPECT_THAT(gradients.partial_sums(), ElementsAre(Range(1, 2), Range(2, 4)));
}

// The rule of the model (tests/protocol/training/reduction_tree.h): over all pairs and triples of
// assignments, partial sums are exactly the maximal subtrees of the newest one, each holds its own
// microbatches once, and nothing is computed that was held whole inside it.
TEST_F(StepGradientsTest, EveryPartialSumHasItsMicrobatchesOnceAfterAnyAssignments) {
  constexpr uint64_t kMicrobatches = 8;
  std::vector<MicrobatchRange> assignments;
  for (uint64_t begin = 0; begin < kMicrobatches; ++begin) {
    for (uint64_t end = begin + 1; end <= kMicrobatches; ++end) assignments.push_back({begin, end});
  }
  for (const MicrobatchRange& first : assignments) {
    for (const MicrobatchRange& second : assignments) {
      for (size_t done : {size_t{0}, size_t{1}, size_t{3}, size_t{8}}) {
        StepGradients gradients(&table_, /*tree=*/true, &rules_);
        auto leaves = gradients.Assign({first});
        std::vector<MicrobatchRange> pending(leaves.begin() + std::min(done, leaves.size()),
                                             leaves.end());
        leaves.resize(std::min(done, leaves.size()));
        Compute(gradients, leaves);
        std::vector<MicrobatchRange> held;
        for (const MicrobatchRange& partial_sum : gradients.partial_sums()) {
          if (gradients.Get(partial_sum, 0).resolved) held.push_back(partial_sum);
        }
        const auto rest = gradients.Assign({second});
        for (const MicrobatchRange& leaf : rest) {
          for (const MicrobatchRange& partial_sum : held) {
            const bool inside = second.begin <= partial_sum.begin && partial_sum.end <= second.end;
            EXPECT_FALSE(inside && partial_sum.begin <= leaf.begin && leaf.end <= partial_sum.end);
          }
        }
        Compute(gradients, rest);
        Compute(gradients, pending);  // those in progress; unwanted ranges are ignored
        EXPECT_EQ(gradients.partial_sums(), MaximalSubtrees({second}));
        ASSERT_TRUE(gradients.IsComplete());
        for (const MicrobatchRange& partial_sum : gradients.partial_sums()) {
          EXPECT_EQ(ValueOf(gradients.Get(partial_sum, 0).gradient->values), Bits(partial_sum));
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::worker

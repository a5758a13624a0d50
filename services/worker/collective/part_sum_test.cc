#include "services/worker/collective/part_sum.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/common/arithmetic/half.h"
#include "services/protocol/layout.h"
#include "services/worker/collective/testing/tables.h"

namespace sluice::worker {
namespace {

template <typename T>
absl::Cord CordOf(const std::vector<T>& values) {
  return absl::Cord(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

template <typename T>
std::vector<T> ValuesOf(const absl::Cord& cord) {
  const std::string bytes(cord);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// All of the gradient is one member's part.
ReductionPlan PlanOf(const v1::TensorTable& table) {
  std::vector<uint32_t> tensors;
  for (int i = 0; i < table.tensors_size(); ++i) tensors.push_back(static_cast<uint32_t>(i));
  return MakeReductionPlan(table, *MakeLayout(table, 1), tensors, {1}, 0);
}

ReducedPart Sum(const ReductionPlan& plan, PartSum& sum,
                const std::vector<DenseGradients>& members) {
  sum.Begin();
  for (const DenseGradients& gradients : members) {
    std::vector<uint64_t> memory(MessageBytes(plan, plan.own()) / 8, ~uint64_t{0});
    const absl::Span<char> message(reinterpret_cast<char*>(memory.data()), memory.size() * 8);
    WriteMessage(plan, plan.own(), gradients, message);
    sum.Add(message);
  }
  return sum.Take();
}

const absl::Cord& PieceOf(const ReductionPlan& plan, const ReducedPart& part, uint32_t tensor) {
  for (size_t i = 0; i < part.size(); ++i) {
    if (plan.own().pieces[i].place == tensor) return *part[i];
  }
  static const absl::Cord* const none = new absl::Cord();
  return *none;
}

TEST(PartSumTest, SumsEveryType) {
  const v1::TensorTable table =
      MakeTable({{3, v1::FLOAT32}, {2, v1::FLOAT64}, {1, v1::BFLOAT16}, {1, v1::FLOAT16}});
  const ReductionPlan plan = PlanOf(table);
  PartSum sum(&plan);
  const DenseGradients one = {CordOf<float>({1, 2, 3}), CordOf<double>({0.1, 4}),
                              CordOf<BFloat16>({ToBFloat16(256.0f)}),
                              CordOf<Float16>({ToFloat16(2048.0f)})};
  const DenseGradients two = {CordOf<float>({10, 20, 30}), CordOf<double>({0.2, 5}),
                              CordOf<BFloat16>({ToBFloat16(1.0f)}),
                              CordOf<Float16>({ToFloat16(1.0f)})};
  const ReducedPart part = Sum(plan, sum, {one, two, two});
  EXPECT_EQ(ValuesOf<float>(PieceOf(plan, part, 0)), (std::vector<float>{21, 42, 63}));
  EXPECT_EQ(ValuesOf<double>(PieceOf(plan, part, 1)), (std::vector<double>{0.1 + 0.2 + 0.2, 14}));
  // Rounded once: 256 + 1 alone would be 256 again.
  EXPECT_EQ(ToFloat(ValuesOf<BFloat16>(PieceOf(plan, part, 2))[0]), 258.0f);
  EXPECT_EQ(ToFloat(ValuesOf<Float16>(PieceOf(plan, part, 3))[0]), 2050.0f);
}

TEST(PartSumTest, TensorWithoutGradientHasNoSum) {
  const v1::TensorTable table = MakeTable({{1, v1::FLOAT32}, {1, v1::FLOAT32}, {1, v1::FLOAT32}});
  const ReductionPlan plan = PlanOf(table);
  PartSum sum(&plan);
  const DenseGradients one = {CordOf<float>({1}), std::nullopt, std::nullopt};
  const DenseGradients two = {CordOf<float>({2}), CordOf<float>({3}), std::nullopt};
  const ReducedPart part = Sum(plan, sum, {one, two});
  EXPECT_EQ(ValuesOf<float>(PieceOf(plan, part, 0)), std::vector<float>{3});
  EXPECT_EQ(ValuesOf<float>(PieceOf(plan, part, 1)), std::vector<float>{3});
  for (size_t i = 0; i < part.size(); ++i) {
    EXPECT_EQ(part[i].has_value(), plan.own().pieces[i].place != 2);
  }
}

TEST(PartSumTest, SumDoesNotChangeWhileReferenced) {
  const v1::TensorTable table = MakeTable({{1, v1::FLOAT64}});
  const ReductionPlan plan = PlanOf(table);
  PartSum sum(&plan);
  const ReducedPart first = Sum(plan, sum, {{CordOf<double>({1})}});
  const ReducedPart second = Sum(plan, sum, {{CordOf<double>({2})}});
  EXPECT_EQ(ValuesOf<double>(*first[0])[0], 1);
  EXPECT_EQ(ValuesOf<double>(*second[0])[0], 2);
}

TEST(PartSumTest, ReusesMemory) {
  const v1::TensorTable table = MakeTable({{1, v1::FLOAT64}});
  const ReductionPlan plan = PlanOf(table);
  PartSum sum(&plan);
  const auto place = [&] {
    const ReducedPart part = Sum(plan, sum, {{CordOf<double>({1})}});
    return static_cast<const void*>(part[0]->TryFlat()->data());
  };
  const void* const first = place();
  EXPECT_EQ(place(), first);
}

}  // namespace
}  // namespace sluice::worker

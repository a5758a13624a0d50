#include "services/worker/core/gradients/gradient.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

// Five rows of two numbers.
v1::TensorSpec Table() {
  v1::TensorSpec tensor;
  tensor.set_name("table");
  tensor.set_dtype(v1::FLOAT32);
  tensor.add_shape(5);
  tensor.add_shape(2);
  return tensor;
}

absl::Cord Numbers(const std::vector<float>& values) {
  return absl::Cord(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                      values.size() * sizeof(float)));
}

TEST(GradientTest, AddsSharedRowsAndKeepsOtherRows) {
  const auto sum = AddGradients(Table(), Gradient({1, 3}, Numbers({1, 2, 3, 4})),
                                Gradient({0, 3}, Numbers({10, 20, 30, 40})));
  ASSERT_TRUE(sum.ok()) << sum.status();
  ASSERT_NE(sum->rows, nullptr);
  EXPECT_EQ(*sum->rows, (std::vector<uint64_t>{0, 1, 3}));
  EXPECT_EQ(sum->values, Numbers({10, 20, 1, 2, 33, 44}));
}

TEST(GradientTest, SumOfRowsEqualsSumOfWholeTensorsBitForBit) {
  const Gradient left({1, 3}, Numbers({1e8f, -0.0f, 0.1f, 3}));
  const Gradient right({3, 4}, Numbers({0.2f, -3, 5, -0.0f}));
  const auto rows = AddGradients(Table(), left, right);
  const auto whole = AddGradients(Table(), Gradient(DenseElements(Table(), left, 0, 10)),
                                  Gradient(DenseElements(Table(), right, 0, 10)));
  ASSERT_TRUE(rows.ok() && whole.ok());
  EXPECT_EQ(whole->rows, nullptr);
  EXPECT_EQ(DenseElements(Table(), *rows, 0, 10), whole->values);
}

TEST(GradientTest, SumOfRowsAndWholeTensorIsWholeTensor) {
  const auto sum = AddGradients(Table(), Gradient({2}, Numbers({5, 6})),
                                Gradient(Numbers({1, 1, 1, 1, 1, 1, 1, 1, 1, 1})));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(sum->rows, nullptr);
  EXPECT_EQ(sum->values, Numbers({1, 1, 1, 1, 6, 7, 1, 1, 1, 1}));
}

TEST(GradientTest, ElementsMayBeginAndEndWithinRow) {
  const Gradient gradient({0, 2, 3}, Numbers({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(DenseElements(Table(), gradient, 1, 4), Numbers({2, 0, 0, 3}));
  EXPECT_EQ(DenseElements(Table(), gradient, 5, 5), Numbers({4, 5, 6, 0, 0}));
  EXPECT_EQ(DenseElements(Table(), Gradient(Numbers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})), 3, 2),
            Numbers({3, 4}));
}

TEST(GradientTest, RejectsGradientThatDoesNotFitAndNamesTheTensor) {
  const auto message = [](const v1::TensorSpec& tensor, const Gradient& gradient) {
    return std::string(CheckGradient(tensor, gradient).message());
  };
  EXPECT_EQ(message(Table(), Gradient(Numbers({1}))),
            "the gradient of 'table' has 4 bytes, not 40");
  EXPECT_EQ(message(Table(), Gradient({1}, Numbers({1}))),
            "the gradient of 'table' has 4 bytes, not 8");
  EXPECT_EQ(message(Table(), Gradient({5}, Numbers({1, 2}))),
            "the gradient of 'table' names row 5, but the tensor has 5 rows");
  EXPECT_EQ(message(Table(), Gradient({2, 2}, Numbers({1, 2, 3, 4}))),
            "the gradient of 'table' names row 2 after row 2");
  v1::TensorSpec vector = Table();
  vector.mutable_shape()->RemoveLast();
  EXPECT_EQ(message(vector, Gradient({2}, Numbers({1}))),
            "the gradient of 'table' has rows, but the tensor is not a matrix");
  EXPECT_TRUE(CheckGradient(Table(), Gradient({}, absl::Cord())).ok());
}

}  // namespace
}  // namespace sluice::worker

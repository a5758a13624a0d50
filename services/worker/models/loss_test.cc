#include "services/worker/models/loss.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

Batch Classes(std::vector<int64_t> classes) {
  Batch batch;
  batch.samples = classes.size();
  batch.classes = std::move(classes);
  return batch;
}

Batch Targets(std::vector<float> targets, int64_t width) {
  Batch batch;
  batch.samples = targets.size() / width;
  batch.targets = std::move(targets);
  batch.target_width = width;
  return batch;
}

double Sum(LossKind loss, const at::Tensor& output, const Batch& batch) {
  EXPECT_TRUE(CheckLabels(loss, output.sizes(), batch).ok());
  return LossSum(loss, output, TargetTensor(batch)).item<double>();
}

TEST(LossTest, NllIsTheSumOfMinusTheLogProbabilitiesOfTheClasses) {
  const at::Tensor output = at::tensor({-0.1, -2.0, -3.0, -0.25}).view({2, 2});
  EXPECT_NEAR(Sum(LossKind::kNll, output, Classes({1, 0})), 5.0, 1e-6);
}

TEST(LossTest, CrossEntropyTakesLogits) {
  const at::Tensor output = at::tensor({0.0, std::log(3.0)}).view({1, 2});
  EXPECT_NEAR(Sum(LossKind::kCrossEntropy, output, Classes({0})), std::log(4.0), 1e-6);
}

TEST(LossTest, MseIsTheMeanOverASamplesNumbersAndTheSumOverSamples) {
  const at::Tensor output = at::tensor({1.0, 2.0, 3.0, 4.0}).view({2, 2});
  EXPECT_NEAR(Sum(LossKind::kMse, output, Targets({0, 0, 3, 2}, 2)), 2.5 + 2, 1e-6);
}

TEST(LossTest, BinaryCrossEntropyTakesALogitAndClassesOrNumbers) {
  const at::Tensor output = at::tensor({0.0, std::log(3.0)}).view({2, 1});
  const double expected = std::log(2.0) + std::log(4.0 / 3.0);
  constexpr LossKind kLoss = LossKind::kBinaryCrossEntropyWithLogits;
  EXPECT_NEAR(Sum(kLoss, output, Classes({0, 1})), expected, 1e-6);
  EXPECT_NEAR(Sum(kLoss, output, Targets({0, 1}, 1)), expected, 1e-6);
  EXPECT_NEAR(Sum(kLoss, output.view({2}), Classes({0, 1})), expected, 1e-6);
}

TEST(LossTest, HalfPrecisionIsSummedInSinglePrecision) {
  const at::Tensor output = at::tensor(std::vector<double>(3000, 1.0)).view({3000, 1});
  const Batch batch = Targets(std::vector<float>(3000, 0), 1);
  EXPECT_EQ(Sum(LossKind::kMse, output.to(at::kBFloat16), batch), 3000);
}

TEST(LossTest, LossOfSequenceIsTheMeanOverItsPlaces) {
  const at::Tensor output = at::tensor({1.0, 2.0, 3.0, 0.0, 5.0, 1.0, 0.5, 0.5}).view({2, 2, 2});
  Batch batch = Classes({1, 0, 1, 0});
  batch.samples = 2;
  batch.class_width = 2;
  ASSERT_TRUE(CheckLabels(LossKind::kCrossEntropy, output.sizes(), batch).ok());
  const double alone = Sum(LossKind::kCrossEntropy, output.view({4, 2}), Classes({1, 0, 1, 0}));
  EXPECT_NEAR(Sum(LossKind::kCrossEntropy, output, batch), alone / 2, 1e-6);
  EXPECT_EQ(CountCorrect(LossKind::kCrossEntropy, output, TargetTensor(batch)), std::nullopt);
  EXPECT_THAT(std::string(CheckLabels(LossKind::kCrossEntropy, {2, 2}, batch).message()),
              HasSubstr("should be [2, 2 (labels of a sample), number of classes]"));
  EXPECT_THAT(std::string(CheckLabels(LossKind::kMse, {2, 2}, batch).message()),
              HasSubstr("the data has a class for each token"));
}

TEST(LossTest, CorrectIsTheLargestOutputOrTheSignOfTheOnlyOne) {
  const at::Tensor many = at::tensor({1.0, 2.0, 3.0, 0.0, 5.0, 1.0}).view({3, 2});
  EXPECT_EQ(CountCorrect(LossKind::kCrossEntropy, many, TargetTensor(Classes({1, 0, 1}))), 2);
  EXPECT_EQ(CountCorrect(LossKind::kModule, many, TargetTensor(Classes({1, 1, 1}))), 1);
  const at::Tensor one = at::tensor({1.0, -2.0, 3.0}).view({3, 1});
  EXPECT_EQ(
      CountCorrect(LossKind::kBinaryCrossEntropyWithLogits, one, TargetTensor(Classes({1, 0, 0}))),
      2);
  EXPECT_EQ(CountCorrect(LossKind::kMse, one, TargetTensor(Targets({1, 2, 3}, 1))), std::nullopt);
}

TEST(LossTest, RejectsLabelsThatDoNotFitWithTheReason) {
  const struct {
    LossKind loss;
    std::vector<int64_t> output;
    Batch batch;
    const char* message;
  } kCases[] = {
      {LossKind::kNll,
       {2, 10},
       Classes({3, 10}),
       "label 10 of sample 1 of the batch is not in [0, 10)"},
      {LossKind::kNll, {2, 10}, Classes({-1, 0}), "label -1 of sample 0"},
      {LossKind::kNll, {2}, Classes({0, 0}), "has shape [2]: should be [2, number of classes]"},
      {LossKind::kCrossEntropy, {3, 10}, Classes({0, 0}), "should be [2, number of classes]"},
      {LossKind::kCrossEntropy, {2, 10}, Targets({1, 2}, 1), "loss crossEntropy needs classes"},
      {LossKind::kMse, {2, 1}, Classes({0, 0}), "loss mse needs numbers"},
      {LossKind::kMse, {2, 3}, Targets({1, 2}, 1), "has shape [2, 3]: should be [2, 1]"},
      {LossKind::kBinaryCrossEntropyWithLogits, {2, 1}, Classes({0, 2}), "label 2 of sample 1"},
      {LossKind::kBinaryCrossEntropyWithLogits, {2, 2}, Classes({0, 1}), "should be [2, 1]"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = CheckLabels(c.loss, c.output, c.batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(LossTest, LossesAreKnownByTheirNames) {
  EXPECT_EQ(*ParseLoss("nll"), LossKind::kNll);
  EXPECT_EQ(*ParseLoss("crossEntropy"), LossKind::kCrossEntropy);
  EXPECT_EQ(*ParseLoss("mse"), LossKind::kMse);
  EXPECT_EQ(*ParseLoss("binaryCrossEntropyWithLogits"), LossKind::kBinaryCrossEntropyWithLogits);
  EXPECT_THAT(std::string(ParseLoss("hinge").status().message()), HasSubstr("loss is 'hinge'"));
  EXPECT_FALSE(ParseLoss("of the model").ok());
}

}  // namespace
}  // namespace sluice

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;
using ::testing::HasSubstr;

v1::DataSpec Spec(uint64_t samples, const std::vector<int64_t>& shape, uint32_t classes) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::SYNTHETIC);
  spec.mutable_synthetic()->set_samples(samples);
  for (int64_t dimension : shape) spec.mutable_synthetic()->add_shape(dimension);
  spec.mutable_synthetic()->set_classes(classes);
  return spec;
}

std::unique_ptr<Dataset> Open(const v1::DataSpec& spec, Split split = Split::kTraining) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(spec, split);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

std::vector<uint64_t> UpTo(uint64_t n) {
  std::vector<uint64_t> indices(n);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(SyntheticDatasetTest, SampleDependsOnlyOnSeedAndIndex) {
  v1::DataSpec spec = Spec(1000, {2, 3}, 4);
  const Batch once = *Open(spec)->Read({3, 900});
  const Batch again = *Open(spec)->Read({900});
  EXPECT_THAT(again.features, ElementsAre(once.features[6], once.features[7], once.features[8],
                                          once.features[9], once.features[10], once.features[11]));
  EXPECT_EQ(again.classes[0], once.classes[1]);
  spec.mutable_synthetic()->set_seed(1);
  EXPECT_NE(Open(spec)->Read({900})->features, again.features);
}

TEST(SyntheticDatasetTest, FirstSampleNeverChanges) {
  // A job that continues with a newer build must see the data that it began with.
  const Batch batch = *Open(Spec(10, {2}, 3))->Read({0});
  EXPECT_THAT(batch.classes, ElementsAre(0));
  EXPECT_THAT(batch.features, ElementsAre(FloatEq(0.237694472f), FloatEq(0.837667108f)));
}

TEST(SyntheticDatasetTest, FirstSampleNeverChangesWithManyClasses) {
  const Batch batch = *Open(Spec(10, {2}, 1 << 20))->Read({0});
  EXPECT_THAT(batch.classes, ElementsAre(622191));
  EXPECT_THAT(batch.features,
              ElementsAre(FloatNear(-0.476483f, 1e-6f), FloatNear(1.02206f, 1e-5f)));
}

TEST(SyntheticDatasetTest, ReadsTheSameSampleAgain) {
  // The second job's samples are too many to be kept.
  for (uint64_t samples : {uint64_t{1000}, uint64_t{1} << 30}) {
    const auto dataset = Open(Spec(samples, {2, 3}, 4));
    const Batch first = *dataset->Read({3, 900, 4});
    const Batch again = *dataset->Read({4, 900, 5, 3});
    const auto sample = [](const Batch& batch, int at) {
      return std::vector<float>(&batch.features[6 * at], &batch.features[6 * at] + 6);
    };
    EXPECT_EQ(sample(again, 0), sample(first, 2));
    EXPECT_EQ(sample(again, 1), sample(first, 1));
    EXPECT_EQ(sample(again, 3), sample(first, 0));
    EXPECT_NE(sample(again, 2), sample(first, 0));
    EXPECT_EQ(again.classes[3], first.classes[0]);
    EXPECT_EQ(sample(again, 2), sample(*Open(Spec(samples, {2, 3}, 4))->Read({5}), 0));
  }
}

TEST(SyntheticDatasetTest, EachChannelIsNormalizedByItsOwnNumbers) {
  v1::DataSpec spec = Spec(10, {2, 3}, 3);
  const Batch plain = *Open(spec)->Read({4});
  for (double mean : {0.5, -1.0}) spec.mutable_normalize()->add_mean(mean);
  for (double std : {2.0, 4.0}) spec.mutable_normalize()->add_std(std);
  const Batch normalized = *Open(spec)->Read({4});
  for (int i = 0; i < 6; ++i) {
    const float expected = i < 3 ? (plain.features[i] - 0.5f) / 2 : (plain.features[i] + 1.0f) / 4;
    EXPECT_NEAR(normalized.features[i], expected, 1e-6) << i;
  }
}

TEST(SyntheticDatasetTest, SamplesAreNearestToTheCentreOfTheirClass) {
  constexpr int kClasses = 10;
  constexpr int kWidth = 16;
  const auto dataset = Open(Spec(2000, {kWidth}, kClasses));
  const Batch batch = *dataset->Read(UpTo(2000));
  std::vector<double> centres(kClasses * kWidth);
  std::vector<int> counts(kClasses);
  for (int i = 0; i < 1000; ++i) {
    ++counts[batch.classes[i]];
    for (int j = 0; j < kWidth; ++j) {
      centres[batch.classes[i] * kWidth + j] += batch.features[i * kWidth + j];
    }
  }
  int right = 0;
  for (int i = 1000; i < 2000; ++i) {
    double best = std::numeric_limits<double>::max();
    int nearest = -1;
    for (int c = 0; c < kClasses; ++c) {
      double distance = 0;
      for (int j = 0; j < kWidth; ++j) {
        distance +=
            std::pow(batch.features[i * kWidth + j] - centres[c * kWidth + j] / counts[c], 2);
      }
      if (distance < best) nearest = c;
      best = std::min(best, distance);
    }
    if (nearest == batch.classes[i]) ++right;
  }
  EXPECT_GE(right, 999);
  for (int count : counts) EXPECT_NEAR(count, 100, 50);
}

TEST(SyntheticDatasetTest, TargetOfRegressionIsLinearInTheFeatures) {
  const auto dataset = Open(Spec(100, {2}, 0));
  EXPECT_EQ(dataset->info().label_kind, LabelKind::kTargets);
  const Batch batch = *dataset->Read(UpTo(100));
  ASSERT_EQ(batch.targets.size(), 100u);
  // The plane through the first three samples holds all others: solve for w0, w1 by Cramer's rule.
  const auto x = [&](int i, int j) { return double{batch.features[2 * i + j]}; };
  const auto y = [&](int i) { return double{batch.targets[i]}; };
  const double a = x(1, 0) - x(0, 0), b = x(1, 1) - x(0, 1);
  const double c = x(2, 0) - x(0, 0), d = x(2, 1) - x(0, 1);
  const double determinant = a * d - b * c;
  const double w0 = ((y(1) - y(0)) * d - b * (y(2) - y(0))) / determinant;
  const double w1 = (a * (y(2) - y(0)) - (y(1) - y(0)) * c) / determinant;
  for (int i = 3; i < 100; ++i) {
    EXPECT_NEAR(y(i), y(0) + w0 * (x(i, 0) - x(0, 0)) + w1 * (x(i, 1) - x(0, 1)), 1e-4);
  }
}

TEST(SyntheticDatasetTest, HeldOutSamplesFollowTheTrainingSamples) {
  v1::DataSpec spec = Spec(25, {2}, 3);
  EXPECT_EQ(Open(spec, Split::kEvaluation)->info().samples, 3u);
  spec.mutable_evaluation()->set_max_samples(10);
  const auto held_out = Open(spec, Split::kEvaluation);
  EXPECT_EQ(held_out->info().samples, 10u);
  const Batch later = *Open(Spec(100, {2}, 3))->Read({25});
  EXPECT_EQ(held_out->Read({0})->features, later.features);
}

TEST(SyntheticDatasetTest, WithoutAShapeThereAreSamplesButNoData) {
  const auto dataset = Open(Spec(1000, {}, 0));
  EXPECT_EQ(dataset->info().label_kind, LabelKind::kNone);
  const Batch batch = *dataset->Read({1, 2});
  EXPECT_EQ(batch.samples, 2u);
  EXPECT_TRUE(batch.features.empty());
  EXPECT_TRUE(batch.classes.empty());
  EXPECT_TRUE(batch.targets.empty());
}

TEST(SyntheticDatasetTest, MaxSamplesLimitsTheTrainingData) {
  v1::DataSpec spec = Spec(25, {2}, 3);
  spec.set_max_samples(5);
  EXPECT_EQ(Open(spec)->info().samples, 5u);
  EXPECT_EQ(Open(spec)->Read({5}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(SyntheticDatasetTest, RejectsImpossibleSizesByName) {
  const struct {
    v1::DataSpec spec;
    const char* message;
  } kCases[] = {
      {Spec(0, {2}, 3), "data.synthetic.samples is 0"},
      {Spec(1, {2, 0}, 3), "data.synthetic.shape holds 0"},
      {Spec(1, {-1}, 3), "data.synthetic.shape holds -1"},
      {Spec(1, {1 << 20, 1 << 20}, 3), "data.synthetic.shape holds 1048576"},
      {Spec(1, {2}, 0xFFFFFFFF), "data.synthetic.classes is 4294967295"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = OpenDataset(c.spec, Split::kTraining).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace sluice

#include <cmath>
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
#include "services/worker/data/testing/data_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

v1::DataSpec IdxSpec(const std::string& path) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::IDX);
  spec.mutable_source()->set_path(path);
  return spec;
}

// Three training images of 2x2 with labels 0, 1, 2, and one image to evaluate on.
std::string DirectoryOfImages(const std::string& ending = "") {
  std::string directory = MakeTestDirectory();
  WriteTestFile(directory, "train-images-idx3-ubyte" + ending,
                IdxOfBytes({3, 2, 2}, {0, 51, 102, 255, 1, 2, 3, 4, 5, 6, 7, 8}));
  WriteTestFile(directory, "train-labels-idx1-ubyte" + ending, IdxOfBytes({3}, {0, 1, 2}));
  WriteTestFile(directory, "t10k-images-idx3-ubyte" + ending, IdxOfBytes({1, 2, 2}, {9, 9, 9, 9}));
  WriteTestFile(directory, "t10k-labels-idx1-ubyte" + ending, IdxOfBytes({1}, {1}));
  return directory;
}

std::unique_ptr<Dataset> Open(const v1::DataSpec& spec, Split split = Split::kTraining) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(spec, split);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

Batch Read(const Dataset& dataset, const std::vector<uint64_t>& indices) {
  absl::StatusOr<Batch> batch = dataset.Read(indices);
  EXPECT_TRUE(batch.ok()) << batch.status();
  return batch.ok() ? *std::move(batch) : Batch();
}

void ExpectRefused(const v1::DataSpec& spec, absl::StatusCode code, const std::string& message,
                   Split split = Split::kTraining) {
  const absl::Status status = OpenDataset(spec, split).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(IdxDatasetTest, ReadsADirectoryCompressedOrNot) {
  for (const char* ending : {"", ".gz"}) {
    const auto dataset = Open(IdxSpec(DirectoryOfImages(ending)));
    ASSERT_NE(dataset, nullptr);
    EXPECT_EQ(dataset->info().samples, 3u);
    EXPECT_THAT(dataset->info().sample_shape, ElementsAre(1, 2, 2));
    EXPECT_EQ(dataset->info().label_kind, LabelKind::kClass);
    EXPECT_EQ(dataset->info().outputs, 3);
  }
}

TEST(IdxDatasetTest, BytesAreScaledToOneAndSamplesAreInTheRequestedOrder) {
  const auto dataset = Open(IdxSpec(DirectoryOfImages()));
  const Batch batch = Read(*dataset, {2, 0, 2});
  EXPECT_EQ(batch.samples, 3u);
  EXPECT_THAT(batch.classes, ElementsAre(2, 0, 2));
  EXPECT_THAT(
      batch.features,
      ElementsAre(FloatEq(5 / 255.f), FloatEq(6 / 255.f), FloatEq(7 / 255.f), FloatEq(8 / 255.f),
                  0.0f, FloatEq(0.2f), FloatEq(0.4f), 1.0f,  //
                  FloatEq(5 / 255.f), FloatEq(6 / 255.f), FloatEq(7 / 255.f), FloatEq(8 / 255.f)));
  EXPECT_TRUE(batch.targets.empty());
}

TEST(IdxDatasetTest, ScalingComesBeforeNormalization) {
  v1::DataSpec spec = IdxSpec(DirectoryOfImages());
  spec.mutable_normalize()->add_mean(0.5);
  spec.mutable_normalize()->add_std(0.25);
  const Batch batch = Read(*Open(spec), {0});
  EXPECT_THAT(batch.features,
              ElementsAre(-2.0f, FloatEq((0.2f - 0.5f) * 4), FloatEq((0.4f - 0.5f) * 4), 2.0f));
}

TEST(IdxDatasetTest, EvaluationDataIsFoundInTheDirectoryOfTheTrainingDataAndKeepsItsClasses) {
  const auto dataset = Open(IdxSpec(DirectoryOfImages()), Split::kEvaluation);
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->info().samples, 1u);
  EXPECT_EQ(dataset->info().outputs, 3);
}

TEST(IdxDatasetTest, LabelsOfAFileAreFoundNextToIt) {
  const std::string directory = DirectoryOfImages(".gz");
  EXPECT_EQ(Open(IdxSpec(directory + "/train-images-idx3-ubyte.gz"))->info().samples, 3u);
}

TEST(IdxDatasetTest, LabelsThatTheJobNamesAreTaken) {
  const std::string directory = MakeTestDirectory();
  v1::DataSpec spec =
      IdxSpec(WriteTestFile(directory, "x", IdxOfBytes({2, 3}, {1, 2, 3, 4, 5, 6})));
  spec.mutable_source()->set_labels(WriteTestFile(directory, "y", IdxOfBytes({2}, {4, 0})));
  const auto dataset = Open(spec);
  EXPECT_THAT(dataset->info().sample_shape, ElementsAre(3));
  EXPECT_EQ(dataset->info().outputs, 5);
}

TEST(IdxDatasetTest, FloatingPointSamplesAndLabelsAreUnchanged) {
  const std::string directory = MakeTestDirectory();
  const std::string one_and_a_half("\x3F\xC0\x00\x00", 4);
  const std::string minus_two("\xC0\x00\x00\x00", 4);
  v1::DataSpec spec = IdxSpec(
      WriteTestFile(directory, "x",
                    IdxHeader(0x0D, {2, 2}) + one_and_a_half + minus_two + minus_two + minus_two));
  spec.mutable_source()->set_labels(
      WriteTestFile(directory, "y", IdxHeader(0x0D, {2, 1}) + minus_two + one_and_a_half));
  const auto dataset = Open(spec);
  EXPECT_EQ(dataset->info().label_kind, LabelKind::kTargets);
  EXPECT_EQ(dataset->info().outputs, 1);
  const Batch batch = Read(*dataset, {0, 1});
  EXPECT_THAT(batch.features, ElementsAre(1.5f, -2.0f, -2.0f, -2.0f));
  EXPECT_THAT(batch.targets, ElementsAre(-2.0f, 1.5f));
  EXPECT_EQ(batch.target_width, 1);
}

TEST(IdxDatasetTest, MaxSamplesKeepsTheFirst) {
  v1::DataSpec spec = IdxSpec(DirectoryOfImages());
  spec.set_max_samples(2);
  const auto dataset = Open(spec);
  EXPECT_EQ(dataset->info().samples, 2u);
  EXPECT_EQ(dataset->info().outputs, 2);
  EXPECT_EQ(dataset->Read({2}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(IdxDatasetTest, AllHeldOutSamplesAreAvailableForTheFinalEvaluation) {
  v1::DataSpec spec = IdxSpec(DirectoryOfImages());
  const uint64_t all = Open(spec, Split::kEvaluation)->info().samples;
  spec.mutable_evaluation()->set_max_samples(1);
  EXPECT_EQ(Open(spec, Split::kEvaluation)->info().samples, all);
}

TEST(IdxDatasetTest, MissingDataNamesTheExpectedFiles) {
  ExpectRefused(IdxSpec(""), absl::StatusCode::kInvalidArgument, "data.source.path is not set");
  const std::string images = MakeTestDirectory();
  ExpectRefused(IdxSpec(WriteTestFile(images, "images-idx3", IdxOfBytes({1, 1, 1}, {0}))),
                absl::StatusCode::kNotFound, images + "/labels-idx1.gz");
  const std::string empty = MakeTestDirectory();
  ExpectRefused(IdxSpec(empty), absl::StatusCode::kNotFound, empty + "/train-images-idx3-ubyte.gz");
  v1::DataSpec spec = IdxSpec(DirectoryOfImages());
  spec.mutable_evaluation()->mutable_source()->set_path(empty);
  ExpectRefused(spec, absl::StatusCode::kNotFound,
                "data.evaluation.source: none of these files exists: " + empty + "/t10k-images",
                Split::kEvaluation);
  ExpectRefused(IdxSpec(DirectoryOfImages() + "/train-images-idx3-ubyte"),
                absl::StatusCode::kInvalidArgument, "data.evaluation.source.path is not set",
                Split::kEvaluation);
}

TEST(IdxDatasetTest, ReportsPathWithoutFile) {
  ExpectRefused(IdxSpec("/nonexistent/dir"), absl::StatusCode::kNotFound,
                "/nonexistent/dir: no such file or directory");
}

TEST(IdxDatasetTest, ReportsLargestLabelAndItsPlace) {
  const std::string directory = DirectoryOfImages();
  WriteTestFile(directory, "train-labels-idx1-ubyte", IdxOfBytes({3}, {0, 7, 7}));
  const auto dataset = Open(IdxSpec(directory));
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->info().largest.value, 7);
  EXPECT_EQ(dataset->info().largest.place, directory + "/train-labels-idx1-ubyte: row 1");
}

TEST(IdxDatasetTest, RejectsDifferentCountsNamingBothFiles) {
  const std::string directory = DirectoryOfImages();
  WriteTestFile(directory, "train-labels-idx1-ubyte", IdxOfBytes({2}, {0, 1}));
  ExpectRefused(IdxSpec(directory), absl::StatusCode::kInvalidArgument,
                directory + "/train-images-idx3-ubyte holds 3 samples and " + directory +
                    "/train-labels-idx1-ubyte 2 labels");
}

TEST(IdxDatasetTest, RejectsALabelOutOfRangeNamingFileAndRow) {
  const std::string directory = DirectoryOfImages();
  WriteTestFile(directory, "t10k-labels-idx1-ubyte", IdxOfBytes({1}, {3}));
  ExpectRefused(IdxSpec(directory), absl::StatusCode::kInvalidArgument,
                directory + "/t10k-labels-idx1-ubyte: row 0: label 3 is not in [0, 3)",
                Split::kEvaluation);
  v1::DataSpec spec = IdxSpec(directory);
  spec.set_classes(2);
  ExpectRefused(spec, absl::StatusCode::kInvalidArgument,
                "train-labels-idx1-ubyte: row 2: label 2 is not in [0, 2)");
  WriteTestFile(directory, "train-labels-idx1-ubyte",
                IdxHeader(0x09, {3}) + std::string("\0\xFF\0", 3));
  ExpectRefused(IdxSpec(directory), absl::StatusCode::kInvalidArgument, "row 1: label -1");
}

TEST(IdxDatasetTest, RejectsAnImageFileInPlaceOfLabels) {
  const std::string directory = DirectoryOfImages();
  v1::DataSpec spec = IdxSpec(directory);
  spec.mutable_source()->set_labels(directory + "/train-images-idx3-ubyte");
  ExpectRefused(spec, absl::StatusCode::kInvalidArgument, "has 4 labels for a sample");
}

void ExpectRealImages(const std::string& directory) {
  v1::DataSpec spec = IdxSpec(directory);
  const auto training = Open(spec);
  ASSERT_NE(training, nullptr);
  EXPECT_EQ(training->info().samples, 60000u);
  EXPECT_THAT(training->info().sample_shape, ElementsAre(1, 28, 28));
  EXPECT_EQ(training->info().outputs, 10);
  const auto evaluation = Open(spec, Split::kEvaluation);
  ASSERT_NE(evaluation, nullptr);
  EXPECT_EQ(evaluation->info().samples, 10000u);
  EXPECT_EQ(evaluation->info().outputs, 10);
}

TEST(IdxDatasetTest, ReadsMnistAsPublished) {
  SLUICE_SKIP_WITHOUT_DATA("mnist");
  ExpectRealImages(FindDataDirectory("mnist"));
  const auto dataset = Open(IdxSpec(FindDataDirectory("mnist")));
  std::vector<uint64_t> all(60000);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = Read(*dataset, all);
  EXPECT_THAT(std::vector<int64_t>(batch.classes.begin(), batch.classes.begin() + 6),
              ElementsAre(5, 0, 4, 1, 9, 2));
  double sum = 0;
  double squares = 0;
  for (float x : batch.features) {
    sum += x;
    squares += x * x;
  }
  const double mean = sum / batch.features.size();
  // The numbers by which every tutorial normalises.
  EXPECT_NEAR(mean, 0.1307, 5e-5);
  EXPECT_NEAR(std::sqrt(squares / batch.features.size() - mean * mean), 0.3081, 5e-5);
}

TEST(IdxDatasetTest, ReadsFashionMnistAsDebianInstallsIt) {
  SLUICE_SKIP_WITHOUT_DATA("fashion-mnist");
  ExpectRealImages(FindDataDirectory("fashion-mnist"));
  const auto dataset = Open(IdxSpec(FindDataDirectory("fashion-mnist")));
  EXPECT_THAT(Read(*dataset, {0, 1, 2, 3, 4, 5}).classes, ElementsAre(9, 0, 0, 3, 0, 2));
}

}  // namespace
}  // namespace sluice

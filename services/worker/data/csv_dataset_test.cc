#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "services/common/utf8.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/testing/data_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;
using ::testing::HasSubstr;

constexpr char kPeople[] =
    "age,job,city,income\n"
    "20,cook,Rome,low\n"
    "40,smith,Oslo,high\n"
    "60,baker,Rome,low\n";

v1::DataSpec CsvSpec(const std::string& path) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::CSV);
  spec.mutable_source()->set_path(path);
  spec.mutable_csv()->set_label_column("income");
  spec.mutable_csv()->add_numeric_columns("age");
  spec.mutable_csv()->add_categorical_columns("job");
  return spec;
}

v1::DataSpec CsvOf(const std::string& content) {
  return CsvSpec(WriteTestFile(MakeTestDirectory(), "people.csv", content));
}

v1::DataSpec NumbersOf(const std::string& content, const std::string& label) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::CSV);
  spec.mutable_source()->set_path(WriteTestFile(MakeTestDirectory(), "numbers.csv", content));
  spec.mutable_csv()->set_label_column(label);
  return spec;
}

void EvaluateOn(v1::DataSpec& spec, const std::string& content) {
  spec.mutable_evaluation()->mutable_source()->set_path(
      WriteTestFile(MakeTestDirectory(), "held_out.csv", content));
}

std::unique_ptr<Dataset> Open(const v1::DataSpec& spec, Split split = Split::kTraining) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(spec, split);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

Batch ReadAll(const v1::DataSpec& spec, Split split = Split::kTraining) {
  const std::unique_ptr<Dataset> dataset = Open(spec, split);
  if (dataset == nullptr) return Batch();
  std::vector<uint64_t> indices;
  for (uint64_t i = 0; i < dataset->info().samples; ++i) indices.push_back(i);
  return *dataset->Read(indices);
}

void ExpectRefused(const v1::DataSpec& spec, const std::string& message,
                   Split split = Split::kTraining) {
  const absl::Status status = OpenDataset(spec, split).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(CsvDatasetTest, NumbersAreKeptAndCategoriesBecomeOneFeaturePerValueInByteOrder) {
  const auto dataset = Open(CsvOf(kPeople));
  EXPECT_EQ(dataset->info().samples, 3u);
  EXPECT_THAT(dataset->info().sample_shape, ElementsAre(4));
  EXPECT_EQ(dataset->info().outputs, 2);
  // age; baker, cook, smith
  const Batch batch = *dataset->Read({1, 0});
  EXPECT_THAT(batch.features, ElementsAre(40, 0, 0, 1,  //
                                          20, 0, 1, 0));
  EXPECT_THAT(batch.classes, ElementsAre(0, 1));  // high, low
}

TEST(CsvDatasetTest, CategoriesCanBeOneNumberEach) {
  v1::DataSpec spec = CsvOf(kPeople);
  spec.mutable_csv()->set_categories(v1::DataSpec::Csv::INDEX);
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(20, 1, 40, 2, 60, 0));
}

TEST(CsvDatasetTest, StandardizedNumbersHaveMeanZeroAndDeviationOne) {
  v1::DataSpec spec = CsvOf(kPeople);
  spec.mutable_csv()->clear_categorical_columns();
  spec.mutable_csv()->set_standardize(true);
  const float unit = 1.2247449f;  // sqrt(3 / 2)
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(FloatEq(-unit), 0.0f, FloatEq(unit)));
  EvaluateOn(spec, "income,age\nlow,40\nlow,80\n");
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).features,
              ElementsAre(0.0f, FloatNear(2 * unit, 1e-6)));
}

TEST(CsvDatasetTest, ConstantColumnStandardizesToZero) {
  v1::DataSpec spec = NumbersOf("x,y\n5,0\n5,1\n", "y");
  spec.mutable_csv()->set_standardize(true);
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(0, 0));
}

TEST(CsvDatasetTest, NormalizationIsPerColumn) {
  v1::DataSpec spec = NumbersOf("a,b,y\n1,10,0\n2,20,1\n", "y");
  for (double mean : {1, 10}) spec.mutable_normalize()->add_mean(mean);
  for (double std : {1, 5}) spec.mutable_normalize()->add_std(std);
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(0, 0, 1, 2));
}

TEST(CsvDatasetTest, WithoutListsEveryOtherColumnIsANumber) {
  const auto dataset = Open(NumbersOf("a,y,b\n1,0,2\n3,4,4\n", "y"));
  EXPECT_THAT(dataset->Read({0, 1})->features, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(dataset->info().outputs, 5);  // the labels are the classes themselves
  EXPECT_THAT(dataset->Read({0, 1})->classes, ElementsAre(0, 4));
}

TEST(CsvDatasetTest, WithoutAHeaderColumnsAreNamedByTheirPlace) {
  v1::DataSpec spec = NumbersOf("1,0,2\n3,1,4\n", "1");
  spec.mutable_csv()->set_no_header(true);
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(1, 2, 3, 4));
}

TEST(CsvDatasetTest, LabelOfRegressionIsNumber) {
  v1::DataSpec spec = NumbersOf("x,y\n1,0.5\n2,-3\n", "y");
  spec.mutable_csv()->set_regression(true);
  const auto dataset = Open(spec);
  EXPECT_EQ(dataset->info().label_kind, LabelKind::kTargets);
  EXPECT_EQ(dataset->info().outputs, 1);
  const Batch batch = *dataset->Read({0, 1});
  EXPECT_THAT(batch.targets, ElementsAre(0.5f, -3.0f));
  EXPECT_EQ(batch.target_width, 1);
  EXPECT_TRUE(batch.classes.empty());
}

TEST(CsvDatasetTest, EvaluationDataIsEncodedAsTheTrainingDataWas) {
  v1::DataSpec spec = CsvOf(kPeople);
  EvaluateOn(spec, "income,job,age,city\nlow,pilot,30,Rome\nlow,smith,31,Bonn\n");
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).features, ElementsAre(30, 0, 0, 0,  //
                                                                      31, 0, 0, 1));
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).classes, ElementsAre(1, 1));
  spec.mutable_csv()->set_categories(v1::DataSpec::Csv::INDEX);
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).features, ElementsAre(30, 3, 31, 2));
}

TEST(CsvDatasetTest, MaxSamplesKeepsTheFirstRowsAndLearnsOnlyFromThem) {
  v1::DataSpec spec = CsvOf(kPeople);
  spec.set_max_samples(2);
  const auto dataset = Open(spec);
  EXPECT_EQ(dataset->info().samples, 2u);
  EXPECT_THAT(dataset->info().sample_shape, ElementsAre(3));
  EXPECT_EQ(dataset->Read({2}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(CsvDatasetTest, ReadsCompressedFileWithOtherDelimiters) {
  v1::DataSpec spec = NumbersOf("", "y");
  spec.mutable_source()->set_path(WriteTestFile(MakeTestDirectory(), "n.csv.gz", "x;y\n1;0\n"));
  spec.mutable_csv()->set_delimiter(";");
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(1));
}

TEST(CsvDatasetTest, RejectsABadFileNamingFileAndLine) {
  ExpectRefused(CsvOf("age,job,income\n1,cook,low\n2,cook\n"),
                "people.csv:3: has 2 columns: should have 3");
  ExpectRefused(CsvOf("age,job,income\n1,cook,low\n\nold,cook,low\n"),
                "people.csv:4: column 'age': 'old' is not a number");
  ExpectRefused(CsvOf("age,job,income\nnan,cook,low\n"), "people.csv:2: column 'age': 'nan'");
  ExpectRefused(CsvOf("age,job,income\n1e39,cook,low\n"), "people.csv:2: column 'age': '1e39'");
  ExpectRefused(CsvOf("age,job,income\n,cook,low\n"), "people.csv:2: column 'age': ''");
  ExpectRefused(CsvOf("age,job,income\n"), "people.csv: has no rows");
  ExpectRefused(CsvOf(""), "people.csv: is empty");
  ExpectRefused(CsvOf("age,age,income\n1,2,3\n"), "people.csv:1: there are two columns 'age'");
  ExpectRefused(
      CsvOf("age,job,salary\n1,cook,low\n"),
      "people.csv: no column 'income' (data.csv.labelColumn); there are: age, job, salary");
}

TEST(CsvDatasetTest, RejectsLabelsOutOfRangeNamingFileAndLine) {
  v1::DataSpec spec = NumbersOf("x,y\n1,0\n2,3\n", "y");
  spec.set_classes(3);
  ExpectRefused(spec, "numbers.csv:3: label '3' is not a class in [0, 3)");
  spec = CsvOf(kPeople);
  EvaluateOn(spec, "age,job,income\n30,cook,middle\n");
  ExpectRefused(spec, "held_out.csv:2: label 'middle' is not among those of the training data",
                Split::kEvaluation);
  spec = CsvOf(kPeople);
  spec.set_classes(1);
  ExpectRefused(spec, "column 'income' has 2 distinct labels, and data.classes is 1");
}

TEST(CsvDatasetTest, RejectsAContradictorySpecNamingTheField) {
  v1::DataSpec spec = CsvOf(kPeople);
  spec.mutable_csv()->set_label_column("");
  ExpectRefused(spec, "data.csv.labelColumn is not set");
  spec = CsvOf(kPeople);
  spec.mutable_csv()->add_numeric_columns("job");
  ExpectRefused(spec, "data.csv.numericColumns: column 'job' is used twice");
  spec = CsvOf(kPeople);
  spec.mutable_csv()->set_delimiter("::");
  ExpectRefused(spec, "data.csv.delimiter is '::'");
  spec = CsvOf(kPeople);
  ExpectRefused(spec, "data.evaluation.source.path is not set", Split::kEvaluation);
  EvaluateOn(spec, "age,job,city\n30,cook,Rome\n");
  ExpectRefused(spec, "held_out.csv: no column 'income'", Split::kEvaluation);
  spec.mutable_source()->set_path("");
  ExpectRefused(spec, "data.source.path is not set");
  ExpectRefused(NumbersOf("y\n1\n", "y"), "there is no column but the label");
}

TEST(CsvDatasetTest, ReadsTheAdultDataSet) {
  SLUICE_SKIP_WITHOUT_DATA("adult");
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::CSV);
  spec.mutable_source()->set_path(FindDataDirectory("adult") + "/adult.csv.gz");
  spec.mutable_csv()->set_label_column("income-per-year");
  spec.mutable_csv()->set_standardize(true);
  for (const char* name :
       {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}) {
    spec.mutable_csv()->add_numeric_columns(name);
  }
  for (const char* name : {"workclass", "education", "marital-status", "occupation", "relationship",
                           "race", "sex", "native-country"}) {
    spec.mutable_csv()->add_categorical_columns(name);
  }
  const auto dataset = Open(spec);
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->info().samples, 32561u);
  EXPECT_THAT(dataset->info().sample_shape, ElementsAre(108));
  EXPECT_EQ(dataset->info().outputs, 2);
  EXPECT_THAT(dataset->Read({0, 1})->classes, ElementsAre(0, 0));
}

// A worker reports the message to the coordinator, which could not read one that is not UTF-8.
TEST(CsvDatasetTest, QuotesAFileInAnotherEncodingInUtf8) {
  const absl::Status status =
      OpenDataset(NumbersOf("a,y\ncaf\xE9,1\n", "y"), Split::kTraining).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("caf?"));
  EXPECT_TRUE(IsUtf8(status.message()));
}

}  // namespace
}  // namespace sluice

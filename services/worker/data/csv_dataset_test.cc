#include "services/worker/data/csv_dataset.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "services/common/text/utf8.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/testing/data_files.h"

namespace sluice {
namespace {

using ::testing::AllOf;
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

// 0.1 from three rows on, 0.3 from thirteen: their sums round.
TEST(CsvDatasetTest, ConstantWhoseSumRoundsStandardizesToZero) {
  for (const char* const constant : {"0.1", "0.3", "273.15", "-1e30", "1e-300", "5"}) {
    std::string rows = "x,y\n";
    for (int i = 0; i < 1000; ++i) rows += std::string(constant) + (i % 2 == 0 ? ",0\n" : ",1\n");
    v1::DataSpec spec = NumbersOf(rows, "y");
    spec.mutable_csv()->set_standardize(true);
    EXPECT_THAT(ReadAll(spec).features, ::testing::Each(0.0f)) << constant;
  }
}

TEST(CsvDatasetTest, HeldOutValueBesideAConstantIsTheDifferenceFromIt) {
  v1::DataSpec spec = NumbersOf("x,y\n0.1,0\n0.1,1\n0.1,1\n", "y");
  spec.mutable_csv()->set_standardize(true);
  EvaluateOn(spec, "x,y\n0.1,0\n0.6,1\n");
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).features, ElementsAre(0.0f, FloatEq(0.5f)));
}

TEST(CsvDatasetTest, ValuesThatDifferByRoundingAloneAreAConstant) {
  v1::DataSpec spec = NumbersOf("x,y\n0.3,0\n0.30000000000000004,1\n0.3,1\n", "y");
  spec.mutable_csv()->set_standardize(true);
  EXPECT_THAT(ReadAll(spec).features, ::testing::Each(FloatNear(0.0f, 1e-12)));
}

// Seconds since 1970, a few apart.
TEST(CsvDatasetTest, SmallDeviationsOfLargeNumbersAreKept) {
  v1::DataSpec spec = NumbersOf("x,y\n1700000001,0\n1700000003,1\n1700000005,1\n", "y");
  spec.mutable_csv()->set_standardize(true);
  const float unit = 1.2247449f;  // sqrt(3 / 2)
  EXPECT_THAT(ReadAll(spec).features, ElementsAre(FloatEq(-unit), 0.0f, FloatEq(unit)));
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

TEST(CsvDatasetTest, EvaluationDataMayHaveOtherColumnsInAnyOrder) {
  v1::DataSpec spec = NumbersOf("x,y\n1,0\n2,1\n", "y");
  EvaluateOn(spec, "id,y,note,note,x\nu7,1,a,b,5\n");
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).features, ElementsAre(5));
  EXPECT_THAT(ReadAll(spec, Split::kEvaluation).classes, ElementsAre(1));
  EvaluateOn(spec, "id,y\nu7,1\n");
  ExpectRefused(spec, "held_out.csv: no column 'x' (which the training data has); there are: id, y",
                Split::kEvaluation);
  EvaluateOn(spec, "x,y,x\n1,1,2\n");
  ExpectRefused(spec, "held_out.csv: there are two columns 'x'", Split::kEvaluation);
}

TEST(CsvDatasetTest, ReadsTablesOfThousandsOfColumns) {
  constexpr int kColumns = 20000;
  v1::DataSpec spec;
  std::string header = "y";
  std::string row = "1";
  for (int i = 0; i < kColumns; ++i) {
    header += ",f" + std::to_string(i);
    row += "," + std::to_string(i);
  }
  spec = NumbersOf(header + "\n" + row + "\n", "y");
  for (int i = kColumns; i-- > 0;) {
    spec.mutable_csv()->add_numeric_columns("f" + std::to_string(i));
  }
  const Batch batch = ReadAll(spec);
  ASSERT_EQ(batch.features.size(), static_cast<size_t>(kColumns));
  EXPECT_EQ(batch.features[kColumns - 1], kColumns - 1);
}

TEST(CsvDatasetTest, NamesTheEncodingOfAFileThatIsNotUtf8) {
  const std::string wide("\xFF\xFEx\0,\0y\0\n\0", 12);
  ExpectRefused(NumbersOf(wide, "y"), "numbers.csv: is UTF-16: should be UTF-8");
}

TEST(CsvDatasetTest, LargestLabelHasAPlace) {
  const auto numbers = Open(NumbersOf("x,y\n0,1\n1,2\n2,1\n", "y"));
  EXPECT_EQ(numbers->info().largest.value, 2);
  EXPECT_THAT(numbers->info().largest.place, HasSubstr("numbers.csv:3: column 'y'"));
  EXPECT_EQ(numbers->info().largest.name, "");
  EXPECT_EQ(Open(CsvOf(kPeople))->info().largest.name, "low");
}

// ---- the encoding beside a job's checkpoints

struct Kept {
  v1::DataSpec spec;
  std::string file;  // the encoding
};

Kept KeepEncodingOf(const v1::DataSpec& spec) {
  Kept kept{spec, ""};
  const std::string path = MakeTestDirectory() + "/encoding.csv";
  const absl::Status status = KeepTableEncoding(path, spec, &kept.file);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(kept.file, path);
  return kept;
}

v1::DataSpec Cities(const std::string& rows) {
  v1::DataSpec spec = NumbersOf("city,age,y\n" + rows, "y");
  spec.mutable_csv()->add_categorical_columns("city");
  spec.mutable_csv()->add_numeric_columns("age");
  spec.mutable_csv()->set_categories(v1::DataSpec::Csv::INDEX);
  spec.mutable_csv()->set_standardize(true);
  return spec;
}

absl::Status OpenStatus(const v1::DataSpec& spec, const std::string& encoding,
                        Split split = Split::kTraining) {
  return OpenDataset(spec, split, encoding).status();
}

TEST(TableEncodingOfJobTest, ResumedJobKeepsPlacesMeansAndClasses) {
  const Kept kept = KeepEncodingOf(Cities("bonn,1,no\nkiel,3,yes\nulm,5,no\n"));
  // Without bonn, ulm would be in place 1; with these ages, the mean would be 4; and there would be
  // one class.
  const v1::DataSpec changed = Cities("ulm,3,yes\nkiel,5,yes\n");
  const auto dataset = OpenDataset(changed, Split::kTraining, kept.file);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Batch batch = *(*dataset)->Read({0, 1});
  EXPECT_THAT(batch.features, ElementsAre(2, 0, 1, FloatEq(1.2247449f)));
  EXPECT_THAT(batch.classes, ElementsAre(1, 1));
  EXPECT_EQ((*dataset)->info().outputs, 2);
}

TEST(TableEncodingOfJobTest, RejectsANewValueNamingFileLineAndColumn) {
  const Kept kept = KeepEncodingOf(Cities("bonn,1,no\nkiel,3,yes\n"));
  const absl::Status status = OpenStatus(Cities("bonn,1,no\naalen,3,yes\n"), kept.file);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("numbers.csv:3: column 'city': the value 'aalen' is new"),
                    HasSubstr(kept.file), HasSubstr("start over")));
  EXPECT_THAT(std::string(OpenStatus(Cities("bonn,1,maybe\n"), kept.file).message()),
              HasSubstr("numbers.csv:2: label 'maybe' is not among those of the training data"));
}

TEST(TableEncodingOfJobTest, EvaluationDataMayHaveANewValue) {
  Kept kept = KeepEncodingOf(Cities("bonn,1,no\nkiel,3,yes\n"));
  EvaluateOn(kept.spec, "city,age,y\naalen,1,no\n");
  const auto dataset = OpenDataset(kept.spec, Split::kEvaluation, kept.file);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->Read({0})->features, ElementsAre(2, -1));
}

uint64_t DigestOf(const v1::DataSpec& spec, const std::string& encoding = "") {
  const auto dataset = OpenDataset(spec, Split::kTraining, encoding);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->info().digest.name(), "the encoding of the columns");
  return (*dataset)->info().digest.hash();
}

TEST(TableEncodingOfJobTest, DigestChangesWithTheEncodingAlone) {
  const std::string rows = "bonn,1,no\nkiel,3,yes\n";
  const uint64_t digest = DigestOf(Cities(rows));
  EXPECT_EQ(DigestOf(Cities(rows)), digest);
  EXPECT_EQ(DigestOf(Cities("kiel,3,yes\nbonn,1,no\n")), digest) << "other rows, same encoding";
  for (const char* changed :
       {"bonn,1,no\nulm,3,yes\n", "bonn,1,no\nkiel,4,yes\n", "bonn,1,no\nkiel,3,maybe\n",
        "bonn,1,no\nkiel,3,no\n", "bonn,1,no\nkiel,3,yes\nulm,2,no\n"}) {
    EXPECT_NE(DigestOf(Cities(changed)), digest) << changed;
  }
  EXPECT_NE(DigestOf(NumbersOf("a,b,y\n1,2,0\n", "y")), DigestOf(NumbersOf("b,a,y\n1,2,0\n", "y")));
  v1::DataSpec as_is = Cities(rows);
  as_is.mutable_csv()->set_standardize(false);
  EXPECT_NE(DigestOf(as_is), digest);

  const Kept kept = KeepEncodingOf(Cities(rows));
  EXPECT_EQ(DigestOf(Cities("kiel,4,yes\nkiel,5,no\n"), kept.file), digest);
}

TEST(TableEncodingOfJobTest, ColumnsKeepTheirOrderAndNewOnesAreRefused) {
  const Kept kept = KeepEncodingOf(NumbersOf("a,b,y\n1,2,0\n3,4,1\n", "y"));
  const auto dataset = OpenDataset(NumbersOf("b,y,a\n2,1,1\n", "y"), Split::kTraining, kept.file);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->Read({0})->features, ElementsAre(1, 2));
  EXPECT_THAT(std::string(OpenStatus(NumbersOf("a,b,c,y\n1,2,3,0\n", "y"), kept.file).message()),
              HasSubstr("numbers.csv: column 'c' is new"));
  EXPECT_THAT(std::string(OpenStatus(NumbersOf("a,y\n1,0\n", "y"), kept.file).message()),
              HasSubstr("numbers.csv: no column 'b' (which the training data has)"));
}

TEST(TableEncodingOfJobTest, RejectsAnotherEncodingThanTheModels) {
  const Kept mine = KeepEncodingOf(Cities("bonn,1,no\nkiel,3,yes\n"));
  Kept other = KeepEncodingOf(Cities("bonn,1,no\nulm,3,yes\n"));
  std::string file = other.file;
  const absl::Status status = KeepTableEncoding(mine.file, other.spec, &file);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("column 'city' has the new value 'ulm'"), HasSubstr(mine.file)));
}

TEST(TableEncodingOfJobTest, DamagedFileIsNamedWithTheRemedy) {
  const Kept kept = KeepEncodingOf(Cities("bonn,1,no\nkiel,3,yes\n"));
  std::ofstream(kept.file, std::ios::app) << "x";
  const absl::Status status = OpenStatus(kept.spec, kept.file);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(kept.file + ": is damaged"), HasSubstr("Restore it from a copy")));
}

TEST(TableEncodingOfJobTest, WorkersThatStartAtOnceWriteItCompletely) {
  std::string rows;
  for (int i = 0; i < 5000; ++i) rows += "city" + std::to_string(i) + ",1,no\n";
  const v1::DataSpec spec = Cities(rows);
  const std::string directory = MakeTestDirectory();
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 4; ++worker) {
    workers.emplace_back([&] {
      std::string file;
      const absl::Status status = KeepTableEncoding(directory + "/encoding.csv", spec, &file);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(OpenStatus(spec, file).ok());
    });
  }
  for (std::thread& worker : workers) worker.join();
  const std::filesystem::directory_iterator files(directory);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "their temporary files are removed";
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
  ExpectRefused(CsvOf("age,age,job,income\n1,2,cook,3\n"),
                "people.csv: there are two columns 'age' (data.csv.numericColumns)");
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

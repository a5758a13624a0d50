// Tests the promises of dataset.h for every format. A new format is one more row of Cases().
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <thread>
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

using ::testing::HasSubstr;

struct Case {
  std::string name;
  v1::DataSpec (*make)();  // at least 3 training samples, and at least 1 to evaluate on
};

void PrintTo(const Case& format, std::ostream* out) { *out << format.name; }

v1::DataSpec Idx() {
  const std::string directory = MakeTestDirectory();
  for (const char* split : {"train", "t10k"}) {
    WriteTestFile(directory, std::string(split) + "-images-idx3-ubyte",
                  IdxOfBytes({4, 2, 2}, {0, 51, 102, 255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
    WriteTestFile(directory, std::string(split) + "-labels-idx1-ubyte",
                  IdxOfBytes({4}, {0, 1, 2, 1}));
  }
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::IDX);
  spec.mutable_source()->set_path(directory);
  return spec;
}

v1::DataSpec Csv(bool regression) {
  const std::string directory = MakeTestDirectory();
  const std::string rows = "age,job,pay\n20,cook,1\n40,smith,0\n60,baker,1\n50,cook,0\n";
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::CSV);
  spec.mutable_source()->set_path(WriteTestFile(directory, "train.csv", rows));
  spec.mutable_evaluation()->mutable_source()->set_path(
      WriteTestFile(directory, "held_out.csv", rows));
  spec.mutable_csv()->set_label_column("pay");
  spec.mutable_csv()->set_regression(regression);
  spec.mutable_csv()->add_categorical_columns("job");
  spec.mutable_csv()->set_standardize(true);
  return spec;
}

v1::DataSpec Text() {
  const std::string directory = MakeTestDirectory();
  const std::string words = "a b c d e f g h i j k l\n";
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::TEXT);
  spec.mutable_source()->set_path(WriteTestFile(directory, "train.txt", words));
  spec.mutable_evaluation()->mutable_source()->set_path(
      WriteTestFile(directory, "held_out.txt", words));
  spec.mutable_text()->set_sequence_length(3);
  spec.mutable_text()->set_vocabulary_size(100);
  return spec;
}

v1::DataSpec Synthetic(uint32_t classes, uint32_t vocabulary) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::SYNTHETIC);
  spec.mutable_synthetic()->set_samples(50);
  spec.mutable_synthetic()->add_shape(3);
  spec.mutable_synthetic()->set_classes(classes);
  spec.mutable_synthetic()->set_vocabulary(vocabulary);
  return spec;
}

std::vector<Case> Cases() {
  return {
      {"Idx", Idx},
      {"CsvOfClasses", [] { return Csv(false); }},
      {"CsvOfNumbers", [] { return Csv(true); }},
      {"Text", Text},
      {"SyntheticClasses", [] { return Synthetic(4, 0); }},
      {"SyntheticNumbers", [] { return Synthetic(0, 0); }},
      {"SyntheticTokens", [] { return Synthetic(0, 20); }},
  };
}

class EveryDatasetTest : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Dataset> Open(Split split = Split::kTraining) {
    absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(spec_, split);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }

  v1::DataSpec spec_ = GetParam().make();
};

int64_t Elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

template <typename T>
std::vector<T> Part(const std::vector<T>& all, uint64_t samples, uint64_t index) {
  const size_t width = all.size() / samples;
  return {all.begin() + static_cast<int64_t>(index * width),
          all.begin() + static_cast<int64_t>((index + 1) * width)};
}

// Whether sample `i` of `a` is sample `j` of `b`.
bool SameSample(const Batch& a, uint64_t i, const Batch& b, uint64_t j) {
  return a.shape == b.shape && a.class_width == b.class_width && a.target_width == b.target_width &&
         Part(a.features, a.samples, i) == Part(b.features, b.samples, j) &&
         Part(a.tokens, a.samples, i) == Part(b.tokens, b.samples, j) &&
         Part(a.classes, a.samples, i) == Part(b.classes, b.samples, j) &&
         Part(a.targets, a.samples, i) == Part(b.targets, b.samples, j);
}

std::vector<uint64_t> AllOf(const Dataset& dataset) {
  std::vector<uint64_t> indices(dataset.info().samples);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST_P(EveryDatasetTest, BatchHasTheSizesThatItsDescriptionPromises) {
  for (const Split split : {Split::kTraining, Split::kEvaluation}) {
    const auto dataset = Open(split);
    ASSERT_NE(dataset, nullptr);
    const DatasetInfo& info = dataset->info();
    ASSERT_GE(info.samples, 1u);
    const Batch batch = *dataset->Read(AllOf(*dataset));

    EXPECT_EQ(batch.samples, info.samples);
    EXPECT_EQ(batch.shape, info.sample_shape);
    const auto elements = static_cast<size_t>(Elements(info.sample_shape)) * info.samples;
    EXPECT_EQ(info.tokens ? batch.tokens.size() : batch.features.size(), elements);
    EXPECT_EQ(info.tokens ? batch.features.size() : batch.tokens.size(), 0u);

    if (info.label_kind == LabelKind::kClass) {
      EXPECT_EQ(batch.classes.size(), info.samples * static_cast<size_t>(batch.class_width));
      EXPECT_TRUE(batch.targets.empty());
      for (const int64_t label : batch.classes) {
        EXPECT_GE(label, 0);
        EXPECT_LT(label, info.outputs);
      }
    } else {
      EXPECT_EQ(info.label_kind, LabelKind::kTargets);
      EXPECT_EQ(batch.target_width, info.outputs);
      EXPECT_EQ(batch.targets.size(), info.samples * static_cast<size_t>(info.outputs));
      EXPECT_TRUE(batch.classes.empty());
    }
  }
}

TEST_P(EveryDatasetTest, SamplesComeInTheRequestedOrderAndMayRepeat) {
  const auto dataset = Open();
  ASSERT_NE(dataset, nullptr);
  const std::vector<uint64_t> indices = {2, 0, 2, 1};
  const Batch batch = *dataset->Read(indices);
  for (size_t i = 0; i < indices.size(); ++i) {
    EXPECT_TRUE(SameSample(batch, i, *dataset->Read({indices[i]}), 0)) << i;
  }
  EXPECT_FALSE(SameSample(batch, 0, batch, 1)) << "the case has equal samples";
}

TEST_P(EveryDatasetTest, OpenedAgainItHasTheSameSamples) {
  const auto once = Open();
  const auto again = Open();
  const Batch a = *once->Read(AllOf(*once));
  const Batch b = *again->Read(AllOf(*again));
  ASSERT_EQ(a.samples, b.samples);
  for (uint64_t i = 0; i < a.samples; ++i) EXPECT_TRUE(SameSample(a, i, b, i)) << i;
  EXPECT_EQ(once->info().digest.SerializeAsString(), again->info().digest.SerializeAsString());
}

TEST_P(EveryDatasetTest, EvaluationDataFitsTheSameModel) {
  const auto training = Open();
  const auto evaluation = Open(Split::kEvaluation);
  EXPECT_EQ(training->info().sample_shape, evaluation->info().sample_shape);
  EXPECT_EQ(training->info().label_kind, evaluation->info().label_kind);
  EXPECT_EQ(training->info().outputs, evaluation->info().outputs);
  EXPECT_EQ(training->info().tokens, evaluation->info().tokens);
}

TEST_P(EveryDatasetTest, MaxSamplesKeepsTheFirst) {
  const uint64_t all = Open()->info().samples;
  spec_.set_max_samples(2);
  EXPECT_EQ(Open()->info().samples, 2u);
  spec_.set_max_samples(all + 1000);
  EXPECT_EQ(Open()->info().samples, all);
}

TEST_P(EveryDatasetTest, IndexBeyondTheEndIsAnError) {
  const auto dataset = Open();
  const absl::Status status = dataset->Read({0, dataset->info().samples}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(dataset->info().samples)));
}

TEST_P(EveryDatasetTest, NoIndicesGiveAnEmptyBatch) {
  const absl::StatusOr<Batch> batch = Open()->Read({});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->samples, 0u);
  EXPECT_TRUE(batch->features.empty() && batch->tokens.empty() && batch->classes.empty() &&
              batch->targets.empty());
}

TEST_P(EveryDatasetTest, ThreadsReadTheSameSamples) {
  const auto dataset = Open();
  const std::vector<uint64_t> indices = AllOf(*dataset);
  const Batch expected = *dataset->Read(indices);
  std::vector<std::thread> threads;
  std::vector<char> equal(4, 1);
  for (size_t thread = 0; thread < equal.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 50; ++round) {
        const Batch batch = *dataset->Read(indices);
        for (uint64_t i = 0; i < batch.samples; ++i) {
          if (!SameSample(batch, i, expected, i)) equal[thread] = 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(1));
}

INSTANTIATE_TEST_SUITE_P(AllFormats, EveryDatasetTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// CUSTOM is the data of a program: no class reads it.
TEST(EveryDataset, EveryFormatIsTested) {
  std::set<int> tested = {v1::DataSpec::CUSTOM};
  for (const Case& format : Cases()) tested.insert(format.make().format());
  EXPECT_EQ(tested.size(), static_cast<size_t>(v1::DataSpec::Format_descriptor()->value_count()));
}

}  // namespace
}  // namespace sluice

#include "services/worker/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/checkpoint/state_dict_extras.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/row_selection.h"
#include "services/worker/data/testing/data_files.h"

namespace sluice::worker {
namespace {

// A model that does not compute: these tests are about data.
class EmptyEngine final : public ComputeEngine {
 public:
  explicit EmptyEngine(v1::TensorTable table = {}, StateDictExtras extras = {})
      : table_(std::move(table)), extras_(std::move(extras)) {}
  const v1::TensorTable& Describe() const override { return table_; }
  StateDictExtras Extras() const override { return extras_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t) const override { return Nothing(); }
  absl::Status SetTensorRange(Buffer, uint32_t, uint64_t, const absl::Cord&) override {
    return Nothing();
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override { return Nothing(); }
  absl::Status Adopt() override { return absl::OkStatus(); }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest&, GradientSink&) override {
    return Nothing();
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer, const Batch&) override { return Nothing(); }

 private:
  static absl::Status Nothing() { return absl::OutOfRangeError("there are no tensors"); }
  v1::TensorTable table_;
  StateDictExtras extras_;
};

absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeEmptyEngine(const v1::JobSpec&,
                                                               const DatasetInfo&, int) {
  return std::make_unique<EmptyEngine>();
}

// Three images to train on and two to evaluate on, in one directory under their usual names.
v1::JobSpec JobWithImages() {
  const std::string directory = MakeTestDirectory();
  WriteTestFile(directory, "train-images-idx3-ubyte", IdxOfBytes({3, 1, 1}, {1, 2, 3}));
  WriteTestFile(directory, "train-labels-idx1-ubyte", IdxOfBytes({3}, {0, 1, 0}));
  WriteTestFile(directory, "t10k-images-idx3-ubyte", IdxOfBytes({2, 1, 1}, {4, 5}));
  WriteTestFile(directory, "t10k-labels-idx1-ubyte", IdxOfBytes({2}, {1, 0}));
  v1::JobSpec job;
  job.mutable_data()->set_format(v1::DataSpec::IDX);
  job.mutable_data()->mutable_source()->set_path(directory);
  return job;
}

// Distinguishes three classes.
absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeClassifier(const v1::JobSpec&,
                                                              const DatasetInfo&, int) {
  v1::TensorTable table;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 1}, {3}}) {
    v1::TensorSpec* tensor = table.add_tensors();
    for (int64_t dimension : shape) tensor->add_shape(dimension);
  }
  return std::make_unique<EmptyEngine>(std::move(table));
}

TEST(Trainer, NamesFileAndRowOfLabelThatTheModelCannotOutput) {
  v1::JobSpec job = JobWithImages();
  job.mutable_model()->set_name("convnet");
  EXPECT_TRUE(Trainer::Open(job, 0, 1, MakeClassifier).ok());
  const std::string directory = job.data().source().path();
  WriteTestFile(directory, "train-labels-idx1-ubyte", IdxOfBytes({3}, {0, 3, 2}));
  const absl::Status refused = Trainer::Open(job, 0, 1, MakeClassifier).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message(),
            directory +
                "/train-labels-idx1-ubyte: row 1: label 3 is not in [0, 3), the classes that "
                "convnet distinguishes");
}

TEST(Trainer, EvaluationNeedsNoSourceIfTheFormatKnowsTheNames) {
  v1::JobSpec job = JobWithImages();
  job.mutable_data()->mutable_evaluation()->set_interval_steps(10);
  const auto trainer = Trainer::Open(job, /*index=*/0, /*threads=*/1, MakeEmptyEngine);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->training_samples(), 3u);
  EXPECT_EQ((*trainer)->evaluation_samples(), 2u);
}

v1::JobSpec JobWithText(const std::string& checkpoints, const std::string& text) {
  v1::JobSpec job;
  job.mutable_data()->set_format(v1::DataSpec::TEXT);
  job.mutable_data()->mutable_source()->set_path(
      WriteTestFile(MakeTestDirectory(), "train.txt", text));
  job.mutable_data()->mutable_text()->set_sequence_length(2);
  job.mutable_data()->mutable_text()->set_vocabulary_size(100);
  job.mutable_checkpoint()->set_directory(checkpoints);
  return job;
}

// Words that the model would be made for.
int64_t words_seen = 0;
absl::StatusOr<std::unique_ptr<ComputeEngine>> NoteWords(const v1::JobSpec&,
                                                         const DatasetInfo& data, int) {
  words_seen = data.outputs;
  return std::make_unique<EmptyEngine>();
}

TEST(Trainer, StoresWordsOfTextNextToTheCheckpoints) {
  const std::string directory = MakeTestDirectory();
  ASSERT_TRUE(Trainer::Open(JobWithText(directory, "a b c\n"), 0, 1, NoteWords).ok());
  EXPECT_EQ(words_seen, 5);
  std::ifstream file(directory + "/vocabulary.txt");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "<unk>\n<eos>\na\nb\nc\n");
  // The text has changed.
  ASSERT_TRUE(Trainer::Open(JobWithText(directory, "a b c d e f\n"), 0, 1, NoteWords).ok());
  EXPECT_EQ(words_seen, 5);
}

TEST(Trainer, ReportsADigestOfTheVocabulary) {
  const std::string directory = MakeTestDirectory();
  const auto digest = [](const v1::JobSpec& job) {
    const auto trainer = Trainer::Open(job, 0, 1, NoteWords);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    const v1::Ready ready = (*trainer)->Ready();
    EXPECT_EQ(ready.digests_size(), 1);
    EXPECT_EQ(ready.digests(0).name(), "the vocabulary");
    return ready.digests(0).hash();
  };
  const uint64_t first = digest(JobWithText(directory, "a b c\n"));
  EXPECT_EQ(digest(JobWithText("", "c b a\n")), first);
  EXPECT_EQ(digest(JobWithText(directory, "a b c d e f\n")), first) << "the words are kept";
  EXPECT_NE(digest(JobWithText("", "a b c d e f\n")), first);

  const auto images = Trainer::Open(JobWithImages(), 0, 1, MakeEmptyEngine);
  EXPECT_EQ((*images)->Ready().digests_size(), 0);
}

TEST(Trainer, ExtrasOfTheStateDictAreStoredNextToTheCheckpoints) {
  v1::JobSpec job = JobWithImages();
  const std::string directory = MakeTestDirectory();
  const std::string path = directory + "/" + kStateDictExtrasFile;
  job.mutable_checkpoint()->set_directory(directory);
  StateDictExtras extras;
  const auto make = [&](const v1::JobSpec&, const DatasetInfo&, int) {
    return absl::StatusOr<std::unique_ptr<ComputeEngine>>(
        std::make_unique<EmptyEngine>(v1::TensorTable(), extras));
  };
  const auto stored = [&] {
    std::ifstream file(path);
    const std::string content(std::istreambuf_iterator<char>(file), {});
    return ReadStateDictExtras(absl::Cord(content));
  };
  ASSERT_TRUE(Trainer::Open(job, 0, 1, make).ok());
  EXPECT_FALSE(std::ifstream(path).good()) << "the model has no extras";
  extras.aliases = {{"head.weight", "tokens.weight"}};
  ASSERT_TRUE(Trainer::Open(job, 0, 1, make).ok());
  EXPECT_EQ(stored()->aliases, extras.aliases);
  extras.aliases.clear();  // the model has changed
  ASSERT_TRUE(Trainer::Open(job, 0, 1, make).ok());
  EXPECT_TRUE(stored()->empty());
  job.mutable_checkpoint()->set_directory("/nowhere");
  EXPECT_TRUE(Trainer::Open(job, 0, 1, make).ok());
}

TEST(Trainer, AJobThatStartsFromAnotherJobsCheckpointUsesItsVocabulary) {
  const std::string directory = MakeTestDirectory();
  ASSERT_TRUE(Trainer::Open(JobWithText(directory, "a b c\n"), 0, 1, NoteWords).ok());
  for (const char* origin : {"", "/attempt-0001-step-000000000005"}) {
    v1::JobSpec job = JobWithText(MakeTestDirectory(), "a b c d e f\n");
    job.mutable_checkpoint()->set_restore_from(directory + origin);
    ASSERT_TRUE(Trainer::Open(job, 0, 1, NoteWords).ok());
    EXPECT_EQ(words_seen, 5) << origin;
  }
}

v1::JobSpec JobWithTable(const std::string& checkpoints, const std::string& rows) {
  v1::JobSpec job;
  v1::DataSpec& data = *job.mutable_data();
  data.set_format(v1::DataSpec::CSV);
  data.mutable_source()->set_path(
      WriteTestFile(MakeTestDirectory(), "train.csv", "city,y\n" + rows));
  data.mutable_csv()->set_label_column("y");
  data.mutable_csv()->add_categorical_columns("city");
  job.mutable_checkpoint()->set_directory(checkpoints);
  return job;
}

TEST(Trainer, StoresEncodingOfTableNextToTheCheckpoints) {
  const std::string directory = MakeTestDirectory();
  const std::string rows = "bonn,0\nkiel,1\n";
  ASSERT_TRUE(Trainer::Open(JobWithTable(directory, rows), 0, 1, MakeEmptyEngine).ok());
  EXPECT_TRUE(std::ifstream(directory + "/encoding.csv").good());
  EXPECT_TRUE(Trainer::Open(JobWithTable(directory, rows + rows), 0, 1, MakeEmptyEngine).ok());

  const v1::JobSpec changed = JobWithTable(directory, "aalen,0\n" + rows);
  const absl::Status refused = Trainer::Open(changed, 0, 1, MakeEmptyEngine).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_NE(refused.message().find("the value 'aalen' is new"), absl::string_view::npos) << refused;
}

TEST(Trainer, AJobThatStartsFromAnotherJobsCheckpointUsesItsEncoding) {
  const std::string directory = MakeTestDirectory();
  const std::string rows = "bonn,0\nkiel,1\n";
  ASSERT_TRUE(Trainer::Open(JobWithTable(directory, rows), 0, 1, MakeEmptyEngine).ok());
  for (const char* origin : {"", "/attempt-0001-step-000000000005"}) {
    v1::JobSpec job = JobWithTable(MakeTestDirectory(), "aalen,0\n" + rows);
    job.mutable_checkpoint()->set_restore_from(directory + origin);
    EXPECT_TRUE(absl::IsInvalidArgument(Trainer::Open(job, 0, 1, MakeEmptyEngine).status()));
    job.clear_checkpoint();
    EXPECT_TRUE(Trainer::Open(job, 0, 1, MakeEmptyEngine).ok()) << origin;
  }
}

TEST(Trainer, NamesFileLineAndColumnOfLabelThatIsNotZeroOrOne) {
  const auto refusal = [](const std::string& rows, const std::string& model,
                          const std::string& loss) {
    v1::JobSpec job = JobWithTable("", rows);
    job.mutable_model()->set_name(model);
    job.set_loss(loss);
    return std::string(Trainer::Open(job, 0, 1, MakeEmptyEngine).status().message());
  };
  EXPECT_EQ(refusal("a,0\nb,1\n", "logistic", ""), "");
  const std::string numbers = refusal("a,1\nb,2\n", "logistic", "");
  EXPECT_NE(numbers.find("train.csv:3: column 'y': label 2: logistic distinguishes two classes, 0 "
                         "and 1"),
            std::string::npos)
      << numbers;
  const std::string names = refusal("a,low\nb,middle\nc,high\n", "logistic", "");
  EXPECT_NE(names.find("label 'middle' (class 2)"), std::string::npos) << names;
  EXPECT_NE(refusal("a,1\nb,2\n", "linear", "binaryCrossEntropyWithLogits"), "");
}

// As for a TorchScript model, whose classes are known only after it has run.
class NarrowEngine final : public ComputeEngine {
 public:
  const v1::TensorTable& Describe() const override { return table_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t) const override { return absl::Cord(); }
  absl::Status SetTensorRange(Buffer, uint32_t, uint64_t, const absl::Cord&) override { return {}; }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override { return absl::Cord(); }
  absl::Status Adopt() override { return absl::OkStatus(); }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest&, GradientSink&) override {
    return absl::InvalidArgumentError(
        "loss nll: label 2 of sample 1 of the batch is not in [0, 2), the classes that the model "
        "distinguishes");
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer, const Batch&) override { return BatchMetrics(); }

 private:
  v1::TensorTable table_;
};

TEST(Trainer, AddsFileAndLineToALabelThatAStepCannotUse) {
  v1::JobSpec job = JobWithTable("", "a,1\nb,2\n");
  job.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  const auto make = [](const v1::JobSpec&, const DatasetInfo&, int) {
    return absl::StatusOr<std::unique_ptr<ComputeEngine>>(std::make_unique<NarrowEngine>());
  };
  const auto trainer = Trainer::Open(job, 0, 1, make);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  class : public GradientSink {
    void OnGradient(uint32_t, absl::Cord) override {}
    void OnRowGradient(uint32_t, std::vector<uint64_t>, absl::Cord) override {}
    void OnNoGradient(uint32_t) override {}
    void OnBufferChange(uint32_t, absl::Cord) override {}
    void OnWeight(double) override {}
  } sink;
  Compute compute;
  compute.positions = {0, 2};
  const std::string message((*trainer)->ComputeGradients(compute, sink).status.message());
  EXPECT_NE(message.find("the largest label of the training data, 2, is in "), std::string::npos);
  EXPECT_NE(message.find("train.csv:3: column 'y'"), std::string::npos) << message;
}

TEST(Trainer, WithoutACheckpointDirectoryTheWordsComeFromTheText) {
  ASSERT_TRUE(Trainer::Open(JobWithText("/nowhere", "a b c d\n"), 0, 1, NoteWords).ok());
  EXPECT_EQ(words_seen, 6);
}

// A table of words of two numbers each, which records what is stored.
class TableEngine final : public ComputeEngine {
 public:
  TableEngine() {
    v1::TensorSpec& tensor = *table_.add_tensors();
    tensor.set_dtype(v1::FLOAT32);
    tensor.add_shape(100);
    tensor.add_shape(2);
  }
  const v1::TensorTable& Describe() const override { return table_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t) const override { return absl::Cord(); }
  absl::Status SetTensorRange(Buffer, uint32_t, uint64_t offset, const absl::Cord& bytes) override {
    stored[offset] = bytes;
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override { return absl::Cord(); }
  absl::Status Adopt() override { return absl::OkStatus(); }
  std::vector<uint32_t> RowTensors() const override { return {0}; }
  absl::StatusOr<RowSelections> RowsOf(const Batch& batch) const override {
    RowSelections rows;
    rows[0].assign(batch.tokens.begin(), batch.tokens.end());
    return rows;
  }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest&, GradientSink&) override {
    return BatchMetrics();
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer, const Batch&) override { return BatchMetrics(); }

  std::map<uint64_t, absl::Cord> stored;

 private:
  v1::TensorTable table_;
};

absl::StatusOr<std::unique_ptr<ComputeEngine>> MakeTable(const v1::JobSpec&, const DatasetInfo&,
                                                         int) {
  return std::make_unique<TableEngine>();
}

TEST(Trainer, RowsOfSamplesAreTheirWordsEachOnce) {
  v1::JobSpec job = JobWithText("", "a b c d a b c d e\n");
  job.mutable_data()->set_no_shuffle(true);
  const auto trainer = Trainer::Open(job, 0, 1, MakeTable);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->RowTensors(), std::vector<uint32_t>{0});
  // Two words a sample: "a b", "c d", "a b".
  const auto some = (*trainer)->FindRows({{0, 1}, {2, 3}});
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->at(0).size(), 2u);
  const auto all = (*trainer)->FindRows({{0, 3}});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->at(0).size(), 4u);
  EXPECT_TRUE(std::is_sorted(all->at(0).begin(), all->at(0).end()));
}

TEST(Trainer, PerWorkerPartitioningSendsNoRows) {
  v1::JobSpec job = JobWithText("", "a b c d a b c d e\n");
  job.mutable_data()->set_partitioning(v1::DataSpec::PER_WORKER);
  const auto trainer = Trainer::Open(job, 0, 1, MakeTable);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_TRUE((*trainer)->RowTensors().empty());
}

TEST(Trainer, BlockOfRowsLeavesAllOtherRowsUnchanged) {
  const auto trainer = Trainer::Open(JobWithText("", "a b c d a b c d e\n"), 0, 1, MakeTable);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  // Elements [3, 9) of the table: the second of row 1, rows 2 and 3, and the first of row 4.
  const std::vector<float> block = {3, 4, 5, 6, 7, 8};
  const std::vector<uint64_t> rows = {1, 3};
  StoreBlock store;
  store.offset = 3;
  store.count = 6;
  store.codec = v1::CODEC_ROWS;
  store.payload = EncodeRowsOfBlock({2, 3, 6}, rows, v1::FLOAT32,
                                    {reinterpret_cast<const char*>(block.data()), 24});
  ASSERT_TRUE((*trainer)->Store(store).ok());
  const auto& stored = static_cast<TableEngine&>((*trainer)->engine()).stored;
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(stored.at(3), absl::Cord(absl::string_view(reinterpret_cast<const char*>(block.data()),
                                                       sizeof(float))));
  EXPECT_EQ(stored.at(6).size(), 2 * sizeof(float));
  store.payload = absl::Cord("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument((*trainer)->Store(store)));
}

// The first pixel of each image that a worker reads: images are 1, 2 and 3.
class ImagesEngine final : public ComputeEngine {
 public:
  explicit ImagesEngine(std::vector<int>* seen) : seen_(seen) {}
  const v1::TensorTable& Describe() const override { return table_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t) const override { return Nothing(); }
  absl::Status SetTensorRange(Buffer, uint32_t, uint64_t, const absl::Cord&) override {
    return Nothing();
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override { return Nothing(); }
  absl::Status Adopt() override { return absl::OkStatus(); }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink&) override {
    for (const float feature : request.batch->features) {
      seen_->push_back(static_cast<int>(std::lround(feature * 255)));
    }
    return BatchMetrics();
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer, const Batch&) override { return Nothing(); }

 private:
  static absl::Status Nothing() { return absl::OutOfRangeError("there are no tensors"); }
  v1::TensorTable table_;
  std::vector<int>* const seen_;
};

class NoSink final : public GradientSink {
 public:
  void OnWeight(double) override {}
  void OnGradient(uint32_t, absl::Cord) override {}
  void OnRowGradient(uint32_t, std::vector<uint64_t>, absl::Cord) override {}
  void OnNoGradient(uint32_t) override {}
  void OnBufferChange(uint32_t, absl::Cord) override {}
};

// The samples that the worker reads for these positions.
std::vector<int> Walk(const v1::JobSpec& job, uint32_t index,
                      const std::vector<PositionRange>& requests) {
  std::vector<int> seen;
  const auto trainer =
      Trainer::Open(job, index, 1, [&](const v1::JobSpec&, const DatasetInfo&, int) {
        return absl::StatusOr<std::unique_ptr<ComputeEngine>>(
            std::make_unique<ImagesEngine>(&seen));
      });
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  NoSink sink;
  for (const PositionRange& positions : requests) {
    Compute compute;
    compute.positions = positions;
    EXPECT_TRUE((*trainer)->ComputeGradients(compute, sink).status.ok());
  }
  return seen;
}

TEST(Trainer, EveryWorkerWalksOverAllDataRegardlessOfItsPositions) {
  v1::JobSpec job = JobWithImages();
  job.mutable_data()->set_partitioning(v1::DataSpec::PER_WORKER);
  for (uint32_t index : {0, 1, 2}) {
    std::vector<int> seen = Walk(job, index, {{100, 102}, {7, 8}});
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, (std::vector<int>{1, 2, 3})) << index;
  }
}

TEST(Trainer, WorkersThatShareTheDataReadTheSamplesAtThePositions) {
  const v1::JobSpec job = JobWithImages();
  EXPECT_EQ(Walk(job, 0, {{0, 6}}), Walk(job, 1, {{0, 2}, {2, 6}}));
  EXPECT_EQ(Walk(job, 0, {{1, 2}, {1, 2}})[0], Walk(job, 0, {{1, 2}, {1, 2}})[1]);
}

TEST(Trainer, JobWithoutEvaluationReadsNoHeldOutData) {
  const auto trainer = Trainer::Open(JobWithImages(), /*index=*/0, /*threads=*/1, MakeEmptyEngine);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->evaluation_samples(), 0u);
}

TEST(Trainer, EvaluationDataThatIsMissingIsNamed) {
  v1::JobSpec job = JobWithImages();
  const std::string empty = MakeTestDirectory();
  job.mutable_data()->mutable_evaluation()->mutable_source()->set_path(empty);
  const auto trainer = Trainer::Open(job, /*index=*/0, /*threads=*/1, MakeEmptyEngine);
  ASSERT_FALSE(trainer.ok());
  EXPECT_NE(trainer.status().message().find(empty), std::string::npos) << trainer.status();
}

}  // namespace
}  // namespace sluice::worker

#include "services/worker/data/text_dataset.h"

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/testing/data_files.h"
#include "services/worker/data/vocabulary.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A vocabulary learned from this text numbers the words 2, 3, 4, ... in their order.
constexpr char kLetters[] = "a b c d e f g h i j k l\n";

v1::DataSpec TextIn(const std::string& path, uint32_t length) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::TEXT);
  spec.mutable_source()->set_path(path);
  spec.mutable_text()->set_sequence_length(length);
  spec.mutable_text()->set_vocabulary_size(10000);
  return spec;
}

v1::DataSpec TextOf(const std::string& content, uint32_t length) {
  return TextIn(WriteTestFile(MakeTestDirectory(), "train.txt", content), length);
}

v1::DataSpec CarriedIn(uint32_t streams, v1::DataSpec spec) {
  spec.mutable_text()->set_state(v1::DataSpec::Text::CARRIED);
  spec.mutable_text()->set_streams(streams);
  spec.set_no_shuffle(true);
  return spec;
}

void EvaluateOn(v1::DataSpec& spec, const std::string& content) {
  spec.mutable_evaluation()->mutable_source()->set_path(
      WriteTestFile(MakeTestDirectory(), "test.txt", content));
}

std::unique_ptr<Dataset> Open(const v1::DataSpec& spec, Split split = Split::kTraining) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(spec, split);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

std::string Refusal(const v1::DataSpec& spec, Split split = Split::kTraining) {
  const absl::Status status = OpenDataset(spec, split).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(TextDataset, SampleHasSuccessiveTokensLabelledWithTheNextTokens) {
  const std::unique_ptr<Dataset> text = Open(TextOf(kLetters, 4));
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(text->info().samples, 3u);
  EXPECT_THAT(text->info().sample_shape, ElementsAre(4));
  EXPECT_EQ(text->info().outputs, 14);
  EXPECT_TRUE(text->info().tokens);
  const absl::StatusOr<Batch> batch = text->Read({2, 0});
  ASSERT_TRUE(batch.ok());
  EXPECT_THAT(batch->tokens, ElementsAre(10, 11, 12, 13, 2, 3, 4, 5));
  EXPECT_THAT(batch->classes, ElementsAre(11, 12, 13, kEndOfLineToken, 3, 4, 5, 6));
  EXPECT_EQ(batch->class_width, 4);
  EXPECT_THAT(batch->places, IsEmpty());
}

TEST(TextDataset, CompressedTextIsTheSame) {
  v1::DataSpec spec =
      TextIn(WriteTestFile(MakeTestDirectory(), "train.txt.gz", kLetters), /*length=*/4);
  EXPECT_EQ(Open(spec)->info().samples, 3u);
}

TEST(TextDataset, WithCarriedStateABatchContinuesWhereTheOneBeforeEnded) {
  // 13 tokens: two streams of three samples, 2..7 and 8..13.
  const std::unique_ptr<Dataset> text = Open(CarriedIn(2, TextOf(kLetters, 2)));
  ASSERT_NE(text, nullptr);
  ASSERT_EQ(text->info().samples, 6u);
  const absl::StatusOr<Batch> first = text->Read({0, 1});
  const absl::StatusOr<Batch> second = text->Read({2, 3});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->tokens, ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(second->tokens, ElementsAre(4, 5, 10, 11));
  EXPECT_EQ(first->places[1].stream, 1u);
  EXPECT_EQ(first->places[1].place, 0u);
  EXPECT_EQ(second->places[1].stream, 1u);
  EXPECT_EQ(second->places[1].place, 1u);
}

TEST(TextDataset, HeldOutTextCarriesNothing) {
  v1::DataSpec spec = CarriedIn(2, TextOf(kLetters, 2));
  EvaluateOn(spec, kLetters);
  const absl::StatusOr<Batch> batch = Open(spec, Split::kEvaluation)->Read({0});
  ASSERT_TRUE(batch.ok());
  EXPECT_THAT(batch->places, IsEmpty());
}

TEST(TextDataset, HeldOutTextHasTheWordsOfTheTrainingText) {
  v1::DataSpec spec = TextOf(kLetters, 2);
  EvaluateOn(spec, "l zebra a\n");
  const std::unique_ptr<Dataset> text = Open(spec, Split::kEvaluation);
  EXPECT_EQ(text->info().outputs, 14);
  EXPECT_THAT(text->Read({0})->tokens, ElementsAre(13, kUnknownToken));
}

TEST(TextDataset, MaxSamplesTakesTheFirst) {
  v1::DataSpec spec = TextOf(kLetters, 2);
  spec.set_max_samples(4);
  EXPECT_EQ(Open(spec)->info().samples, 4u);
  spec = CarriedIn(3, spec);
  EXPECT_EQ(Open(spec)->info().samples, 3u);  // whole batches
  EvaluateOn(spec, kLetters);
  spec.mutable_evaluation()->set_max_samples(1);
  // The coordinator decides which of them are evaluated, and when.
  EXPECT_EQ(Open(spec, Split::kEvaluation)->info().samples, 6u);
}

TEST(TextDataset, VocabularyFileSetsTheWords) {
  v1::DataSpec spec = TextOf(kLetters, 2);
  spec.mutable_text()->set_vocabulary(
      WriteTestFile(MakeTestDirectory(), "words.txt", "<unk>\n<eos>\nc\na\n"));
  const std::unique_ptr<Dataset> text = Open(spec);
  EXPECT_EQ(text->info().outputs, 4);
  EXPECT_THAT(text->Read({0, 1})->tokens, ElementsAre(3, kUnknownToken, 2, kUnknownToken));
}

TEST(TextDataset, RejectsBadTextWithTheFilesName) {
  EXPECT_THAT(Refusal(TextOf("", 2)), AllOf(HasSubstr("train.txt: "), HasSubstr("is empty")));
  EXPECT_THAT(Refusal(TextOf(" \n \n", 2)),
              AllOf(HasSubstr("train.txt: "), HasSubstr("has no words")));
  EXPECT_THAT(Refusal(TextOf("a\n\xFF\xFE", 2)),
              AllOf(HasSubstr("train.txt: "), HasSubstr("line 2 is not text")));
  EXPECT_THAT(Refusal(TextOf(kLetters, 13)),
              AllOf(HasSubstr("train.txt: has 13 tokens"), HasSubstr("sequenceLength")));
  EXPECT_THAT(Refusal(CarriedIn(4, TextOf(kLetters, 4))), HasSubstr("in each of 4 streams"));
  EXPECT_EQ(OpenDataset(TextIn("/nowhere/a.txt", 2), Split::kTraining).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TextDataset, RejectsHeldOutTextInAnotherLanguage) {
  v1::DataSpec spec = TextOf(kLetters, 2);
  EvaluateOn(spec, "alpha beta gamma\n");
  EXPECT_THAT(Refusal(spec, Split::kEvaluation),
              AllOf(HasSubstr("test.txt: has no word of the vocabulary"), HasSubstr("train.txt")));
}

TEST(TextDataset, CarriedStateRequiresTheOrderOfTheText) {
  v1::DataSpec spec = CarriedIn(2, TextOf(kLetters, 2));
  spec.set_no_shuffle(false);
  EXPECT_THAT(Refusal(spec), HasSubstr("shuffle: false"));
}

TEST(KeepVocabularyTest, ResumedJobKeepsItsWords) {
  const std::string kept = absl::StrCat(MakeTestDirectory(), "/vocabulary.txt");
  const std::string text = WriteTestFile(MakeTestDirectory(), "train.txt", kLetters);
  v1::DataSpec first = TextIn(text, 2);
  ASSERT_TRUE(KeepVocabulary(kept, &first).ok());
  EXPECT_EQ(first.text().vocabulary(), kept);

  WriteTestFile(std::filesystem::path(text).parent_path(), "train.txt", "z z y x a b\n");
  v1::DataSpec second = TextIn(text, 2);
  ASSERT_TRUE(KeepVocabulary(kept, &second).ok());
  EXPECT_EQ(Open(second)->info().outputs, 14);
}

TEST(KeepVocabularyTest, RejectsAnotherVocabularyThanTheModels) {
  const std::string kept = absl::StrCat(MakeTestDirectory(), "/vocabulary.txt");
  v1::DataSpec spec = TextOf(kLetters, 2);
  ASSERT_TRUE(KeepVocabulary(kept, &spec).ok());
  v1::DataSpec other = TextOf(kLetters, 2);
  other.mutable_text()->set_vocabulary(
      WriteTestFile(MakeTestDirectory(), "words.txt", "<unk>\n<eos>\nc\na\n"));
  const absl::Status status = KeepVocabulary(kept, &other);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("words.txt: has 4 words"), HasSubstr("14"), HasSubstr(kept)));
}

TEST(KeepVocabularyTest, WorkersThatStartAtOnceWriteItCompletely) {
  std::string words;
  for (int word = 0; word < 20000; ++word) absl::StrAppend(&words, "word", word, " ");
  v1::DataSpec spec = TextOf(words, 2);
  spec.mutable_text()->set_vocabulary_size(30000);
  for (int round = 0; round < 5; ++round) {
    const std::string kept = absl::StrCat(MakeTestDirectory(), "/vocabulary.txt");
    std::vector<std::thread> workers;
    for (int worker = 0; worker < 4; ++worker) {
      workers.emplace_back([&kept, own = spec]() mutable {
        const absl::Status status = KeepVocabulary(kept, &own);
        EXPECT_TRUE(status.ok()) << status;
        const auto vocabulary = OpenVocabulary(own);
        ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
        EXPECT_GE(vocabulary->size(), 20000u);
      });
    }
    for (std::thread& worker : workers) worker.join();
    const std::filesystem::directory_iterator files(std::filesystem::path(kept).parent_path());
    EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "their temporary files are removed";
  }
}

TEST(KeepVocabularyTest, ReportsWhenItCannotWrite) {
  v1::DataSpec spec = TextOf(kLetters, 2);
  EXPECT_THAT(std::string(KeepVocabulary("/nowhere/vocabulary.txt", &spec).message()),
              HasSubstr("/nowhere/vocabulary.txt: cannot be written"));
}

TEST(SyntheticTokens, AreRandomWithRandomTokensToPredict) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::SYNTHETIC);
  spec.mutable_synthetic()->set_samples(50);
  spec.mutable_synthetic()->add_shape(20);
  spec.mutable_synthetic()->set_vocabulary(10);
  const std::unique_ptr<Dataset> random = Open(spec);
  ASSERT_NE(random, nullptr);
  EXPECT_TRUE(random->info().tokens);
  EXPECT_EQ(random->info().outputs, 10);
  std::vector<uint64_t> all(50);
  for (uint64_t i = 0; i < all.size(); ++i) all[i] = i;
  const absl::StatusOr<Batch> batch = random->Read(all);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch->tokens.size(), 1000u);
  ASSERT_EQ(batch->classes.size(), 1000u);
  EXPECT_EQ(batch->class_width, 20);
  std::vector<int> counts(10);
  int same = 0;
  for (size_t i = 0; i < batch->tokens.size(); ++i) {
    ASSERT_LT(batch->tokens[i], 10);
    ++counts[batch->tokens[i]];
    same += batch->tokens[i] == batch->classes[i] ? 1 : 0;
  }
  for (int count : counts) EXPECT_NEAR(count, 100, 40);
  EXPECT_NEAR(same, 100, 40);
}

TEST(SyntheticTokens, RequireOneDimension) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::SYNTHETIC);
  spec.mutable_synthetic()->set_samples(5);
  spec.mutable_synthetic()->set_vocabulary(10);
  EXPECT_THAT(Refusal(spec), HasSubstr("a shape of one number"));
}

}  // namespace
}  // namespace sluice

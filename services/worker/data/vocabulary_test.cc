#include "services/worker/data/vocabulary.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> WordsOf(absl::string_view text) {
  std::vector<std::string> words;
  EXPECT_TRUE(VisitWords(text, [&](absl::string_view word) { words.emplace_back(word); }).ok());
  return words;
}

Vocabulary Learnt(absl::string_view text, uint64_t max_size = 100) {
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Learn(text, max_size);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
  return *std::move(vocabulary);
}

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(Words, AreSeparatedByWhiteSpaceAndEachLineEndsWithEos) {
  EXPECT_THAT(WordsOf("The  cat,\tsat\r\n\non it"),
              ElementsAre("The", "cat,", "sat", "<eos>", "<eos>", "on", "it", "<eos>"));
  EXPECT_THAT(WordsOf("\xEF\xBB\xBFone\n"), ElementsAre("one", "<eos>"));
  EXPECT_THAT(WordsOf(""), ElementsAre());
}

TEST(VocabularyFile, MayBeginWithAByteOrderMark) {
  const absl::StatusOr<Vocabulary> vocabulary =
      Vocabulary::Parse("\xEF\xBB\xBF<unk>\n<eos>\nthe\n");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_THAT(vocabulary->words(), ElementsAre("<unk>", "<eos>", "the"));
}

TEST(Words, KeepWhiteSpaceBeyondAscii) {
  EXPECT_THAT(WordsOf("a\xC2\xA0z\n"), ElementsAre("a\xC2\xA0z", "<eos>"));
}

TEST(Words, AreRejectedWithTheLineWhereTheTextIsNotUtf8) {
  for (const char* bad : {"a\nb\xFF\n", "a\n\xC0\x80", "a\n\xED\xA0\x80", "a\n\xF4\x90\x80\x80",
                          "a\n\xE2\x82", "a\n\xE0\x80\x80"}) {
    EXPECT_THAT(Refusal(CheckText(bad)), HasSubstr("line 2 is not text")) << bad;
  }
  EXPECT_THAT(Refusal(CheckText(absl::string_view("a\0b", 3))), HasSubstr("byte 1 (0x00)"));
  EXPECT_TRUE(CheckText("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80").ok());
}

TEST(VocabularyTest, HasTheMostFrequentWordsThenInByteOrder) {
  EXPECT_THAT(Learnt("b b a c c b\nd\n").words(),
              ElementsAre("<unk>", "<eos>", "b", "c", "a", "d"));
  EXPECT_THAT(Learnt("b b a c c b\nd\n", 5).words(), ElementsAre("<unk>", "<eos>", "b", "c", "a"));
}

TEST(VocabularyTest, RecognizesMarkersInTheText) {
  EXPECT_THAT(Learnt("<unk> <unk> x <eos>\n").words(), ElementsAre("<unk>", "<eos>", "x"));
}

TEST(VocabularyTest, MissingWordsAreUnknown) {
  const auto tokens = Learnt("b b a\n", 3).Encode("a b zebra\n");
  ASSERT_TRUE(tokens.ok());
  EXPECT_THAT(*tokens, ElementsAre(kUnknownToken, 2, kUnknownToken, kEndOfLineToken));
}

TEST(VocabularyTest, RefusesTextWithoutWords) {
  EXPECT_THAT(Refusal(Vocabulary::Learn("", 10).status()), HasSubstr("is empty"));
  EXPECT_THAT(Refusal(Vocabulary::Learn(" \n\t\n", 10).status()), HasSubstr("has no words"));
  EXPECT_THAT(Refusal(Vocabulary::Learn("a", 2).status()), HasSubstr("at least 3"));
}

TEST(VocabularyTest, IsTheSameReadBack) {
  const Vocabulary vocabulary = Learnt("to be or not to be\n");
  const auto again = Vocabulary::Parse(vocabulary.Serialize());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->words(), vocabulary.words());
}

TEST(VocabularyTest, RejectsAFileThatIsNotAVocabularyNamingTheLine) {
  const auto refusal = [](absl::string_view content) {
    return Refusal(Vocabulary::Parse(content).status());
  };
  EXPECT_THAT(refusal("to\nbe\nor\n"), HasSubstr("first <unk>, then <eos>"));
  EXPECT_THAT(refusal("<unk>\n<eos>\n"), HasSubstr("then at least one"));
  EXPECT_THAT(refusal("<unk>\n<eos>\na\n\nb\n"), HasSubstr("line 4 should hold one word"));
  EXPECT_THAT(refusal("<unk>\n<eos>\na b\n"), HasSubstr("line 3 should hold one word"));
  EXPECT_THAT(refusal("<unk>\n<eos>\na\na\n"), HasSubstr("line 4 repeats the word 'a' of line 3"));
}

}  // namespace
}  // namespace sluice

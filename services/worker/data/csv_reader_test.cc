#include "services/worker/data/csv_reader.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Records = std::vector<std::vector<std::string>>;

Records ReadAll(absl::string_view text, char delimiter = ',') {
  CsvReader reader("t.csv", text, delimiter);
  Records records;
  std::vector<std::string> fields;
  while (true) {
    const absl::StatusOr<bool> more = reader.Next(fields);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) return records;
    records.push_back(fields);
  }
}

std::vector<std::string> ReadOne(absl::string_view text, char delimiter = ',') {
  const Records records = ReadAll(text, delimiter);
  EXPECT_EQ(records.size(), 1u);
  return records.empty() ? std::vector<std::string>() : records[0];
}

TEST(CsvReaderTest, SplitsRecordsByLinesAndFieldsByTheDelimiter) {
  EXPECT_THAT(ReadAll("a,b\nc,d\n"), ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d")));
  EXPECT_THAT(ReadAll("a,b\r\nc,d"), ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d")));
  EXPECT_THAT(ReadOne("a;b,c", ';'), ElementsAre("a", "b,c"));
  EXPECT_THAT(ReadOne("a\t\tc", '\t'), ElementsAre("a", "", "c"));
  EXPECT_THAT(ReadOne("a b", ' '), ElementsAre("a", "b"));
}

TEST(CsvReaderTest, KeepsEmptyFieldsAndDropsEmptyLines) {
  EXPECT_THAT(ReadOne(",,"), ElementsAre("", "", ""));
  EXPECT_THAT(ReadAll("\n a\n\n  \nb\n\n"), ElementsAre(ElementsAre("a"), ElementsAre("b")));
  EXPECT_THAT(ReadAll(""), IsEmpty());
  EXPECT_THAT(ReadAll("\r\n\n"), IsEmpty());
}

TEST(CsvReaderTest, QuotedFieldsContainDelimitersLineEndsQuotesAndSpaces) {
  EXPECT_THAT(ReadOne("\"a,b\",\" c \",\"d\ne\",\"f\"\"g\",\"\""),
              ElementsAre("a,b", " c ", "d\ne", "f\"g", ""));
  EXPECT_THAT(ReadOne(" \"a\" , b "), ElementsAre("a", "b"));
}

TEST(CsvReaderTest, SpacesAroundUnquotedFieldsAndAByteOrderMarkAreDropped) {
  EXPECT_THAT(ReadOne("\xEF\xBB\xBF a b , c\t"), ElementsAre("a b", "c"));
}

TEST(CsvReaderTest, ReportsTheLineWhereTheRecordBegins) {
  CsvReader reader("t.csv", "a\n\n\"b\nb\"\nc\n", ',');
  std::vector<std::string> fields;
  std::vector<uint64_t> lines;
  while (*reader.Next(fields)) lines.push_back(reader.line());
  EXPECT_THAT(lines, ElementsAre(1, 3, 5));
  EXPECT_EQ(reader.Place(), "t.csv:5");
}

TEST(CsvReaderTest, RejectsBrokenQuotesNamingTheLine) {
  std::vector<std::string> fields;
  CsvReader open("t.csv", "a\n\"b\nc", ',');
  ASSERT_TRUE(open.Next(fields).ok());
  EXPECT_THAT(std::string(open.Next(fields).status().message()),
              HasSubstr("t.csv:2: a quoted field is not closed"));
  CsvReader followed("t.csv", "\"b\"c,d", ',');
  EXPECT_THAT(std::string(followed.Next(fields).status().message()),
              HasSubstr("t.csv:1: text follows the closing quote"));
}

}  // namespace
}  // namespace sluice

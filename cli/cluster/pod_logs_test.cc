#include "cli/cluster/pod_logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TimedLinesTest : public ::testing::Test {
 protected:
  void Feed(absl::string_view bytes) {
    lines_.Feed(bytes, [this](absl::string_view line) { lines_read_.emplace_back(line); });
  }
  void End(bool over) {
    lines_.EndStream(over, [this](absl::string_view line) { lines_read_.emplace_back(line); });
  }

  TimedLines lines_;
  std::vector<std::string> lines_read_;
};

TEST_F(TimedLinesTest, RemovesTimestampsAndJoinsPieces) {
  for (const char c : std::string("2026-01-01T00:00:00.1Z one\n2026-01-01T00:00:00.2Z two  \n")) {
    Feed(absl::string_view(&c, 1));
  }
  EXPECT_THAT(lines_read_, ElementsAre("one", "two  "));
  EXPECT_EQ(lines_.last_time(), "2026-01-01T00:00:00.2Z");
}

TEST_F(TimedLinesTest, ReopenedStreamNeitherRepeatsNorLosesLines) {
  Feed("2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.2Z b\n2026-01-01T00:00:00.2Z c\n2026-01");
  End(false);
  // Repeats from the whole second on, with one more line of the same time.
  Feed(
      "2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.2Z b\n2026-01-01T00:00:00.2Z c\n"
      "2026-01-01T00:00:00.2Z d\n2026-01-01T00:00:00.30Z e\n");
  End(false);
  Feed("2026-01-01T00:00:00.3Z e\n2026-01-01T00:00:01Z f\n");
  EXPECT_THAT(lines_read_, ElementsAre("a", "b", "c", "d", "e", "f"));
}

TEST_F(TimedLinesTest, UnterminatedLastLineIsReportedAtTheEnd) {
  Feed("2026-01-01T00:00:00Z termination message");
  EXPECT_THAT(lines_read_, IsEmpty());
  End(true);
  EXPECT_THAT(lines_read_, ElementsAre("termination message"));
}

TEST_F(TimedLinesTest, PassesOnTextWithoutTimestamp) {
  Feed("unable to retrieve container logs\n\n");
  EXPECT_THAT(lines_read_, ElementsAre("unable to retrieve container logs", ""));
}

TEST_F(TimedLinesTest, CutsLongLineIntoPieces) {
  Feed(absl::StrCat("2026-01-01T00:00:00Z ", std::string(3 * TimedLines::kMaxLine, 'x'), "\n"));
  size_t size = 0;
  for (const std::string& line : lines_read_) {
    EXPECT_LE(line.size(), TimedLines::kMaxLine);
    size += line.size();
  }
  EXPECT_EQ(size, 3 * TimedLines::kMaxLine);
}

}  // namespace
}  // namespace sluice::cli

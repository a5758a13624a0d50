#include "services/common/process/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "services/common/io/file_util.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

class LoggerTest : public ::testing::Test {
 protected:
  LoggerTest() {
    std::string directory = JoinPath(::testing::TempDir(), "log_XXXXXX");
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    path_ = JoinPath(directory, "log");
  }

  Logger Make(const std::string& level, const std::string& format) {
    return *Logger::Create({level, format, path_});
  }
  std::vector<std::string> Lines() {
    return absl::StrSplit(*MakeRealFileSystem()->Read(path_, 1 << 20), '\n', absl::SkipEmpty());
  }

  std::string path_;
};

TEST_F(LoggerTest, LogfmtLineHasTimeLevelMessageAndFields) {
  const Logger logger = Make("info", "logfmt").With({{"job", "demo"}, {"index", 0}});
  logger.Info("View installed", {{"view", "1.2.3"}, {"step", 17}, {"whole", true}, {"loss", 0.5}});
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0],
              MatchesRegex("time=[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z level=info "
                           "msg=\"View installed\" job=demo index=0 view=1\\.2\\.3 step=17 "
                           "whole=true loss=0\\.5"));
}

TEST_F(LoggerTest, JsonLineIsValidWithAnyText) {
  const Logger logger = Make("info", "json");
  const std::string nasty = "quote \" newline \n backslash \\ control \x01 not utf8 \xff";
  logger.Warning(nasty, {{"text", nasty},
                         {"step", 17},
                         {"loss", std::numeric_limits<double>::quiet_NaN()},
                         {"most", std::numeric_limits<double>::infinity()}});
  ASSERT_THAT(Lines(), SizeIs(1));
  const auto line = nlohmann::json::parse(Lines()[0]);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["step"], 17);
  EXPECT_THAT(line["text"].get<std::string>(), HasSubstr("quote \" newline \n backslash \\"));
  EXPECT_EQ(line["loss"], "nan");
  EXPECT_EQ(line["most"], "inf");
}

TEST_F(LoggerTest, LogfmtQuotesLineBreaksAndSpaces) {
  Make("info", "logfmt").Info("two\nlines", {{"path", "a b"}, {"formula", "a=b"}, {"none", ""}});
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr(R"(msg="two\nlines" path="a b" formula="a=b" none="")"));
}

TEST_F(LoggerTest, DoesNotWriteLinesBelowLevel) {
  const Logger logger = Make("warning", "logfmt");
  logger.Debug("no");
  logger.Info("no");
  logger.Error("yes");
  EXPECT_FALSE(logger.debug_enabled());
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr("level=error msg=\"yes\""));
}

TEST_F(LoggerTest, WithReplacesExistingFieldAndKeepsOriginalLogger) {
  const Logger first = Make("info", "logfmt").With({{"view", 1}});
  first.With({{"view", 2}}).Info("second");
  first.Info("first");
  ASSERT_THAT(Lines(), SizeIs(2));
  EXPECT_THAT(Lines()[0], HasSubstr("msg=\"second\" view=2"));
  EXPECT_THAT(Lines()[1], HasSubstr("msg=\"first\" view=1"));
}

TEST_F(LoggerTest, WritesWholeLinesFromManyThreads) {
  const Logger logger = Make("info", "json");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&logger, t] {
      for (int i = 0; i < 250; ++i) logger.Info("line", {{"thread", t}, {"i", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Lines(), SizeIs(1000));
  for (const std::string& line : Lines()) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST(LoggerOptionsTest, NamesInvalidOption) {
  const auto level = Logger::Create({"loud", "logfmt", ""});
  EXPECT_EQ(level.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(level.status().message()), HasSubstr("loud"));
  const auto format = Logger::Create({"info", "xml", ""});
  EXPECT_EQ(format.status().code(), absl::StatusCode::kInvalidArgument);
  const auto file = Logger::Create({"info", "json", "/dev/null/log"});
  EXPECT_EQ(file.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("/dev/null/log"));
}

TEST(LoggerOptionsTest, DefaultLoggerDropsEverything) { Logger().Error("dropped"); }

}  // namespace
}  // namespace sluice

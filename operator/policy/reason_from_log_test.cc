#include "operator/policy/reason_from_log.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "services/common/process/logging.h"

namespace sluice::policy {
namespace {

TEST(ReasonFromLogTest, AreTheNewestErrorInTheLog) {
  EXPECT_EQ(
      ReasonFromLog({"time=1 level=error msg=\"no data\"", "time=2 level=error msg=Fails role=ps",
                     "time=3 level=info msg=\"The end\""}),
      "Fails");
  EXPECT_EQ(ReasonFromLog({"time=1 level=error msg=\"no data\" why=\"x\""}), "no data");
  EXPECT_EQ(ReasonFromLog({"time=1 level=info msg=\"The end\""}), "");
  EXPECT_EQ(ReasonFromLog({}), "");
}

TEST(ReasonFromLogTest, KeepAnyTextOfALoggedError) {
  const std::string said = "cannot:\n  \"a\\b\"\tcosts 5 € \x01";
  for (const std::string format : {"logfmt", "json"}) {
    const std::string path = ::testing::TempDir() + "/" + format;
    const auto logger = Logger::Create({.level = "info", .format = format, .file = path});
    ASSERT_TRUE(logger.ok()) << logger.status();
    logger->Error(said, {{"role", "worker"}});
    std::ifstream log(path);
    std::string line;
    ASSERT_TRUE(std::getline(log, line));
    EXPECT_EQ(ReasonFromLog({line}), said) << line;
  }
}

TEST(ReasonFromLogTest, IgnoreATruncatedLine) {
  EXPECT_EQ(ReasonFromLog({"time=1 level=error msg=\"no da"}), "");
  EXPECT_EQ(ReasonFromLog({R"(time=1 level=error msg="no da\)"}), "");
}

// Messages to the coordinator carry this text: it cannot read one that is not UTF-8.
TEST(ReasonFromLogTest, AreAlwaysUtf8) {
  EXPECT_EQ(ReasonFromLog({"no such file: caf\xE9"}), "no such file: caf?");
  EXPECT_EQ(ReasonFromLog({"time=1 level=error msg=\xFF"}), "?");
}

TEST(ReasonFromLogTest, AreTheLastLineOfAProgramThatCannotStart) {
  EXPECT_EQ(ReasonFromLog({"sluice-worker: --job: is missing"}), "--job: is missing");
  EXPECT_EQ(ReasonFromLog({"python3: No such file"}), "python3: No such file");
}

}  // namespace
}  // namespace sluice::policy

#include "services/common/io/temporary_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(TemporaryDirectoryTest, TwoInOneProcessAreDifferentDirectoriesRemovedWithContent) {
  std::string first_path;
  {
    const auto first = TemporaryDirectory::Make("sluice-test");
    const auto second = TemporaryDirectory::Make("sluice-test");
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    first_path = (*first)->path();
    EXPECT_NE(first_path, (*second)->path());
    EXPECT_THAT(first_path, HasSubstr("/sluice-test-"));
    EXPECT_EQ(std::filesystem::status(first_path).permissions(), std::filesystem::perms::owner_all);
    std::ofstream(first_path + "/file") << "content";
    ASSERT_TRUE(std::filesystem::exists(first_path + "/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(first_path));
}

TEST(TemporaryDirectoryTest, ErrorNamesParentDirectory) {
  const char* const set = getenv("TMPDIR");
  const std::optional<std::string> was =
      set == nullptr ? std::nullopt : std::optional<std::string>(set);
  setenv("TMPDIR", "/proc", 1);
  EXPECT_THAT(TemporaryDirectory::Make("sluice-test").status().message(), HasSubstr("/proc"));
  setenv("TMPDIR", "/there/is/none", 1);
  EXPECT_THAT(TemporaryDirectory::Make("sluice-test").status().message(), HasSubstr("TMPDIR"));
  was.has_value() ? setenv("TMPDIR", was->c_str(), 1) : unsetenv("TMPDIR");
}

}  // namespace
}  // namespace sluice

#include "services/transport/security/job_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::security {
namespace {

using ::testing::HasSubstr;

class JobSecretTest : public ::testing::Test {
 protected:
  JobSecretTest()
      : path_(absl::StrCat(::testing::TempDir(), "/",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    unlink(path_.c_str());
  }

  void Write(const std::string& text) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), 0600);
  }

  const std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  const std::string path_;
};

TEST_F(JobSecretTest, OnlyOwnerMayReadSecretFile) {
  const std::string secret = MakeSecret();
  EXPECT_GE(secret.size(), kMinSecretLength);
  EXPECT_NE(secret, MakeSecret());
  ASSERT_TRUE(WriteSecretFile(path_, secret).ok());
  EXPECT_EQ(ReadSecretFile(files_.get(), path_).value(), secret);
  struct stat properties = {};
  ASSERT_EQ(stat(path_.c_str(), &properties), 0);
  EXPECT_EQ(properties.st_mode & 0777, 0600u);
}

// Writing to a file or a link that another user had made beforehand would reveal the secret.
TEST_F(JobSecretTest, ReplacesExistingFile) {
  const std::string other = path_ + "-other";
  std::ofstream(other) << "";
  unlink(path_.c_str());
  ASSERT_EQ(symlink(other.c_str(), path_.c_str()), 0);
  ASSERT_TRUE(WriteSecretFile(path_, MakeSecret()).ok());
  struct stat properties = {};
  ASSERT_EQ(lstat(path_.c_str(), &properties), 0);
  EXPECT_TRUE(S_ISREG(properties.st_mode));
  std::string text;
  std::ifstream(other) >> text;
  EXPECT_EQ(text, "");
}

TEST_F(JobSecretTest, RefusesFileThatOtherUsersMayRead) {
  Write(MakeSecret());
  chmod(path_.c_str(), 0640);
  const absl::Status status = ReadSecretFile(files_.get(), path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("chmod 600 ", path_)));
}

TEST_F(JobSecretTest, RefusesFileWithoutSecret) {
  for (const std::string& text :
       {std::string(), std::string("short"), std::string(kMaxSecretLength + 1, 'x'),
        std::string(kMinSecretLength, ' '), std::string(kMinSecretLength, '\x01'),
        absl::StrCat(MakeSecret(), " ", MakeSecret())}) {
    Write(text);
    EXPECT_FALSE(ReadSecretFile(files_.get(), path_).ok()) << text;
  }
  Write("short");
  EXPECT_THAT(std::string(ReadSecretFile(files_.get(), path_).status().message()),
              HasSubstr(absl::StrCat(path_, ": a secret is one line of 32 to 256")));
  EXPECT_EQ(ReadSecretFile(files_.get(), path_ + "-none").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadSecretFile(files_.get(), ::testing::TempDir()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(JobSecretTest, ComparesSecrets) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "ab"));
  EXPECT_FALSE(SameSecret("abc", ""));
}

}  // namespace
}  // namespace sluice::security

#include "cli/local/job_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobPathsTest : public ::testing::Test {
 protected:
  JobPathsTest()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        files_(MakeRealFileSystem()) {
    Directory("repo/examples");
    job_.mutable_data()->set_format(v1::DataSpec::IDX);
    job_.mutable_data()->mutable_source()->set_path(directory_ + "/repo/examples/data/mnist");
  }

  void Directory(const std::string& name) {
    std::filesystem::create_directories(directory_ + "/" + name);
  }
  std::vector<std::string> Find(const std::string& data_directory) {
    return FindData(directory_ + "/repo/examples/mnist.yaml", data_directory, files_.get(), &job_);
  }
  const std::string& Path() const { return job_.data().source().path(); }

  const std::string directory_;
  const std::unique_ptr<FileSystem> files_;
  v1::JobSpec job_;
};

TEST_F(JobPathsTest, PrefersDataInTheManifestsDirectory) {
  Directory("repo/examples/data/mnist");
  Directory("elsewhere/mnist");
  EXPECT_THAT(Find(directory_ + "/elsewhere"), IsEmpty());
  EXPECT_EQ(Path(), directory_ + "/repo/examples/data/mnist");
}

TEST_F(JobPathsTest, UsesAndReportsDataDirectoryForMissingData) {
  Directory("elsewhere/mnist");
  Directory("shared/data/mnist");
  Directory("repo/.git");
  EXPECT_THAT(Find(directory_ + "/elsewhere"),
              ElementsAre(HasSubstr(absl::StrCat("spec.data.source.path: ", directory_,
                                                 "/repo/examples/data/mnist does not exist; "
                                                 "using ",
                                                 directory_, "/elsewhere/mnist (SLUICE_DATA)"))));
  EXPECT_EQ(Path(), directory_ + "/elsewhere/mnist");
}

TEST_F(JobPathsTest, PrefersTheFullRelativePath) {
  Directory("elsewhere/mnist");
  Directory("elsewhere/data/mnist");
  Find(directory_ + "/elsewhere");
  EXPECT_EQ(Path(), directory_ + "/elsewhere/data/mnist");
}

TEST_F(JobPathsTest, UsesDataBesideTheRepository) {
  Directory("repo/.git");
  Directory("shared/data/mnist");
  EXPECT_THAT(Find(""), ElementsAre(HasSubstr("(beside the repository)")));
  EXPECT_EQ(Path(), directory_ + "/shared/data/mnist");
}

TEST_F(JobPathsTest, LeavesMissingPathUnchangedAndReportsIt) {
  EXPECT_THAT(Find(directory_ + "/elsewhere"), IsEmpty());
  EXPECT_EQ(Path(), directory_ + "/repo/examples/data/mnist");
  const absl::Status missing = CheckPathsExist(job_, files_.get());
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(),
            absl::StrCat("spec.data.source.path: ", Path(), ": no such file or directory"));
  Directory("repo/examples/data/mnist");
  EXPECT_TRUE(CheckPathsExist(job_, files_.get()).ok());
}

TEST_F(JobPathsTest, ReportsMissingModelButNotInputsOfCustomData) {
  job_.mutable_data()->set_format(v1::DataSpec::CUSTOM);
  EXPECT_TRUE(CheckPathsExist(job_, files_.get()).ok());
  job_.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  job_.mutable_model()->set_path(directory_ + "/net.pt");
  EXPECT_THAT(std::string(CheckPathsExist(job_, files_.get()).message()),
              HasSubstr("spec.model.path: "));
}

TEST_F(JobPathsTest, BestCheckpointOfADirectoryIsNoPath) {
  job_.mutable_data()->set_format(v1::DataSpec::CUSTOM);
  job_.mutable_checkpoint()->set_restore_from(directory_ + "/checkpoints/best");
  EXPECT_THAT(std::string(CheckPathsExist(job_, files_.get()).message()),
              HasSubstr("spec.checkpoint.restoreFrom: "));
  Directory("checkpoints");
  EXPECT_TRUE(CheckPathsExist(job_, files_.get()).ok());
}

TEST_F(JobPathsTest, DirectoryWithoutManifestHasNoCheckpoint) {
  const std::string directory = directory_ + "/checkpoints";
  EXPECT_FALSE(*HoldsCheckpoint(directory, files_.get()));
  Directory("checkpoints/attempt-0001-step-000000000005");
  EXPECT_FALSE(*HoldsCheckpoint(directory, files_.get()));
  std::ofstream(directory + "/attempt-0001-step-000000000005/manifest.json") << "{}";
  EXPECT_TRUE(*HoldsCheckpoint(directory, files_.get()));
}

}  // namespace
}  // namespace sluice::cli

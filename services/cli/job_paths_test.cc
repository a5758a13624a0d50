#include "services/cli/job_paths.h"

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
      : folder_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                             ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        files_(MakeRealFileSystem()) {
    Folder("repo/examples");
    job_.mutable_data()->set_format(v1::DataSpec::IDX);
    job_.mutable_data()->mutable_source()->set_path(folder_ + "/repo/examples/data/mnist");
  }

  void Folder(const std::string& name) {
    std::filesystem::create_directories(folder_ + "/" + name);
  }
  std::vector<std::string> Find(const std::string& data_directory) {
    return FindData(folder_ + "/repo/examples/mnist.yaml", data_directory, files_.get(), &job_);
  }
  const std::string& Path() const { return job_.data().source().path(); }

  const std::string folder_;
  const std::unique_ptr<FileSystem> files_;
  v1::JobSpec job_;
};

TEST_F(JobPathsTest, PrefersDataInTheManifestsFolder) {
  Folder("repo/examples/data/mnist");
  Folder("elsewhere/mnist");
  EXPECT_THAT(Find(folder_ + "/elsewhere"), IsEmpty());
  EXPECT_EQ(Path(), folder_ + "/repo/examples/data/mnist");
}

TEST_F(JobPathsTest, UsesAndReportsDataDirectoryForMissingData) {
  Folder("elsewhere/mnist");
  Folder("shared/data/mnist");
  Folder("repo/.git");
  EXPECT_THAT(Find(folder_ + "/elsewhere"),
              ElementsAre(HasSubstr(absl::StrCat("spec.data.source.path: ", folder_,
                                                 "/repo/examples/data/mnist does not exist; "
                                                 "using ",
                                                 folder_, "/elsewhere/mnist (SLUICE_DATA)"))));
  EXPECT_EQ(Path(), folder_ + "/elsewhere/mnist");
}

TEST_F(JobPathsTest, PrefersTheFullRelativePath) {
  Folder("elsewhere/mnist");
  Folder("elsewhere/data/mnist");
  Find(folder_ + "/elsewhere");
  EXPECT_EQ(Path(), folder_ + "/elsewhere/data/mnist");
}

TEST_F(JobPathsTest, UsesDataBesideTheRepository) {
  Folder("repo/.git");
  Folder("shared/data/mnist");
  EXPECT_THAT(Find(""), ElementsAre(HasSubstr("(beside the repository)")));
  EXPECT_EQ(Path(), folder_ + "/shared/data/mnist");
}

TEST_F(JobPathsTest, LeavesMissingPathUnchangedAndReportsIt) {
  EXPECT_THAT(Find(folder_ + "/elsewhere"), IsEmpty());
  EXPECT_EQ(Path(), folder_ + "/repo/examples/data/mnist");
  const absl::Status missing = CheckPathsExist(job_, files_.get());
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(),
            absl::StrCat("spec.data.source.path: ", Path(), ": no such file or folder"));
  Folder("repo/examples/data/mnist");
  EXPECT_TRUE(CheckPathsExist(job_, files_.get()).ok());
}

TEST_F(JobPathsTest, ReportsMissingModelButNotInputsOfCustomData) {
  job_.mutable_data()->set_format(v1::DataSpec::CUSTOM);
  EXPECT_TRUE(CheckPathsExist(job_, files_.get()).ok());
  job_.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  job_.mutable_model()->set_path(folder_ + "/net.pt");
  EXPECT_THAT(std::string(CheckPathsExist(job_, files_.get()).message()),
              HasSubstr("spec.model.path: "));
}

TEST_F(JobPathsTest, FolderWithoutManifestHasNoCheckpoint) {
  const std::string folder = folder_ + "/checkpoints";
  EXPECT_FALSE(*HoldsCheckpoint(folder, files_.get()));
  Folder("checkpoints/attempt-0001-step-000000000005");
  EXPECT_FALSE(*HoldsCheckpoint(folder, files_.get()));
  std::ofstream(folder + "/attempt-0001-step-000000000005/manifest.json") << "{}";
  EXPECT_TRUE(*HoldsCheckpoint(folder, files_.get()));
}

}  // namespace
}  // namespace sluice::cli

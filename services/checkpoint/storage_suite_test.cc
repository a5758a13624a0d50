// The behaviour of every storage, of a directory on the real file system and on the one that tests
// use.
#include "services/checkpoint/testing/storage_suite.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "services/checkpoint/local_storage.h"
#include "services/common/io/fake_file_system.h"
#include "services/common/io/file_util.h"

namespace sluice {
namespace {

class FakePlace : public StoragePlace {
 public:
  std::unique_ptr<CheckpointStorage> Connect(const std::string& writer) override {
    return MakeLocalStorage(&files_, "/store", writer);
  }

 private:
  FakeFileSystem files_;
};

class DirectoryPlace : public StoragePlace {
 public:
  DirectoryPlace() {
    std::string name = ::testing::TempDir() + "/storage.XXXXXX";
    EXPECT_NE(mkdtemp(&name[0]), nullptr);
    directory_ = name;
  }
  ~DirectoryPlace() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<CheckpointStorage> Connect(const std::string& writer) override {
    return MakeLocalStorage(files_.get(), directory_ + "/store", writer);
  }

 private:
  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string directory_;
};

INSTANTIATE_TEST_SUITE_P(Fake, StorageSuite, ::testing::Values(StorageMaker([] {
                           return std::make_unique<FakePlace>();
                         })));
INSTANTIATE_TEST_SUITE_P(Directory, StorageSuite, ::testing::Values(StorageMaker([] {
                           return std::make_unique<DirectoryPlace>();
                         })));

}  // namespace
}  // namespace sluice

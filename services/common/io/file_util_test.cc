#include "services/common/io/file_util.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/common/io/fake_file_system.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kMany = 1 << 20;

std::string NewDirectory() {
  std::string name = JoinPath(::testing::TempDir(), "file_util_XXXXXX");
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

TEST(PathTest, SplitsAndJoinsPaths) {
  EXPECT_EQ(DirectoryOf("/a/b/c"), "/a/b");
  EXPECT_EQ(DirectoryOf("/a/b/"), "/a");
  EXPECT_EQ(DirectoryOf("/a"), "/");
  EXPECT_EQ(DirectoryOf("a"), ".");
  EXPECT_EQ(FileNameOf("/a/b/c"), "c");
  EXPECT_EQ(FileNameOf("c"), "c");
  EXPECT_EQ(JoinPath("/a", "b"), "/a/b");
  EXPECT_EQ(JoinPath("/a/", "b"), "/a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
}

// Opening must not wait for a writer of the pipe, or the test hangs here.
TEST(RealFileSystemTest, RefusesToReadOtherKindsOfFilesAndNamesTheKind) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string root = NewDirectory();
  ASSERT_EQ(mkfifo(JoinPath(root, "pipe").c_str(), 0600), 0);
  ASSERT_EQ(mkdir(JoinPath(root, "directory").c_str(), 0700), 0);
  ASSERT_EQ(symlink("/dev/zero", JoinPath(root, "device").c_str()), 0);
  ASSERT_EQ(symlink("loop", JoinPath(root, "loop").c_str()), 0);
  const std::pair<const char*, const char*> kinds[] = {{"pipe", "a pipe"},
                                                       {"directory", "a directory"},
                                                       {"device", "a device"},
                                                       {"loop", "symbolic"}};
  for (const auto& [name, kind] : kinds) {
    for (const absl::Status& status : {files->Read(JoinPath(root, name), kMany).status(),
                                       files->Size(JoinPath(root, name)).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(JoinPath(root, name)));
      EXPECT_THAT(std::string(status.message()), HasSubstr(kind));
    }
  }
}

TEST(RealFileSystemTest, ReadsThroughSymbolicLinksOfFilesAndDirectories) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string root = NewDirectory();
  ASSERT_EQ(mkdir(JoinPath(root, "directory").c_str(), 0700), 0);
  ASSERT_TRUE(
      AtomicWriteFile(files.get(), JoinPath(root, "directory/f"), absl::Cord("x"), "1").ok());
  ASSERT_EQ(symlink("directory", JoinPath(root, "link").c_str()), 0);
  ASSERT_EQ(symlink("directory/f", JoinPath(root, "file").c_str()), 0);
  EXPECT_EQ(*files->Read(JoinPath(root, "link/f"), kMany), "x");
  EXPECT_EQ(*files->Read(JoinPath(root, "file"), kMany), "x");
}

TEST(RealFileSystemTest, LinkToNothingIsNotAMissingFile) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string path = JoinPath(NewDirectory(), "link");
  EXPECT_EQ(files->Read(path, kMany).status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(symlink("nowhere", path.c_str()), 0);
  const absl::Status status = files->Read(path, kMany).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a link to a file that does not exist"));
}

// Tests of both file systems.
class FileSystemTest : public ::testing::TestWithParam<bool> {
 protected:
  FileSystemTest() {
    if (GetParam()) {
      files_ = MakeRealFileSystem();
      root_ = NewDirectory();
    } else {
      files_ = std::make_unique<FakeFileSystem>();
      root_ = "/root";
      EXPECT_TRUE(files_->CreateDirectories(root_).ok());
    }
  }
  std::string Path(absl::string_view name) const { return JoinPath(root_, name); }

  std::unique_ptr<FileSystem> files_;
  std::string root_;
};

INSTANTIATE_TEST_SUITE_P(RealAndFake, FileSystemTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Real" : "Fake"; });

TEST_P(FileSystemTest, AtomicWriteMakesAndReplacesFileAndLeavesNothingElse) {
  for (const char* content : {"first", "second, longer", ""}) {
    ASSERT_TRUE(AtomicWriteFile(files_.get(), Path("f"), absl::Cord(content), "1").ok());
    EXPECT_EQ(*files_->Read(Path("f"), kMany), content);
    EXPECT_EQ(*files_->Size(Path("f")), std::string(content).size());
  }
  EXPECT_THAT(*files_->List(root_), ElementsAre("f"));
}

TEST_P(FileSystemTest, ExclusiveCreateNeverChangesExistingFile) {
  ASSERT_TRUE(ExclusiveCreateFile(files_.get(), Path("claim"), absl::Cord("mine"), "1").ok());
  const absl::Status second =
      ExclusiveCreateFile(files_.get(), Path("claim"), absl::Cord("yours"), "2");
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()), HasSubstr(Path("claim")));
  EXPECT_EQ(*files_->Read(Path("claim"), kMany), "mine");
  EXPECT_THAT(*files_->List(root_), ElementsAre("claim"));
}

TEST_P(FileSystemTest, ExactlyOneOfManyExclusiveCreatesSucceeds) {
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const absl::Status status =
          ExclusiveCreateFile(files_.get(), Path("claim"), absl::Cord("x"), absl::StrCat(t));
      if (status.ok()) {
        ++winners;
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

TEST_P(FileSystemTest, DoesNotReadFileOverBound) {
  ASSERT_TRUE(AtomicWriteFile(files_.get(), Path("f"), absl::Cord("12345"), "1").ok());
  EXPECT_EQ(*files_->Read(Path("f"), 5), "12345");
  EXPECT_EQ(files_->Read(Path("f"), 4).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(FileSystemTest, LinkSucceedsIfTheNameIsOfTheSameFile) {
  for (const char* name : {"mine", "other"}) {
    ASSERT_TRUE(files_->Create(Path(name), /*exclusive=*/true).ok());
  }
  EXPECT_TRUE(files_->Link(Path("mine"), Path("claim")).ok());
  EXPECT_TRUE(files_->Link(Path("mine"), Path("claim")).ok()) << "a repeated request";
  EXPECT_EQ(files_->Link(Path("other"), Path("claim")).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(FileSystemTest, ErrorsNamePath) {
  const auto missing = files_->Read(Path("missing"), kMany);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(Path("missing")));
  EXPECT_EQ(files_->Create(Path("no/directory"), false).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(files_->Remove(Path("missing")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(files_->List(Path("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*files_->Exists(Path("missing")));
}

TEST_P(FileSystemTest, ErrorOfWriteNamesRequestedFile) {
  const std::string path = Path("missing/file");
  for (const absl::Status& status :
       {AtomicWriteFile(files_.get(), path, absl::Cord("x"), "1"),
        ExclusiveCreateFile(files_.get(), path, absl::Cord("x"), "1")}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("missing")));
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("tmp-")));
  }
}

TEST_P(FileSystemTest, MakesDirectoriesWithParentsAndRemovesEmptyOnes) {
  ASSERT_TRUE(files_->CreateDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(files_->CreateDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(AtomicWriteFile(files_.get(), Path("a/b/f"), absl::Cord("x"), "1").ok());
  EXPECT_THAT(*files_->List(Path("a/b")), ElementsAre("c", "f"));
  EXPECT_EQ(files_->CreateDirectories(Path("a/b/f")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(files_->RemoveDirectory(Path("a/b")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(files_->RemoveDirectory(Path("a/b/c")).ok());
  EXPECT_FALSE(*files_->Exists(Path("a/b/c")));
}

// Cuts the power, or kills the process, before each operation in turn.
class PowerCutTest : public ::testing::Test {
 protected:
  using Act = std::function<absl::Status(FakeFileSystem*)>;
  using Check = std::function<void(FakeFileSystem*, const absl::Status&)>;

  static void CutAtEveryPoint(const Act& act, const Check& check) {
    for (int point = 0;; ++point) {
      FakeFileSystem files;
      ASSERT_TRUE(files.CreateDirectories("/d").ok());
      ASSERT_TRUE(AtomicWriteFile(&files, "/d/old", absl::Cord("old"), "0").ok());
      files.FailAfter(point);
      const int before = files.operations();
      const absl::Status status = act(&files);
      const bool reached = files.operations() > before + point;
      files.FailNever();
      files.CutPower();
      check(&files, status);
      if (!reached) return;
    }
  }
};

TEST_F(PowerCutTest, AtomicWriteLeavesOldOrNewContentAndNewAfterOk) {
  CutAtEveryPoint(
      [](FakeFileSystem* files) {
        return AtomicWriteFile(files, "/d/old", absl::Cord("new"), "1");
      },
      [](FakeFileSystem* files, const absl::Status& status) {
        const auto content = files->Read("/d/old", kMany);
        ASSERT_TRUE(content.ok()) << content.status();
        if (status.ok()) {
          EXPECT_EQ(*content, "new");
        } else {
          EXPECT_EQ(*content, "old");
        }
      });
}

TEST_F(PowerCutTest, ExclusiveCreateLeavesCompleteFileOrNoneAndFileAfterOk) {
  CutAtEveryPoint(
      [](FakeFileSystem* files) {
        return ExclusiveCreateFile(files, "/d/claim", absl::Cord("claimed"), "1");
      },
      [](FakeFileSystem* files, const absl::Status& status) {
        const bool exists = *files->Exists("/d/claim");
        EXPECT_TRUE(exists || !status.ok());
        if (exists) {
          EXPECT_EQ(*files->Read("/d/claim", kMany), "claimed");
        }
      });
}

TEST_F(PowerCutTest, LosesUnsyncedData) {
  FakeFileSystem files;
  ASSERT_TRUE(files.CreateDirectories("/d").ok());
  auto file = files.Create("/d/f", true);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Append("kept").ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE(files.SyncDirectory("/d").ok());
  ASSERT_TRUE((*file)->Append(" lost").ok());
  files.CutPower();
  EXPECT_EQ(*files.Read("/d/f", kMany), "kept");
  EXPECT_FALSE((*file)->Append("more").ok());
}

TEST(FakeFileSystemTest, FullDiskFailsWriteAndKeepsOldContent) {
  FakeFileSystem files;
  ASSERT_TRUE(files.CreateDirectories("/d").ok());
  ASSERT_TRUE(AtomicWriteFile(&files, "/d/f", absl::Cord("old"), "1").ok());
  files.SetCapacity(100);
  const absl::Status status =
      AtomicWriteFile(&files, "/d/f", absl::Cord(std::string(200, 'x')), "1");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*files.Read("/d/f", kMany), "old");
  EXPECT_THAT(*files.List("/d"), ElementsAre("f"));
}

}  // namespace
}  // namespace sluice

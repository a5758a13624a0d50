#include "services/checkpoint/restore_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/fake_file_system.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class RestoreSourceTest : public ::testing::Test {
 protected:
  RestoreSourceTest() {
    v1::Claim claim;
    claim.set_format_version(kCheckpointFormatVersion);
    claim.set_attempt(1);
    EXPECT_TRUE(storage_->CreateClaim(claim).ok());
  }
  // `loss`: that of the evaluation of this step, which checkpoint.keepBest compares.
  void Save(uint64_t step, std::optional<double> loss = std::nullopt, bool maximize = false) {
    v1::CheckpointIndex checkpoint_index;
    checkpoint_index.set_format_version(kCheckpointFormatVersion);
    checkpoint_index.mutable_checkpoint()->set_attempt(1);
    checkpoint_index.mutable_checkpoint()->set_step(step);
    if (loss.has_value()) {
      checkpoint_index.mutable_keep_best()->set_name("loss");
      checkpoint_index.mutable_keep_best()->set_maximize(maximize);
      v1::Metric& metric = *checkpoint_index.add_metrics();
      metric.set_name("loss");
      metric.set_value(*loss);
    }
    v1::PartitionFile& file = *checkpoint_index.add_files();
    file.set_name("p");
    file.set_bytes(1);
    file.set_crc32c(Crc32c("x"));
    EXPECT_TRUE(storage_->WriteFile(checkpoint_index.checkpoint(), "p", absl::Cord("x")).ok());
    EXPECT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(&files_, "/a/checkpoints", "t");
};

TEST_F(RestoreSourceTest, UsesBestCheckpointOfStorage) {
  Save(10);
  Save(20);
  const auto source = FindRestoreSource(&files_, "/a/checkpoints/");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->checkpoint_index.checkpoint().step(), 20u);
  EXPECT_EQ(source->directory, "/a/checkpoints/attempt-0001-step-000000000020");
}

TEST_F(RestoreSourceTest, RefusesAFileAndNamesTheRemedy) {
  ASSERT_TRUE(AtomicWriteFile(&files_, "/a/model.safetensors", absl::Cord("x"), "test").ok());
  const absl::Status status = FindRestoreSource(&files_, "/a/model.safetensors").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/a/model.safetensors is a file: `sluice import"));
}

TEST_F(RestoreSourceTest, UsesOnlyNamedCheckpoint) {
  Save(10);
  Save(20);
  const std::string directory = "/a/checkpoints/attempt-0001-step-000000000010";
  EXPECT_EQ(FindRestoreSource(&files_, directory)->checkpoint_index.checkpoint().step(), 10u);
  ASSERT_TRUE(
      AtomicWriteFile(&files_, absl::StrCat(directory, "/p"), absl::Cord("y"), "test").ok());
  EXPECT_EQ(FindRestoreSource(&files_, directory).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RestoreSourceTest, NamesAndSkipsDamagedCheckpoints) {
  Save(10);
  Save(20);
  ASSERT_TRUE(AtomicWriteFile(&files_, "/a/checkpoints/attempt-0001-step-000000000020/p",
                              absl::Cord("y"), "test")
                  .ok());
  const auto source = FindRestoreSource(&files_, "/a/checkpoints");
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->checkpoint_index.checkpoint().step(), 10u);
  EXPECT_THAT(source->damaged, SizeIs(1));
}

TEST_F(RestoreSourceTest, FindsCheckpointWithBestEvaluation) {
  Save(10, 0.5);
  Save(20, 0.25);
  Save(30, 0.75);
  Save(40);  // without an evaluation
  EXPECT_TRUE(NamesBestCheckpoint(&files_, "/a/checkpoints/best/"));
  const auto source = FindRestoreSource(&files_, "/a/checkpoints/best/");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->directory, "/a/checkpoints/attempt-0001-step-000000000020");
  EXPECT_EQ(source->checkpoint_index.checkpoint().step(), 20u);

  ASSERT_TRUE(AtomicWriteFile(&files_, source->directory + "/p", absl::Cord("y"), "test").ok());
  const auto second = FindRestoreSource(&files_, "/a/checkpoints/best");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->checkpoint_index.checkpoint().step(), 10u);
  EXPECT_THAT(second->damaged, SizeIs(1));

  Save(50, 0.6, /*maximize=*/true);  // the manifest has changed
  EXPECT_EQ(FindRestoreSource(&files_, "/a/checkpoints/best")->checkpoint_index.checkpoint().step(),
            30u);
}

TEST_F(RestoreSourceTest, SaysWhatMakesABestCheckpoint) {
  Save(10);
  const absl::Status status = FindRestoreSource(&files_, "/a/checkpoints/best").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint.keepBest makes them"));
  EXPECT_FALSE(NamesBestCheckpoint(&files_, "/nowhere/best"));
}

TEST_F(RestoreSourceTest, DirectoryNamedBestIsItself) {
  Save(10, 0.5);
  Save(20, 0.7);
  ASSERT_TRUE(files_.CreateDirectories("/a/checkpoints/best").ok());
  EXPECT_FALSE(NamesBestCheckpoint(&files_, "/a/checkpoints/best"));
  EXPECT_EQ(FindRestoreSource(&files_, "/a/checkpoints/best").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(RestoreSourceTest, NamesPlaceWithoutCheckpoint) {
  const auto source = FindRestoreSource(&files_, "/nowhere");
  EXPECT_EQ(source.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(source.status().message(), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace sluice

#include "cli/chaos/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/safetensors.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/fake_file_system.h"
#include "services/protocol/layout.h"

namespace sluice::chaos {
namespace {

using ::testing::HasSubstr;

// Two storages in memory.
class ComparisonTest : public ::testing::Test {
 protected:
  ComparisonTest()
      : baseline_(MakeLocalStorage(&files_, "/baseline", "test")),
        job_(MakeLocalStorage(&files_, "/job", "test")) {}

  // Writes a checkpoint of one tensor with these bytes, a multiple of 4, in one partition.
  static void Write(CheckpointStorage& storage, uint64_t step, const std::string& bytes,
                    uint64_t state_hash, const std::string& name = "weight") {
    ASSERT_TRUE(storage.Probe().ok());
    v1::Claim claim;
    claim.set_format_version(kCheckpointFormatVersion);
    claim.set_attempt(1);
    ASSERT_TRUE(storage.CreateClaim(claim).ok());

    v1::CheckpointIndex index;
    index.set_format_version(kCheckpointFormatVersion);
    index.mutable_checkpoint()->set_attempt(1);
    index.mutable_checkpoint()->set_step(step);
    v1::TensorSpec& tensor = *index.mutable_table()->add_tensors();
    const auto count = static_cast<int64_t>(bytes.size() / 4);
    tensor.set_name(name);
    tensor.add_shape(count);
    tensor.set_dtype(v1::FLOAT32);
    tensor.set_kind(v1::PARAMETER);
    *index.mutable_layout() = *MakeLayout(index.table(), 1);

    const absl::Cord content = WriteSafetensors(
        {{absl::StrCat(name, "[0:", count, "]"), v1::FLOAT32, {count}, absl::Cord(bytes)}},
        {{"format", "sluice-partition-1"}});
    v1::PartitionFile& file = *index.add_files();
    file.set_name("partition-0.safetensors");
    file.set_bytes(content.size());
    file.set_crc32c(Crc32c(content));
    file.set_state_hash(state_hash);
    ASSERT_TRUE(storage.WriteFile(index.checkpoint(), file.name(), content).ok());
    ASSERT_TRUE(storage.WriteCheckpointIndex(index).ok());
  }

  std::string Difference() {
    const absl::StatusOr<Comparison> comparison = CompareCheckpoints(*baseline_, *job_);
    EXPECT_TRUE(comparison.ok()) << comparison.status();
    if (!comparison.ok()) return "error";
    EXPECT_EQ(comparison->equal(), comparison->difference.empty());
    EXPECT_EQ(comparison->tensors, 1u);
    return comparison->difference;
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> baseline_;
  std::unique_ptr<CheckpointStorage> job_;
};

TEST_F(ComparisonTest, SameBytesAreEqual) {
  Write(*baseline_, 7, "12345678", 1);
  Write(*job_, 7, "12345678", 1);
  EXPECT_EQ(Difference(), "");
}

TEST_F(ComparisonTest, OneOtherByteIsADifference) {
  Write(*baseline_, 7, "12345678", 1);
  Write(*job_, 7, "12345978", 1);
  EXPECT_EQ(Difference(),
            "tensor weight differs from the baseline's in 1 of 8 bytes, the first at 5");
}

TEST_F(ComparisonTest, OtherOptimizerStateIsADifference) {
  Write(*baseline_, 7, "12345678", 1);
  Write(*job_, 7, "12345678", 2);
  EXPECT_THAT(Difference(), HasSubstr("the optimizer's state in partition 0 differs"));
}

TEST_F(ComparisonTest, OtherSizeNameOrStepIsADifference) {
  Write(*baseline_, 7, "12345678", 1);
  Write(*job_, 7, "1234", 1);
  EXPECT_EQ(Difference(), "tensor weight has 4 bytes, and 8 in the baseline");

  job_ = MakeLocalStorage(&files_, "/renamed", "test");
  Write(*job_, 7, "12345678", 1, "bias");
  EXPECT_EQ(Difference(), "tensor weight is missing");

  job_ = MakeLocalStorage(&files_, "/shorter", "test");
  Write(*job_, 6, "12345678", 1);
  EXPECT_EQ(Difference(), "the last checkpoint is of step 6, the baseline's of step 7");
}

TEST_F(ComparisonTest, JobWithoutCheckpointIsAnError) {
  Write(*baseline_, 7, "12345678", 1);
  ASSERT_TRUE(job_->Probe().ok());
  EXPECT_FALSE(CompareCheckpoints(*baseline_, *job_).ok());
}

}  // namespace
}  // namespace sluice::chaos

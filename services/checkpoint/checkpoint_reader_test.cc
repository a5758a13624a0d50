#include "services/checkpoint/checkpoint_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/fake_file_system.h"
#include "services/protocol/layout.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// A checkpoint of two tensors in a storage in memory; element i of a tensor is i.
class CheckpointReaderTest : public ::testing::Test {
 protected:
  CheckpointReaderTest() : storage_(MakeLocalStorage(&files_, "/job", "test")) {
    EXPECT_TRUE(storage_->Probe().ok());
    checkpoint_index_.set_format_version(kCheckpointFormatVersion);
    checkpoint_index_.mutable_checkpoint()->set_attempt(1);
    checkpoint_index_.mutable_checkpoint()->set_step(7);
    AddTensor("fc.weight", {100, 70}, v1::FLOAT32);
    AddTensor("count", {}, v1::INT64);
    *checkpoint_index_.mutable_layout() = *MakeLayout(checkpoint_index_.table(), 3);
  }

  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, v1::DataType dtype) {
    v1::TensorSpec* tensor = checkpoint_index_.mutable_table()->add_tensors();
    tensor->set_name(name);
    for (const int64_t extent : shape) tensor->add_shape(extent);
    tensor->set_dtype(dtype);
    tensor->set_kind(dtype == v1::INT64 ? v1::COUNTER : v1::PARAMETER);
  }

  static std::string Content(const v1::TensorSpec& tensor) {
    std::string bytes;
    for (uint64_t i = 0; i < ElementCount(tensor); ++i) {
      const float value = static_cast<float>(i);
      const int64_t number = static_cast<int64_t>(i);
      bytes += tensor.dtype() == v1::INT64
                   ? std::string(reinterpret_cast<const char*>(&number), sizeof(number))
                   : std::string(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return bytes;
  }

  // Writes all partitions, without the blocks of tensor `left_out`.
  void WriteFiles(const std::string& left_out = "") {
    for (uint32_t partition = 0; partition < 3; ++partition) {
      std::vector<SafetensorsArray> arrays;
      for (const v1::Block& block : checkpoint_index_.layout().blocks()) {
        if (block.partition() != partition) continue;
        const v1::TensorSpec& tensor =
            checkpoint_index_.table().tensors(static_cast<int>(block.tensor()));
        if (tensor.name() == left_out) continue;
        const uint64_t size = tensor.dtype() == v1::INT64 ? 8 : 4;
        const std::string name = absl::StrCat(tensor.name(), "[", block.offset(), ":",
                                              block.offset() + block.count(), "]");
        const absl::Cord bytes(Content(tensor).substr(block.offset() * size, block.count() * size));
        const std::vector<int64_t> shape = {static_cast<int64_t>(block.count())};
        arrays.push_back({name, tensor.dtype(), shape, bytes});
        arrays.push_back({name + "/exp_avg", tensor.dtype(), shape, bytes});
      }
      const absl::Cord content = WriteSafetensors(arrays, {{"format", "sluice-partition-1"}});
      v1::PartitionFile* file = checkpoint_index_.add_files();
      file->set_partition(partition);
      file->set_name(absl::StrCat("partition-", partition, ".safetensors"));
      file->set_bytes(content.size());
      file->set_crc32c(Crc32c(content));
      ASSERT_TRUE(storage_->WriteFile(checkpoint_index_.checkpoint(), file->name(), content).ok());
    }
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_;
  v1::CheckpointIndex checkpoint_index_;
};

TEST_F(CheckpointReaderTest, AssemblesTensorsFromTheirBlocks) {
  WriteFiles();
  const auto tensors = ReadCheckpointTensors(*storage_, checkpoint_index_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const v1::TensorSpec& tensor = checkpoint_index_.table().tensors(i);
    const SafetensorsArray& array = (*tensors)[static_cast<size_t>(i)];
    EXPECT_EQ(array.name, tensor.name());
    EXPECT_EQ(array.bytes, Content(tensor));
  }
}

// A storage whose job replaces its only checkpoint when file number `when` is read.
class BusyStorage final : public CheckpointStorage {
 public:
  BusyStorage(CheckpointStorage* storage, int when, v1::CheckpointIndex old,
              v1::CheckpointIndex next)
      : storage_(storage), when_(when), old_(std::move(old)), next_(std::move(next)) {}

  absl::StatusOr<absl::Cord> ReadFile(const v1::CheckpointRef& ref,
                                      const v1::PartitionFile& file) override {
    if (when_-- == 0) {
      EXPECT_TRUE(storage_->WriteCheckpointIndex(next_).ok());
      EXPECT_TRUE(storage_->Remove(old_.checkpoint()).ok());
    }
    return storage_->ReadFile(ref, file);
  }
  absl::Status Probe() override { return storage_->Probe(); }
  absl::Status Own(const std::string& job) override { return storage_->Own(job); }
  absl::Status CreateClaim(const v1::Claim& claim) override { return storage_->CreateClaim(claim); }
  absl::StatusOr<std::vector<v1::Claim>> ReadClaims() override { return storage_->ReadClaims(); }
  absl::StatusOr<std::vector<v1::CheckpointRef>> ListCheckpoints() override {
    return storage_->ListCheckpoints();
  }
  absl::StatusOr<v1::CheckpointIndex> ReadCheckpointIndex(const v1::CheckpointRef& ref) override {
    return storage_->ReadCheckpointIndex(ref);
  }
  absl::Status WriteCheckpointIndex(const v1::CheckpointIndex& checkpoint_index) override {
    return storage_->WriteCheckpointIndex(checkpoint_index);
  }
  absl::Status WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                         const absl::Cord& content) override {
    return storage_->WriteFile(ref, name, content);
  }
  absl::Status Remove(const v1::CheckpointRef& ref) override { return storage_->Remove(ref); }
  absl::Status RemoveIncomplete(uint64_t attempt) override {
    return storage_->RemoveIncomplete(attempt);
  }

 private:
  CheckpointStorage* const storage_;
  int when_;
  const v1::CheckpointIndex old_;
  const v1::CheckpointIndex next_;
};

TEST_F(CheckpointReaderTest, ReadsReplacementIfCheckpointIsReplacedDuringRead) {
  v1::Claim claim;
  claim.set_format_version(kCheckpointFormatVersion);
  claim.set_attempt(1);
  ASSERT_TRUE(storage_->CreateClaim(claim).ok());

  // Three files are read to find the checkpoint, and three for its tensors.
  for (int when = 0; when < 6; ++when) {
    checkpoint_index_.clear_files();
    WriteFiles();
    ASSERT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index_).ok());
    const v1::CheckpointIndex old = checkpoint_index_;
    checkpoint_index_.clear_files();
    checkpoint_index_.mutable_checkpoint()->set_step(old.checkpoint().step() + 1);
    WriteFiles();
    BusyStorage busy(storage_.get(), when, old, checkpoint_index_);
    const auto newest = ReadNewestCheckpoint(busy);
    ASSERT_TRUE(newest.ok()) << when << " " << newest.status();
    EXPECT_EQ(newest->point.checkpoint_index.checkpoint().step(),
              checkpoint_index_.checkpoint().step());
    EXPECT_EQ(newest->tensors.size(), 2u);
    EXPECT_TRUE(newest->point.damaged.empty());
  }
}

TEST_F(CheckpointReaderTest, NamesDamagedFile) {
  WriteFiles();
  ASSERT_TRUE(storage_
                  ->WriteFile(checkpoint_index_.checkpoint(), checkpoint_index_.files(1).name(),
                              absl::Cord("something else"))
                  .ok());
  const auto tensors = ReadCheckpointTensors(*storage_, checkpoint_index_);
  EXPECT_TRUE(absl::IsDataLoss(tensors.status())) << tensors.status();
  EXPECT_THAT(tensors.status().message(), HasSubstr("partition-1"));
}

TEST_F(CheckpointReaderTest, NamesMissingPart) {
  WriteFiles("count");
  const auto tensors = ReadCheckpointTensors(*storage_, checkpoint_index_);
  EXPECT_TRUE(absl::IsDataLoss(tensors.status())) << tensors.status();
  EXPECT_THAT(tensors.status().message(), HasSubstr("count"));
}

TEST_F(CheckpointReaderTest, RejectsLayoutThatDoesNotFitTable) {
  WriteFiles();
  checkpoint_index_.mutable_layout()->mutable_blocks(0)->set_count(1);
  EXPECT_TRUE(absl::IsDataLoss(ReadCheckpointTensors(*storage_, checkpoint_index_).status()));
}

TEST_F(CheckpointReaderTest, RejectsWrongNumberOrSizeOfBlocks) {
  auto assembler = TensorAssembler::Create(checkpoint_index_.table(), checkpoint_index_.layout());
  ASSERT_TRUE(assembler.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(1000, absl::Cord("1234"))));
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(0, absl::Cord("123"))));
}

}  // namespace
}  // namespace sluice

#include "services/ps/core/state/partition_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/optimizer_state.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/fake_file_system.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

class PartitionFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM);
    job.mutable_optimizer()->set_learning_rate(0.1);
    job.mutable_optimizer()->set_beta1(0.9);
    job.mutable_optimizer()->set_beta2(0.999);
    job.mutable_optimizer()->set_eps(1e-8);

    AddTensor("fc1.weight", {512, 256}, v1::FLOAT32, v1::PARAMETER);
    AddTensor("fc1.bias", {5}, v1::BFLOAT16, v1::PARAMETER);
    AddTensor("bn.running_mean", {3}, v1::FLOAT64, v1::BUFFER);
    AddTensor("bn.num_batches_tracked", {}, v1::INT64, v1::COUNTER);

    model = *ShardModel::Create(job, table, *MakeLayout(table, 1));
    content.model = model;
    content.version = 17;
    for (size_t i = 0; i < model->blocks(); ++i) {
      content.blocks.push_back(Filled(model->block(i), /*updated=*/i != 1));
    }

    v1::ClockRecord& record = content.clocks.emplace_back();
    record.set_worker(0xfedcba9876543210);
    record.set_clock(3);
    record.mutable_samples()->set_begin(8);
    record.mutable_samples()->set_end(12);

    encoded = EncodePartition(content);
  }

  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, v1::DataType dtype,
                 v1::TensorKind kind) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    for (int64_t extent : shape) tensor.add_shape(extent);
    tensor.set_dtype(dtype);
    tensor.set_kind(kind);
  }

  BlockRef Bytes(size_t size) {
    MutableBlockRef block = pool->Take(size);
    for (char& byte : block->mutable_bytes()) byte = static_cast<char>(next_ = next_ * 31 + 7);
    return block;
  }

  BlockState Filled(const BlockInfo& info, bool updated) {
    BlockState state;
    state.parameters = Bytes(info.bytes);
    if (!updated) return state;
    state.count = 17;
    if (info.kind != v1::PARAMETER) return state;
    for (int i = 0; i < 2; ++i) state.slots[i] = Bytes(info.sum_bytes);
    return state;
  }

  absl::StatusOr<std::shared_ptr<PartitionContent>> Decode(const absl::Cord& bytes) {
    return DecodePartition(model, encoded.file, bytes, *pool);
  }

  static nlohmann::json MetadataOf(const absl::Cord& file) {
    const std::string bytes(file);
    uint64_t length = 0;
    memcpy(&length, bytes.data(), sizeof(length));
    return nlohmann::json::parse(bytes.substr(sizeof(length), length))["__metadata__"];
  }

  // Decodes `bytes` as a file with the correct size and checksum.
  absl::StatusOr<std::shared_ptr<PartitionContent>> DecodeAs(std::string bytes) {
    v1::PartitionFile file = encoded.file;
    file.set_bytes(bytes.size());
    file.set_crc32c(Crc32c(bytes));
    return DecodePartition(model, file, absl::Cord(std::move(bytes)), *pool);
  }

  const std::shared_ptr<BlockPool> pool = BlockPool::Create(1 << 24);
  unsigned next_ = 1;
  v1::JobSpec job;
  v1::TensorTable table;
  std::shared_ptr<const ShardModel> model;
  PartitionContent content;
  EncodedPartition encoded;
};

TEST_F(PartitionFileTest, ReadsBackWrittenPartitionBitForBit) {
  const absl::StatusOr<std::shared_ptr<PartitionContent>> read = Decode(encoded.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->version, 17);
  EXPECT_EQ(StateHash(**read), StateHash(content));

  for (size_t i = 0; i < content.blocks.size(); ++i) {
    EXPECT_EQ((*read)->blocks[i].count, content.blocks[i].count);
    EXPECT_EQ((*read)->blocks[i].parameters->bytes(), content.blocks[i].parameters->bytes());
    for (size_t s = 0; s < kMaxSlots; ++s) {
      ASSERT_EQ((*read)->blocks[i].slots[s] == nullptr, content.blocks[i].slots[s] == nullptr);
      if (content.blocks[i].slots[s] == nullptr) continue;
      EXPECT_EQ((*read)->blocks[i].slots[s]->bytes(), content.blocks[i].slots[s]->bytes());
    }
  }

  ASSERT_THAT((*read)->clocks, SizeIs(1));
  EXPECT_EQ((*read)->clocks[0].worker(), 0xfedcba9876543210);
  EXPECT_EQ((*read)->clocks[0].clock(), 3);
  EXPECT_EQ((*read)->clocks[0].samples().end(), 12);
}

// The checkpoint of a model that was not trained here: docs/checkpoints.md, "There and back".
TEST_F(PartitionFileTest, ReadsAnImportedCheckpointAndIsReadForExport) {
  v1::CheckpointIndex index;
  index.mutable_checkpoint()->set_attempt(1);
  index.mutable_checkpoint()->set_step(17);
  *index.mutable_table() = table;
  *index.mutable_layout() = model->layout();
  std::vector<SafetensorsArray> tensors;
  std::vector<TensorState> states;
  const auto array = [&](const std::string& name, v1::DataType dtype,
                         const v1::TensorSpec& tensor) {
    std::string bytes(ElementCount(tensor) * ElementBytes(dtype), '\0');
    for (char& byte : bytes) byte = static_cast<char>(next_ = next_ * 31 + 7);
    return SafetensorsArray{
        name, dtype, {tensor.shape().begin(), tensor.shape().end()}, absl::Cord(bytes)};
  };
  for (const v1::TensorSpec& tensor : table.tensors()) {
    tensors.push_back(array(tensor.name(), tensor.dtype(), tensor));
    TensorState& state = states.emplace_back();
    // One parameter was never updated.
    state.updates = state.fewest = tensor.name() == "fc1.bias" ? 0 : 17;
    if (tensor.kind() != v1::PARAMETER || state.updates == 0) continue;
    for (const char* slot : {"exp_avg", "exp_avg_sq"}) {
      state.slots.push_back(array(slot, v1::FLOAT32, tensor));
    }
  }

  FakeFileSystem files;
  const auto storage = MakeLocalStorage(&files, "/store", "test");
  ASSERT_TRUE(storage->Probe().ok());
  const absl::Status written = WriteCheckpoint(*storage, &index, tensors, states);
  ASSERT_TRUE(written.ok()) << written;
  const auto whole = ReadWholeCheckpoint(*storage, index.checkpoint());
  ASSERT_TRUE(whole.ok()) << whole.status();

  for (const v1::PartitionFile& file : whole->files()) {
    const auto content =
        DecodePartition(model, file, *storage->ReadFile(index.checkpoint(), file), *pool);
    ASSERT_TRUE(content.ok()) << content.status();
    EXPECT_EQ((*content)->version, 17);
    for (size_t i = 0; i < (*content)->blocks.size(); ++i) {
      const BlockInfo& info = model->block(model->FirstBlock(file.partition()) + i);
      EXPECT_EQ((*content)->blocks[i].count, states[info.tensor].updates);
      EXPECT_EQ((*content)->blocks[i].slots[0] == nullptr, states[info.tensor].slots.empty());
    }
  }

  const auto read = ReadOptimizerState(*storage, *whole, [](const v1::TensorSpec&) {
    return std::vector<Slot>{{"exp_avg", 0}, {"exp_avg_sq", 0}};
  });
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ((*read)[i].updates, states[i].updates);
    ASSERT_EQ((*read)[i].slots.size(), states[i].slots.size());
    for (size_t slot = 0; slot < states[i].slots.size(); ++slot) {
      EXPECT_EQ((*read)[i].slots[slot].name, states[i].slots[slot].name);
      EXPECT_EQ((*read)[i].slots[slot].bytes, states[i].slots[slot].bytes);
    }
  }
  EXPECT_THAT(std::string(ReadOptimizerState(*storage, *whole,
                                             [](const v1::TensorSpec&) {
                                               return std::vector<Slot>{{"sum", 0}};
                                             })
                              .status()
                              .message()),
              HasSubstr("is of another optimizer than the job's"));
  states[0].slots.pop_back();
  tensors.pop_back();
  EXPECT_FALSE(WriteCheckpoint(*storage, &index, tensors, states).ok());
}

// A table may have blocks whose rows no step has touched.
TEST_F(PartitionFileTest, ExportFillsBlocksThatWereNeverUpdatedWithTheInitialValue) {
  FakeFileSystem files;
  const auto storage = MakeLocalStorage(&files, "/store", "test");
  ASSERT_TRUE(storage->Probe().ok());
  v1::CheckpointIndex index;
  index.mutable_checkpoint()->set_attempt(1);
  *index.mutable_table() = table;
  *index.mutable_layout() = model->layout();
  *index.add_files() = encoded.file;
  ASSERT_TRUE(storage->WriteFile(index.checkpoint(), encoded.file.name(), encoded.bytes).ok());

  // Block 1 is the second part of fc1.weight, and has no updates.
  ASSERT_EQ(model->block(1).tensor, 0);
  const auto read = ReadOptimizerState(*storage, index, [](const v1::TensorSpec&) {
    return std::vector<Slot>{{"exp_avg", 0.5}, {"exp_avg_sq", 0}};
  });
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)[0].updates, 17);
  EXPECT_EQ((*read)[0].fewest, 0);
  const std::string average((*read)[0].slots[0].bytes);
  float value = 0;
  memcpy(&value, average.data() + model->block(1).offset * sizeof(float), sizeof(value));
  EXPECT_EQ(value, 0.5F);
  EXPECT_EQ(average.substr(0, model->block(0).sum_bytes),
            std::string(content.blocks[0].slots[0]->As<char>().data(), model->block(0).sum_bytes));
}

TEST_F(PartitionFileTest, IsASafetensorsFile) {
  const std::string bytes(encoded.bytes);
  uint64_t length = 0;
  memcpy(&length, bytes.data(), sizeof(length));
  EXPECT_EQ((8 + length) % 8, 0);
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));

  std::vector<std::string> names;
  uint64_t end = 0;
  for (const auto& [name, entry] : header.items()) {
    names.push_back(name);
    if (name == "__metadata__") {
      for (const auto& value : entry) EXPECT_TRUE(value.is_string()) << "must be a string";
    } else {
      end = std::max(end, entry["data_offsets"][1].get<uint64_t>());
    }
  }

  EXPECT_EQ(8 + length + end, bytes.size());
  EXPECT_THAT(names, IsSupersetOf({"fc1.weight[0:65536]", "fc1.weight[65536:131072]",
                                   "fc1.weight[0:65536]/exp_avg", "fc1.bias[0:5]",
                                   "bn.running_mean[0:3]", "bn.num_batches_tracked[0:1]"}));
  EXPECT_EQ(header["fc1.bias[0:5]"]["dtype"], "BF16");
  EXPECT_EQ(header["fc1.bias[0:5]/exp_avg_sq"]["dtype"], "F32");
}

TEST_F(PartitionFileTest, KeepsTheStateOfEachTensorsOptimizer) {
  auto* group = job.mutable_optimizer()->add_groups();
  group->add_patterns("*.bias");
  group->set_name(v1::OptimizerSpec::ADAGRAD);
  group->set_learning_rate(0.1);
  model = *ShardModel::Create(job, table, *MakeLayout(table, 1));
  content.model = model;
  for (size_t i = 0; i < model->blocks(); ++i) {
    if (model->TensorName(model->block(i)) == "fc1.bias") content.blocks[i].slots[1] = nullptr;
  }
  encoded = EncodePartition(content);
  const std::string bytes(encoded.bytes);
  EXPECT_THAT(bytes, HasSubstr("fc1.bias[0:5]/sum"));
  EXPECT_THAT(bytes, ::testing::Not(HasSubstr("fc1.bias[0:5]/exp_avg")));
  EXPECT_THAT(bytes, HasSubstr("fc1.weight[0:65536]/exp_avg_sq"));
  const absl::StatusOr<std::shared_ptr<PartitionContent>> read = Decode(encoded.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(StateHash(**read), StateHash(content));

  // The file does not fit a job without the group.
  job.mutable_optimizer()->clear_groups();
  model = *ShardModel::Create(job, table, *MakeLayout(table, 1));
  EXPECT_EQ(Decode(encoded.bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PartitionFileTest, EncodingCopiesNoBlock) {
  const size_t allocated = pool->allocated();
  const EncodedPartition again = EncodePartition(content);
  EXPECT_EQ(pool->allocated(), allocated);
  EXPECT_EQ(again.bytes, encoded.bytes) << "the same content gives the same file";
}

TEST_F(PartitionFileTest, DetectsAnyFlippedByte) {
  for (size_t at = 0; at < encoded.bytes.size(); at += 997) {
    std::string bytes(encoded.bytes);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    const absl::Status status = Decode(absl::Cord(bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(status.message()), HasSubstr("partition-00000.safetensors"));
  }
}

TEST_F(PartitionFileTest, ErrorNamesDamagedFileAndItsDamage) {
  const std::string bytes(encoded.bytes);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    EXPECT_EQ(from.size(), to.size());
    return absl::StrReplaceAll(bytes, {{from, to}});
  };
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "ends within the header's length"},
      {std::string(8, '\xff'), "length field gives the header"},
      {std::string("\2\0\0\0\0\0\0\0[]", 10), "not a JSON object"},
      {std::string("\2\0\0\0\0\0\0\0{}", 10), "no text 'format'"},
      {replaced("sluice-partition-1", "sluice-partition-9"), "format is 'sluice-partition-9'"},
      {replaced(R"("partition":"0")", R"("partition":"1")"), "holds partition 1"},
      {replaced(R"("version":"17")", R"("version":"x7")"), "'x7' is not a version"},
      {replaced("fc1.bias[0:5]\"", "fc1.bian[0:5]\""), "'fc1.bias[0:5]' is missing"},
      {replaced("\"BF16\"", "\"BX16\""), "'fc1.bias[0:5]' is"},
      {bytes.substr(0, bytes.size() - 1), "ends within"},
      {bytes + "x", "longer than its arrays"},
  };

  for (const auto& [damaged, says] : table) {
    const absl::Status status = DecodeAs(damaged).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << says;
    EXPECT_THAT(std::string(status.message()), HasSubstr("partition-00000.safetensors"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }

  std::string bit = bytes;
  bit.back() = static_cast<char>(bit.back() ^ 1);
  EXPECT_THAT(std::string(DecodeAs(bit).status().message()), HasSubstr("content hashes to"));
}

// Recursive parsers, comparisons and printers overflow the stack on deep nesting.
TEST_F(PartitionFileTest, HeaderThatIsNestedDeeplyOrNotUtf8IsDamaged) {
  const std::string bytes(encoded.bytes);
  uint64_t length = 0;
  memcpy(&length, bytes.data(), sizeof(length));
  const std::string header = bytes.substr(8, length);
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');

  const std::pair<std::string, std::string> edits[] = {
      {"{\"fc1.bias[0:5]\": " + deep + "}", "nested deeper"},
      {header.substr(0, header.rfind('}')) + ", \"more\": " + deep + "}", "nested deeper"},
      {absl::StrReplaceAll(header, {{"fc1.bias", "fc1.b\xE9s"}}), "not UTF-8"}};

  for (const auto& [text, message] : edits) {
    const uint64_t size = text.size();
    std::string file(reinterpret_cast<const char*>(&size), sizeof(size));
    file += text + bytes.substr(8 + length);
    const absl::Status status = DecodeAs(std::move(file)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST_F(PartitionFileTest, RefusesFileOfAnotherModel) {
  table.mutable_tensors(1)->set_name("fc2.bias");
  model = *ShardModel::Create(job, table, *MakeLayout(table, 1));
  EXPECT_EQ(Decode(encoded.bytes).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PartitionFileTest, StepHashesAreInTheMetadataAndNotReadBack) {
  EXPECT_FALSE(MetadataOf(encoded.bytes).contains("step_hashes"));
  content.step_hashes = {{16, 0x1a}, {17, 0x2b}};
  encoded = EncodePartition(content);
  EXPECT_EQ(MetadataOf(encoded.bytes)["step_hashes"], "16:000000000000001a 17:000000000000002b");
  const auto read = Decode(encoded.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT((*read)->step_hashes, SizeIs(0));
}

TEST_F(PartitionFileTest, StateHashDiffersForDifferentContents) {
  const uint64_t before = StateHash(content);
  content.blocks[0].count = 18;
  EXPECT_NE(StateHash(content), before);
}

}  // namespace
}  // namespace sluice::ps

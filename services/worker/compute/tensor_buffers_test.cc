#include "services/worker/compute/tensor_buffers.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Buffer = ComputeEngine::Buffer;

v1::TensorTable Table() {
  v1::TensorTable table;
  v1::TensorSpec& matrix = *table.add_tensors();
  matrix.set_name("w");
  matrix.add_shape(2);
  matrix.add_shape(2);
  matrix.set_dtype(v1::FLOAT32);
  v1::TensorSpec& scalar = *table.add_tensors();
  scalar.set_name("n");
  scalar.set_dtype(v1::INT64);
  return table;
}

// One chunk for each byte, to check that chunks are joined.
absl::Cord Bytes(const std::vector<float>& values) {
  absl::Cord cord;
  for (size_t i = 0; i < values.size() * sizeof(float); ++i) {
    const char* byte = reinterpret_cast<const char*>(values.data()) + i;
    auto* owned = new std::string(byte, 1);
    cord.Append(absl::MakeCordFromExternal(*owned, [owned] { delete owned; }));
  }
  return cord;
}

std::vector<float> Floats(const absl::StatusOr<absl::Cord>& cord) {
  EXPECT_TRUE(cord.ok()) << cord.status();
  const std::string bytes(cord.value_or(absl::Cord()));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(TensorBuffersTest, BuffersStartAsZeros) {
  const v1::TensorTable table = Table();
  const TensorBuffers buffers(table);
  EXPECT_THAT(Floats(buffers.Get(Buffer::kCurrent, 0)), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Floats(buffers.Get(Buffer::kIncoming, 0)), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(buffers.Get(Buffer::kCurrent, 1)->size(), 8u);
}

TEST(TensorBuffersTest, WrittenRangesAreVisibleAfterASwap) {
  const v1::TensorTable table = Table();
  TensorBuffers buffers(table);
  ASSERT_TRUE(buffers.SetRange(Buffer::kIncoming, 0, 1, Bytes({5, 6})).ok());
  EXPECT_THAT(Floats(buffers.Get(Buffer::kCurrent, 0)), ElementsAre(0, 0, 0, 0));
  buffers.Swap();
  EXPECT_THAT(Floats(buffers.Get(Buffer::kCurrent, 0)), ElementsAre(0, 5, 6, 0));
  ASSERT_TRUE(buffers.SetRange(Buffer::kIncoming, 0, 0, Bytes({1, 2, 3, 4})).ok());
  EXPECT_THAT(Floats(buffers.Get(Buffer::kCurrent, 0)), ElementsAre(0, 5, 6, 0));
}

TEST(TensorBuffersTest, EvaluationBufferIsSeparateAndAllocatedOnFirstWrite) {
  const v1::TensorTable table = Table();
  TensorBuffers buffers(table);
  EXPECT_FALSE(buffers.has_evaluation());
  EXPECT_EQ(buffers.Get(Buffer::kEvaluation, 0).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(buffers.SetRange(Buffer::kEvaluation, 0, 3, Bytes({7})).ok());
  EXPECT_TRUE(buffers.has_evaluation());
  buffers.Swap();
  EXPECT_THAT(Floats(buffers.Get(Buffer::kEvaluation, 0)), ElementsAre(0, 0, 0, 7));
  EXPECT_THAT(Floats(buffers.Get(Buffer::kCurrent, 0)), ElementsAre(0, 0, 0, 0));
}

TEST(TensorBuffersTest, RejectsRangesThatDoNotFitWithoutWriting) {
  const v1::TensorTable table = Table();
  TensorBuffers buffers(table);
  const struct {
    uint32_t tensor;
    uint64_t offset;
    size_t bytes;
    absl::StatusCode code;
    const char* message;
  } kCases[] = {
      {2, 0, 4, absl::StatusCode::kOutOfRange, "tensor 2 of 2"},
      {0, 3, 8, absl::StatusCode::kOutOfRange, "2 elements from 3 on in tensor 'w' of 4"},
      {0, ~uint64_t{0}, 4, absl::StatusCode::kOutOfRange, "tensor 'w' of 4"},
      {0, 0, 3, absl::StatusCode::kInvalidArgument, "3 bytes for tensor 'w'"},
      {1, 0, 4, absl::StatusCode::kInvalidArgument, "4 bytes for tensor 'n'"},
  };
  for (const auto& c : kCases) {
    const absl::Cord bytes(std::string(c.bytes, 'x'));
    const absl::Status status = buffers.SetRange(Buffer::kIncoming, c.tensor, c.offset, bytes);
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  EXPECT_THAT(Floats(buffers.Get(Buffer::kIncoming, 0)), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(buffers.SetRange(Buffer::kCurrent, 0, 0, Bytes({1})).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffers.Get(Buffer::kCurrent, 2).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(TensorBuffersTest, HeldVersionStaysWhileNewerOnesAreAdopted) {
  const v1::TensorTable table = Table();
  TensorBuffers buffers(table);
  const auto adopt = [&](float value) {
    ASSERT_TRUE(
        buffers.SetRange(Buffer::kIncoming, 0, 0, Bytes({value, value, value, value})).ok());
    buffers.Swap();
  };
  const auto first = [](const void* memory) {
    float value;
    std::memcpy(&value, memory, sizeof value);
    return value;
  };

  adopt(1);
  buffers.Hold();
  for (float version = 2; version < 6; ++version) {
    adopt(version);
    EXPECT_EQ(first(buffers.held(0)), 1);
    EXPECT_EQ(first(buffers.data(Buffer::kCurrent, 0)), version);
    EXPECT_NE(buffers.data(Buffer::kIncoming, 0), buffers.held(0));
  }
  buffers.Release();
  EXPECT_EQ(first(buffers.held(0)), 5);
  buffers.Hold();
  adopt(6);
  EXPECT_EQ(first(buffers.held(0)), 5);
}

}  // namespace
}  // namespace sluice

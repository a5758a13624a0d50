#include "services/worker/data/idx.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/data/testing/data_files.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

TEST(IdxArrayTest, HoldsTheDimensionsAndBytesOfTheFile) {
  const IdxArray array = *IdxArray::Parse("f", IdxOfBytes({2, 1, 3}, {1, 2, 3, 4, 5, 255}));
  EXPECT_THAT(array.dimensions(), ElementsAre(2, 1, 3));
  EXPECT_EQ(array.rows(), 2u);
  EXPECT_EQ(array.elements_per_row(), 3u);
  EXPECT_EQ(array.Bytes(1)[2], 255);
  EXPECT_EQ(array.At(5), 255);
  EXPECT_TRUE(array.integral());
}

TEST(IdxArrayTest, EveryTypeIsReadBigEndian) {
  const struct {
    int type;
    std::string bytes;
    double value;
    bool integral;
  } kCases[] = {
      {0x08, Bytes({0xFF}), 255, true},
      {0x09, Bytes({0xFF}), -1, true},
      {0x0B, Bytes({0xFF, 0xFE}), -2, true},
      {0x0C, Bytes({0x00, 0x01, 0x00, 0x02}), 65538, true},
      {0x0C, Bytes({0xFF, 0xFF, 0xFF, 0xFD}), -3, true},
      {0x0D, Bytes({0x3F, 0xC0, 0, 0}), 1.5, false},
      {0x0E, Bytes({0xC0, 0x04, 0, 0, 0, 0, 0, 0}), -2.5, false},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<IdxArray> array = IdxArray::Parse("f", IdxHeader(c.type, {1}) + c.bytes);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->At(0), c.value);
    EXPECT_EQ(array->integral(), c.integral);
  }
}

TEST(IdxArrayTest, RejectsIncompleteIdxFilesWithNameAndReason) {
  const struct {
    std::string content;
    absl::StatusCode code;
    const char* message;
  } kCases[] = {
      {"", absl::StatusCode::kDataLoss, "truncated: 0 bytes"},
      {Bytes({0, 0, 8}), absl::StatusCode::kDataLoss, "truncated: 3 bytes"},
      {"label,pixel\n1,2\n", absl::StatusCode::kInvalidArgument, "not an IDX file"},
      {Bytes({0, 0, 7, 1, 0, 0, 0, 1, 0}), absl::StatusCode::kInvalidArgument, "00 00 07 01"},
      {Bytes({0, 0, 8, 0}), absl::StatusCode::kInvalidArgument, "not an IDX file"},
      {Bytes({0, 0, 8, 2, 0, 0, 0, 1, 0}), absl::StatusCode::kDataLoss,
       "truncated within its 2 dimensions"},
      {IdxOfBytes({2, 3}, {1, 2, 3, 4, 5}), absl::StatusCode::kDataLoss,
       "truncated: 5 bytes of elements, and the dimensions say 6"},
      {IdxOfBytes({2, 3}, {1, 2, 3, 4, 5, 6, 7}), absl::StatusCode::kDataLoss, "trailing bytes"},
      {IdxOfBytes({0, 3}, {}), absl::StatusCode::kInvalidArgument, "dimension 0 is 0"},
      {IdxOfBytes({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {1}), absl::StatusCode::kDataLoss,
       "truncated"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = IdxArray::Parse("some.idx", c.content).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("some.idx: "), HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace sluice

#include "services/protocol/codec/rows.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "services/protocol/elements.h"

namespace sluice {
namespace {

const Codec& RowsCodec() { return **FindCodec(v1::CODEC_ROWS); }

// A matrix of this many rows of three numbers: 0, 1, 2, ...
std::vector<float> Matrix(size_t rows) {
  std::vector<float> values(rows * 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

absl::Span<const char> Bytes(absl::Span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

absl::Cord Words(const std::vector<uint32_t>& words, const std::vector<float>& values = {}) {
  std::string bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t));
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return absl::Cord(bytes);
}

// The matrix's elements [2, 10): the last of row 0, rows 1 and 2, and the first of row 3.
constexpr RowCut kCut{3, 2, 8};

TEST(RowCutTest, BlockHoldsPartsOfRowsAtItsBorders) {
  EXPECT_EQ(kCut.begin_row(), 0u);
  EXPECT_EQ(kCut.end_row(), 4u);
  EXPECT_EQ(PartOf(kCut, 0).offset, 0u);
  EXPECT_EQ(PartOf(kCut, 0).count, 1u);
  EXPECT_EQ(PartOf(kCut, 1).offset, 1u);
  EXPECT_EQ(PartOf(kCut, 1).count, 3u);
  EXPECT_EQ(PartOf(kCut, 3).offset, 7u);
  EXPECT_EQ(PartOf(kCut, 3).count, 1u);
  const std::vector<uint64_t> rows = {0, 3, 4, 9};
  EXPECT_EQ(RowsIn(kCut, rows).size(), 2u);
  EXPECT_TRUE(RowsIn({3, 30, 0}, rows).empty());
}

TEST(RowsTest, PayloadIsAsTheHeaderSpecifies) {
  const std::vector<float> matrix = Matrix(4);
  const std::vector<uint64_t> rows = {0, 2};
  const absl::Cord payload = EncodeRowsOfBlock(
      kCut, rows, v1::FLOAT32, Bytes(absl::MakeConstSpan(matrix).subspan(kCut.offset, kCut.count)));
  EXPECT_EQ(payload, Words({2, 3, 2, 0, 0, 2}, {2, 6, 7, 8}));
  EXPECT_EQ(payload.size(), RowsBytes(kCut, rows, v1::FLOAT32));
  EXPECT_EQ(EncodeRows(kCut, rows, v1::FLOAT32,
                       [&](size_t i) {
                         return reinterpret_cast<const char*>(matrix.data() + rows[i] * 3);
                       }),
            payload);
}

TEST(RowsTest, UnnamedRowsDecodeAsZerosAndAddNothing) {
  const absl::Cord payload = Words({2, 3, 2, 0, 0, 2}, {2, 6, 7, 8});
  std::vector<float> block(8, 9.0f);
  ASSERT_TRUE(RowsCodec().Decode(payload, absl::MakeSpan(block)).ok());
  EXPECT_EQ(block, (std::vector<float>{2, 0, 0, 0, 6, 7, 8, 0}));
  ASSERT_TRUE(RowsCodec().DecodeAdd(payload, v1::FLOAT32, absl::MakeSpan(block)).ok());
  EXPECT_EQ(block, (std::vector<float>{4, 0, 0, 0, 12, 14, 16, 0}));
}

TEST(RowsTest, SumsSixteenBitRowsInFloat32) {
  std::vector<BFloat16> values = {ToBFloat16(1.5f), ToBFloat16(-2.0f)};
  const uint64_t row = 1;
  const absl::Cord payload =
      EncodeRowsOfBlock({2, 2, 2}, {&row, 1}, v1::BFLOAT16,
                        {reinterpret_cast<const char*>(values.data()), 2 * sizeof(BFloat16)});
  std::vector<float> sums = {1, 1};
  ASSERT_TRUE(RowsCodec().DecodeAdd(payload, v1::BFLOAT16, absl::MakeSpan(sums)).ok());
  EXPECT_EQ(sums, (std::vector<float>{2.5, -1}));
}

void ExpectInvalid(const absl::Cord& payload, const std::string& message, size_t count = 8) {
  const absl::Status status = RowsCodec().Validate(payload, v1::FLOAT32, count);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "CODEC_ROWS: " + message);
  std::vector<float> block(count, 9.0f);
  EXPECT_EQ(RowsCodec().Decode(payload, absl::MakeSpan(block)).message(), status.message());
  EXPECT_EQ(RowsCodec().DecodeAdd(payload, v1::FLOAT32, absl::MakeSpan(block)).message(),
            status.message());
  EXPECT_EQ(block, std::vector<float>(count, 9.0f)) << "something was written";
}

TEST(RowsTest, RejectsInvalidPayloadAndWritesNothing) {
  ExpectInvalid(absl::Cord("abc"), "a payload of 3 bytes");
  ExpectInvalid(Words({0, 0, 0, 0}), "rows of no elements");
  ExpectInvalid(Words({0, 3, 3, 0}), "3 elements before the block in rows of 3");
  ExpectInvalid(Words({0, 3, 2, 1}), "bytes 12 to 15 are not zeros");
  ExpectInvalid(Words({5, 3, 2, 0}), "5 rows in a block of 4");
  ExpectInvalid(Words({0xffffffff, 3, 2, 0}), "4294967295 rows in a block of 4");
  ExpectInvalid(Words({2, 3, 2, 0, 1}), "a payload of 20 bytes ends within the numbers of 2 rows");
  ExpectInvalid(Words({1, 3, 2, 0, 4}, {1, 1, 1}), "row 4 in a block of 4");
  ExpectInvalid(Words({2, 3, 2, 0, 1, 1}, {1, 1, 1, 1, 1, 1}),
                "row 1 is not above the one before it");
  ExpectInvalid(Words({2, 3, 2, 0, 2, 1}, {1, 1, 1, 1, 1, 1}),
                "row 1 is not above the one before it");
  ExpectInvalid(Words({1, 3, 2, 0, 1}, {1, 1}), "a payload of 28 bytes for 1 rows, which take 32");
  ExpectInvalid(Words({1, 3, 2, 0, 1}, {1, 1, 1, 1}),
                "a payload of 36 bytes for 1 rows, which take 32");
  ExpectInvalid(Words({1, 3, 0, 0, 0}), "1 rows in a block of 0", 0);
}

RC_GTEST_PROP(RowsProperty, NamedRowsArriveForAnyBlockBorders, ()) {
  const uint64_t width = *rc::gen::inRange<uint64_t>(1, 9);
  const uint64_t rows = *rc::gen::inRange<uint64_t>(1, 20);
  std::vector<float> matrix(width * rows);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i + 1);
  std::vector<uint64_t> wanted;
  for (uint64_t row = 0; row < rows; ++row) {
    if (*rc::gen::arbitrary<bool>()) wanted.push_back(row);
  }
  const uint64_t block = *rc::gen::inRange<uint64_t>(1, matrix.size() + 1);
  std::vector<float> decoded(matrix.size(), -1.0f);
  for (uint64_t offset = 0; offset < matrix.size(); offset += block) {
    const RowCut cut{width, offset, std::min<uint64_t>(block, matrix.size() - offset)};
    const auto here = absl::MakeSpan(decoded).subspan(cut.offset, cut.count);
    const absl::Cord payload =
        EncodeRowsOfBlock(cut, RowsIn(cut, wanted), v1::FLOAT32,
                          Bytes(absl::MakeConstSpan(matrix).subspan(cut.offset, cut.count)));
    RC_ASSERT(RowsCodec().Decode(payload, here).ok());
  }
  for (uint64_t row = 0; row < rows; ++row) {
    const bool named = std::binary_search(wanted.begin(), wanted.end(), row);
    for (uint64_t i = row * width; i < (row + 1) * width; ++i) {
      RC_ASSERT(decoded[i] == (named ? matrix[i] : 0.0f));
    }
  }
}

RC_GTEST_PROP(RowsProperty, AnyBytesOfPeerAreHarmless, ()) {
  std::string bytes(Words({2, 3, 2, 0, 0, 2}, {2, 6, 7, 8}));
  const auto changes = *rc::gen::container<std::vector<std::pair<uint8_t, uint8_t>>>(
      rc::gen::pair(rc::gen::arbitrary<uint8_t>(), rc::gen::arbitrary<uint8_t>()));
  for (const auto& [at, value] : changes) bytes[at % bytes.size()] = static_cast<char>(value);
  bytes.resize(*rc::gen::inRange<size_t>(0, 48), '\1');
  std::vector<float> block(8);
  const absl::Cord payload(bytes);
  const bool valid = RowsCodec().Validate(payload, v1::FLOAT32, block.size()).ok();
  RC_ASSERT(RowsCodec().Decode(payload, absl::MakeSpan(block)).ok() == valid);
  RC_ASSERT(RowsCodec().DecodeAdd(payload, v1::FLOAT32, absl::MakeSpan(block)).ok() == valid);
}

}  // namespace
}  // namespace sluice

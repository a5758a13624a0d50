// Pushes and pulls of rows of embedding tables through ShardCore.
#include "services/protocol/codec/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/protocol/row_selection.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Values = std::vector<float>;

constexpr uint64_t kRows = 20;
constexpr uint64_t kWidth = 8;
constexpr auto kMicrobatches = ShardHarness::Microbatches;

// "w" is a table of 20 rows of 8 numbers: each number of row r is r. Members 7 and 8.
class RowsTest : public ::testing::Test {
 protected:
  RowsTest() {
    shard.table.mutable_tensors(0)->clear_shape();
    shard.table.mutable_tensors(0)->add_shape(kRows);
    shard.table.mutable_tensors(0)->add_shape(kWidth);
    shard.w.clear();
    for (uint64_t i = 0; i < kRows * kWidth; ++i) {
      shard.w.push_back(static_cast<float>(i / kWidth));
    }
  }
  void Begin() {
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
  }
  void Pull(StreamId stream, uint64_t version, const RowSelections& rows) {
    v1::Header header;
    *header.mutable_view() = shard.core().Status().view;
    header.mutable_pull()->set_version(version);
    header.mutable_pull()->add_partitions(0);
    const absl::Cord payload = AppendSelections(rows, header.mutable_pull());
    shard.Send(stream, header, payload);
  }
  // Pushes a gradient of `value` for these rows of the table and completes the partition.
  void PushRows(StreamId stream, uint64_t step, const std::vector<uint64_t>& rows, float value) {
    const Values table(kRows * kWidth, value);
    const absl::Cord payload = EncodeRowsOfBlock(
        {kWidth, 0, kRows * kWidth}, rows, v1::FLOAT32,
        {reinterpret_cast<const char*>(table.data()), table.size() * sizeof(float)});
    v1::Header header = shard.MakePush(
        step, 0, stream == one ? kMicrobatches(0, 2) : kMicrobatches(2, 4), /*samples=*/1);
    header.mutable_push()->mutable_blocks(0)->set_codec(v1::CODEC_ROWS);
    header.mutable_push()->mutable_blocks(0)->set_payload_bytes(payload.size());
    shard.Send(stream, header, payload);
  }
  // The first element of each row in a data frame of this version; -1 for rows that it lacks.
  Values RowsOf(const SendFrame& frame, uint64_t version) {
    const v1::Data& data = frame.header.data();
    EXPECT_EQ(data.version(), version);
    EXPECT_TRUE(data.last());
    EXPECT_EQ(data.blocks(0).codec(), v1::CODEC_ROWS);
    const auto split = SplitRows(frame.payload, v1::FLOAT32, kRows * kWidth);
    EXPECT_TRUE(split.ok()) << split.status();
    Values rows(kRows, -1);
    size_t at = split->values_at;
    for (const RowPart& part : split->parts) {
      rows[part.offset / kWidth] =
          FloatsOf(frame.payload.Subcord(at, part.count * sizeof(float))).front();
      at += part.count * sizeof(float);
    }
    return rows;
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
};

TEST_F(RowsTest, HelloReplyOffersRows) {
  shard.Begin({7});
  shard.Admit(9);
  const StreamId other = shard.OpenSilent();
  shard.Send(other, shard.MakeHello(9));
  const std::vector<v1::Header> frames = shard.TakeFrames(other);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_TRUE(frames[0].hello_reply().takes_rows());
}

TEST_F(RowsTest, AnswersPullOfRowsWithTheseRowsOnly) {
  Begin();
  Pull(one, 0, {{0, {3, 17}}});
  const std::vector<SendFrame> frames = shard.TakeSent(one);
  ASSERT_THAT(frames, SizeIs(1));
  Values expected(kRows, -1);
  expected[3] = 3;
  expected[17] = 17;
  EXPECT_EQ(RowsOf(frames[0], 0), expected);
  EXPECT_EQ(frames[0].payload.size(), 16 + 2 * 4 + 2 * kWidth * sizeof(float));
}

TEST_F(RowsTest, AnswersPullOfNoRowsWithEmptySelection) {
  Begin();
  Pull(one, 0, {{0, {}}});
  const std::vector<SendFrame> frames = shard.TakeSent(one);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(RowsOf(frames[0], 0), Values(kRows, -1));
}

TEST_F(RowsTest, SendsWholeBlockIfThatIsSmaller) {
  Begin();
  std::vector<uint64_t> all;
  for (uint64_t row = 0; row < kRows; ++row) all.push_back(row);
  Pull(one, 0, {{0, all}});
  const std::vector<SendFrame> frames = shard.TakeSent(one);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].header.data().blocks(0).codec(), v1::CODEC_RAW);
  EXPECT_EQ(FloatsOf(frames[0].payload), shard.w);
}

TEST_F(RowsTest, AnswersParkedPullWithItsRowsOfNewVersion) {
  Begin();
  Pull(one, 1, {{0, {5}}});
  Pull(two, 1, {{0, {6}}});
  EXPECT_THAT(shard.TakeSent(one), IsEmpty());

  PushRows(one, 0, {5, 6}, 2);
  PushRows(two, 0, {5}, 4);

  std::vector<SendFrame> frames = shard.TakeSent(one);
  ASSERT_THAT(frames, SizeIs(1));
  Values expected(kRows, -1);
  expected[5] = 5 + (2 + 4) / 2.0f;
  EXPECT_EQ(RowsOf(frames[0], 1), expected);

  frames = shard.TakeSent(two);
  ASSERT_THAT(frames, SizeIs(1));
  expected[5] = -1;
  expected[6] = 6 + 2 / 2.0f;
  EXPECT_EQ(RowsOf(frames[0], 1), expected);
}

TEST_F(RowsTest, AppliesRowsAsGradientOfTheWholeTable) {
  Begin();
  PushRows(one, 0, {0, 19}, 2);
  PushRows(two, 0, {19}, 2);
  Values expected = shard.w;
  for (uint64_t i = 0; i < kWidth; ++i) {
    expected[i] += 1;
    expected[19 * kWidth + i] += 2;
  }
  EXPECT_EQ(shard.Values(0), expected);
}

TEST_F(RowsTest, IgnoresRepeatedRows) {
  Begin();
  PushRows(one, 0, {4}, 2);
  PushRows(one, 0, {4}, 2);
  PushRows(two, 0, {}, 2);
  EXPECT_EQ(shard.Values(0)[4 * kWidth], 5);
}

TEST_F(RowsTest, AnswersAsynchronousPullWithRowsOfLiveState) {
  shard.job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  Begin();
  Pull(one, 0, {{0, {2}}});
  const std::vector<SendFrame> frames = shard.TakeSent(one);
  ASSERT_THAT(frames, SizeIs(1));
  Values expected(kRows, -1);
  expected[2] = 2;
  EXPECT_EQ(RowsOf(frames[0], 0), expected);
}

TEST_F(RowsTest, ClosesStreamOfInvalidSelection) {
  Begin();
  Pull(one, 0, {{0, {kRows}}});
  EXPECT_EQ(shard.StatusOf(one).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("row 20 of 'w'"));
  Pull(two, 0, {{1, {0}}});
  EXPECT_THAT(std::string(shard.StatusOf(two).message()),
              HasSubstr("rows of 'b' are requested, but the tensor is not a matrix"));
}

TEST_F(RowsTest, InvalidRowsCloseTheirStreamAndChangeNothing) {
  Begin();
  v1::Header header = shard.MakePush(0, 0, kMicrobatches(0, 2), 1);
  header.mutable_push()->mutable_blocks(0)->set_codec(v1::CODEC_ROWS);
  shard.Send(one, header, absl::Cord(std::string(16, '\1')));
  EXPECT_EQ(shard.StatusOf(one).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("CODEC_ROWS"));
  EXPECT_EQ(shard.Values(0), shard.w);
}

}  // namespace
}  // namespace sluice::ps

// Workers that pull and push rows of an embedding table, by hand-driven messages.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/row_selection.h"
#include "services/worker/core/testing/worker_test_harness.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kRows = 20;
constexpr uint64_t kWidth = 8;

// Tensor "a" is a table of 20 rows of 8 numbers, on partition 0 and shard A; "b" is one number, on
// partition 1 and shard B.
class RowWorkerTest : public testing::Test {
 protected:
  void Make(v1::Mode mode = v1::SYNCHRONOUS, bool bit_exact = false) {
    world_ = std::make_unique<WorkerHarness>(mode, bit_exact);
    world_->table_.mutable_tensors(0)->clear_shape();
    world_->table_.mutable_tensors(0)->add_shape(kRows);
    world_->table_.mutable_tensors(0)->add_shape(kWidth);
    world_->CutTable();
    world_->takes_rows_ = true;
    world_->core_.SetRowTensors({0});
  }
  // In view 1, which starts at step 5, with [0, 4) of 8 microbatches.
  void Begin(bool bit_exact = false) {
    Make(v1::SYNCHRONOUS, bit_exact);
    Start();
  }
  void Start() {
    world_->Start();
    world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world_->ConnectAll();
  }
  // ... and has pulled version 5, with row 3 of the table, and computes.
  void BeginStep(bool bit_exact = false) {
    Begin(bit_exact);
    AnswerRows({3});
    ReceiveRows(5, {3});
    world_->ReceiveData(kShardB, 5, 1, 1);
    Forget();
  }
  void Forget() {
    world_->TakeSent(kShardA);
    world_->TakeSent(kShardB);
  }
  // Answers the only request for rows.
  void AnswerRows(std::vector<uint64_t> rows) {
    ASSERT_THAT(world_->row_requests_, SizeIs(1));
    const RowsId id = world_->row_requests_[0].id;
    world_->row_requests_.clear();
    world_->core_.OnRows(id, RowSelections{{0, std::move(rows)}}, world_->now_);
    world_->Do();
  }
  std::vector<std::pair<uint64_t, uint64_t>> Requested() const {
    std::vector<std::pair<uint64_t, uint64_t>> positions;
    for (const FindRows& request : world_->row_requests_) {
      for (const PositionRange& range : request.positions) {
        positions.emplace_back(range.begin, range.end);
      }
    }
    return positions;
  }
  static absl::Cord RowsPayload(const std::vector<uint64_t>& rows) {
    const std::vector<double> table(kRows * kWidth, 1);
    return EncodeRowsOfBlock(
        {kWidth, 0, kRows * kWidth}, rows, v1::FLOAT64,
        {reinterpret_cast<const char*>(table.data()), table.size() * sizeof(double)});
  }
  // Receives these rows of the table's partition.
  void ReceiveRows(uint64_t version, const std::vector<uint64_t>& rows, uint64_t request = 0) {
    const absl::Cord payload = RowsPayload(rows);
    v1::Header header;
    v1::Data& data = *header.mutable_data();
    data.set_version(version);
    data.set_partition(0);
    data.set_request(request);
    data.set_last(true);
    v1::BlockHeader& block = *data.add_blocks();
    block.set_block(world_->block_of_[0]);
    block.set_codec(v1::CODEC_ROWS);
    block.set_payload_bytes(payload.size());
    world_->Receive(kShardA, header, payload);
  }
  std::vector<SendFrame> TakePulls(ShardId shard) {
    std::vector<SendFrame> pulls;
    for (SendFrame& frame : world_->TakeSent(shard)) {
      if (frame.header.has_pull()) pulls.push_back(std::move(frame));
    }
    return pulls;
  }
  RowSelections RowsOf(const SendFrame& pull) {
    auto rows = ReadSelections(pull.header.pull(), pull.payload, world_->table_);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.value_or(RowSelections());
  }
  // Both tensors' gradients: `rows` of the table, all 2, and one number.
  void Finish(const std::vector<uint64_t>& rows) {
    for (const auto& [id, compute] : std::exchange(world_->computes_, {})) {
      const std::vector<double> values(rows.size() * kWidth, 2);
      world_->core_.OnRowGradient(
          id, 0, rows,
          absl::Cord(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                       values.size() * sizeof(double))),
          world_->now_);
      world_->Do();
      world_->core_.OnGradient(id, 1, Number(1), world_->now_);
      world_->Do();
      ComputeResult result;
      result.samples = compute.positions.size();
      world_->core_.OnComputed(id, result, world_->now_);
      world_->Do();
    }
  }

  std::unique_ptr<WorkerHarness> world_;
};

TEST_F(RowWorkerTest, FirstPullWaitsForTheRowsOfItsSamples) {
  Begin();
  EXPECT_THAT(TakePulls(kShardA), IsEmpty());
  // Global batches of 8: step 5 begins at position 40.
  EXPECT_THAT(Requested(), ElementsAre(std::make_pair(40, 44)));
  AnswerRows({3, 7});
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(pulls[0].header.pull().version(), 5u);
  EXPECT_EQ(RowsOf(pulls[0]), (RowSelections{{0, {3, 7}}}));
  EXPECT_THAT(TakePulls(kShardB), SizeIs(1));
}

TEST_F(RowWorkerTest, PullsNextVersionByTheRowsOfTheNextSamples) {
  BeginStep();
  EXPECT_THAT(world_->Positions(), ElementsAre(std::make_pair(40, 44)));
  EXPECT_THAT(Requested(), ElementsAre(std::make_pair(48, 52)));
  Finish({3});
  for (const ShardId shard : {kShardA, kShardB}) {
    const auto pushes = world_->TakePushes(shard);
    ASSERT_THAT(pushes, SizeIs(1));
    EXPECT_FALSE(pushes[0].pull_next()) << "the rows are not known yet";
  }
  AnswerRows({9});
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(pulls[0].header.pull().version(), 6u);
  EXPECT_EQ(RowsOf(pulls[0]), (RowSelections{{0, {9}}}));
  ReceiveRows(6, {9});
  world_->ReceiveData(kShardB, 6, 1, 1);
  EXPECT_THAT(world_->adopted_, ElementsAre(5, 6));
  EXPECT_THAT(world_->Positions(), ElementsAre(std::make_pair(48, 52)));
}

TEST_F(RowWorkerTest, SendsGradientOfRowsAsRows) {
  BeginStep();
  Finish({3, 8});
  const auto pushes = world_->TakeSent(kShardA);
  ASSERT_THAT(pushes, SizeIs(1));
  const v1::BlockHeader& block = pushes[0].header.push().blocks(0);
  EXPECT_EQ(block.codec(), v1::CODEC_ROWS);
  EXPECT_EQ(pushes[0].payload.size(), 16 + 2 * 4 + 2 * kWidth * sizeof(double));
  const auto parts = SplitRows(pushes[0].payload, v1::FLOAT64, kRows * kWidth);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->parts[1].offset, 8 * kWidth);
}

TEST_F(RowWorkerTest, PullsAndPushesWholeTablesIfTheShardDoesNotAcceptRows) {
  Make();
  world_->takes_rows_ = false;
  Start();
  AnswerRows({3});
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_THAT(pulls[0].header.pull().rows(), IsEmpty());
  EXPECT_TRUE(pulls[0].payload.empty());
  v1::Header header;
  header.mutable_data()->set_version(5);
  header.mutable_data()->set_last(true);
  header.mutable_data()->add_blocks()->set_block(world_->block_of_[0]);
  header.mutable_data()->mutable_blocks(0)->set_payload_bytes(kRows * kWidth * sizeof(double));
  world_->Receive(kShardA, header, absl::Cord(std::string(kRows * kWidth * sizeof(double), 0)));
  world_->ReceiveData(kShardB, 5, 1, 1);
  EXPECT_THAT(world_->adopted_, ElementsAre(5));
  Forget();
  Finish({3});
  const auto pushes = world_->TakePushes(kShardA);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].blocks(0).codec(), v1::CODEC_RAW);
  EXPECT_EQ(pushes[0].blocks(0).payload_bytes(), kRows * kWidth * sizeof(double));
}

TEST_F(RowWorkerTest, JobOfWholeTablesRequestsNoRows) {
  Make();
  world_->job_.mutable_model()->set_embeddings(v1::ModelSpec::DENSE);
  Start();
  EXPECT_THAT(world_->row_requests_, IsEmpty());
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_THAT(pulls[0].header.pull().rows(), IsEmpty());
}

TEST_F(RowWorkerTest, LargerAssignmentPullsItsRowsAgain) {
  BeginStep();
  Finish({3});
  Forget();
  world_->row_requests_.clear();
  // The other member died: the held part of version 5 does not have the rows of its samples.
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1));
  EXPECT_THAT(world_->computes_, IsEmpty());
  EXPECT_THAT(TakePulls(kShardA), IsEmpty());
  EXPECT_THAT(Requested(), ElementsAre(std::make_pair(40, 48)));
  AnswerRows({3, 4});
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(pulls[0].header.pull().version(), 5u);
  EXPECT_EQ(RowsOf(pulls[0]), (RowSelections{{0, {3, 4}}}));
  ReceiveRows(5, {3, 4});
  world_->ReceiveData(kShardB, 5, 1, 1);
  EXPECT_THAT(world_->Positions(), ElementsAre(std::make_pair(40, 48)));
}

TEST_F(RowWorkerTest, SmallerAssignmentContinuesWithTheHeldRows) {
  BeginStep(/*bit_exact=*/true);
  world_->row_requests_.clear();
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 2}}}, {kOther, {{2, 8}}}}, 1));
  EXPECT_THAT(TakePulls(kShardA), IsEmpty());
  Finish({3});
  EXPECT_THAT(world_->TakePushes(kShardA), SizeIs(1));
  EXPECT_THAT(Requested(), ElementsAre(std::make_pair(48, 50)));
}

TEST_F(RowWorkerTest, RequestsRowsAgainOnNewStream) {
  BeginStep();
  Finish({3});
  AnswerRows({9});
  world_->Break(kShardA);
  world_->Connect(kShardA);
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(RowsOf(pulls[0]), (RowSelections{{0, {9}}}));
}

TEST_F(RowWorkerTest, UnrequestedRowsBreakTheStream) {
  Begin();
  AnswerRows({3});
  ReceiveRows(5, {4});
  ASSERT_THAT(world_->disconnects_, SizeIs(1));
  EXPECT_EQ(world_->disconnects_[0], "rows of 'a' are not the 1 that were requested");
  EXPECT_THAT(world_->stored_, IsEmpty());
}

TEST_F(RowWorkerTest, RowsInJobOfWholeTablesBreakTheStream) {
  Make();
  world_->job_.mutable_model()->set_embeddings(v1::ModelSpec::DENSE);
  Start();
  ReceiveRows(5, {4});
  ASSERT_THAT(world_->disconnects_, SizeIs(1));
  EXPECT_EQ(world_->disconnects_[0], "rows of tensor 0, which were not requested");
}

TEST_F(RowWorkerTest, EvaluatesWholeVersions) {
  BeginStep();
  v1::CoordinatorMessage message;
  message.mutable_evaluate()->set_snapshot_id(3);
  message.mutable_evaluate()->set_version(5);
  message.mutable_evaluate()->mutable_samples()->set_end(10);
  world_->Deliver(message);
  EXPECT_THAT(world_->evaluations_, IsEmpty());
  const auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(pulls[0].header.pull().snapshot_id(), 3u);
  EXPECT_THAT(pulls[0].header.pull().rows(), IsEmpty());
}

TEST_F(RowWorkerTest, SampleThatNamesMissingRowFailsTheJob) {
  Begin();
  const RowsId id = world_->row_requests_[0].id;
  world_->core_.OnRows(id, RowSelections{{0, {kRows}}}, world_->now_);
  world_->Do();
  ASSERT_THAT(world_->exits_, SizeIs(1));
  EXPECT_EQ(world_->exits_[0].message, "a sample names row 20 of 'a', which has 20");
}

TEST_F(RowWorkerTest, SubtreesOfRowsAreSums) {
  BeginStep(/*bit_exact=*/true);
  ASSERT_THAT(world_->computes_, SizeIs(4));
  Finish({3, 8});
  const auto pushes = world_->TakeSent(kShardA);
  ASSERT_THAT(pushes, SizeIs(1)) << "the four microbatches are one node";
  std::vector<double> table(kRows * kWidth);
  ASSERT_TRUE((*FindCodec(v1::CODEC_ROWS))->Decode(pushes[0].payload, absl::MakeSpan(table)).ok());
  EXPECT_EQ(table[3 * kWidth], 8);
  EXPECT_EQ(table[4 * kWidth], 0);
}

TEST_F(RowWorkerTest, AsynchronousWorkerPullsTheRowsOfItsLease) {
  Make(v1::ASYNCHRONOUS);
  world_->Start();
  world_->Install(world_->MakeView(1, 0, {{kSelf, {}}}, 0));
  world_->ConnectAll();
  EXPECT_THAT(TakePulls(kShardA), IsEmpty()) << "the samples of the next update are unknown";
  v1::Header lease;
  lease.mutable_lease()->mutable_samples()->set_end(16);
  world_->Receive(kShardA, lease);
  EXPECT_THAT(Requested(), ElementsAre(std::make_pair(0, 8)));
  AnswerRows({3});
  auto pulls = TakePulls(kShardA);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(RowsOf(pulls[0]), (RowSelections{{0, {3}}}));
  ReceiveRows(0, {3}, pulls[0].header.pull().request());
  v1::Header other;
  other.mutable_data()->set_partition(1);
  other.mutable_data()->set_request(pulls[0].header.pull().request());
  other.mutable_data()->set_last(true);
  other.mutable_data()->add_blocks()->set_block(world_->block_of_[1]);
  other.mutable_data()->mutable_blocks(0)->set_payload_bytes(8);
  world_->Receive(kShardB, other, Number(1));
  EXPECT_THAT(world_->Positions(), ElementsAre(std::make_pair(0, 8)));
  // The rows of the next update are found while this one is computed.
  AnswerRows({9});
  Finish({3});
  v1::Header permit;
  permit.mutable_permit()->set_clock(1);
  world_->Receive(kShardA, permit);
  for (const ShardId shard : {kShardA, kShardB}) {
    v1::Header staged;
    staged.mutable_staged()->set_clock(1);
    world_->Receive(shard, staged);
  }
  std::vector<SendFrame> sent = world_->TakeSent(kShardA);
  ASSERT_GE(sent.size(), 2u);
  const SendFrame pull = sent.back();
  sent.pop_back();
  ASSERT_TRUE(sent.back().header.has_apply());
  EXPECT_FALSE(sent.back().header.apply().pull_next());
  ASSERT_TRUE(pull.header.has_pull()) << "after the Apply";
  EXPECT_EQ(RowsOf(pull), (RowSelections{{0, {9}}}));
}

}  // namespace
}  // namespace sluice::worker

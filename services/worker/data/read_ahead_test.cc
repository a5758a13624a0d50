#include "services/worker/data/read_ahead.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/status/status.h"

namespace sluice {
namespace {

// A batch's classes are the requested indices; counts the samples that are read.
class CountingDataset final : public Dataset {
 public:
  CountingDataset() { info_.samples = 1000; }

  const DatasetInfo& info() const override { return info_; }

  absl::StatusOr<Batch> Read(absl::Span<const uint64_t> indices) const override {
    ++reads;
    if (broken) return absl::DataLossError("broken");
    Batch batch;
    batch.samples = indices.size();
    batch.classes.assign(indices.begin(), indices.end());
    return batch;
  }

  mutable int reads = 0;
  bool broken = false;

 private:
  DatasetInfo info_;
};

class ReadAheadTest : public testing::Test {
 protected:
  // Returns the indices that were read; then reads ahead what it can.
  std::vector<int64_t> Step(PositionRange positions) {
    const absl::StatusOr<Batch> batch = ahead_.Read(positions);
    EXPECT_TRUE(batch.ok()) << batch.status();
    ahead_.Prepare();
    return batch.ok() ? batch->classes : std::vector<int64_t>();
  }

  CountingDataset data_;
  const SampleOrder order_ = *SampleOrder::Create({.samples = 1000, .shuffle = false});
  ReadAhead ahead_{&data_, &order_};
};

TEST_F(ReadAheadTest, ReadsAheadByEqualStrides) {
  Step({0, 2});
  Step({4, 6});
  EXPECT_EQ(data_.reads, 2);
  Step({8, 10});
  EXPECT_EQ(data_.reads, 4);  // and {12, 14}
  const absl::StatusOr<Batch> batch = ahead_.Read({12, 14});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->classes, (std::vector<int64_t>{12, 13}));
  EXPECT_EQ(data_.reads, 4);
}

TEST_F(ReadAheadTest, DropsAWrongGuessAndReadsTheRequestedSamples) {
  Step({0, 2});
  Step({2, 4});
  Step({4, 6});
  EXPECT_EQ(Step({20, 22}), (std::vector<int64_t>{20, 21}));
  EXPECT_EQ(data_.reads, 5);
  EXPECT_EQ(Step({6, 8}), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(data_.reads, 6);
}

TEST_F(ReadAheadTest, DoesNotGuessAfterUnequalStrides) {
  for (const PositionRange positions :
       {PositionRange{0, 2}, {2, 4}, {6, 8}, {8, 10}, {12, 14}, {12, 14}, {12, 14}, {13, 14}}) {
    Step(positions);
  }
  EXPECT_EQ(data_.reads, 8);
}

TEST_F(ReadAheadTest, DoesNotReadPeekedSamplesAgain) {
  const absl::StatusOr<const Batch*> peeked = ahead_.Peek({4, 6});
  ASSERT_TRUE(peeked.ok());
  EXPECT_EQ((*peeked)->classes, (std::vector<int64_t>{4, 5}));
  ASSERT_TRUE(ahead_.Peek({4, 6}).ok());
  EXPECT_EQ(data_.reads, 1);
  EXPECT_EQ(Step({4, 6}), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(data_.reads, 1);
}

TEST_F(ReadAheadTest, NextReadReturnsErrorOfReadingAhead) {
  Step({0, 2});
  Step({2, 4});
  ASSERT_TRUE(ahead_.Read({4, 6}).ok());
  data_.broken = true;
  ahead_.Prepare();
  EXPECT_EQ(ahead_.Read({6, 8}).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace sluice

#include "services/ps/core/state/gradient_sum.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "services/common/arithmetic/half.h"
#include "services/protocol/elements.h"

namespace sluice::ps {
namespace {

constexpr size_t kElements = 33;
constexpr uint64_t kMicrobatches = 16;

BlockInfo InfoOf(v1::DataType dtype) {
  BlockInfo info;
  info.count = kElements;
  info.dtype = dtype;
  info.sum_dtype = ComputeDataType(dtype);
  info.bytes = kElements * ElementBytes(dtype);
  info.sum_bytes = kElements * ElementBytes(info.sum_dtype);
  return info;
}

template <typename T>
absl::Cord Payload(const std::vector<T>& values) {
  return absl::Cord(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

float Round(float value, float) { return value; }
BFloat16 Round(float value, BFloat16) { return ToBFloat16(value); }
Float16 Round(float value, Float16) { return ToFloat16(value); }
float Widen(float value) { return value; }
float Widen(BFloat16 value) { return ToFloat(value); }
float Widen(Float16 value) { return ToFloat(value); }

template <typename T>
class TreeSumTest : public ::testing::Test {
 protected:
  using Values = std::vector<T>;

  TreeSumTest() : info_(InfoOf(DataTypeOf<T>)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (Values& leaf : leaves_) {
      for (size_t i = 0; i < kElements; ++i) leaf.push_back(Round(normal(random), T{}));
    }
  }

  // The sum that a worker sends for a node, rounded at each addition.
  Values Node(uint64_t begin, uint64_t size) const {
    if (size == 1) return leaves_[begin];
    const Values left = Node(begin, size / 2);
    const Values right = Node(begin + size / 2, size / 2);
    Values sum;
    for (size_t i = 0; i < kElements; ++i) {
      sum.push_back(Round(Widen(left[i]) + Widen(right[i]), T{}));
    }
    return sum;
  }

  void Add(GradientSum& sum, uint64_t begin, uint64_t size) {
    const absl::Status status =
        sum.AddNode(info_, v1::CODEC_RAW, Payload(Node(begin, size)), begin, size, *pool_);
    ASSERT_TRUE(status.ok()) << status;
  }

  std::vector<float> Take(GradientSum& sum) {
    Sum whole;
    EXPECT_TRUE(sum.Take(info_, *pool_, &whole).ok());
    EXPECT_TRUE(Materialize(info_, *pool_, &whole).ok());
    const auto values = whole.block->template MutableAs<float>();
    return {values.begin(), values.end()};
  }

  std::vector<float> Expected() const {
    std::vector<float> expected;
    for (T value : Node(0, kMicrobatches)) expected.push_back(Widen(value));
    return expected;
  }

  const BlockInfo info_;
  const std::shared_ptr<BlockPool> pool_ = BlockPool::Create(1 << 20);
  Values leaves_[kMicrobatches];
};

using StorageTypes = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(TreeSumTest, StorageTypes);

TYPED_TEST(TreeSumTest, HasTheSameBitsForAnySplitBetweenShardAndWorkers) {
  // Node size 1: the shard adds everything. Size 16: one worker does.
  for (const uint64_t size : {1, 2, 4, 16}) {
    GradientSum sum;
    for (uint64_t begin = 0; begin < kMicrobatches; begin += size) this->Add(sum, begin, size);
    EXPECT_EQ(this->Take(sum), this->Expected()) << size;
  }
}

TYPED_TEST(TreeSumTest, HasTheSameBitsInEveryOrderOfArrival) {
  std::vector<std::pair<uint64_t, uint64_t>> nodes = {{0, 4}, {4, 2}, {6, 1}, {7, 1}, {8, 8}};
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(nodes.begin(), nodes.end(), random);
    GradientSum sum;
    for (const auto& [begin, size] : nodes) this->Add(sum, begin, size);
    EXPECT_EQ(this->Take(sum), this->Expected());
  }
}

TEST(GradientSumDeathTest, ViolatedInvariantEndsTheTest) {
  const BlockInfo info = InfoOf(v1::FLOAT32);
  const std::shared_ptr<BlockPool> pool = BlockPool::Create(1 << 20);
  GradientSum sum;
  Sum taken;
  EXPECT_DEATH((void)sum.Take(info, *pool, &taken), "a sum that is taken has a contribution");
}

}  // namespace
}  // namespace sluice::ps

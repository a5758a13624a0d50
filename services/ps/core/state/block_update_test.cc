#include "services/ps/core/state/block_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

template <typename T>
absl::Cord CordOf(const std::vector<T>& values) {
  return absl::Cord(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

// The same bytes in chunks of `size`, as a transport might deliver them.
absl::Cord Chopped(const absl::Cord& whole, size_t size) {
  absl::Cord chopped;
  const std::string flat(whole);
  for (size_t at = 0; at < flat.size(); at += size) {
    auto chunk = std::make_shared<std::string>(flat.substr(at, size));
    chopped.Append(absl::MakeCordFromExternal(*chunk, [chunk] {}));
  }
  return chopped;
}

// One tensor in one block.
class BlockUpdateTest : public ::testing::Test {
 protected:
  void Make(v1::DataType dtype, int64_t count, v1::TensorKind kind = v1::PARAMETER) {
    v1::TensorTable table;
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("w");
    tensor.add_shape(count);
    tensor.set_dtype(dtype);
    tensor.set_kind(kind);
    model = *ShardModel::Create(job, table, *MakeLayout(table, 1));
    info = model->block(0);
    MutableBlockRef zeros = pool->Take(info.bytes);
    for (char& byte : zeros->mutable_bytes()) byte = 0;
    now = InitialBlock(std::move(zeros));
  }
  template <typename T>
  Sum SumOf(const std::vector<T>& values) {
    GradientSum gradient;
    EXPECT_TRUE(gradient.Add(info, v1::CODEC_RAW, CordOf(values), *pool).ok());
    Sum sum;
    EXPECT_TRUE(gradient.Take(info, *pool, &sum).ok());
    return sum;
  }
  BlockState Update(Sum sum, UpdateArguments arguments = {}) {
    BlockState next;
    const absl::Status status =
        UpdateBlock({*model, info, arguments, now}, nullptr, &sum, *pool, &next);
    EXPECT_TRUE(status.ok()) << status;
    return next;
  }

  v1::JobSpec job = [] {
    v1::JobSpec spec;
    spec.mutable_optimizer()->set_name(v1::OptimizerSpec::ADD);
    return spec;
  }();
  const std::shared_ptr<BlockPool> pool = BlockPool::Create(1 << 24);
  std::shared_ptr<const ShardModel> model;
  BlockInfo info;
  BlockState now;
};

TEST_F(BlockUpdateTest, UpdatesEveryFloatingPointType) {
  Make(v1::FLOAT64, 3);
  EXPECT_THAT(Update(SumOf<double>({1, 2, 3})).parameters->As<double>(), ElementsAre(1, 2, 3));
  Make(v1::FLOAT32, 3);
  EXPECT_THAT(Update(SumOf<float>({1, 2, 3})).parameters->As<float>(), ElementsAre(1, 2, 3));
  Make(v1::BFLOAT16, 2);
  const BFloat16 two = ToBFloat16(2.0f);
  EXPECT_THAT(Update(SumOf<BFloat16>({two, two})).parameters->As<BFloat16>(), Each(two));
  Make(v1::FLOAT16, 2);
  const Float16 three = ToFloat16(3.0f);
  EXPECT_THAT(Update(SumOf<Float16>({three, three})).parameters->As<Float16>(), Each(three));
}

TEST_F(BlockUpdateTest, ResultDoesNotDependOnHowTheGradientIsSliced) {
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM);
  job.mutable_optimizer()->set_learning_rate(0.1);
  job.mutable_optimizer()->set_beta1(0.9);
  job.mutable_optimizer()->set_beta2(0.99);
  job.mutable_optimizer()->set_eps(1e-8);

  constexpr int kCount = 4001;
  Make(v1::FLOAT32, kCount);
  std::vector<float> values(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = std::sin(static_cast<float>(i));

  const BlockState whole = Update(SumOf(values));
  for (size_t size : {1, 3, 7, 64, 1000, 8191}) {
    Sum sum;
    sum.payload = Chopped(CordOf(values), size);
    const BlockState chopped = Update(std::move(sum));
    EXPECT_EQ(chopped.parameters->bytes(), whole.parameters->bytes()) << size;
    EXPECT_EQ(chopped.slots[0]->bytes(), whole.slots[0]->bytes());
    EXPECT_EQ(chopped.slots[1]->bytes(), whole.slots[1]->bytes());
  }

  Sum block = SumOf(values);
  ASSERT_TRUE(Materialize(info, *pool, &block).ok());
  EXPECT_EQ(Update(std::move(block)).parameters->bytes(), whole.parameters->bytes());
}

TEST_F(BlockUpdateTest, OptimizerStateStartsAtItsInitialValues) {
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAGRAD);
  job.mutable_optimizer()->set_learning_rate(1);
  job.mutable_optimizer()->set_initial_accumulator_value(9);
  Make(v1::FLOAT32, 2);
  const BlockState next = Update(SumOf<float>({4, 4}));
  EXPECT_THAT(next.slots[0]->As<float>(), Each(25)) << "9 + 4 x 4";
  EXPECT_THAT(next.parameters->As<float>(), Each(-0.8f));
  EXPECT_EQ(next.count, 1);
}

TEST_F(BlockUpdateTest, KeepsPreviousVersionAndSharesItWithoutGradient) {
  Make(v1::FLOAT32, 2);
  const BlockState next = Update(SumOf<float>({1, 1}));
  EXPECT_THAT(now.parameters->As<float>(), Each(0));
  BlockState same;
  ASSERT_TRUE(UpdateBlock({*model, info, {}, next}, nullptr, nullptr, *pool, &same).ok());
  EXPECT_EQ(same.parameters, next.parameters);
  EXPECT_EQ(same.count, 1);
}

TEST_F(BlockUpdateTest, ScheduledLearningRatesFollowTheStep) {
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  job.mutable_optimizer()->set_learning_rate(1);
  job.mutable_optimizer()->mutable_schedule()->set_type(v1::Schedule::STEP);
  job.mutable_optimizer()->mutable_schedule()->set_step_size(10);
  job.mutable_optimizer()->mutable_schedule()->set_gamma(0.5);
  Make(v1::FLOAT32, 1);
  UpdateArguments arguments;
  arguments.schedule_step = 25;
  EXPECT_THAT(Update(SumOf<float>({1}), arguments).parameters->As<float>(), ElementsAre(-0.25f));
}

TEST_F(BlockUpdateTest, GroupsFollowTheirOwnScheduleWithItsMomentum) {
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAGRAD);
  auto* group = job.mutable_optimizer()->add_groups();
  group->add_patterns("*");
  group->set_name(v1::OptimizerSpec::SGD);
  group->set_learning_rate(1);
  group->set_momentum(0.5);
  v1::Schedule& cycle = *group->mutable_schedule();
  cycle.set_type(v1::Schedule::ONE_CYCLE);
  cycle.set_total_steps(3);
  cycle.set_increasing_fraction(0);
  cycle.set_initial_divisor(4);
  cycle.set_final_divisor(1);
  cycle.set_linear_anneal(true);
  cycle.mutable_cycle_momentum()->set_lowest(0.25);
  cycle.mutable_cycle_momentum()->set_highest(0.75);
  Make(v1::FLOAT32, 1);
  now = Update(SumOf<float>({1}), {.schedule_step = 2});
  EXPECT_THAT(now.parameters->As<float>(), ElementsAre(-0.25f));
  // The momentum of step 2 is 0.75, so the buffer becomes 1.75.
  EXPECT_THAT(Update(SumOf<float>({1}), {.schedule_step = 2}).parameters->As<float>(),
              ElementsAre(-0.25f - 1.75f / 4));
}

TEST_F(BlockUpdateTest, FindsNonFiniteGradientInAnyPosition) {
  Make(v1::FLOAT32, 4001);
  for (size_t at : {0, 1, 2000, 4000}) {
    for (float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> values(4001, 1);
      values[at] = bad;
      UpdateArguments arguments;
      arguments.check_finite = true;
      Sum sum = SumOf(values);
      BlockState next;
      EXPECT_EQ(UpdateBlock({*model, info, arguments, now}, nullptr, &sum, *pool, &next).code(),
                absl::StatusCode::kOutOfRange);
      EXPECT_EQ(next.parameters, nullptr);

      GradientNorm norm;
      sum = SumOf(values);
      ASSERT_TRUE(MeasureGradient(info, 1, &sum, *pool, &norm).ok());
      EXPECT_TRUE(norm.non_finite);
    }
  }
}

TEST_F(BlockUpdateTest, NormCoversScaledParameterGradientsAndNoBuffers) {
  Make(v1::FLOAT32, 2);
  GradientNorm norm;
  Sum sum = SumOf<float>({3, 4});
  ASSERT_TRUE(MeasureGradient(info, 0.5, &sum, *pool, &norm).ok());
  EXPECT_EQ(norm.square_sum, 6.25);
  Make(v1::FLOAT32, 2, v1::BUFFER);
  sum = SumOf<float>({3, 4});
  ASSERT_TRUE(MeasureGradient(info, 0.5, &sum, *pool, &norm).ok());
  EXPECT_EQ(norm.square_sum, 6.25) << "the norm of a buffer is not added";
}

TEST_F(BlockUpdateTest, BuffersOfEveryTypeChangeByTheirScaledSum) {
  UpdateArguments arguments;
  arguments.buffer_scale = 0.5;
  Make(v1::FLOAT32, 1, v1::BUFFER);
  EXPECT_THAT(Update(SumOf<float>({3}), arguments).parameters->As<float>(), ElementsAre(1.5f));
  Make(v1::FLOAT64, 1, v1::BUFFER);
  EXPECT_THAT(Update(SumOf<double>({3}), arguments).parameters->As<double>(), ElementsAre(1.5));
  Make(v1::BFLOAT16, 1, v1::BUFFER);
  EXPECT_THAT(Update(SumOf<BFloat16>({ToBFloat16(3.0f)}), arguments).parameters->As<BFloat16>(),
              ElementsAre(ToBFloat16(1.5f)));
}

// ---------------------------------------------------------------- sums

TEST_F(BlockUpdateTest, KeepsFirstContributionAsReceivedAndAddsTheSecondInABlock) {
  Make(v1::FLOAT32, 2);
  const size_t allocated = pool->allocated();
  GradientSum gradient;
  ASSERT_TRUE(gradient.Add(info, v1::CODEC_RAW, CordOf<float>({1, 2}), *pool).ok());
  EXPECT_EQ(pool->allocated(), allocated);
  ASSERT_TRUE(gradient.Add(info, v1::CODEC_RAW, CordOf<float>({10, 20}), *pool).ok());
  Sum sum;
  ASSERT_TRUE(gradient.Take(info, *pool, &sum).ok());
  EXPECT_TRUE(gradient.empty());
  EXPECT_THAT(sum.block->As<float>(), ElementsAre(11, 22));
}

TEST_F(BlockUpdateTest, MergesSiblingsWhenBothHaveArrived) {
  Make(v1::FLOAT32, 1);
  GradientSum gradient;
  for (uint64_t begin : {0, 2, 3, 6, 7, 5}) {
    ASSERT_TRUE(gradient.AddNode(info, v1::CODEC_RAW, CordOf<float>({1}), begin, 1, *pool).ok());
  }
  EXPECT_EQ(gradient.nodes(), 4) << "0, 2..3, 5, 6..7";
  ASSERT_TRUE(gradient.AddNode(info, v1::CODEC_RAW, CordOf<float>({1}), 4, 1, *pool).ok());
  EXPECT_EQ(gradient.nodes(), 3) << "0, 2..3, 4..7";
  ASSERT_TRUE(gradient.AddNode(info, v1::CODEC_RAW, CordOf<float>({1}), 1, 1, *pool).ok());
  EXPECT_EQ(gradient.nodes(), 1);
}

TEST_F(BlockUpdateTest, ContributionOfWrongSizeChangesNothing) {
  Make(v1::FLOAT32, 2);
  GradientSum gradient;
  EXPECT_FALSE(gradient.Add(info, v1::CODEC_RAW, CordOf<float>({1}), *pool).ok());
  EXPECT_TRUE(gradient.empty());
  ASSERT_TRUE(gradient.Add(info, v1::CODEC_RAW, CordOf<float>({1, 1}), *pool).ok());
  EXPECT_FALSE(gradient.Add(info, v1::CODEC_RAW, CordOf<float>({1}), *pool).ok());
  Sum sum;
  ASSERT_TRUE(gradient.Take(info, *pool, &sum).ok());
  EXPECT_THAT(sum.block->As<float>(), Each(1));
}

}  // namespace
}  // namespace sluice::ps

// Workers that sum the gradients of dense tensors among themselves, by hand-driven messages.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/collective/reduction_plan.h"
#include "services/worker/core/testing/worker_test_harness.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kThird = 103;

// Tensors "a" (partition 0, shard A) and "b" (partition 1, shard B) of one number each. Of two
// members, each sums one of them.
class DenseWorkerTest : public testing::Test {
 protected:
  DenseWorkerTest() {
    world_.job_.mutable_training()->mutable_dense()->set_aggregation(
        v1::TrainingSpec::Dense::ALL_REDUCE);
  }
  // In view 1, which starts at step 5, with [0, 4) of 8 microbatches; computes on version 5.
  void BeginStep() {
    world_.Start();
    Install(1, 0);
    world_.ConnectAll();
    world_.ReceiveVersion(5);
    Forget();
  }
  void Install(uint64_t number, uint64_t previous) {
    world_.Install(world_.MakeView(number, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, previous));
  }
  void Forget() {
    world_.TakeSent(kShardA);
    world_.TakeSent(kShardB);
  }
  const ReductionPlan& plan() const { return *world_.joined_.back().plan; }
  // The blocks that this worker sums.
  uint32_t OwnTensor() const { return plan().tensors[plan().own().pieces.at(0).place]; }
  ShardId OwnShard() const { return ShardOf(OwnTensor()); }
  ShardId OtherShard() const { return ShardOf(1 - OwnTensor()); }
  ShardId ShardOf(uint32_t tensor) const {
    return world_.tensor_of_.at(0) == tensor ? kShardA : kShardB;
  }
  void Reduced(absl::StatusOr<ReducedPart> part, uint64_t step = 5) {
    world_.core_.OnReduced(world_.view_.id(), step, std::move(part), world_.now_);
    world_.Do();
  }
  // Blocks with their numbers, and "complete", as they were pushed to the shard.
  std::vector<std::string> Pushed(ShardId shard) {
    std::vector<std::string> pushed;
    for (const SendFrame& frame : world_.TakeSent(shard)) {
      if (!frame.header.has_push()) continue;
      if (frame.header.push().blocks_size() > 0) {
        pushed.push_back(absl::StrCat("sum ", ValueOf(frame.payload), " of [",
                                      frame.header.push().microbatches().begin(), ", ",
                                      frame.header.push().microbatches().end(), ")"));
      }
      if (frame.header.push().complete_size() > 0) {
        pushed.push_back(absl::StrCat("complete ", frame.header.push().samples()));
      }
    }
    return pushed;
  }

  WorkerHarness world_;
};

TEST_F(DenseWorkerTest, MembersOfViewFormGroup) {
  BeginStep();
  ASSERT_THAT(world_.joined_, SizeIs(1));
  EXPECT_THAT(plan().members, ElementsAre(kSelf, kOther));
  EXPECT_EQ(plan().rank, 0u);
  EXPECT_THAT(plan().tensors, ElementsAre(0, 1));
  EXPECT_EQ(world_.joined_[0].view.number(), 1u);
}

TEST_F(DenseWorkerTest, PushesOnlyItsOwnPartOfTheSum) {
  world_.Start();
  Install(1, 0);
  world_.ConnectAll();
  Forget();
  world_.ReceiveVersion(5);
  EXPECT_THAT(Pushed(OtherShard()), IsEmpty());
  world_.FinishAllComputes(3);
  // The worker pushes nothing of the other member's part and announces this.
  EXPECT_THAT(Pushed(OtherShard()), ElementsAre("complete 4"));
  ASSERT_THAT(world_.reduces_, SizeIs(1));
  EXPECT_EQ(world_.reduces_[0].step, 5u);
  ASSERT_THAT(world_.reduces_[0].gradients, SizeIs(2));
  EXPECT_EQ(ValueOf(*world_.reduces_[0].gradients[0]), 3);
  EXPECT_EQ(ValueOf(*world_.reduces_[0].gradients[1]), -3);
  EXPECT_THAT(Pushed(OwnShard()), IsEmpty());
  Reduced(ReducedPart{Number(70)});
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("sum 70 of [0, 4)", "complete 4"));
  EXPECT_THAT(Pushed(OtherShard()), IsEmpty());
}

TEST_F(DenseWorkerTest, EveryCompletionHasTheWeight) {
  BeginStep();
  world_.core_.OnWeight(world_.computes_.begin()->first, 7, world_.now_);
  world_.FinishAllComputes(3);
  Reduced(ReducedPart{Number(70)});
  for (const ShardId shard : {kShardA, kShardB}) {
    double weight = 0;
    for (const SendFrame& frame : world_.TakeSent(shard)) {
      if (frame.header.push().complete_size() > 0) weight = frame.header.push().weight();
    }
    EXPECT_EQ(weight, 7);
  }
}

TEST_F(DenseWorkerTest, DoesNotPushTensorWithoutGradient) {
  BeginStep();
  for (const auto& [id, compute] : world_.computes_) {
    world_.core_.OnNoGradient(id, 0, world_.now_);
    world_.Do();
    world_.core_.OnNoGradient(id, 1, world_.now_);
    world_.Do();
    world_.core_.OnComputed(id, ComputeResult(), world_.now_);
    world_.Do();
  }
  world_.computes_.clear();
  ASSERT_THAT(world_.reduces_, SizeIs(1));
  EXPECT_FALSE(world_.reduces_[0].gradients[0].has_value());
  Reduced(ReducedPart{std::nullopt});
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("complete 4"));
}

TEST_F(DenseWorkerTest, PushesTheSameSumAgainOnNewStream) {
  BeginStep();
  world_.FinishAllComputes(3);
  Reduced(ReducedPart{Number(70)});
  Forget();
  world_.Break(OwnShard());
  world_.Connect(OwnShard());
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("sum 70 of [0, 4)", "complete 4"));
  EXPECT_THAT(world_.reduces_, SizeIs(1)) << "no second sum: the other members have continued";
}

TEST_F(DenseWorkerTest, PushesSumOnNewStreamIfStreamBrokeBeforeTheSumWasReady) {
  BeginStep();
  world_.FinishAllComputes(3);
  Forget();
  world_.Break(OwnShard());
  world_.Connect(OwnShard());
  EXPECT_THAT(Pushed(OwnShard()), IsEmpty());
  Reduced(ReducedPart{Number(70)});
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("sum 70 of [0, 4)", "complete 4"));
}

TEST_F(DenseWorkerTest, NewViewSumsKeptGradientsAgainInItsOwnGroup) {
  BeginStep();
  world_.FinishAllComputes(3);
  Reduced(ReducedPart{Number(70)});
  const v1::View old = world_.view_;
  Forget();
  world_.Install(world_.MakeView(2, 5, {{kSelf, {{0, 4}}}, {kThird, {{4, 8}}}}, 1));
  EXPECT_THAT(world_.computes_, IsEmpty());
  ASSERT_THAT(world_.joined_, SizeIs(2));
  EXPECT_THAT(plan().members, ElementsAre(kSelf, kThird));
  ASSERT_THAT(world_.reduces_, SizeIs(2));
  EXPECT_EQ(ValueOf(*world_.reduces_[1].gradients[0]), 3);
  // A late result of the old group is ignored.
  world_.core_.OnReduced(old.id(), 5, ReducedPart{Number(1)}, world_.now_);
  world_.Do();
  EXPECT_THAT(Pushed(OwnShard()), IsEmpty());
  Reduced(ReducedPart{Number(80)});
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("sum 80 of [0, 4)", "complete 4"));
}

TEST_F(DenseWorkerTest, AddsPartialSumsBeforeTheReduction) {
  BeginStep();
  world_.FinishAllComputes(3);
  // The worker keeps [0, 4) and computes [4, 6) for a former member.
  world_.Install(world_.MakeView(2, 5, {{kSelf, {{0, 6}}}, {kThird, {{6, 8}}}}, 1));
  ASSERT_THAT(world_.computes_, SizeIs(1));
  ASSERT_THAT(world_.reduces_, SizeIs(1));
  world_.FinishAllComputes(10);
  ASSERT_THAT(world_.reduces_, SizeIs(2));
  EXPECT_EQ(ValueOf(*world_.reduces_[1].gradients[0]), 13);
  Forget();
  Reduced(ReducedPart{Number(70)});
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("sum 70 of [0, 4)", "complete 6"));
}

TEST_F(DenseWorkerTest, SingleMemberHasNoGroupAndPushesItsGradients) {
  world_.Start();
  world_.Install(world_.MakeView(1, 5, {{kSelf, {{0, 8}}}, {kOther, {}}}, 0));
  world_.ConnectAll();
  world_.ReceiveVersion(5);
  Forget();
  EXPECT_THAT(world_.joined_, IsEmpty());
  world_.FinishAllComputes(3);
  EXPECT_THAT(world_.reduces_, IsEmpty());
  EXPECT_THAT(Pushed(ShardOf(0)), ElementsAre("sum 3 of [0, 8)", "complete 8"));
}

TEST_F(DenseWorkerTest, MemberWithoutMicrobatchesIsNotInTheGroup) {
  world_.Start();
  world_.Install(world_.MakeView(1, 5, {{kSelf, {}}, {kOther, {{0, 4}}}, {kThird, {{4, 8}}}}, 0));
  world_.ConnectAll();
  world_.ReceiveVersion(5);
  EXPECT_THAT(world_.joined_, IsEmpty());
  EXPECT_THAT(Pushed(kShardA), ElementsAre("complete 0"));
  EXPECT_THAT(Pushed(kShardB), ElementsAre("complete 0"));
}

TEST_F(DenseWorkerTest, LeavesGroupWithTheView) {
  BeginStep();
  world_.Install(world_.MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1));
  EXPECT_EQ(world_.left_, 1);
}

TEST_F(DenseWorkerTest, BrokenGroupWaitsForTheNextView) {
  BeginStep();
  world_.FinishAllComputes(3);
  Forget();
  Reduced(absl::UnavailableError("closed"));
  EXPECT_THAT(Pushed(OwnShard()), IsEmpty());
  Install(2, 1);
  world_.Advance(absl::Seconds(60));
  EXPECT_THAT(world_.exits_, IsEmpty());
  ASSERT_THAT(world_.reduces_, SizeIs(2));
  Reduced(ReducedPart{Number(70)});
  EXPECT_THAT(Pushed(OwnShard()), ElementsAre("sum 70 of [0, 4)", "complete 4"));
}

TEST_F(DenseWorkerTest, WithoutNewViewWorkersRestartInOrderOfRank) {
  world_.job_.mutable_timeouts()->set_heartbeat_timeout(4);
  world_.job_.mutable_timeouts()->set_pause(3);
  world_.job_.mutable_timeouts()->set_suspect(0.5);
  const auto ends_after = [&](bool first) {
    WorkerHarness world;
    world.job_ = world_.job_;
    const std::vector<WorkerHarness::Member> members = {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}};
    world.Start();
    world.Install(world.MakeView(1, 5, first ? members : std::vector{members[1], members[0]}, 0));
    world.ConnectAll();
    world.ReceiveVersion(5);
    world.FinishAllComputes(3);
    world.core_.OnReduced(world.view_.id(), 5, absl::UnavailableError("no route"), world.now_);
    world.Do();
    absl::Duration waited;
    while (world.exits_.empty() && waited < absl::Minutes(1)) {
      EXPECT_LE(world.core_.NextDeadline(), world.now_ + absl::Seconds(5));
      world.Advance(absl::Milliseconds(500));
      waited += absl::Milliseconds(500);
    }
    EXPECT_EQ(world.exits_.at(0).reason, ExitReason::kExpelled);
    EXPECT_THAT(world.exits_.at(0).message, HasSubstr("no route"));
    return waited;
  };
  EXPECT_EQ(ends_after(true), absl::Seconds(7));
  EXPECT_EQ(ends_after(false), absl::Seconds(8.5));
}

TEST_F(DenseWorkerTest, MembersWithDifferentPlansFailTheJob) {
  BeginStep();
  world_.FinishAllComputes(3);
  Reduced(absl::InvalidArgumentError("does not cut the gradients as this worker does"));
  ASSERT_THAT(world_.exits_, SizeIs(1));
  EXPECT_EQ(world_.exits_[0].reason, ExitReason::kFailed);
  EXPECT_THAT(world_.exits_[0].message, HasSubstr("does not cut"));
}

TEST_F(DenseWorkerTest, SendsBuffersAndTablesByRowsToTheShards) {
  v1::TensorSpec& table = *world_.table_.mutable_tensors(0);
  table.clear_shape();
  table.add_shape(20);
  table.add_shape(8);
  world_.CutTable();
  world_.takes_rows_ = true;
  world_.core_.SetRowTensors({0});
  world_.Start();
  Install(1, 0);
  EXPECT_THAT(plan().tensors, ElementsAre(1));
  world_.job_.mutable_model()->set_embeddings(v1::ModelSpec::DENSE);
  WorkerHarness dense;
  dense.job_ = world_.job_;
  dense.table_ = world_.table_;
  dense.CutTable();
  dense.core_.SetRowTensors({0});
  dense.Start();
  dense.Install(dense.MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
  EXPECT_THAT(dense.joined_.back().plan->tensors, ElementsAre(0, 1));
  WorkerHarness buffer;
  buffer.job_ = world_.job_;
  buffer.table_.mutable_tensors(1)->set_kind(v1::BUFFER);
  buffer.Start();
  buffer.Install(buffer.MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
  EXPECT_THAT(buffer.joined_.back().plan->tensors, ElementsAre(0));
}

}  // namespace
}  // namespace sluice::worker

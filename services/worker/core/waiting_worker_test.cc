// A worker that is behind, because its contributions are dropped.
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/core/worker_test_harness.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Computes step 5, of which it has [0, 4) of 8 microbatches.
class WaitingTest : public testing::Test {
 protected:
  WaitingTest() {
    world_.job_.mutable_training()->mutable_stragglers()->set_policy(
        v1::TrainingSpec::Stragglers::DROP);
  }
  void BeginStep() {
    world_.Start();
    world_.Install(world_.MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world_.ConnectAll();
    world_.ReceiveVersion(5);
    world_.TakeSent(kShardA);
    world_.TakeSent(kShardB);
  }

  WorkerHarness world_;
};

TEST_F(WaitingTest, GoesOnAtTheVersionThatItIsGivenAndAsksForTheRestOfIt) {
  BeginStep();
  world_.FinishAllComputes();
  world_.TakeSent(kShardA);
  world_.TakeSent(kShardB);
  world_.ReceiveData(kShardA, 9, 0, 1);
  EXPECT_THAT(world_.TakeSent(kShardA), IsEmpty()) << "that partition is there";
  const std::vector<SendFrame> sent = world_.TakeSent(kShardB);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().version(), 9u);
  EXPECT_THAT(sent[0].header.pull().partitions(), ElementsAre(1));
  world_.ReceiveData(kShardB, 9, 1, 1);
  EXPECT_THAT(world_.adopted_, ElementsAre(5, 9));
  EXPECT_THAT(world_.Positions(), ElementsAre(Pair(72, 76)));
}

TEST_F(WaitingTest, GoesFurtherIfThatVersionIsGoneAsWell) {
  BeginStep();
  world_.FinishAllComputes();
  world_.ReceiveData(kShardA, 9, 0, 1);
  world_.TakeSent(kShardA);
  world_.ReceiveData(kShardB, 10, 1, 1);
  const std::vector<SendFrame> sent = world_.TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().version(), 10u);
  world_.ReceiveData(kShardA, 10, 0, 1);
  EXPECT_THAT(world_.adopted_, ElementsAre(5, 10));
}

TEST_F(WaitingTest, WhatItComputesMeanwhileIsCancelledAndNotPushed) {
  BeginStep();
  world_.ReceiveVersion(9);
  EXPECT_THAT(world_.cancelled_, SizeIs(1));
  EXPECT_THAT(world_.adopted_, ElementsAre(5)) << "the buffer is still computed on";
  const ComputeId id = world_.computes_.begin()->first;
  world_.computes_.clear();
  world_.Do(world_.core_.OnGradient(id, 0, Number(1), world_.now_));
  world_.Do(world_.core_.OnComputed(id, ComputeResult(), world_.now_));
  EXPECT_THAT(world_.TakePushes(kShardA), IsEmpty());
  EXPECT_THAT(world_.adopted_, ElementsAre(5, 9));
}

TEST_F(WaitingTest, ALaterVersionMeansNothingWhereNobodyIsDropped) {
  world_.job_.mutable_training()->clear_stragglers();
  BeginStep();
  world_.FinishAllComputes();
  world_.ReceiveVersion(9);
  EXPECT_THAT(world_.adopted_, ElementsAre(5));
}

}  // namespace
}  // namespace sluice::worker

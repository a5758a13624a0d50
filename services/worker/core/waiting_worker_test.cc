// A worker that is behind, because its contributions are dropped or because it receives no data.
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/core/testing/worker_test_harness.h"

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
    world_.job_.mutable_timeouts()->set_weights(35);
  }
  void BeginStep() {
    world_.Start();
    world_.Install(world_.MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world_.ConnectAll();
    world_.ReceiveVersion(5);
    world_.TakeSent(kShardA);
    world_.TakeSent(kShardB);
  }
  std::vector<v1::WorkerProgress> Owing() {
    std::vector<v1::WorkerProgress> owing;
    for (const v1::MemberMessage& message : world_.sent_to_coordinator_) {
      if (message.worker_progress().owing_size() > 0) owing.push_back(message.worker_progress());
    }
    return owing;
  }

  WorkerHarness world_;
};

TEST_F(WaitingTest, ContinuesAtReceivedVersionAndPullsTheRest) {
  BeginStep();
  world_.FinishAllComputes();
  world_.TakeSent(kShardA);
  world_.TakeSent(kShardB);
  world_.ReceiveData(kShardA, 9, 0, 1);
  EXPECT_THAT(world_.TakeSent(kShardA), IsEmpty()) << "partition 0 has arrived";
  const std::vector<SendFrame> sent = world_.TakeSent(kShardB);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().version(), 9u);
  EXPECT_THAT(sent[0].header.pull().partitions(), ElementsAre(1));
  world_.ReceiveData(kShardB, 9, 1, 1);
  EXPECT_THAT(world_.adopted_, ElementsAre(5, 9));
  EXPECT_THAT(world_.Positions(), ElementsAre(Pair(72, 76)));
}

TEST_F(WaitingTest, ContinuesAtLaterVersionIfThatVersionIsGoneToo) {
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

TEST_F(WaitingTest, CancelsAndDoesNotPushItsComputation) {
  BeginStep();
  world_.ReceiveVersion(9);
  EXPECT_THAT(world_.cancelled_, SizeIs(1));
  EXPECT_THAT(world_.adopted_, ElementsAre(5)) << "a computation still uses the buffer";
  const ComputeId id = world_.computes_.begin()->first;
  world_.computes_.clear();
  world_.core_.OnGradient(id, 0, Number(1), world_.now_);
  world_.Do();
  world_.core_.OnComputed(id, ComputeResult(), world_.now_);
  world_.Do();
  EXPECT_THAT(world_.TakePushes(kShardA), IsEmpty());
  EXPECT_THAT(world_.adopted_, ElementsAre(5, 9));
}

TEST_F(WaitingTest, IgnoresLaterVersionIfStragglersAreNotDropped) {
  world_.job_.mutable_training()->clear_stragglers();
  BeginStep();
  world_.FinishAllComputes();
  world_.ReceiveVersion(9);
  EXPECT_THAT(world_.adopted_, ElementsAre(5));
}

TEST_F(WaitingTest, ReportsShardsWhoseVersionIsOverdue) {
  BeginStep();
  world_.FinishAllComputes();
  world_.Advance(absl::Seconds(34));
  world_.ReceiveData(kShardA, 6, 0, 6);
  world_.Advance(absl::Seconds(34));
  EXPECT_THAT(Owing(), IsEmpty());
  world_.Advance(absl::Seconds(2));
  ASSERT_THAT(Owing(), SizeIs(1));
  EXPECT_THAT(Owing()[0].owing(), ElementsAre(kShardB));
  EXPECT_EQ(Owing()[0].owed_version(), 6u);
}

TEST_F(WaitingTest, ReportsNoShardWhileTheWorkerComputes) {
  BeginStep();
  world_.Advance(absl::Seconds(100));
  EXPECT_THAT(Owing(), IsEmpty());
}

}  // namespace
}  // namespace sluice::worker

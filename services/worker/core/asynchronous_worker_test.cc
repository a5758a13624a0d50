// Asynchronous and bounded-staleness training by hand-driven messages.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/common/arithmetic/half.h"
#include "services/worker/core/testing/worker_test_harness.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class AsynchronousTest : public testing::Test {
 protected:
  void Begin(v1::Mode mode = v1::ASYNCHRONOUS, std::vector<uint64_t> shards = {kShardA, kShardB}) {
    shards_ = std::move(shards);
    world_ = std::make_unique<WorkerHarness>(mode);
    world_->smallest_batch_ = smallest_batch_;
    world_->Start();
    world_->Install(world_->MakeView(1, 0, {{kSelf, {}}, {kOther, {}}}, 0, shards_));
    for (ShardId shard : shards_) world_->Connect(shard);
  }
  void InstallNext(uint64_t number, uint64_t attempt = 1, uint64_t first_step = 0) {
    v1::View view =
        world_->MakeView(number, first_step, {{kSelf, {}}, {kOther, {}}}, number - 1, shards_);
    view.mutable_id()->set_attempt(attempt);
    world_->Install(view);
  }
  void GiveLease(uint64_t begin, uint64_t end, uint64_t clock = 0) {
    v1::Header header;
    header.mutable_lease()->mutable_samples()->set_begin(begin);
    header.mutable_lease()->mutable_samples()->set_end(end);
    header.mutable_lease()->set_clock(clock);
    world_->Receive(kShardA, header);
  }
  void GivePermit(uint64_t clock, uint64_t ordinal = 0) {
    v1::Header header;
    header.mutable_permit()->set_clock(clock);
    header.mutable_permit()->set_ordinal(ordinal);
    world_->Receive(kShardA, header);
  }
  void Stage(ShardId shard, uint64_t clock) {
    v1::Header header;
    header.mutable_staged()->set_clock(clock);
    world_->Receive(shard, header);
  }
  void Applied(ShardId shard, uint64_t clock) {
    v1::Header header;
    header.mutable_applied()->set_clock(clock);
    world_->Receive(shard, header);
  }
  // Until the update of clock 1 (positions [0, 8)) is computed and permitted.
  void BeginUpdate(v1::Mode mode = v1::ASYNCHRONOUS) {
    Begin(mode);
    GiveLease(0, 16);
    if (mode == v1::BOUNDED_STALENESS) Answer();
    world_->ReceiveVersion(3);
    world_->FinishAllComputes();
    GivePermit(1, 7);
  }
  // The arbiter's answer to the newest pull.
  void Answer() {
    v1::Header header;
    for (const SendFrame& frame : world_->sent_[kShardA]) {
      if (frame.header.has_pull()) {
        header.mutable_pull_answer()->set_request(frame.header.pull().request());
      }
    }
    header.mutable_pull_answer()->add_counted(kOther);
    header.mutable_pull_answer()->add_counted_from(3);
    world_->Receive(kShardA, header);
  }
  std::vector<std::string> Kinds(ShardId shard) {
    std::vector<std::string> kinds;
    for (const SendFrame& frame : world_->TakeSent(shard)) {
      const v1::Header& header = frame.header;
      kinds.push_back(header.has_push()             ? "push"
                      : header.has_apply()          ? "apply"
                      : header.has_pull()           ? "pull"
                      : header.has_lease_request()  ? "lease"
                      : header.has_permit_request() ? "permit"
                                                    : "other");
    }
    return kinds;
  }

  std::vector<uint64_t> shards_;
  uint32_t smallest_batch_ = 1;
  std::unique_ptr<WorkerHarness> world_;
};

TEST_F(AsynchronousTest, RequestsLeaseOfOneUpdateFirst) {
  Begin();
  const auto sent = world_->TakeSent(kShardA);
  int leases = 0;
  for (const SendFrame& frame : sent) {
    if (!frame.header.has_lease_request()) continue;
    ++leases;
    EXPECT_EQ(frame.header.lease_request().samples(), 8u);
  }
  EXPECT_EQ(leases, 1);
  EXPECT_THAT(Kinds(kShardB), ElementsAre("pull"));
}

TEST_F(AsynchronousTest, UpdateIsOneGlobalBatchOfItsLease) {
  Begin();
  GiveLease(100, 120);
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(100, 108)));
}

TEST_F(AsynchronousTest, CoordinatorSetsTheSizeOfUpdates) {
  Begin();
  v1::CoordinatorMessage message;
  message.mutable_heartbeat_reply()->set_batch_size(5);
  world_->Deliver(message);
  GiveLease(100, 120);
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(100, 105)));
}

TEST_F(AsynchronousTest, LastUpdateOfLeaseMayBeSmaller) {
  Begin();
  GiveLease(100, 103);
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(100, 103)));
}

TEST_F(AsynchronousTest, UpdateIsJoinedWithASampleThatTheModelCannotComputeByItself) {
  smallest_batch_ = 2;
  Begin();
  GiveLease(100, 109);
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(100, 109)));
}

TEST_F(AsynchronousTest, UpdateHasAsManySamplesAsTheModelNeeds) {
  smallest_batch_ = 2;
  Begin();
  v1::CoordinatorMessage message;
  message.mutable_heartbeat_reply()->set_batch_size(1);
  world_->Deliver(message);
  GiveLease(100, 120);
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(100, 102)));
}

TEST_F(AsynchronousTest, LeaseThatIsTooSmallIsComputedWithTheSampleBeforeItAndCountsAlone) {
  smallest_batch_ = 2;
  for (const auto& [begin, computed] : {std::pair(0, Pair(0, 2)), std::pair(7, Pair(6, 8))}) {
    Begin();
    GiveLease(begin, begin + 1);
    world_->ReceiveVersion(3);
    EXPECT_THAT(world_->Positions(), ElementsAre(computed));
    EXPECT_EQ(world_->computes_.begin()->second.microbatch_size, 2u);
    world_->TakeSent(kShardB);
    world_->FinishAllComputes();
    GivePermit(1);
    const auto pushes = world_->TakePushes(kShardB);
    ASSERT_THAT(pushes, SizeIs(1));
    EXPECT_EQ(pushes[0].samples(), 1u);
    EXPECT_EQ(pushes[0].weight(), 2);
    EXPECT_EQ(pushes[0].microbatch_count(), 1u);
  }
}

TEST_F(AsynchronousTest, ReportsTheWeightOfTheUpdatesOwnSamples) {
  smallest_batch_ = 2;
  for (const bool alone : {true, false}) {
    Begin();
    GiveLease(alone ? 7 : 6, 8);  // computed with the sample before it
    world_->ReceiveVersion(3);
    const ComputeId id = world_->computes_.begin()->first;
    world_->core_.OnWeight(id, 3, world_->now_);
    world_->FinishCompute(id, 1, /*loss_sum=*/5);
    world_->computes_.erase(id);
    world_->TakeSent(kShardB);
    GivePermit(1);
    const auto pushes = world_->TakePushes(kShardB);
    ASSERT_THAT(pushes, SizeIs(1));
    EXPECT_EQ(pushes[0].weight(), 3);
    for (ShardId shard : {kShardA, kShardB}) Stage(shard, 1);
    for (ShardId shard : {kShardA, kShardB}) Applied(shard, 1);
    const v1::WorkerProgress::Step step = world_->StepReported();
    EXPECT_EQ(step.samples(), alone ? 1u : 2u);
    EXPECT_EQ(step.loss_sum(), alone ? 2.5 : 5);
    EXPECT_EQ(step.weight(), alone ? 1.5 : 3);
  }
}

TEST_F(AsynchronousTest, PushesNothingBeforeThePermit) {
  Begin();
  GiveLease(0, 16);
  world_->ReceiveVersion(3);
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  world_->FinishAllComputes();
  EXPECT_THAT(Kinds(kShardB), IsEmpty());
  GivePermit(1);
  const auto pushes = world_->TakePushes(kShardB);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].clock(), 1u);
  EXPECT_THAT(pushes[0].complete(), ElementsAre(1));
}

TEST_F(AsynchronousTest, RequestsPermitDuringComputationWithItsBaseVersion) {
  Begin();
  GiveLease(0, 16);
  world_->TakeSent(kShardA);
  world_->ReceiveVersion(3);
  const auto sent = world_->TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.permit_request().clock(), 1u);
  EXPECT_EQ(sent[0].header.permit_request().base_version(), 3u);
}

TEST_F(AsynchronousTest, SendsApplyOnceAllShardsHaveStaged) {
  BeginUpdate();
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  Stage(kShardA, 1);
  EXPECT_THAT(Kinds(kShardA), IsEmpty());
  Stage(kShardB, 1);
  const auto sent = world_->TakeSent(kShardB);
  ASSERT_THAT(sent, SizeIs(1));
  const v1::Apply& apply = sent[0].header.apply();
  EXPECT_EQ(apply.clock(), 1u);
  EXPECT_EQ(apply.samples().begin(), 0u);
  EXPECT_EQ(apply.samples().end(), 8u);
  EXPECT_EQ(apply.ordinal(), 7u);
  EXPECT_TRUE(apply.pull_next());
  EXPECT_THAT(Kinds(kShardA), ElementsAre("apply"));
}

TEST_F(AsynchronousTest, CompletePushesCarryThePermitsOrdinal) {
  BeginUpdate();
  const auto pushes = world_->TakePushes(kShardB);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].ordinal(), 7u);
}

TEST_F(AsynchronousTest, NextUpdateStartsWhenAllShardsHaveAppliedAndTheStateHasArrived) {
  BeginUpdate();
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  Applied(kShardA, 1);
  world_->ReceiveVersion(4);
  EXPECT_THAT(world_->Positions(), IsEmpty());
  Applied(kShardB, 1);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(8, 16)));
  EXPECT_EQ(world_->core_.Status().step, 1u);
}

TEST_F(AsynchronousTest, EachApplyCombinesNormsOfAllShards) {
  BeginUpdate();
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  const auto stage = [&](ShardId shard, uint32_t partition, double square_sum, bool non_finite) {
    v1::Header header;
    header.mutable_staged()->set_clock(1);
    v1::Norms::PartitionNorm& norm = *header.mutable_staged()->add_norms();
    norm.set_partition(partition);
    norm.set_square_sum(square_sum);
    norm.set_non_finite(non_finite);
    world_->Receive(shard, header);
  };
  stage(kShardB, 1, 4, true);
  stage(kShardA, 0, 2.25, false);
  for (ShardId shard : {kShardA, kShardB}) {
    const auto sent = world_->TakeSent(shard);
    ASSERT_FALSE(sent.empty());
    ASSERT_TRUE(sent[0].header.has_apply());
    EXPECT_EQ(sent[0].header.apply().square_sum(), 6.25);
    EXPECT_TRUE(sent[0].header.apply().non_finite());
  }
}

TEST_F(AsynchronousTest, RequestsNextLeaseOnceLastUpdateIsAppliedOnAllShards) {
  Begin();
  GiveLease(0, 8);
  world_->ReceiveVersion(3);
  world_->FinishAllComputes();
  GivePermit(1);
  world_->TakeSent(kShardA);
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  EXPECT_THAT(Kinds(kShardA), ElementsAre("apply"));
  Applied(kShardA, 1);
  EXPECT_THAT(Kinds(kShardA), IsEmpty());
  Applied(kShardB, 1);
  EXPECT_THAT(Kinds(kShardA), ElementsAre("lease"));
}

// A model of fewer blocks than shards: all keep the records of updates, so that after a view change
// each knows what was applied.
TEST_F(AsynchronousTest, ShardWithoutContentStagesAndAppliesLikeTheOtherShards) {
  constexpr ShardId kEmpty = 203;
  Begin(v1::ASYNCHRONOUS, {kShardA, kEmpty, kShardB});
  GiveLease(0, 8);
  world_->ReceiveVersion(3);
  world_->FinishAllComputes();
  GivePermit(1, 7);
  const auto pushes = world_->TakePushes(kEmpty);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].clock(), 1u);
  EXPECT_EQ(pushes[0].blocks_size(), 0);
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  EXPECT_THAT(Kinds(kEmpty), IsEmpty());
  world_->Break(kEmpty);
  world_->Connect(kEmpty);
  EXPECT_THAT(Kinds(kEmpty), ElementsAre("push"));
  Stage(kEmpty, 1);
  EXPECT_THAT(Kinds(kEmpty), ElementsAre("apply"));
  Applied(kShardA, 1);
  Applied(kShardB, 1);
  world_->ReceiveVersion(4);
  EXPECT_EQ(world_->core_.Status().step, 0u);
  Applied(kEmpty, 1);
  EXPECT_EQ(world_->core_.Status().step, 1u);
  GiveLease(8, 16);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(8, 16)));
}

TEST_F(AsynchronousTest, WithOneShardLastPushCarriesTheApply) {
  Begin(v1::ASYNCHRONOUS, {kShardA});
  GiveLease(0, 16);
  world_->ReceiveData(kShardA, 3, 0, 0);
  world_->ReceiveData(kShardA, 3, 1, 0);
  world_->TakeSent(kShardA);
  world_->FinishAllComputes();
  GivePermit(1, 7);
  const auto pushes = world_->TakePushes(kShardA);
  ASSERT_THAT(pushes, SizeIs(2));
  EXPECT_FALSE(pushes[0].has_apply());
  EXPECT_EQ(pushes[1].apply().clock(), 1u);
  EXPECT_EQ(pushes[1].apply().ordinal(), 7u);
  Applied(kShardA, 1);
  world_->ReceiveData(kShardA, 4, 0, 0);
  world_->ReceiveData(kShardA, 4, 1, 0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(8, 16)));
}

TEST_F(AsynchronousTest, AfterBrokenStreamRepeatsOnlyApplyOfStagedUpdate) {
  BeginUpdate();
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  world_->Break(kShardB);
  world_->Connect(kShardB);
  EXPECT_THAT(Kinds(kShardB), ElementsAre("apply"));
}

TEST_F(AsynchronousTest, AfterBrokenStreamPushesUnstagedUpdateAgain) {
  BeginUpdate();
  Stage(kShardA, 1);
  world_->Break(kShardB);
  world_->Connect(kShardB);
  EXPECT_THAT(Kinds(kShardB), ElementsAre("push"));
}

TEST_F(AsynchronousTest, InNewViewUnansweredUpdateRestartsAtItsPermitWithSameClock) {
  BeginUpdate();
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  InstallNext(2);
  EXPECT_THAT(Kinds(kShardA), ElementsAre("permit"));
  EXPECT_THAT(Kinds(kShardB), IsEmpty());
  GivePermit(1);
  EXPECT_THAT(world_->TakePushes(kShardB), SizeIs(1));
  Stage(kShardA, 1);
  EXPECT_THAT(Kinds(kShardB), IsEmpty());  // answers of the older view do not count
  Stage(kShardB, 1);
  EXPECT_THAT(Kinds(kShardB), ElementsAre("apply"));
}

// The arbiter died before its copies had applied the update that made version 3.
TEST_F(AsynchronousTest, InNewViewBaseVersionIsAtMostTheFirstStep) {
  Begin();
  GiveLease(0, 16);
  world_->ReceiveVersion(3);
  for (uint64_t first_step : {2, 5}) {
    world_->TakeSent(kShardA);
    InstallNext(first_step, /*attempt=*/1, first_step);
    const auto sent = world_->TakeSent(kShardA);
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].header.permit_request().clock(), 1u);
    EXPECT_EQ(sent[0].header.permit_request().base_version(), 2u);
  }
}

TEST_F(AsynchronousTest, BaseVersionOfAnUpdateThatBeginsInNewViewIsAtMostItsFirstStep) {
  Begin();
  world_->ReceiveVersion(3);
  InstallNext(2, /*attempt=*/1, /*first_step=*/2);
  world_->TakeSent(kShardA);
  GiveLease(0, 16);
  const auto sent = world_->TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.permit_request().base_version(), 2u);
}

TEST_F(AsynchronousTest, RestOfLeaseRemainsValidInNewView) {
  BeginUpdate();
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  Applied(kShardA, 1);
  Applied(kShardB, 1);
  world_->TakeSent(kShardA);
  InstallNext(2);
  const auto kinds = Kinds(kShardA);
  EXPECT_THAT(kinds, testing::Not(testing::Contains("lease")));
  world_->ReceiveVersion(4);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(8, 16)));
}

TEST_F(AsynchronousTest, RepeatsUnansweredLeaseRequestInNewView) {
  Begin();
  world_->TakeSent(kShardA);
  InstallNext(2);
  EXPECT_THAT(Kinds(kShardA), testing::Contains("lease"));
}

TEST_F(AsynchronousTest, NewAttemptDropsEverythingExceptTheClock) {
  BeginUpdate();
  world_->TakeSent(kShardA);
  InstallNext(2, /*attempt=*/2);
  EXPECT_THAT(Kinds(kShardA), testing::Not(testing::Contains("permit")));
  GiveLease(0, 8);
  world_->ReceiveVersion(0);
  const auto sent = world_->TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.permit_request().clock(), 2u);
}

TEST_F(AsynchronousTest, ArbitersAnswerFinishesUpdateAppliedByTheInstall) {
  BeginUpdate();
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  InstallNext(2);
  Applied(kShardA, 1);
  world_->ReceiveVersion(4);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(8, 16)));
}

TEST_F(AsynchronousTest, LeaseRaisesTheClock) {
  Begin();
  GiveLease(0, 8, /*clock=*/9);
  world_->TakeSent(kShardA);
  world_->ReceiveVersion(0);
  const auto sent = world_->TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.permit_request().clock(), 10u);
}

TEST_F(AsynchronousTest, WaitsForSamplesAndStopsRequestingWhenDone) {
  Begin();
  world_->TakeSent(kShardA);
  v1::Header header;
  header.mutable_lease()->set_wait(true);
  world_->Receive(kShardA, header);
  EXPECT_THAT(Kinds(kShardA), IsEmpty());
  header.mutable_lease()->set_wait(false);
  header.mutable_lease()->set_done(true);
  world_->Receive(kShardA, header);
  EXPECT_THAT(Kinds(kShardA), IsEmpty());
}

// ---- error feedback

class AsynchronousErrorFeedbackTest : public AsynchronousTest {
 protected:
  // Update 1 has a gradient of 2049: 1 is left out of its float16.
  void BeginUpdate() {
    shards_ = {kShardA, kShardB};
    world_ = std::make_unique<WorkerHarness>(v1::ASYNCHRONOUS);
    world_->job_.mutable_training()->set_push_codec(v1::CODEC_FLOAT16);
    world_->job_.mutable_training()->mutable_compression()->set_error_feedback(true);
    world_->Start();
    world_->Install(world_->MakeView(1, 0, {{kSelf, {}}, {kOther, {}}}, 0, shards_));
    world_->ConnectAll();
    GiveLease(0, 64);
    world_->ReceiveVersion(3);
    world_->FinishAllComputes(2049);
    world_->TakeSent(kShardA);
    GivePermit(1);
    EXPECT_EQ(Pushed(), 2048);
  }
  float Pushed() {
    float value = 0;
    for (const SendFrame& frame : world_->TakeSent(kShardA)) {
      if (!frame.header.has_push() || frame.payload.empty()) continue;
      const std::string bytes(frame.payload);
      Float16 half;
      std::memcpy(&half, bytes.data(), sizeof(half));
      value = std::abs(ToFloat(half));
    }
    return value;
  }
  void ApplyEverywhere(uint64_t clock) {
    Stage(kShardA, clock);
    Stage(kShardB, clock);
    Applied(kShardA, clock);
    Applied(kShardB, clock);
  }
  void BeginNext(uint64_t clock) {
    world_->ReceiveVersion(3 + clock);
    world_->FinishAllComputes(2049);
    world_->TakeSent(kShardA);
    GivePermit(clock);
  }
};

TEST_F(AsynchronousErrorFeedbackTest, PushesResidualWithTheNextUpdate) {
  BeginUpdate();
  ApplyEverywhere(1);
  BeginNext(2);
  EXPECT_EQ(Pushed(), 2050);
}

TEST_F(AsynchronousErrorFeedbackTest, PushesUpdateAgainWithTheSameBytes) {
  BeginUpdate();
  ApplyEverywhere(1);
  BeginNext(2);
  EXPECT_EQ(Pushed(), 2050);
  world_->Break(kShardA);
  world_->Connect(kShardA);
  EXPECT_EQ(Pushed(), 2050);
  InstallNext(2);
  GivePermit(2);
  EXPECT_EQ(Pushed(), 2050) << "the same bytes in the next view";
  ApplyEverywhere(2);
  BeginNext(3);
  EXPECT_EQ(Pushed(), 2048) << "2049 - 1";
}

TEST_F(AsynchronousErrorFeedbackTest, RestoredAttemptStartsWithoutResiduals) {
  BeginUpdate();
  ApplyEverywhere(1);
  InstallNext(2, /*attempt=*/2);
  GiveLease(0, 64, 1);
  BeginNext(2);
  EXPECT_EQ(Pushed(), 2048);
}

// ---- bounded staleness

TEST_F(AsynchronousTest, BoundedRequestsLeaseThenPullsFromArbiterThenFromOtherShards) {
  Begin(v1::BOUNDED_STALENESS);
  EXPECT_THAT(Kinds(kShardA), ElementsAre("lease"));
  EXPECT_THAT(Kinds(kShardB), IsEmpty());
  GiveLease(0, 16, /*clock=*/4);
  ASSERT_THAT(world_->sent_[kShardA], SizeIs(1));
  EXPECT_EQ(world_->sent_[kShardA][0].header.pull().clock(), 4u);
  EXPECT_THAT(Kinds(kShardB), IsEmpty());
  Answer();
  const auto sent = world_->TakeSent(kShardB);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().clock(), 4u);
  EXPECT_THAT(sent[0].header.pull().counted(), ElementsAre(kOther));
  EXPECT_THAT(sent[0].header.pull().counted_from(), ElementsAre(3));
}

TEST_F(AsynchronousTest, BoundedPullFollowsTheApplyWithTheNewClock) {
  BeginUpdate(v1::BOUNDED_STALENESS);
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  const auto sent = world_->TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_FALSE(sent[0].header.apply().pull_next());
  EXPECT_EQ(sent[1].header.pull().clock(), 1u);
  EXPECT_THAT(Kinds(kShardB), ElementsAre("apply"));
}

TEST_F(AsynchronousTest, BoundedIgnoresAnswerToOlderPull) {
  Begin(v1::BOUNDED_STALENESS);
  GiveLease(0, 16);
  v1::Header header;
  header.mutable_pull_answer()->set_request(99);
  world_->Receive(kShardA, header);
  EXPECT_THAT(Kinds(kShardB), IsEmpty());
}

TEST_F(AsynchronousTest, SplitsTimeOfUpdateIntoPushWaitAndPull) {
  BeginUpdate();
  const absl::Time computed = world_->now_;
  world_->Advance(absl::Seconds(5));
  Stage(kShardA, 1);
  Stage(kShardB, 1);
  world_->core_.OnSent(computed + absl::Seconds(1));  // the pushes
  world_->Advance(absl::Seconds(2));
  world_->core_.OnSent(world_->now_);  // the Applies
  Applied(kShardA, 1);
  Applied(kShardB, 1);
  world_->Advance(absl::Seconds(3));
  world_->core_.OnSent(world_->now_);  // later frames
  world_->ReceiveData(kShardA, 4, 0, 4);
  world_->Advance(absl::Seconds(4));
  world_->ReceiveData(kShardB, 4, 1, 4);
  // Reported with the next update that is applied.
  world_->FinishAllComputes();
  GivePermit(2, 8);
  for (ShardId shard : {kShardA, kShardB}) Stage(shard, 2);
  for (ShardId shard : {kShardA, kShardB}) Applied(shard, 2);
  EXPECT_THAT(world_->TimesReported(), ElementsAre(7, 3, 4));
}

TEST_F(AsynchronousTest, WithOneShardSplitsTheTimesTheSameWay) {
  Begin(v1::ASYNCHRONOUS, {kShardA});
  GiveLease(0, 16);
  world_->ReceiveData(kShardA, 3, 0, 3);
  world_->ReceiveData(kShardA, 3, 1, 3);
  world_->FinishAllComputes();
  GivePermit(1, 7);
  world_->Advance(absl::Seconds(2));
  world_->core_.OnSent(world_->now_);
  world_->Advance(absl::Seconds(3));
  world_->ReceiveData(kShardA, 4, 0, 4);
  world_->Advance(absl::Seconds(4));
  world_->ReceiveData(kShardA, 4, 1, 4);
  Applied(kShardA, 1);
  world_->FinishAllComputes();
  GivePermit(2, 8);
  Applied(kShardA, 2);
  EXPECT_THAT(world_->TimesReported(), ElementsAre(2, 3, 4));
}

}  // namespace
}  // namespace sluice::worker

// Synchronous training by hand-driven messages.
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
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
using ::testing::UnorderedElementsAre;

bool IsPush(const v1::Header& header) { return header.has_push(); }
bool IsPull(const v1::Header& header) { return header.has_pull(); }

// In view 1, which starts at step 5, with [0, 4) of 8 microbatches; connected, nothing pulled.
class SynchronousTest : public testing::Test {
 protected:
  void Begin(bool bit_exact = false) {
    world_ = std::make_unique<WorkerHarness>(v1::SYNCHRONOUS, bit_exact);
    world_->Start();
    world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world_->ConnectAll();
  }
  // ... and holds version 5, and computes.
  void BeginStep(bool bit_exact = false) {
    Begin(bit_exact);
    world_->TakeSent(kShardA);
    world_->TakeSent(kShardB);
    world_->ReceiveVersion(5);
  }
  // The first computation in progress ends, with this weight.
  void Compute(std::optional<double> weight, double loss_sum = 0) {
    const ComputeId id = world_->computes_.begin()->first;
    if (weight) world_->core_.OnWeight(id, *weight, world_->now_);
    world_->FinishCompute(id, 1, loss_sum);
    world_->computes_.erase(id);
  }

  std::unique_ptr<WorkerHarness> world_;
};

TEST_F(SynchronousTest, PullsTheFirstVersionOfItsFirstView) {
  Begin();
  const auto sent = world_->TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().version(), 5u);
  EXPECT_THAT(sent[0].header.pull().partitions(), ElementsAre(0));
  EXPECT_EQ(sent[0].header.view().number(), 1u);
  EXPECT_THAT(world_->TakeSent(kShardB), SizeIs(1));
}

TEST_F(SynchronousTest, ComputesMicrobatchesOnceTheVersionIsComplete) {
  Begin();
  world_->ReceiveData(kShardA, 5, 0, 1);
  EXPECT_THAT(world_->computes_, IsEmpty());
  world_->ReceiveData(kShardB, 5, 1, 1);
  EXPECT_THAT(world_->adopted_, ElementsAre(5));
  // Global batches of 8: step 5 begins at position 40.
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(40, 44)));
}

TEST_F(SynchronousTest, SendsGradientBeforeTheRestOfTheBackwardPass) {
  BeginStep();
  const ComputeId id = world_->computes_.begin()->first;
  const uint32_t first = world_->tensor_of_[1];
  world_->core_.OnGradient(id, first, Number(3), world_->now_);
  world_->Do();
  const auto pushes = world_->TakePushes(kShardB);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].step(), 5u);
  EXPECT_EQ(pushes[0].partition(), 1u);
  EXPECT_EQ(pushes[0].microbatches().begin(), 0u);
  EXPECT_EQ(pushes[0].microbatches().end(), 4u);
  EXPECT_THAT(pushes[0].complete(), ElementsAre(1));
  EXPECT_EQ(pushes[0].samples(), 4u);
  EXPECT_EQ(pushes[0].microbatch_count(), 4u);
  EXPECT_TRUE(pushes[0].pull_next());
  EXPECT_THAT(world_->TakePushes(kShardA), IsEmpty());
}

// The weights of all pushes that complete a partition.
std::vector<double> WeightsOf(const std::vector<v1::Push>& pushes) {
  std::vector<double> weights;
  for (const v1::Push& push : pushes) {
    EXPECT_EQ(push.has_weight(), push.complete_size() > 0);
    if (push.has_weight()) weights.push_back(push.weight());
  }
  return weights;
}

TEST_F(SynchronousTest, ContributionHasTheWeightOfAllItsComputations) {
  BeginStep(/*bit_exact=*/true);
  ASSERT_THAT(world_->computes_, SizeIs(4));
  double weight = 0.125;
  while (!world_->computes_.empty()) Compute(weight *= 2);
  EXPECT_THAT(WeightsOf(world_->TakePushes(kShardA)), ElementsAre(0.25 + 0.5 + 1 + 2));
  EXPECT_THAT(WeightsOf(world_->TakePushes(kShardB)), ElementsAre(0.25 + 0.5 + 1 + 2));
}

TEST_F(SynchronousTest, WeightsOfBitExactAreRoundedSoThatTheirSumIsExact) {
  BeginStep(/*bit_exact=*/true);
  while (!world_->computes_.empty()) Compute(0.1);
  EXPECT_THAT(WeightsOf(world_->TakePushes(kShardA)), ElementsAre(4 * static_cast<double>(0.1f)));
}

TEST_F(SynchronousTest, ComputationWithoutWeightWeighsItsSamples) {
  for (const bool first : {true, false}) {
    BeginStep(/*bit_exact=*/true);
    if (first) Compute(0.5);
    while (world_->computes_.size() > 1) Compute({});
    Compute(first ? std::nullopt : std::optional<double>(0.5));
    EXPECT_THAT(WeightsOf(world_->TakePushes(kShardA)), ElementsAre(3.5));
    EXPECT_THAT(WeightsOf(world_->TakePushes(kShardB)), ElementsAre(3.5));
  }
}

TEST_F(SynchronousTest, ReportedLossIsTheMeanOverTheWeights) {
  BeginStep(/*bit_exact=*/true);
  Compute(0.5, 1);
  Compute(1, 2);
  Compute(0, std::nan(""));  // the mean of nothing
  Compute(2, 4);
  world_->ReceiveVersion(6);
  const v1::WorkerProgress::Step step = world_->StepReported();
  EXPECT_EQ(step.samples(), 4u);
  EXPECT_EQ(step.weight(), 3.5);
  EXPECT_DOUBLE_EQ(step.loss_sum(), 4 * (0.5 + 2 + 8) / 3.5);
}

TEST_F(SynchronousTest, StepThatWeighsNothingIsReportedSo) {
  BeginStep();
  Compute(0, 7);
  world_->ReceiveVersion(6);
  const v1::WorkerProgress::Step step = world_->StepReported();
  EXPECT_TRUE(step.has_weight());
  EXPECT_EQ(step.weight(), 0);
  EXPECT_EQ(step.loss_sum(), 0);
}

TEST_F(SynchronousTest, LossWithoutWeightsIsReportedBySamples) {
  BeginStep(/*bit_exact=*/true);
  for (double loss = 1; loss <= 4; ++loss) Compute({}, loss);
  world_->ReceiveVersion(6);
  const v1::WorkerProgress::Step step = world_->StepReported();
  EXPECT_FALSE(step.has_weight());
  EXPECT_EQ(step.loss_sum(), 10);
}

TEST_F(SynchronousTest, SumOfMeansHasNoWeight) {
  world_ = std::make_unique<WorkerHarness>();
  world_->job_.mutable_training()->set_aggregation(v1::TrainingSpec::SUM);
  world_->Start();
  world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
  world_->ConnectAll();
  world_->ReceiveVersion(5);
  world_->TakeSent(kShardA);
  Compute(7);
  for (const v1::Push& push : world_->TakePushes(kShardA)) EXPECT_FALSE(push.has_weight());
}

TEST_F(SynchronousTest, WeightOfWhatIsNoLongerAssignedIsForgotten) {
  BeginStep();
  world_->core_.OnWeight(world_->computes_.begin()->first, 7, world_->now_);
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 2}}}, {kOther, {{2, 8}}}}, 1));
  Compute(8);  // the cancelled one ends, too late
  Compute(3);
  EXPECT_THAT(WeightsOf(world_->TakePushes(kShardA)), ElementsAre(3));
}

TEST_F(SynchronousTest, SampleThatTheModelCannotComputeByItselfIsComputedWithTheOthers) {
  for (const uint32_t smallest : {1, 2}) {
    world_ = std::make_unique<WorkerHarness>();
    world_->smallest_batch_ = smallest;
    world_->Start();
    world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world_->ConnectAll();
    world_->ReceiveVersion(5);
    Compute(4);
    world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 5}}}, {kOther, {{5, 8}}}}, 1));
    EXPECT_THAT(world_->Positions(), ElementsAre(smallest == 1 ? Pair(44, 45) : Pair(40, 45)));
    world_->TakeSent(kShardA);
    Compute(5);
    const auto pushes = world_->TakePushes(kShardA);
    ASSERT_FALSE(pushes.empty());
    EXPECT_EQ(pushes.back().samples(), 5u);
    EXPECT_EQ(pushes.back().weight(), smallest == 1 ? 9 : 5);
  }
}

TEST_F(SynchronousTest, WeightThatCannotBeFailsTheJob) {
  BeginStep();
  world_->core_.OnWeight(world_->computes_.begin()->first, -1, world_->now_);
  world_->Do();
  ASSERT_THAT(world_->exits_, SizeIs(1));
  EXPECT_THAT(world_->exits_[0].message, testing::HasSubstr("the weight of a batch is -1"));
}

TEST_F(SynchronousTest, DoesNotSendTensorWithoutGradientButNamesItsPartition) {
  BeginStep();
  const ComputeId id = world_->computes_.begin()->first;
  world_->core_.OnNoGradient(id, world_->tensor_of_[0], world_->now_);
  world_->Do();
  const auto pushes = world_->TakePushes(kShardA);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].blocks_size(), 0);
  EXPECT_THAT(pushes[0].complete(), ElementsAre(0));
}

TEST_F(SynchronousTest, MemberWithoutMicrobatchesNamesItsPartitionsImmediately) {
  world_ = std::make_unique<WorkerHarness>();
  world_->Start();
  world_->Install(world_->MakeView(1, 0, {{kSelf, {}}, {kOther, {{0, 8}}}}, 0));
  world_->ConnectAll();
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->computes_, IsEmpty());
  const auto pushes = world_->TakePushes(kShardA);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_THAT(pushes[0].complete(), ElementsAre(0));
  EXPECT_EQ(pushes[0].samples(), 0u);
}

TEST_F(SynchronousTest, NextVersionStartsTheNextStep) {
  BeginStep();
  world_->FinishAllComputes();
  world_->ReceiveVersion(6);
  EXPECT_THAT(world_->adopted_, ElementsAre(5, 6));
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(48, 52)));
}

TEST_F(SynchronousTest, EarlyPartitionOfNextVersionWaitsForTheComputation) {
  BeginStep();
  world_->ReceiveVersion(6);  // closed by the other member; this worker's result is not needed
  EXPECT_THAT(world_->adopted_, ElementsAre(5));
  world_->computes_.clear();
  ComputeResult result;
  world_->core_.OnComputed(1, result, world_->now_);
  world_->Do();
  EXPECT_THAT(world_->adopted_, ElementsAre(5, 6));
}

TEST_F(SynchronousTest, ReopensBrokenStreamAndResendsItsPartitions) {
  BeginStep();
  world_->FinishAllComputes();
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  world_->Break(kShardA);
  world_->Connect(kShardA);
  const auto pushes = world_->TakePushes(kShardA);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_EQ(pushes[0].blocks_size(), 1);
  EXPECT_THAT(pushes[0].complete(), ElementsAre(0));
  EXPECT_TRUE(pushes[0].pull_next());
  EXPECT_EQ(world_->Count(kShardB, IsPush), 0);
}

TEST_F(SynchronousTest, DoesNotResendPartitionWithNextVersion) {
  BeginStep();
  world_->FinishAllComputes();
  world_->ReceiveData(kShardA, 6, 0, 6);
  world_->Break(kShardA);
  world_->Connect(kShardA);
  EXPECT_EQ(world_->Count(kShardA, IsPush), 0);
}

TEST_F(SynchronousTest, StoresRepeatedDataOnce) {
  BeginStep();
  world_->FinishAllComputes();
  const size_t before = world_->stored_.size();
  world_->ReceiveData(kShardA, 6, 0, 6);
  world_->ReceiveData(kShardA, 6, 0, 6);
  EXPECT_EQ(world_->stored_.size(), before + 1);
}

TEST_F(SynchronousTest, PayloadWaitsForCredit) {
  world_ = std::make_unique<WorkerHarness>();
  world_->Start();
  // Both partitions on one shard, whose window takes one block.
  world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0, {kShardA}));
  world_->Connect(kShardA, /*window=*/8);
  world_->ReceiveData(kShardA, 5, 0, 5);
  world_->ReceiveData(kShardA, 5, 1, 5);
  world_->TakeSent(kShardA);
  world_->FinishAllComputes();
  EXPECT_EQ(world_->Count(kShardA, IsPush), 1);
  EXPECT_EQ(world_->core_.Status().queued_bytes, 8u);
  v1::Header credit;
  credit.mutable_credit()->set_bytes(8);
  world_->Receive(kShardA, credit);
  EXPECT_EQ(world_->Count(kShardA, IsPush), 2);
}

TEST_F(SynchronousTest, SendsFrameLargerThanTheWindowAlone) {
  world_ = std::make_unique<WorkerHarness>();
  world_->Start();
  world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0, {kShardA}));
  world_->Connect(kShardA, /*window=*/4);
  world_->ReceiveData(kShardA, 5, 0, 5);
  world_->ReceiveData(kShardA, 5, 1, 5);
  world_->FinishAllComputes();
  EXPECT_EQ(world_->Count(kShardA, IsPush), 1);
}

// ---- view changes

TEST_F(SynchronousTest, NewViewAtSameStepKeepsVersionAndResendsGradient) {
  BeginStep();
  world_->FinishAllComputes(3);
  world_->TakeSent(kShardA);
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1));
  EXPECT_THAT(world_->adopted_, ElementsAre(5));
  EXPECT_EQ(world_->Count(kShardA, IsPull), 0);
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(44, 48)));  // the rest only
  world_->FinishAllComputes(5);
  const auto frames = world_->TakeSent(kShardA);
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_EQ(frames[0].header.push().microbatches().begin(), 0u);
  EXPECT_EQ(frames[1].header.push().microbatches().begin(), 4u);
  EXPECT_THAT(frames[0].header.push().complete(), IsEmpty());
  EXPECT_THAT(frames[1].header.push().complete(), ElementsAre(0));
  EXPECT_EQ(frames[1].header.push().samples(), 8u);
  EXPECT_EQ(frames[0].header.view().number(), 2u);
}

TEST_F(SynchronousTest, UsesComputationInProgressIfNewAssignmentContainsIt) {
  BeginStep();
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1));
  EXPECT_THAT(world_->cancelled_, IsEmpty());
  EXPECT_THAT(world_->Positions(), UnorderedElementsAre(Pair(40, 44), Pair(44, 48)));
}

TEST_F(SynchronousTest, CancelsComputationPartlyOutsideAssignmentAndCountsItAsWaste) {
  BeginStep();
  const ComputeId old = world_->computes_.begin()->first;
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 2}}}, {kOther, {{2, 8}}}}, 1));
  EXPECT_THAT(world_->cancelled_, ElementsAre(old));
  EXPECT_EQ(world_->core_.Status().recomputed_samples, 2u);
  // Late results of the cancelled computation are ignored.
  world_->FinishCompute(old, 9);
  EXPECT_EQ(world_->Count(kShardA, IsPush), 0);
}

TEST_F(SynchronousTest, DropsPartsOfNextVersionFromOlderView) {
  BeginStep();
  world_->FinishAllComputes();
  world_->ReceiveData(kShardA, 6, 0, 6);
  world_->TakeSent(kShardA);
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 1));
  EXPECT_EQ(world_->Count(kShardA, IsPush), 1);  // the shard rolled back and needs it again
  world_->ReceiveData(kShardB, 6, 1, 6);
  EXPECT_THAT(world_->adopted_, ElementsAre(5));
  world_->ReceiveData(kShardA, 6, 0, 6);
  EXPECT_THAT(world_->adopted_, ElementsAre(5, 6));
}

TEST_F(SynchronousTest, KeepsPartsOfTheViewsFirstVersion) {
  BeginStep();
  world_->FinishAllComputes();
  world_->ReceiveData(kShardA, 6, 0, 6);
  world_->TakeSent(kShardA);
  world_->TakeSent(kShardB);
  world_->Install(world_->MakeView(2, 6, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 1));
  EXPECT_EQ(world_->Count(kShardA, IsPull), 0);
  ASSERT_EQ(world_->Count(kShardB, IsPull), 1);
  EXPECT_EQ(world_->sent_[kShardB][0].header.pull().version(), 6u);
  world_->ReceiveData(kShardB, 6, 1, 6);
  EXPECT_THAT(world_->adopted_, ElementsAre(5, 6));
}

TEST_F(SynchronousTest, DropsVersionAboveTheViewsFirstAndPullsAgain) {
  BeginStep();
  world_->FinishAllComputes();
  world_->ReceiveVersion(6);
  world_->TakeSent(kShardA);
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 1));
  world_->FinishAllComputes();
  EXPECT_EQ(world_->Count(kShardA, IsPush), 0);
  ASSERT_EQ(world_->Count(kShardA, IsPull), 1);
  EXPECT_EQ(world_->sent_[kShardA][0].header.pull().version(), 5u);
}

TEST_F(SynchronousTest, WorkerThatSkippedViewDropsEverything) {
  BeginStep();
  world_->FinishAllComputes();
  world_->TakeSent(kShardA);
  world_->Install(world_->MakeView(3, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 2));
  EXPECT_EQ(world_->Count(kShardA, IsPush), 0);
  EXPECT_EQ(world_->Count(kShardA, IsPull), 1);
}

TEST_F(SynchronousTest, NewAttemptDropsEverything) {
  BeginStep();
  world_->FinishAllComputes();
  v1::View view = world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0);
  view.mutable_id()->set_attempt(2);
  world_->TakeSent(kShardA);
  world_->Install(view);
  EXPECT_EQ(world_->Count(kShardA, IsPush), 0);
  EXPECT_EQ(world_->Count(kShardA, IsPull), 1);
}

TEST_F(SynchronousTest, IgnoresDataOfOlderView) {
  BeginStep();
  world_->FinishAllComputes();
  const v1::View old = world_->view_;
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 1));
  const size_t before = world_->stored_.size();
  world_->ReceiveData(kShardA, 6, 0, 6, &old);
  EXPECT_EQ(world_->stored_.size(), before);
}

TEST_F(SynchronousTest, RefusalDeliversTheNewestView) {
  BeginStep();
  world_->FinishAllComputes();
  world_->TakeSent(kShardB);
  v1::Header header;
  *header.mutable_refused()->mutable_newest() =
      world_->MakeView(2, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 1);
  world_->Receive(kShardA, header);
  EXPECT_EQ(world_->core_.view().id().number(), 2u);
  const auto frames = world_->TakeSent(kShardB);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].header.view().number(), 2u);
}

TEST_F(SynchronousTest, OlderViewChangesNothing) {
  BeginStep();
  const v1::View old = world_->view_;
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 1));
  world_->Install(old);
  EXPECT_EQ(world_->core_.view().id().number(), 2u);
}

TEST_F(SynchronousTest, ViewWithoutTheWorkerEndsThisInstance) {
  BeginStep();
  world_->Install(world_->MakeView(2, 5, {{kOther, {{0, 8}}}}, 1));
  ASSERT_THAT(world_->exits_, SizeIs(1));
  EXPECT_EQ(world_->exits_[0].reason, ExitReason::kExpelled);
}

TEST_F(SynchronousTest, ConnectsToReplacementOfShard) {
  BeginStep();
  world_->FinishAllComputes();
  v1::View view =
      world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0, {kShardA, 203});
  view.mutable_id()->set_attempt(2);
  world_->Install(view);
  EXPECT_THAT(world_->disconnects_, SizeIs(1));
  EXPECT_EQ(world_->connecting_.count(203), 1u);
}

// ---- BitExact

TEST_F(SynchronousTest, BitExactSendsTheRootsOfItsMaximalSubtrees) {
  world_ = std::make_unique<WorkerHarness>(v1::SYNCHRONOUS, /*bit_exact=*/true);
  world_->Start();
  world_->Install(world_->MakeView(1, 0, {{kSelf, {{0, 3}}}, {kOther, {{3, 8}}}}, 0));
  world_->ConnectAll();
  world_->ReceiveVersion(0);
  EXPECT_THAT(world_->computes_, SizeIs(3));
  world_->TakeSent(kShardA);
  world_->FinishAllComputes(1);
  const auto frames = world_->TakeSent(kShardA);
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_EQ(frames[0].header.push().microbatches().end(), 2u);
  EXPECT_EQ(std::abs(ValueOf(frames[0].payload)), 2);
  EXPECT_EQ(frames[1].header.push().microbatches().begin(), 2u);
  EXPECT_EQ(std::abs(ValueOf(frames[1].payload)), 1);
  EXPECT_THAT(frames[1].header.push().complete(), ElementsAre(0));
}

TEST_F(SynchronousTest, BitExactSendsOneRootForMergedAssignment) {
  BeginStep(/*bit_exact=*/true);
  world_->FinishAllComputes(1);
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1));
  EXPECT_THAT(world_->computes_, SizeIs(4));
  world_->TakeSent(kShardA);
  world_->FinishAllComputes(1);
  const auto frames = world_->TakeSent(kShardA);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].header.push().microbatches().end(), 8u);
  EXPECT_EQ(std::abs(ValueOf(frames[0].payload)), 8);
}

// Nothing is computed for a counter, and no sum of it is made.
TEST_F(SynchronousTest, BitExactCompletesThePartitionOfACounter) {
  world_ = std::make_unique<WorkerHarness>(v1::SYNCHRONOUS, /*bit_exact=*/true);
  v1::TensorSpec& counter = *world_->table_.mutable_tensors(1);
  counter.set_kind(v1::COUNTER);
  counter.set_dtype(v1::INT64);
  world_->CutTable();
  world_->Start();
  world_->Install(world_->MakeView(1, 0, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
  world_->ConnectAll();
  world_->ReceiveVersion(0);
  ASSERT_THAT(world_->computes_, SizeIs(4));
  const std::vector<v1::Push> pushes = world_->TakePushes(kShardB);
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_THAT(pushes[0].complete(), ElementsAre(1));
}

// The microbatch's gradients are in a sum of the older assignment that the new one cannot use.
TEST_F(SynchronousTest, IgnoresLateResultOfRecomputedMicrobatch) {
  BeginStep(/*bit_exact=*/true);
  std::vector<ComputeId> ids;
  for (const auto& [id, compute] : world_->computes_) ids.push_back(id);
  ASSERT_THAT(ids, SizeIs(4));
  for (ComputeId id : ids) {
    world_->core_.OnGradient(id, 0, Number(1), world_->now_);
    world_->Do();
    world_->core_.OnGradient(id, 1, Number(1), world_->now_);
    world_->Do();
  }
  world_->TakeSent(kShardA);
  world_->computes_.clear();
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{3, 5}}}, {kOther, {{0, 3}, {5, 8}}}}, 1));
  EXPECT_THAT(world_->Positions(), ElementsAre(Pair(43, 44), Pair(44, 45)));
  for (ComputeId id : ids) {
    world_->core_.OnComputed(id, ComputeResult(), world_->now_);
    world_->Do();
  }
  EXPECT_THAT(world_->TakePushes(kShardA), IsEmpty());
  world_->FinishAllComputes(1);
  std::vector<uint64_t> microbatches;
  for (const v1::Push& push : world_->TakePushes(kShardA)) {
    if (push.blocks_size() > 0) microbatches.push_back(push.microbatches().begin());
  }
  EXPECT_THAT(microbatches, ElementsAre(3, 4));
}

TEST_F(SynchronousTest, SendsGradientsInTheJobsCodec) {
  world_ = std::make_unique<WorkerHarness>();
  world_->job_.mutable_training()->set_push_codec(v1::CODEC_FLOAT16);
  world_->Start();
  world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world_->ConnectAll();
  world_->ReceiveVersion(5);
  world_->TakeSent(kShardA);
  world_->FinishAllComputes(1.5);
  const auto frames = world_->TakeSent(kShardA);
  ASSERT_THAT(frames, SizeIs(1));
  const v1::BlockHeader& block = frames[0].header.push().blocks(0);
  EXPECT_EQ(block.codec(), v1::CODEC_FLOAT16);
  EXPECT_EQ(block.payload_bytes(), 2u);
  EXPECT_EQ(frames[0].payload.size(), 2u);
}

// ---- error feedback

// The float16 values in the frames pushed to shard A.
std::vector<float> HalvesOf(const std::vector<SendFrame>& frames) {
  std::vector<float> values;
  for (const SendFrame& frame : frames) {
    if (!frame.header.has_push() || frame.payload.empty()) continue;
    const std::string bytes(frame.payload);
    Float16 half;
    std::memcpy(&half, bytes.data(), sizeof(half));
    values.push_back(std::abs(ToFloat(half)));
  }
  return values;
}

class ErrorFeedbackTest : public SynchronousTest {
 protected:
  // A gradient of 2049 is pushed as 2048; 1 is left out.
  void PushStep5() {
    world_ = std::make_unique<WorkerHarness>();
    world_->job_.mutable_training()->set_push_codec(v1::CODEC_FLOAT16);
    world_->job_.mutable_training()->mutable_compression()->set_error_feedback(true);
    world_->Start();
    world_->Install(world_->MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world_->ConnectAll();
    world_->ReceiveVersion(5);
    EXPECT_THAT(Pushed(2049), ElementsAre(2048));
  }
  std::vector<float> Pushed(double gradient) {
    world_->TakeSent(kShardA);
    world_->FinishAllComputes(gradient);
    return HalvesOf(world_->TakeSent(kShardA));
  }
};

TEST_F(ErrorFeedbackTest, PushesResidualWithTheNextStep) {
  PushStep5();
  world_->ReceiveVersion(6);
  EXPECT_THAT(Pushed(2049), ElementsAre(2050));
}

TEST_F(ErrorFeedbackTest, SendsTheSameBytesAgainAfterBrokenStream) {
  PushStep5();
  world_->ReceiveVersion(6);
  EXPECT_THAT(Pushed(2049), ElementsAre(2050));
  world_->Break(kShardA);
  world_->Connect(kShardA);
  EXPECT_THAT(HalvesOf(world_->TakeSent(kShardA)), ElementsAre(2050));
}

TEST_F(ErrorFeedbackTest, StepRestartedByViewChangeAddsResidualOnce) {
  PushStep5();
  world_->ReceiveVersion(6);
  EXPECT_THAT(Pushed(2049), ElementsAre(2050));
  world_->TakeSent(kShardA);
  world_->Install(world_->MakeView(2, 6, {{kSelf, {{0, 4}}}}, 1));
  EXPECT_THAT(HalvesOf(world_->TakeSent(kShardA)), ElementsAre(2050));
  world_->ReceiveVersion(7);
  EXPECT_THAT(Pushed(2048), ElementsAre(2048)) << "no residual is left";
}

TEST_F(ErrorFeedbackTest, StepClosedBeforeNewViewKeepsItsResidual) {
  PushStep5();
  // All shards closed step 5, and this worker does not know it yet.
  world_->Install(world_->MakeView(2, 6, {{kSelf, {{0, 8}}}}, 1));
  world_->ReceiveVersion(6);
  EXPECT_THAT(Pushed(2049), ElementsAre(2050));
}

TEST_F(ErrorFeedbackTest, AnotherAttemptBeginsWithoutResiduals) {
  PushStep5();
  world_->ReceiveVersion(6);
  v1::View view = world_->MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0);
  view.mutable_id()->set_attempt(2);
  world_->Install(view);
  world_->FinishAllComputes(0);  // cancelled
  world_->ReceiveVersion(5);
  EXPECT_THAT(Pushed(2049), ElementsAre(2048));
}

TEST_F(ErrorFeedbackTest, ReportsPushedBytes) {
  PushStep5();
  world_->ReceiveVersion(6);  // a worker reports when it has finished a step
  world_->Advance(absl::Seconds(2));
  uint64_t pushed = 0, raw = 0;
  for (const v1::MemberMessage& message : world_->sent_to_coordinator_) {
    pushed += message.worker_progress().pushed_bytes();
    raw += message.worker_progress().gradient_bytes();
  }
  EXPECT_EQ(pushed, 2u * 2);
  EXPECT_EQ(raw, 2u * 8);
}

// ---- times

TEST_F(SynchronousTest, SplitsTimeOfStepIntoPushWaitAndPull) {
  Begin();
  world_->ReceiveVersion(5);
  world_->Advance(absl::Seconds(10));  // computes
  world_->FinishAllComputes();
  world_->Advance(absl::Seconds(2));
  world_->core_.OnSent(world_->now_);
  world_->Advance(absl::Seconds(3));
  world_->ReceiveData(kShardA, 6, 0, 6);
  world_->Advance(absl::Seconds(4));
  world_->ReceiveData(kShardB, 6, 1, 6);
  EXPECT_THAT(world_->TimesReported(), ElementsAre(2, 3, 4));
}

TEST_F(SynchronousTest, ViewChangeRestartsTheTimes) {
  Begin();
  world_->ReceiveVersion(5);
  world_->FinishAllComputes();
  world_->Advance(absl::Seconds(100));
  world_->Install(world_->MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1));
  world_->FinishAllComputes();
  world_->Advance(absl::Seconds(2));
  world_->core_.OnSent(world_->now_);
  world_->Advance(absl::Seconds(3));
  world_->ReceiveVersion(6);
  EXPECT_THAT(world_->TimesReported(), ElementsAre(2, 3, 0));
}

// ---- bad frames

TEST_F(SynchronousTest, InvalidDataBreaksTheStreamAndNothingElse) {
  Begin();
  v1::Header header;
  v1::Data& data = *header.mutable_data();
  data.set_version(5);
  data.set_partition(0);
  data.set_last(true);
  data.add_blocks()->set_block(world_->block_of_[1]);  // of another partition
  data.mutable_blocks(0)->set_payload_bytes(8);
  world_->Receive(kShardA, header, Number(1));
  EXPECT_THAT(world_->disconnects_, ElementsAre(testing::HasSubstr("is not of partition 0")));
  EXPECT_THAT(world_->stored_, IsEmpty());
  world_->Advance(absl::Seconds(1));
  EXPECT_EQ(world_->connecting_.count(kShardA), 1u);
}

TEST_F(SynchronousTest, DataOfUnknownPartitionOrBlockBreaksTheStream) {
  for (const auto& [partition, block] :
       std::vector<std::pair<uint32_t, uint32_t>>{{7, 0}, {0, 99}, {4000000000u, 4000000000u}}) {
    Begin();
    v1::Header header;
    header.mutable_data()->set_version(5);
    header.mutable_data()->set_partition(partition);
    header.mutable_data()->add_blocks()->set_block(block);
    world_->Receive(kShardA, header);
    EXPECT_THAT(world_->disconnects_, SizeIs(1)) << partition;
  }
}

}  // namespace
}  // namespace sluice::worker

// A worker's tasks besides training: registration, initialization, evaluation, progress, leaving.
#include "services/worker/core/worker_core.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/core/testing/worker_test_harness.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<int> BodiesOf(const std::vector<v1::MemberMessage>& messages) {
  std::vector<int> bodies;
  for (const v1::MemberMessage& message : messages) bodies.push_back(message.body_case());
  return bodies;
}

v1::CoordinatorMessage InitializeMessage(const WorkerHarness& world, uint64_t number) {
  v1::CoordinatorMessage message;
  v1::Initialize& initialize = *message.mutable_initialize();
  initialize.mutable_init_id()->set_attempt(1);
  initialize.mutable_init_id()->set_number(number);
  *initialize.mutable_table() = world.table_;
  *initialize.mutable_layout() = world.layout_;
  for (uint64_t shard : {kShardA, kShardB}) {
    initialize.add_shards()->mutable_process()->set_incarnation(shard);
  }
  initialize.add_owner(0);
  initialize.add_owner(1);
  return message;
}

TEST(WorkerCoreTest, ReportsViewsOnlyAsAFormerMember) {
  for (const bool member : {true, false}) {
    WorkerHarness world;
    world.Start();
    std::vector<WorkerHarness::Member> members = {{kOther, {{0, 4}}}};
    if (member) members.push_back({kSelf, {{4, 8}}});
    world.Install(world.MakeView(1, 0, members, 0));
    world.sent_to_coordinator_.clear();
    world.core_.OnCoordinatorDisconnected(world.now_);
    world.core_.OnCoordinatorConnected(world.now_);
    world.Do();
    ASSERT_FALSE(world.sent_to_coordinator_.empty());
    EXPECT_EQ(world.sent_to_coordinator_[0].register_().has_newest_view(), member);
  }
}

TEST(WorkerCoreTest, RegistersAndReportsReadyOnEveryStream) {
  WorkerHarness world;
  world.Start();
  EXPECT_THAT(BodiesOf(world.sent_to_coordinator_),
              ElementsAre(v1::MemberMessage::kRegister, v1::MemberMessage::kHeartbeat,
                          v1::MemberMessage::kReady));
  world.sent_to_coordinator_.clear();
  world.core_.OnCoordinatorDisconnected(world.now_);
  world.Do();
  world.core_.OnCoordinatorConnected(world.now_);
  world.Do();
  v1::CoordinatorMessage message;
  message.mutable_registered();
  world.Deliver(message);
  EXPECT_THAT(BodiesOf(world.sent_to_coordinator_),
              ElementsAre(v1::MemberMessage::kRegister, v1::MemberMessage::kReady,
                          v1::MemberMessage::kHeartbeat));
}

TEST(WorkerCoreTest, HeartbeatsFollowTheJobsInterval) {
  WorkerHarness world;
  world.job_.mutable_timeouts()->set_heartbeat(0.25);
  world.Start();
  world.sent_to_coordinator_.clear();
  EXPECT_EQ(world.core_.NextDeadline(), world.now_ + absl::Milliseconds(250));
  world.Advance(absl::Milliseconds(249));
  EXPECT_THAT(world.sent_to_coordinator_, IsEmpty());
  world.Advance(absl::Milliseconds(1));
  EXPECT_THAT(BodiesOf(world.sent_to_coordinator_), ElementsAre(v1::MemberMessage::kHeartbeat));
}

TEST(WorkerCoreTest, PushesVersionZeroToTheOwnersOnRequest) {
  WorkerHarness world;
  world.Start();
  world.Deliver(InitializeMessage(world, 1));
  world.ConnectAll();
  ASSERT_THAT(world.reads_, SizeIs(1));
  world.core_.OnInitialTensor(world.reads_[0].init_id, 0, Number(1), world.now_);
  world.Do();
  ASSERT_THAT(world.reads_, SizeIs(2));
  world.core_.OnInitialTensor(world.reads_[1].init_id, 1, Number(2), world.now_);
  world.Do();
  for (ShardId shard : {kShardA, kShardB}) {
    const auto frames = world.TakeSent(shard);
    ASSERT_THAT(frames, SizeIs(1));
    EXPECT_TRUE(frames[0].header.init_push().last());
    EXPECT_EQ(frames[0].header.init_push().init_id().number(), 1u);
    EXPECT_EQ(frames[0].payload.size(), 8u);
  }
}

TEST(WorkerCoreTest, RepeatsInitializationOnNewStreamUntilAnswered) {
  WorkerHarness world;
  world.Start();
  world.Deliver(InitializeMessage(world, 1));
  world.ConnectAll();
  for (uint32_t tensor : {0u, 1u}) {
    world.core_.OnInitialTensor(world.reads_[0].init_id, tensor, Number(1), world.now_);
    world.Do();
  }
  world.TakeSent(kShardA);
  v1::Header initialized;
  *initialized.mutable_initialized()->mutable_init_id() = world.reads_[0].init_id;
  world.Receive(kShardB, initialized);
  world.TakeSent(kShardB);
  for (ShardId shard : {kShardA, kShardB}) {
    world.Break(shard);
    world.Connect(shard);
  }
  EXPECT_THAT(world.TakeSent(kShardA), SizeIs(1));
  EXPECT_THAT(world.TakeSent(kShardB), IsEmpty());
}

TEST(WorkerCoreTest, IgnoresOlderInitRequestAndRestartsForNewerOne) {
  WorkerHarness world;
  world.Start();
  world.Deliver(InitializeMessage(world, 2));
  world.Deliver(InitializeMessage(world, 1));
  EXPECT_THAT(world.reads_, SizeIs(1));
  world.Deliver(InitializeMessage(world, 3));
  ASSERT_THAT(world.reads_, SizeIs(2));
  EXPECT_EQ(world.reads_[1].init_id.number(), 3u);
}

TEST(WorkerCoreTest, InitialTensorOfWrongSizeFailsTheJobAndIsNamed) {
  WorkerHarness world;
  world.Start();
  world.Deliver(InitializeMessage(world, 1));
  world.core_.OnInitialTensor(world.reads_[0].init_id, 0, absl::Cord("x"), world.now_);
  world.Do();
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kFailed);
  EXPECT_THAT(world.exits_[0].message, testing::HasSubstr("tensor a"));
  EXPECT_EQ(world.sent_to_coordinator_.back().body_case(), v1::MemberMessage::kFailure);
}

// ---- evaluation

class EvaluationTest : public testing::Test {
 protected:
  EvaluationTest() {
    world_.Start();
    world_.Install(world_.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
    world_.ConnectAll();
    world_.ReceiveVersion(5);
    world_.TakeSent(kShardA);
    world_.sent_to_coordinator_.clear();
  }
  void Ask(uint64_t evaluation, uint64_t version, uint64_t snapshot) {
    v1::CoordinatorMessage message;
    message.mutable_evaluate()->set_evaluation(evaluation);
    message.mutable_evaluate()->set_version(version);
    message.mutable_evaluate()->set_snapshot_id(snapshot);
    message.mutable_evaluate()->mutable_samples()->set_end(10);
    world_.Deliver(message);
  }
  void Send(uint64_t snapshot, uint32_t partition, ShardId shard) {
    v1::Header header;
    v1::Data& data = *header.mutable_data();
    data.set_snapshot_id(snapshot);
    data.set_version(4);
    data.set_partition(partition);
    data.set_last(true);
    data.add_blocks()->set_block(world_.block_of_[partition]);
    data.mutable_blocks(0)->set_payload_bytes(8);
    world_.Receive(shard, header, Number(1));
  }

  WorkerHarness world_;
};

TEST_F(EvaluationTest, EvaluatesCurrentVersionInPlaceBeforeTheNextStep) {
  Ask(1, /*version=*/5, /*snapshot=*/9);
  ASSERT_THAT(world_.evaluations_, SizeIs(1));
  EXPECT_EQ(world_.evaluations_[0].buffer, ComputeEngine::Buffer::kCurrent);
  world_.FinishAllComputes();
  world_.ReceiveVersion(6);
  EXPECT_THAT(world_.adopted_, ElementsAre(5));  // the evaluation still reads version 5
  ComputeResult result;
  result.loss_sum = 2.5;
  result.samples = 10;
  result.counted = true;
  world_.core_.OnEvaluated(world_.evaluations_[0].id, result, world_.now_);
  world_.Do();
  EXPECT_THAT(world_.adopted_, ElementsAre(5, 6));
  ASSERT_EQ(world_.sent_to_coordinator_.size(), 2u);
  const v1::EvaluationResult& answer = world_.sent_to_coordinator_[1].has_evaluation_result()
                                           ? world_.sent_to_coordinator_[1].evaluation_result()
                                           : world_.sent_to_coordinator_[0].evaluation_result();
  EXPECT_EQ(answer.evaluation(), 1u);
  EXPECT_EQ(answer.loss_sum(), 2.5);
  EXPECT_EQ(answer.count(), 10u);
  EXPECT_TRUE(answer.counted());
  EXPECT_EQ(answer.name().attempt(), world_.view_.id().attempt());
  EXPECT_EQ(answer.name().step(), 5u);
}

TEST_F(EvaluationTest, ResultHasTheStatesOfTheMetrics) {
  Ask(1, /*version=*/5, /*snapshot=*/9);
  ASSERT_THAT(world_.evaluations_, SizeIs(1));
  ComputeResult result;
  result.metrics.emplace_back().set_name("auc");
  result.metrics.back().set_state("a state");
  world_.core_.OnEvaluated(world_.evaluations_[0].id, result, world_.now_);
  world_.Do();
  ASSERT_EQ(world_.sent_to_coordinator_.size(), 1u);
  const v1::EvaluationResult& answer = world_.sent_to_coordinator_[0].evaluation_result();
  ASSERT_EQ(answer.metrics_size(), 1);
  EXPECT_EQ(answer.metrics(0).state(), "a state");
}

TEST_F(EvaluationTest, ComputesMetricsOnceAndAnswersWithTheirValues) {
  v1::CoordinatorMessage message;
  v1::ComputeMetrics& request = *message.mutable_compute_metrics();
  request.set_evaluation(3);
  request.mutable_name()->set_step(5);
  request.add_parts()->add_metrics()->set_state("a state");
  world_.Deliver(message);
  world_.Deliver(message);  // on a new stream
  ASSERT_THAT(world_.computations_, SizeIs(1));
  EXPECT_EQ(world_.computations_[0].request.parts(0).metrics(0).state(), "a state");

  v1::MetricValues values;
  values.add_metrics()->set_value(0.5);
  world_.core_.OnMetricValues(world_.computations_[0].id + 1, values, world_.now_);
  world_.Do();
  EXPECT_THAT(world_.sent_to_coordinator_, IsEmpty()) << "it was not asked for these";

  // A coordinator that takes over numbers its evaluations again.
  request.mutable_parts(0)->mutable_samples()->set_end(100);
  world_.Deliver(message);
  ASSERT_THAT(world_.computations_, SizeIs(2));
  world_.core_.OnMetricValues(world_.computations_[0].id, values, world_.now_);
  world_.Do();
  EXPECT_THAT(world_.sent_to_coordinator_, IsEmpty()) << "of the samples of the older request";
  world_.core_.OnMetricValues(world_.computations_[1].id, values, world_.now_);
  world_.Do();
  ASSERT_EQ(world_.sent_to_coordinator_.size(), 1u);
  EXPECT_EQ(world_.sent_to_coordinator_[0].metric_values().metrics(0).value(), 0.5);
  EXPECT_EQ(world_.sent_to_coordinator_[0].metric_values().evaluation(), 3u);
  EXPECT_EQ(world_.sent_to_coordinator_[0].metric_values().name().step(), 5u);

  for (int i = 0; i < 20; ++i) {
    request.set_evaluation(static_cast<uint64_t>(10 + i));
    world_.Deliver(message);
  }
  EXPECT_THAT(world_.computations_, SizeIs(10)) << "the number that wait is bounded";
  EXPECT_NE(world_.sent_to_coordinator_.back().metric_values().error(), "");
}

TEST_F(EvaluationTest, PullsSnapshotOfAnotherVersionIntoTheEvaluationBuffer) {
  Ask(1, /*version=*/4, /*snapshot=*/9);
  EXPECT_THAT(world_.evaluations_, IsEmpty());
  const auto sent = world_.TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().snapshot_id(), 9u);
  Send(9, 0, kShardA);
  Send(9, 1, kShardB);
  ASSERT_THAT(world_.evaluations_, SizeIs(1));
  EXPECT_EQ(world_.evaluations_[0].buffer, ComputeEngine::Buffer::kEvaluation);
  EXPECT_EQ(world_.stored_.back().buffer, ComputeEngine::Buffer::kEvaluation);
}

// How training ends at a target.
TEST_F(EvaluationTest, FormerMemberEvaluatesInViewWithoutMembers) {
  world_.Install(world_.MakeView(2, 5, {}, 1));
  Ask(1, /*version=*/4, /*snapshot=*/9);
  const auto sent = world_.TakeSent(kShardA);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.pull().snapshot_id(), 9u);
  EXPECT_EQ(sent[0].header.view().number(), 2u);
  Send(9, 0, kShardA);
  Send(9, 1, kShardB);
  ASSERT_THAT(world_.evaluations_, SizeIs(1));
  EXPECT_EQ(world_.evaluations_[0].buffer, ComputeEngine::Buffer::kEvaluation);
}

TEST_F(EvaluationTest, ViewWithoutMembersCancelsNoEvaluation) {
  Ask(1, /*version=*/4, /*snapshot=*/9);
  world_.Install(world_.MakeView(2, 5, {}, 1));
  world_.TakeSent(kShardA);
  EXPECT_THAT(world_.sent_to_coordinator_, IsEmpty()) << "the request is not refused";
}

TEST_F(EvaluationTest, SeveralEvaluationsOfOneSnapshotPullItOnce) {
  Ask(1, 4, 9);
  Ask(2, 4, 9);
  EXPECT_THAT(world_.TakeSent(kShardA), SizeIs(1));
  Send(9, 0, kShardA);
  Send(9, 1, kShardB);
  EXPECT_THAT(world_.evaluations_, SizeIs(2));
}

TEST_F(EvaluationTest, AnswersEvaluationOfReleasedSnapshotWithTheReason) {
  Ask(1, 4, 9);
  v1::Header header;
  *header.mutable_refused()->mutable_newest() = world_.view_;
  header.mutable_refused()->set_reason("an older frame");
  world_.Receive(kShardA, header);
  EXPECT_THAT(world_.sent_to_coordinator_, IsEmpty());
  header.mutable_refused()->set_reason("no snapshot 9");
  header.mutable_refused()->set_snapshot_id(9);
  world_.Receive(kShardA, header);
  ASSERT_THAT(world_.sent_to_coordinator_, SizeIs(1));
  EXPECT_EQ(world_.sent_to_coordinator_[0].evaluation_result().error(), "no snapshot 9");
}

// ---- requests of the program

TEST(WorkerCoreTest, RepeatsRequestsOfTheProgramOnEachNewConnection) {
  WorkerHarness world;
  world.Start();
  world.sent_to_coordinator_.clear();
  world.core_.OnJobRequest(v1::JobRequest::SAVE, "", world.now_);
  world.core_.OnJobRequest(v1::JobRequest::STOP, "enough", world.now_);
  world.core_.OnJobRequest(v1::JobRequest::STOP, "again", world.now_);
  world.core_.OnJobRequest(v1::JobRequest::SAVE, "", world.now_);
  world.Do();
  const auto requests = [&] {
    std::vector<std::string> texts;
    for (const v1::MemberMessage& message : world.sent_to_coordinator_) {
      if (!message.has_job_request()) continue;
      const v1::JobRequest& request = message.job_request();
      texts.push_back(absl::StrCat(v1::JobRequest::Kind_Name(request.kind()), " ", request.number(),
                                   " ", request.reason()));
    }
    return texts;
  };
  EXPECT_THAT(requests(), ElementsAre("SAVE 1 ", "STOP 2 enough", "SAVE 3 "));
  world.core_.OnCoordinatorDisconnected(world.now_);
  world.sent_to_coordinator_.clear();
  world.core_.OnCoordinatorConnected(world.now_);
  v1::CoordinatorMessage registered;
  registered.mutable_registered();
  world.Deliver(registered);
  EXPECT_THAT(requests(), ElementsAre("STOP 2 enough", "SAVE 3 "));
}

// ---- the end

TEST(WorkerCoreTest, AnswersFinishWithLeaveAndEndsTheProcess) {
  WorkerHarness world;
  world.Start();
  world.sent_to_coordinator_.clear();
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(true);
  world.Deliver(message);
  EXPECT_THAT(BodiesOf(world.sent_to_coordinator_), ElementsAre(v1::MemberMessage::kLeave));
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kFinished);
}

TEST(WorkerCoreTest, LeavingMemberContinuesUntilViewWithoutIt) {
  WorkerHarness world;
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
  world.ConnectAll();
  world.sent_to_coordinator_.clear();
  world.core_.OnAskedToStop("SIGTERM", absl::Seconds(10), world.now_);
  world.Do();
  EXPECT_THAT(BodiesOf(world.sent_to_coordinator_), ElementsAre(v1::MemberMessage::kLeave));
  EXPECT_THAT(world.exits_, IsEmpty());
  world.ReceiveVersion(5);
  EXPECT_THAT(world.computes_, SizeIs(1));
  world.Install(world.MakeView(2, 6, {{kOther, {{0, 8}}}}, 1));
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kLeft);
}

// Server-side execution: a shard has already dropped the worker, or the shard is gone.
TEST(WorkerCoreTest, MemberUnknownToItsShardsIsExpelledUnlessLeaving) {
  for (bool leaves : {false, true}) {
    WorkerHarness world;
    world.Start();
    world.Install(world.MakeView(1, 5, {{kSelf, {{0, 4}}}, {kOther, {{4, 8}}}}, 0));
    world.ConnectAll();
    world.ReceiveVersion(5);
    ASSERT_THAT(world.computes_, SizeIs(1));
    if (leaves) {
      world.core_.OnAskedToStop("SIGTERM", absl::Seconds(10), world.now_);
      world.Do();
    }
    EXPECT_THAT(world.exits_, IsEmpty());
    ComputeResult result;
    result.status = absl::UnavailableError("stage 1: has pulled nothing here");
    world.core_.OnComputed(world.computes_.begin()->first, result, world.now_);
    world.Do();
    ASSERT_THAT(world.exits_, SizeIs(1));
    EXPECT_EQ(world.exits_[0].reason, leaves ? ExitReason::kLeft : ExitReason::kExpelled);
  }
}

TEST(WorkerCoreTest, LeaveEndsAfterItsGracePeriod) {
  WorkerHarness world;
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world.core_.OnAskedToStop("SIGTERM", absl::Seconds(10), world.now_);
  world.Do();
  world.Advance(absl::Seconds(9));
  EXPECT_THAT(world.exits_, IsEmpty());
  world.Advance(absl::Seconds(1));
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kLeft);
}

TEST(WorkerCoreTest, SecondLeaveShortensTheGracePeriod) {
  WorkerHarness world;
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world.core_.OnAskedToStop("SIGTERM", absl::Seconds(10), world.now_);
  world.core_.OnAskedToStop("SIGTERM", absl::Seconds(20), world.now_);
  world.core_.OnAskedToStop("SIGTERM", absl::Seconds(1), world.now_);
  world.Do();
  EXPECT_THAT(world.exits_, IsEmpty());
  world.Advance(absl::Seconds(1));
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kLeft);
}

TEST(WorkerCoreTest, ExpelledInstanceEndsSoThatAnotherCanStart) {
  WorkerHarness world;
  world.Start();
  v1::CoordinatorMessage message;
  message.mutable_refusal()->set_code(v1::Refusal::EXPELLED);
  world.Deliver(message);
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kExpelled);
  world.core_.OnTick(world.now_);
  EXPECT_THAT(world.core_.TakeActions(), IsEmpty());
}

class EmptyViewTest : public testing::TestWithParam<v1::Mode> {};

TEST_P(EmptyViewTest, EndsTrainingAndTheWorkerWaitsForFinish) {
  WorkerHarness world(GetParam());
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world.ConnectAll();
  world.Install(world.MakeView(2, 5, {}, 1));
  world.sent_to_coordinator_.clear();
  world.Advance(absl::Seconds(1));
  EXPECT_THAT(world.exits_, IsEmpty());
  EXPECT_THAT(BodiesOf(world.sent_to_coordinator_), ElementsAre(v1::MemberMessage::kHeartbeat));

  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(true);
  world.Deliver(message);
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kFinished);
}

TEST_P(EmptyViewTest, IsNotTheEndForAttemptRestoredAfterIt) {
  WorkerHarness world(GetParam());
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world.ConnectAll();
  world.Install(world.MakeView(2, 5, {}, 1));
  v1::View restored = world.MakeView(3, 0, {{kSelf, {{0, 8}}}}, 0);
  restored.mutable_id()->set_attempt(2);
  world.Install(restored);
  EXPECT_TRUE(world.core_.Status().member);
  EXPECT_THAT(world.TakeSent(kShardA), testing::Not(IsEmpty()));
}

TEST_P(EmptyViewTest, ReleasesALeavingWorker) {
  WorkerHarness world(GetParam());
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world.core_.OnAskedToStop("asked to", absl::Seconds(10), world.now_);
  world.Do();
  world.Install(world.MakeView(2, 5, {}, 1));
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kLeft);
}

INSTANTIATE_TEST_SUITE_P(Modes, EmptyViewTest,
                         testing::Values(v1::SYNCHRONOUS, v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS));

TEST(WorkerCoreTest, AttemptInAnotherModeStartsFreshAndClocksContinue) {
  WorkerHarness world(v1::ASYNCHRONOUS);
  world.Start();
  world.Install(world.MakeView(1, 0, {{kSelf, {}}}, 0));
  world.ConnectAll();
  EXPECT_THAT(world.TakeSent(kShardA), testing::Not(IsEmpty()));  // asks for a lease

  v1::View synchronous = world.MakeView(2, 5, {{kSelf, {{0, 8}}}}, 1);
  synchronous.mutable_id()->set_attempt(2);
  synchronous.set_mode(v1::SYNCHRONOUS);
  world.TakeSent(kShardB);
  world.Install(synchronous);
  for (const auto& frame : world.TakeSent(kShardA)) {
    EXPECT_TRUE(frame.header.has_pull());
    EXPECT_EQ(frame.header.pull().version(), 5u);
  }
  world.ReceiveVersion(5);
  EXPECT_EQ(world.core_.Status().step, 5u);

  v1::View asynchronous = world.MakeView(3, 9, {{kSelf, {}}}, 2);
  asynchronous.mutable_id()->set_attempt(3);
  world.Install(asynchronous);
  bool asked = false;
  for (const auto& frame : world.TakeSent(kShardA)) asked |= frame.header.has_lease_request();
  EXPECT_TRUE(asked);
}

TEST(WorkerCoreTest, FailedModelFailsTheJob) {
  WorkerHarness world;
  world.Start();
  world.core_.OnModelFailed(absl::NotFoundError("no operator foo"), world.now_);
  world.Do();
  EXPECT_EQ(world.sent_to_coordinator_.back().failure().reason(), "no operator foo");
  ASSERT_THAT(world.exits_, SizeIs(1));
  EXPECT_EQ(world.exits_[0].reason, ExitReason::kFailed);
}

TEST(WorkerCoreTest, ReportsStepsWithTheirSamplesAndTimes) {
  WorkerHarness world;
  world.Start();
  world.Install(world.MakeView(1, 5, {{kSelf, {{0, 8}}}}, 0));
  world.ConnectAll();
  world.ReceiveVersion(5);
  world.sent_to_coordinator_.clear();
  world.Advance(absl::Milliseconds(20));
  world.FinishAllComputes();
  world.Advance(absl::Milliseconds(10));
  world.ReceiveData(kShardA, 6, 0, 6);
  world.Advance(absl::Microseconds(500));
  world.ReceiveData(kShardB, 6, 1, 6);
  ASSERT_FALSE(world.sent_to_coordinator_.empty());
  const v1::WorkerProgress& progress = world.sent_to_coordinator_.back().worker_progress();
  ASSERT_EQ(progress.steps_size(), 1);
  EXPECT_EQ(progress.steps(0).step(), 5u);
  EXPECT_EQ(progress.steps(0).samples(), 8u);
  EXPECT_NEAR(progress.wait_seconds(), 0.010, 1e-9);
  EXPECT_NEAR(progress.pull_seconds(), 0.0005, 1e-9);
}

}  // namespace
}  // namespace sluice::worker

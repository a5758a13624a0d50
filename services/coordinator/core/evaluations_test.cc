// Evaluation by a whole coordinator: which versions, by which workers, up to the target.

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/snapshot_schedule.h"

namespace sluice::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CoordinatorEvaluation, MembersShareHeldOutSamplesAtOneVersion) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  job.Train(6);
  ASSERT_EQ(job.workers[0]->evaluations.size(), 1u);
  ASSERT_EQ(job.workers[1]->evaluations.size(), 1u);

  const v1::Evaluate& first = job.workers[0]->evaluations[0];
  const v1::Evaluate& second = job.workers[1]->evaluations[0];
  EXPECT_EQ(first.version(), 5);
  EXPECT_EQ(first.samples().begin(), 0);
  EXPECT_EQ(first.samples().end(), second.samples().begin());
  EXPECT_EQ(second.samples().end(), 1000);

  const v1::Evaluation result = job.Progress().last_evaluation();
  EXPECT_EQ(result.step(), 5);
  EXPECT_EQ(result.samples(), 1000);
  EXPECT_DOUBLE_EQ(result.loss(), 0.5);
  EXPECT_TRUE(result.has_accuracy());
  EXPECT_DOUBLE_EQ(result.accuracy(), 5);
  EXPECT_DOUBLE_EQ(result.epoch(), 0.05);
  EXPECT_TRUE(job.HasEvent("evaluation at step 5: loss 0.5000, accuracy 5.00 %"));
  EXPECT_FALSE(job.shards[0]->snapshot.has_value() && job.shards[0]->snapshot->step() == 5)
      << "the pin is released";
}

TEST(CoordinatorEvaluation, WarnsOnceIfWorkersHaveNoEvaluationData) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_data()->mutable_evaluation()->set_max_samples(10);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  const v1::JobProgress progress = job.Progress();
  int warnings = 0;
  for (const v1::Event& event : progress.events()) {
    if (event.kind() != v1::Event::WARNING) continue;
    EXPECT_THAT(event.message(), HasSubstr("nothing is evaluated"));
    ++warnings;
  }
  EXPECT_EQ(warnings, 1);
}

// Trains as far as possible while no worker answers the current evaluation.
void TrainWithoutEvaluating(FakeJob& job) {
  for (FakeWorker* worker : job.Workers()) worker->evaluates = false;
  job.Train(20);
}

void LetEvaluate(FakeJob& job) {
  for (FakeWorker* worker : job.Workers()) {
    worker->evaluates = true;
    job.Break(*worker);  // the coordinator repeats open requests
    job.Connect(*worker);
  }
}

TEST(CoordinatorEvaluation, EvaluatesExactlyTheDueVersionsAtAnySpeed) {
  FakeJob job(EvaluateEvery(1));
  job.Start();
  for (int step = 0; step < 7; ++step) {  // a version is committed by the step after it
    job.CloseOn(job.Shards());            // before the coordinator learns of the previous step
    job.Pass(absl::Milliseconds(100));
  }
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(CoordinatorEvaluation, TrainingStopsAtDueVersionWhileAnotherIsEvaluated) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  EXPECT_FALSE(job.Progress().has_evaluating_step());
  TrainWithoutEvaluating(job);
  EXPECT_EQ(job.Version(), 6);
  EXPECT_THAT(EvaluatedSteps(job), IsEmpty());
  EXPECT_EQ(job.Progress().evaluating_step(), 3);
  LetEvaluate(job);
  job.Train(10);
  EXPECT_FALSE(job.Progress().has_evaluating_step());
  EXPECT_EQ(job.Version(), 16);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(3, 6, 9, 12, 15));
}

TEST(CoordinatorEvaluation, JoinAtBarrierSkipsNoDueVersion) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  TrainWithoutEvaluating(job);
  job.AddWorker(2);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 3);
  EXPECT_EQ(job.core->view().first_step(), 6);
  job.Train(3);
  EXPECT_EQ(job.Version(), 6);
  LetEvaluate(job);
  job.Train(2);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(3, 6));
}

TEST(CoordinatorEvaluation, ReturningShardGetsBarrierAgain) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  job.Train(4);
  FakeShard& shard = *job.shards[0];
  EXPECT_EQ(shard.barrier, 9) << "the snapshot of 6 is open";
  job.Break(shard);
  shard.barrier = 0;
  job.Connect(shard);
  job.Pass(absl::Milliseconds(100));
  EXPECT_EQ(shard.barrier, 9);
}

TEST(CoordinatorEvaluation, TrainingDoesNotWaitLongForSlowStorage) {
  v1::JobSpec spec = EvaluateEvery(4);
  spec.mutable_checkpoint()->set_interval_steps(4);
  FakeJob job(spec);
  job.Start();
  job.hold_checkpoint_index = true;
  job.Train(20);
  EXPECT_EQ(job.Version(), 8) << "4 is being saved, and 8 is due for evaluation";
  job.Train(100);  // 10 s
  EXPECT_EQ(job.Version(), 20);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(4, 20)) << "and the final version";
}

TEST(CoordinatorEvaluation, ShardThatMissedMovedBarrierDoesNotBlockViewChange) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  TrainWithoutEvaluating(job);
  FakeShard& informed = *job.shards[0];
  FakeShard& deaf = *job.shards[1];
  job.Break(deaf);
  LetEvaluate(job);
  EXPECT_EQ(informed.barrier, 9);
  EXPECT_EQ(deaf.barrier, 6);

  job.CloseOn({&informed});
  EXPECT_EQ(informed.version, 7);
  job.AddWorker(2);
  job.Pass(absl::Milliseconds(200));
  job.Connect(deaf);  // it learns of the view change first
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 3);
  job.Train(10);
  EXPECT_EQ(job.Version(), 16);
}

TEST(CoordinatorEvaluation, ShardThatLearnsOfBarrierTooLateStopsNoShard) {
  v1::JobSpec spec = EvaluateEvery(4);
  spec.mutable_training()->set_steps(60);
  spec.mutable_checkpoint()->set_interval_steps(3);
  FakeJob job(spec);
  job.Start();
  job.hold_checkpoint_index = true;
  for (int i = 0; job.Version() < 6 && i < 200; ++i) job.Train();
  ASSERT_EQ(job.Version(), 6) << "the storage has held training for the maximum time";

  FakeShard& late = *job.shards[0];
  FakeShard& other = *job.shards[1];
  late.frozen = true;
  job.hold_checkpoint_index = false;
  v1::CheckpointRef saved;
  saved.set_attempt(1);
  saved.set_step(3);
  job.core->OnCheckpointIndexWritten(saved, absl::OkStatus(), job.now);
  job.Pump();
  ASSERT_GT(other.barrier, 6);
  ASSERT_EQ(late.barrier, 0);

  while (other.version < other.barrier) job.CloseOn(job.Shards());
  const uint64_t missed = other.barrier;
  ASSERT_TRUE(other.snapshot.has_value());
  // One partition of the shard has closed the step. The others have received the barrier, and stop.
  v1::MemberMessage past;
  past.mutable_snapshot_failed()->set_snapshot_id(other.snapshot->snapshot_id());
  *past.mutable_snapshot_failed()->mutable_view() = late.view.id();
  past.mutable_snapshot_failed()->set_past(missed + 1);
  *past.mutable_snapshot_failed()->mutable_name() = other.snapshot->name();
  late.waiting.clear();
  late.barrier = missed;
  late.frozen = false;
  late.Say(past);
  job.Pump();
  EXPECT_NE(late.barrier, missed);
  EXPECT_NE(other.barrier, missed);

  job.Train(10);
  EXPECT_GT(job.Version(), missed + 5);
  EXPECT_THAT(EvaluatedSteps(job), Contains(missed + 4));
}

TEST(CoordinatorEvaluation, EvaluatesDueVersionThatAttemptBeginsWith) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->evaluates = false;
  job.Train(6);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 5}), 1u);
  EXPECT_THAT(EvaluatedSteps(job), IsEmpty());

  for (FakeWorker* worker : job.Workers()) worker->evaluates = true;
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  ASSERT_EQ(job.core->view().first_step(), 5);

  job.Train(6);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(5, 10));
  job.Kill(*job.shards[1]);
  job.AddShard(1);
  ASSERT_EQ(job.core->view().first_step(), 10);
  job.Train(6);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(5, 10, 15)) << "10 is evaluated";
}

TEST(CoordinatorEvaluation, TrainingContinuesAfterAbandonedEvaluation) {
  FakeJob job(EvaluateEvery(3));
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->evaluation_error = "no memory";
  job.Train(7);
  EXPECT_EQ(job.Version(), 7);
}

// Regression of the fake shard, which repeated no reports on a new stream.
TEST(CoordinatorEvaluation, EndsAfterPinWasReportedOnBrokenStream) {
  FakeJob job(EvaluateEvery(7));
  job.Start();
  job.Train(19);
  FakeShard& shard = *job.shards[1];
  shard.frozen = true;
  job.Train();
  job.Break(shard);
  shard.frozen = false;
  job.Pump();  // it reads OpenSnapshot from the broken stream
  ASSERT_TRUE(shard.reported);
  ASSERT_FALSE(job.Progress().last_evaluation().final());

  // The shard returns during a view change, so the coordinator does not repeat OpenSnapshot.
  job.Kill(*job.workers[0]);
  job.Connect(shard);
  EXPECT_EQ(job.core->view().workers_size(), 1);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

// Regression of the fake shard, which kept pins of versions above a view's first step.
TEST(CoordinatorEvaluation, ShardThatReceivesPartitionsPinsAgain) {
  v1::JobSpec spec = EvaluateEvery(7);
  spec.mutable_parameter_server()->set_replicas(1);
  spec.mutable_parameter_server()->set_copies(2);
  FakeJob job(spec);
  job.elements = 10'000'000;  // all partitions have blocks
  job.Start();
  job.Train(1);
  job.ScaleShards(2);
  FakeShard& joined = job.AddShard(1);
  job.Train(2);
  ASSERT_TRUE(joined.has_view);
  ASSERT_TRUE(joined.Owned().empty());
  ASSERT_TRUE(joined.reported);  // it has nothing to pin
  job.Pass(absl::Seconds(1));    // its copies become whole
  job.Train(2);
  ASSERT_FALSE(joined.Owned().empty());
  ASSERT_LT(job.Version(), 7);
  EXPECT_FALSE(joined.reported);

  job.Train(5);
  EXPECT_TRUE(job.HasEvent("evaluation at step 7"));
}

TEST(CoordinatorEvaluation, ReportsPerplexityOfLanguageModel) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->set_format(v1::DataSpec::TEXT);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  EXPECT_TRUE(job.Progress().last_evaluation().has_perplexity());
  EXPECT_DOUBLE_EQ(job.Progress().last_evaluation().perplexity(), std::exp(0.5));
  FakeJob other(EvaluateEvery(5));
  other.Start();
  other.Train(6);
  EXPECT_FALSE(other.Progress().last_evaluation().has_perplexity());
}

TEST(CoordinatorEvaluation, LowPerplexityEndsTraining) {
  for (const bool reached : {true, false}) {
    v1::JobSpec spec = EvaluateEvery(5);
    spec.mutable_data()->set_format(v1::DataSpec::TEXT);
    spec.mutable_training()->mutable_target()->set_metric("perplexity");
    spec.mutable_training()->mutable_target()->set_goal("AtMost");
    spec.mutable_training()->mutable_target()->set_value(reached ? 1.65 : 1.64);
    FakeJob job(spec);
    job.Start();
    job.Train(12);
    EXPECT_EQ(job.exit.has_value(), reached);
  }
}

TEST(CoordinatorEvaluation, RangeOfDeadEvaluatorGoesToAnother) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  job.workers[0]->evaluates = false;
  job.Train(6);
  EXPECT_FALSE(job.Progress().has_last_evaluation());
  job.Kill(*job.workers[0]);
  EXPECT_EQ(job.workers[1]->evaluations.size(), 2u);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, ReturningEvaluatorIsAskedAgain) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  FakeWorker& worker = *job.workers[0];
  worker.evaluates = false;
  job.Train(6);
  job.Break(worker);
  worker.evaluates = true;
  job.Connect(worker);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, SharesSnapshotWithCheckpointAtSameStep) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_checkpoint()->set_interval_steps(10);
  FakeJob job(spec);
  job.Start();
  job.Train(12);
  EXPECT_THAT(SavedSteps(job), ElementsAre(10));
  EXPECT_EQ(job.Progress().last_evaluation().step(), 10);
}

TEST(CoordinatorEvaluation, GivesUpAfterRepeatedFailures) {
  FakeJob job(EvaluateEvery(5));
  job.Start();
  job.workers[0]->evaluation_error = "pinned version is gone";
  job.workers[1]->evaluation_error = "pinned version is gone";
  job.Train(7);
  EXPECT_TRUE(job.HasEvent("no evaluation at step 5: pinned version is gone"));
  job.workers[0]->evaluation_error = job.workers[1]->evaluation_error = "";
  job.Train(4);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 10);
}

TEST(CoordinatorEvaluation, CompleteJobIsEvaluatedBeforeItEnds) {
  FakeJob job(EvaluateEvery(50));
  job.Start();
  job.workers[0]->evaluates = false;
  job.Train(20);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);
  EXPECT_FALSE(job.exit.has_value());
  job.Kill(*job.workers[0]);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

TEST(CoordinatorEvaluation, EvaluatesFirstSamplesDuringTrainingAndAllAtTheEnd) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->mutable_evaluation()->set_max_samples(300);
  FakeJob job(spec);
  job.Start();
  job.Train(6);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 300);
  EXPECT_FALSE(job.Progress().last_evaluation().final());

  job.Train(14);
  ASSERT_TRUE(job.exit.has_value());
  std::vector<std::pair<uint64_t, uint64_t>> reported;  // step, samples of reported evaluations
  const v1::JobProgress progress = job.Progress();
  for (const v1::Event& event : progress.events()) {
    if (!event.has_evaluation()) continue;
    reported.emplace_back(event.evaluation().step(), event.evaluation().samples());
    EXPECT_EQ(event.evaluation().final(), event.evaluation().samples() == 1000);
  }
  using Reported = std::pair<uint64_t, uint64_t>;
  EXPECT_THAT(reported, ElementsAre(Reported{5, 300}, Reported{10, 300}, Reported{15, 300},
                                    Reported{20, 300}, Reported{20, 1000}));
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, NewWorkerRepeatsLastEvaluationIfAllWorkersDie) {
  FakeJob job(EvaluateEvery(50));
  job.Start();
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(20);
  job.Kill(*job.workers[0]);
  job.Kill(*job.workers[1]);
  EXPECT_FALSE(job.exit.has_value());
  job.AddWorker(0);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.Progress().last_evaluation().step(), 20);
}

v1::JobSpec UpToAccuracy(double accuracy) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_data()->mutable_evaluation()->set_max_samples(300);
  spec.mutable_training()->mutable_target()->set_metric("accuracy");
  spec.mutable_training()->mutable_target()->set_goal("AtLeast");
  spec.mutable_training()->mutable_target()->set_value(accuracy);
  return spec;
}

TEST(CoordinatorEvaluation, EvaluatesSavedVersionOnAllSamplesAtTarget) {
  FakeJob job(UpToAccuracy(9.5));
  job.Start();
  job.Train(17);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  const v1::JobProgress progress = job.Progress();
  EXPECT_EQ(progress.last_evaluation().samples(), 1000);
  EXPECT_TRUE(progress.last_evaluation().final());
  EXPECT_EQ(progress.last_evaluation().step(), SavedSteps(job).back());
}

// Answers the open requests, and no later ones.
void AnswerNow(FakeJob& job, FakeWorker& worker) {
  job.Break(worker);
  worker.evaluates = true;
  job.Connect(worker);
  worker.evaluates = false;
}

TEST(CoordinatorEvaluation, NewWorkerEvaluatesForDeadWorkersAtTarget) {
  FakeJob job(UpToAccuracy(9.5));
  job.Start();
  job.Train(9);
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(2);
  AnswerNow(job, *job.workers[0]);
  AnswerNow(job, *job.workers[1]);
  job.Train(6);  // to the step at which training should stop
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_EQ(job.core->view().workers_size(), 0);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);

  job.Kill(*job.workers[0]);
  job.Kill(*job.workers[1]);
  EXPECT_FALSE(job.exit.has_value());
  job.AddWorker(0);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, FormerMembersEvaluateLayersOfShardsAtTarget) {
  v1::JobSpec spec = UpToAccuracy(9.5);
  spec.mutable_training()->set_execution(v1::TrainingSpec::SERVER);
  FakeJob job(spec);
  job.Start();
  job.Train(9);
  job.workers[0]->evaluates = job.workers[1]->evaluates = false;
  job.Train(2);
  AnswerNow(job, *job.workers[0]);
  AnswerNow(job, *job.workers[1]);
  job.Train(6);  // to the step at which training should stop
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::EVALUATING);

  FakeWorker& newcomer = job.AddWorker(2);
  job.Kill(*job.workers[0]);  // its range goes to other members
  FakeWorker& member = *job.workers[1];
  member.evaluates = true;
  for (const v1::Evaluate& asked : std::exchange(member.evaluations, {})) {
    v1::CoordinatorMessage again;
    *again.mutable_evaluate() = asked;
    member.OnMessage(again);
  }
  job.Pump();
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_THAT(newcomer.evaluations, IsEmpty());
  EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
}

TEST(CoordinatorEvaluation, JobEndsWhenTargetIsReached) {
  v1::JobSpec spec = EvaluateEvery(5);
  spec.mutable_training()->mutable_target()->set_metric("accuracy");
  spec.mutable_training()->mutable_target()->set_goal("AtLeast");
  spec.mutable_training()->mutable_target()->set_value(9.5);
  FakeJob job(spec);
  job.Start();
  job.Train(9);
  EXPECT_FALSE(job.exit.has_value());

  job.Train(8);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_THAT(job.exit->message, HasSubstr("target"));
  EXPECT_EQ(job.Progress().last_evaluation().step(), job.Version());
  EXPECT_TRUE(job.Progress().last_evaluation().final());
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  EXPECT_EQ(SavedSteps(job)[0], job.Version());
  EXPECT_LT(job.Version(), 20);
  EXPECT_TRUE(job.claims.back().end());
}

}  // namespace
}  // namespace sluice::coordinator

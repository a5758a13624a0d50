// Evaluations that change the learning rate or end training, by a whole coordinator.

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

// 20 steps, evaluated at each third one. The loss never improves.
v1::JobSpec PlateauSpec() {
  v1::JobSpec spec = EvaluateEvery(3);
  v1::OptimizerSpec::Plateau& plateau = *spec.mutable_optimizer()->mutable_plateau();
  plateau.set_metric("loss");
  plateau.set_factor(0.5);
  plateau.set_patience(1);
  return spec;
}

v1::JobSpec StoppingSpec(uint64_t patience) {
  v1::JobSpec spec = EvaluateEvery(3);
  spec.mutable_training()->mutable_stopping()->set_metric("loss");
  spec.mutable_training()->mutable_stopping()->set_patience(patience);
  return spec;
}

// Best at 3; reduced at 9 and at 15.
std::map<uint64_t, double> ExpectedFactors() {
  std::map<uint64_t, double> factors;
  for (uint64_t step = 0; step < 20; ++step) {
    factors[step] = step < 9 ? 1 : step < 15 ? 0.5 : 0.25;
  }
  return factors;
}

void StopEvaluating(FakeJob& job) {
  for (FakeWorker* worker : job.Workers()) worker->evaluates = false;
}

void LetEvaluate(FakeJob& job) {
  for (FakeWorker* worker : job.Workers()) {
    worker->evaluates = true;
    job.Break(*worker);  // the coordinator repeats open requests
    job.Connect(*worker);
  }
}

void TrainTo(FakeJob& job, uint64_t version) {
  for (int i = 0; i < 40 && job.Version() < version; ++i) job.Train(1);
  ASSERT_EQ(job.Version(), version);
}

void Finish(FakeJob& job) {
  for (int i = 0; i < 40 && !job.exit.has_value(); ++i) job.Train(1);
  ASSERT_TRUE(job.exit.has_value());
}

void ExpectFactors(FakeJob& job) {
  for (FakeShard* shard : job.Shards()) EXPECT_EQ(shard->learning_rate_factors, ExpectedFactors());
}

TEST(CoordinatorDecisions, LearningRateChangesExactlyAtTheEvaluatedVersion) {
  FakeJob job(PlateauSpec());
  job.Start();
  Finish(job);
  ExpectFactors(job);
  EXPECT_EQ(job.core->decisions().learning_rate_factor(), 0.25);
  EXPECT_TRUE(
      job.HasEvent("learning rate × 0.5 from step 9: loss has not improved on 0.5 (step 3) "
                   "for 2 evaluations; its factor is now 0.5"));
}

TEST(CoordinatorDecisions, TrainingWaitsAtTheVersionUntilItIsEvaluated) {
  FakeJob job(PlateauSpec());
  job.Start();
  StopEvaluating(job);
  job.Train(20);
  EXPECT_EQ(job.Version(), 3);
  job.Pass(absl::Seconds(30));
  job.Train(20);
  EXPECT_EQ(job.Version(), 3) << "however long it takes";
  LetEvaluate(job);
  Finish(job);
  ExpectFactors(job);
}

// A checkpoint that is being saved delays the evaluation; the shards wait.
TEST(CoordinatorDecisions, SkipsNoEvaluationForSlowStorage) {
  v1::JobSpec spec = PlateauSpec();
  spec.mutable_checkpoint()->set_interval_steps(2);
  FakeJob job(spec);
  job.Start();
  job.hold_checkpoint_index = true;
  job.Train(20);
  job.Pass(absl::Seconds(60));
  job.Train(20);
  EXPECT_EQ(job.Version(), 3);
}

TEST(CoordinatorDecisions, AnotherCoordinatorDecidesTheSame) {
  for (int at = 1; at < 20; ++at) {
    FakeJob job(PlateauSpec());
    job.Start();
    job.Train(at);
    job.RestartCoordinator();
    Finish(job);
    ExpectFactors(job);
    EXPECT_EQ(job.claims.size(), 2u) << "one attempt, and the end";
  }
}

TEST(CoordinatorDecisions, AnotherCoordinatorEvaluatesTheVersionAtWhichShardsWait) {
  FakeJob job(PlateauSpec());
  job.Start();
  TrainTo(job, 7);
  StopEvaluating(job);
  job.Train(7);
  EXPECT_EQ(job.Version(), 9);
  for (FakeWorker* worker : job.Workers()) worker->evaluates = true;
  job.RestartCoordinator();
  Finish(job);
  ExpectFactors(job);
}

TEST(CoordinatorDecisions, RestoredAttemptContinuesWithTheDecisionsOfItsCheckpoint) {
  for (const uint64_t interval : {1, 2, 3, 5}) {
    for (int at = 4; at < 18; ++at) {
      v1::JobSpec spec = PlateauSpec();
      spec.mutable_checkpoint()->set_interval_steps(interval);
      FakeJob job(spec);
      job.Start();
      job.Train(at);
      job.Kill(*job.shards[0]);
      job.AddShard(0);
      job.Pass(absl::Seconds(1));
      Finish(job);
      std::map<uint64_t, double> factors = job.shards[0]->learning_rate_factors;
      for (FakeShard* shard : job.Shards()) {
        for (const auto& [step, factor] : shard->learning_rate_factors) factors[step] = factor;
      }
      EXPECT_EQ(factors, ExpectedFactors())
          << "checkpoints each " << interval << ", killed at " << at;
    }
  }
}

TEST(CoordinatorDecisions, SuspendedJobEvaluatesTheVersionAtWhichItWaited) {
  FakeJob job(PlateauSpec());
  job.Start();
  TrainTo(job, 7);
  StopEvaluating(job);
  job.Train(7);
  v1::SetDesiredRequest suspend;
  suspend.set_suspend(true);
  job.core->OnSetDesired(suspend, job.now);
  job.Pass(absl::Seconds(5));
  ASSERT_TRUE(job.exit.has_value());
  ASSERT_EQ(job.checkpoint_indexes.count({1, 9}), 1u);
  const v1::CheckpointIndex& index = job.checkpoint_indexes.at({1, 9});
  EXPECT_EQ(index.decisions().step(), 6);
  EXPECT_EQ(index.decisions().plateau().without_improvement(), 1);
}

TEST(CoordinatorDecisions, JobStopsAtTheEvaluatedVersionAndHasSucceeded) {
  FakeJob job(StoppingSpec(2));
  job.Start();
  Finish(job);
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.exit->message,
            "stopped at step 9: loss has not improved on 0.5 (step 3) for 2 evaluations");
  EXPECT_EQ(job.Version(), 9);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 9}), 1u);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(3, 6, 9));
  ASSERT_EQ(job.claims.size(), 2u);
  EXPECT_TRUE(job.claims[1].end());
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SUCCEEDED);
}

TEST(CoordinatorDecisions, AnotherCoordinatorStopsAtTheSameStep) {
  for (int at = 1; at < 10; ++at) {
    FakeJob job(StoppingSpec(2));
    job.Start();
    job.hold_checkpoint_index = at == 9;  // after the decision, before the end
    job.Train(at);
    job.Pass(absl::Seconds(1));
    job.hold_checkpoint_index = false;
    job.RestartCoordinator();
    Finish(job);
    EXPECT_EQ(job.Version(), 9) << at;
    EXPECT_THAT(job.exit->message, HasSubstr("stopped at step 9")) << at;
  }
}

TEST(CoordinatorDecisions, JobThatWasRestoredAfterItsStopTrainsNoMore) {
  FakeJob job(StoppingSpec(2));
  job.Start();
  job.claim_error = absl::UnavailableError("input/output error");
  job.Train(12);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 9}), 1u);
  EXPECT_EQ(job.claims.size(), 1u) << "the end is not recorded";
  job.claim_error = absl::OkStatus();
  job.RestartAlone();
  for (FakeShard* shard : job.Shards()) job.Kill(*shard);
  job.AddShard(0);
  if (job.spec.parameter_server().replicas() > 1) job.AddShard(1);
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  job.Pass(absl::Seconds(1));
  Finish(job);
  EXPECT_EQ(job.Version(), 9);
  EXPECT_THAT(job.exit->message, HasSubstr("stopped at step 9"));
}

TEST(CoordinatorDecisions, JobThatContinuesWithAnotherMetricForgetsTheOldOnesHistory) {
  v1::JobSpec spec = StoppingSpec(2);
  spec.mutable_checkpoint()->set_interval_steps(1);
  FakeJob job(spec);
  job.traits.add_metrics("samples");
  job.Start();
  TrainTo(job, 8);  // the loss was best at 3, and not better at 6
  v1::TrainingSpec::Stopping& stopping = *job.options.job.mutable_training()->mutable_stopping();
  stopping.set_metric("samples");
  stopping.set_direction(v1::MAXIMIZE);
  job.RestartAlone();
  for (FakeShard* shard : job.Shards()) job.Kill(*shard);
  job.AddShard(0);
  if (job.spec.parameter_server().replicas() > 1) job.AddShard(1);
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  job.Pass(absl::Seconds(1));
  Finish(job);
  EXPECT_EQ(job.exit->message,
            "stopped at step 15: samples has not improved on 1000 (step 9) for 2 evaluations");
}

TEST(CoordinatorDecisions, LossThatIsNotFiniteIsNoImprovement) {
  FakeJob job(StoppingSpec(1));
  job.loss = [](uint64_t version) { return version < 6 ? 0.5 : std::nan(""); };
  job.Start();
  Finish(job);
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.exit->message,
            "stopped at step 6: loss has not improved on 0.5 (step 3) for 1 evaluation; it is nan "
            "at step 6");
}

TEST(CoordinatorDecisions, UnknownMetricFailsTheJobAtItsStart) {
  v1::JobSpec spec = StoppingSpec(1);
  spec.mutable_training()->mutable_stopping()->set_metric("auc");
  FakeJob job(spec);
  job.Start();
  job.Pass(absl::Seconds(5));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message,
              HasSubstr("have no such metric: they have loss, accuracy, perplexity"));
}

TEST(CoordinatorDecisions, AsynchronousLearningRateChangesWithTheNextView) {
  v1::JobSpec spec = PlateauSpec();
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  spec.mutable_optimizer()->mutable_plateau()->set_patience(0);
  FakeJob job(spec);
  job.Start();
  for (int i = 0; i < 8; ++i) {
    job.Update(*job.workers[0], 32);
    job.Pass(absl::Milliseconds(300));
  }
  EXPECT_TRUE(job.HasEvent("learning rate × 0.5"));
  for (FakeShard* shard : job.Shards()) {
    EXPECT_EQ(shard->installs.back().decisions().learning_rate_factor(), 0.5);
  }
}

// ---- the best checkpoints

TEST(CoordinatorDecisions, KeepsTheCheckpointsOfTheBestEvaluations) {
  v1::JobSpec spec = EvaluateEvery(2);
  spec.mutable_checkpoint()->set_interval_steps(100);
  spec.mutable_checkpoint()->set_max_to_keep(1);
  spec.mutable_checkpoint()->mutable_keep_best()->set_metric("loss");
  spec.mutable_checkpoint()->mutable_keep_best()->set_count(2);
  FakeJob job(spec);
  // 5, 3, 4, 3, 9, ...: the best two are those of steps 4 and 8, of which 4 is the better.
  job.loss = [](uint64_t version) {
    const std::map<uint64_t, double> losses = {{2, 5}, {4, 3}, {6, 4}, {8, 3}};
    const auto found = losses.find(version);
    return found == losses.end() ? 9.0 : found->second;
  };
  job.Start();
  TrainTo(job, 11);
  EXPECT_TRUE(job.HasEvent("the checkpoint of step 4 is the best one: loss 3"));
  EXPECT_FALSE(job.HasEvent("the checkpoint of step 8 is the best one"));
  job.RestartCoordinator();
  Finish(job);
  std::vector<uint64_t> kept;
  for (const auto& [key, index] : job.checkpoint_indexes) {
    if (job.deleted.count(key) == 0) kept.push_back(key.second);
  }
  EXPECT_THAT(kept, ElementsAre(4, 8, 20));
  EXPECT_EQ(job.checkpoint_indexes.count({1, 10}), 0u) << "its evaluation is not among the best";
  EXPECT_EQ(job.checkpoint_indexes.at({1, 4}).metrics(0).value(), 3);
  EXPECT_EQ(job.checkpoint_indexes.at({1, 4}).keep_best().name(), "loss");
}

// ---- requests of programs

void Ask(FakeJob& job, FakeWorker& worker, v1::JobRequest::Kind kind, uint64_t number,
         const std::string& reason = "") {
  v1::MemberMessage message;
  message.mutable_job_request()->set_kind(kind);
  message.mutable_job_request()->set_number(number);
  message.mutable_job_request()->set_reason(reason);
  worker.Say(message);
  job.Pump();
}

TEST(CoordinatorRequests, JobEndsAsSucceededWithTheFirstReason) {
  FakeJob job(EvaluateEvery(100));
  job.Start();
  job.Train(7);
  Ask(job, *job.workers[1], v1::JobRequest::STOP, 1, "the plan is done");
  Ask(job, *job.workers[0], v1::JobRequest::STOP, 1, "later");
  Ask(job, *job.workers[1], v1::JobRequest::STOP, 1, "repeated");
  job.Train(10);  // the view without workers comes after a step
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  const uint64_t last = job.Version();
  EXPECT_LE(last, 10u);
  EXPECT_EQ(job.exit->message, absl::StrCat("stopped at step ", last,
                                            " by the program of worker-1: the plan is done"));
  EXPECT_EQ(job.checkpoint_indexes.count({1, last}), 1u);
  EXPECT_THAT(EvaluatedSteps(job), ElementsAre(last));
  EXPECT_TRUE(job.claims.back().end());
}

TEST(CoordinatorRequests, StopBeforeTrainingBeginsAndDuringTheLastStepIsQuiet) {
  FakeJob early(FakeJob::Spec());
  early.AddShard(0);
  early.AddShard(1);
  FakeWorker& worker = early.AddWorker(0);
  early.Pump();
  Ask(early, worker, v1::JobRequest::STOP, 1, "at once");
  early.AddWorker(1);
  early.Pass(absl::Seconds(30));
  ASSERT_TRUE(early.exit.has_value());
  EXPECT_EQ(early.exit->reason, ExitReason::kSucceeded);
  EXPECT_THAT(early.exit->message, HasSubstr("stopped at step 0"));

  FakeJob late(FakeJob::Spec());
  late.Start();
  late.hold_checkpoint_index = true;
  late.Train(20);
  Ask(late, *late.workers[0], v1::JobRequest::STOP, 1, "too late");
  late.hold_checkpoint_index = false;
  EXPECT_FALSE(late.HasEvent("too late"));
}

TEST(CoordinatorRequests, SuspendedJobIsSuspended) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(5);
  v1::SetDesiredRequest suspend;
  suspend.set_suspend(true);
  job.core->OnSetDesired(suspend, job.now);
  Ask(job, *job.workers[0], v1::JobRequest::STOP, 1, "stop");
  job.Train(10);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
}

TEST(CoordinatorRequests, ProgramGetsACheckpointOfTheNextVersion) {
  FakeJob job(CheckpointEvery(15));
  job.Start();
  job.Train(4);
  Ask(job, *job.workers[0], v1::JobRequest::SAVE, 1);
  Ask(job, *job.workers[0], v1::JobRequest::SAVE, 1);
  job.Train(8);
  ASSERT_EQ(SavedSteps(job).size(), 1u);
  EXPECT_GE(SavedSteps(job)[0], 4u);
  EXPECT_LE(SavedSteps(job)[0], 6u);
  job.Train(20);
  EXPECT_THAT(SavedSteps(job), Contains(15u)) << "the schedule continues";
}

TEST(CoordinatorRequests, UnknownRequestBreaksTheProtocol) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  Ask(job, *job.workers[0], v1::JobRequest::UNSPECIFIED, 1);
  EXPECT_TRUE(job.HasEvent("a JobRequest of no known kind"));
}

}  // namespace
}  // namespace sluice::coordinator

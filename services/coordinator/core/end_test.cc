// The end of a job: complete, suspended, failed, or ended by another coordinator.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

TEST(CoordinatorEnd, CompleteJobSavesRecordsEndAndReleasesWorkersBeforeShards) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.shards[0]->silent_snapshots = true;
  job.Train(20);
  EXPECT_EQ(job.Version(), 20);
  EXPECT_EQ(job.shards[0]->committed, 20) << "the shards know that the last version is committed";
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SAVING);
  EXPECT_EQ(job.claims.size(), 1u) << "no end record without the checkpoint index";

  job.shards[0]->silent_snapshots = false;
  job.Break(*job.shards[0]);
  job.Connect(*job.shards[0]);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 20}), 1u);
  ASSERT_EQ(job.claims.size(), 2u);
  EXPECT_TRUE(job.claims[1].end());
  EXPECT_EQ(job.claims[1].attempt(), 2);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);

  for (FakeWorker* worker : job.Workers()) EXPECT_TRUE(worker->finished);
  for (FakeShard* shard : job.Shards()) EXPECT_TRUE(shard->finished);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SUCCEEDED);
  EXPECT_EQ(job.Progress().step(), 20);
  EXPECT_EQ(job.Progress().samples(), 640);
}

// The directory of the claims could not be synced, or a network file system has lost the answer.
TEST(CoordinatorEnd, ClaimsThatWereMadeAlthoughTheirRequestsFailedAreItsOwn) {
  FakeJob job(FakeJob::Spec());
  job.made_although_failed = true;
  job.claim_error = absl::UnavailableError("input/output error");
  job.Start();
  EXPECT_EQ(job.claims.size(), 1u);
  job.claim_error = absl::OkStatus();
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().id().attempt(), 1u);

  job.claim_error = absl::UnavailableError("input/output error");
  job.Train(20);
  ASSERT_EQ(job.claims.size(), 2u);
  EXPECT_TRUE(job.claims[1].end());
  EXPECT_FALSE(job.exit.has_value());
  job.claim_error = absl::OkStatus();
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
  EXPECT_EQ(job.exit->message, "training is complete");
}

TEST(CoordinatorEnd, AttemptThatIsLostWhileItsEndIsRecordedHasEnded) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.made_although_failed = true;
  job.claim_error = absl::UnavailableError("input/output error");
  job.Train(20);
  ASSERT_EQ(job.claims.size(), 2u);
  job.Kill(*job.shards[0]);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
  EXPECT_EQ(job.claims.size(), 2u);
}

TEST(CoordinatorEnd, JobThatSkippedAllItsStepsHasTrainedNothingAndSaysSo) {
  for (const uint64_t skipped : {19, 20}) {
    FakeJob job(FakeJob::Spec());
    job.Start();
    for (FakeShard* shard : job.Shards()) shard->skipped_steps = skipped;
    job.Train(20);
    job.Pass(absl::Seconds(1));
    ASSERT_TRUE(job.exit.has_value());
    EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
    const bool all = skipped == 20;
    EXPECT_EQ(job.Progress().reason_code(), all ? "NothingTrained" : "");
    EXPECT_EQ(job.HasEvent("all 20 steps from step 0 on were skipped"), all);
  }
}

TEST(CoordinatorEnd, FinishedJobAnswersFinished) {
  FakeJob job(FakeJob::Spec());
  job.claims.emplace_back().set_attempt(1);
  job.claims.emplace_back().set_attempt(2);
  job.claims.back().set_end(true);
  job.Pump();
  FakeWorker& worker = job.AddWorker(0);
  ASSERT_TRUE(worker.refusal.has_value());
  EXPECT_EQ(worker.refusal->code(), v1::Refusal::FINISHED);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SUCCEEDED);
  job.Pass(absl::Seconds(1.1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.claims.size(), 2u);
}

TEST(CoordinatorEnd, ReportsEndToRestartedWorker) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(18);
  job.Kill(*job.workers[1]);
  job.Train(3);
  ASSERT_EQ(job.Progress().phase(), v1::JobProgress::SUCCEEDED);
  ASSERT_FALSE(job.exit.has_value()) << "worker-1 is missing";
  const FakeWorker& late = job.AddWorker(1);
  ASSERT_TRUE(late.refusal.has_value());
  EXPECT_EQ(late.refusal->code(), v1::Refusal::FINISHED);
  job.Pass(absl::Seconds(1));
  EXPECT_TRUE(job.exit.has_value());
}

TEST(CoordinatorEnd, ReportsEndToUnregisteredProcess) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(19);
  FakeWorker late(&job, v1::WORKER, 1, 999);
  job.strangers.push_back(&late);
  late.stream = 999;
  job.core->OnConnected(late.stream, job.now);
  job.Train(1);
  ASSERT_EQ(job.Progress().phase(), v1::JobProgress::SUCCEEDED);
  EXPECT_FALSE(job.exit.has_value());

  v1::MemberMessage message;
  *message.mutable_register_() = late.Registration();
  late.Say(message);
  job.Pump();
  ASSERT_TRUE(late.refusal.has_value());
  EXPECT_EQ(late.refusal->code(), v1::Refusal::FINISHED);
  EXPECT_TRUE(job.exit.has_value());
}

TEST(CoordinatorEnd, WaitingCoordinatorExitsIfAnotherEndsJob) {
  FakeJob job(FakeJob::Spec());  // no process registers: all are with the other coordinator
  v1::Claim claim;
  claim.set_attempt(1);
  claim.mutable_term()->set_counter(1);
  job.claims.push_back(claim);
  job.Pass(absl::Seconds(5));
  EXPECT_FALSE(job.exit.has_value()) << "the other coordinator trains";
  claim.set_attempt(2);
  claim.set_end(true);
  job.claims.push_back(claim);
  job.Pass(absl::Seconds(5));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.exit->message, "the job has finished");
}

TEST(CoordinatorEnd, WaitingCoordinatorContinuesFromAnotherCoordinatorsCheckpoint) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  job.Train(6);

  // A new coordinator reads an empty storage, as if another coordinator had done all of that later.
  const std::vector<v1::Claim> claims = std::exchange(job.claims, {});
  const auto checkpoint_indexes = std::exchange(job.checkpoint_indexes, {});
  for (FakeShard* shard : job.Shards()) job.Break(*shard);
  for (FakeWorker* worker : job.Workers()) job.Break(*worker);
  job.Kill(*job.shards[0], /*reported=*/false);
  ++job.options.incarnation;
  job.core = std::make_unique<CoordinatorCore>(job.options, job.now);
  job.Pump();
  job.claims = claims;
  job.checkpoint_indexes = checkpoint_indexes;
  job.Pass(absl::Seconds(3));
  for (FakeShard* shard : job.Shards()) job.Connect(*shard);
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  job.AddShard(0);
  job.Pass(absl::Seconds(3));
  EXPECT_FALSE(job.exit.has_value());
  ASSERT_EQ(job.claims.size(), 2u);
  EXPECT_EQ(job.claims.back().attempt(), 2u);
  EXPECT_GT(job.claims.back().term().counter(), claims.back().term().counter());
  EXPECT_EQ(job.claims.back().parent().step(), 5u);
}

TEST(CoordinatorEnd, RestoringCoordinatorDoesNotClaimAfterLaterCoordinator) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  v1::Claim later;
  later.set_attempt(2);
  later.mutable_term()->set_counter(9);
  job.claims.push_back(later);
  job.Kill(*job.shards[0]);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
  EXPECT_EQ(job.claims.size(), 2u);
}

TEST(CoordinatorEnd, EarlierClaimOfLaterCoordinatorWinsOverEnd) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(19);
  job.claims.emplace_back().set_attempt(2);
  job.Train(1);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 20}), 0u)
      << "claims are read again before the checkpoint index is written";
}

TEST(CoordinatorEnd, SuspendStopsTrainingSavesAndReleasesAll) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(7);
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Pump();
  EXPECT_EQ(job.checkpoint_indexes.size(), 0u);

  job.Train(4);
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  const uint64_t step = job.checkpoint_indexes.begin()->first.second;
  EXPECT_EQ(step, job.Version()) << "all trained steps are saved";
  EXPECT_GE(step, 8);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SUSPENDED);
  EXPECT_EQ(job.claims.size(), 1u) << "no end record";
}

TEST(CoordinatorEnd, SuspendedJobContinuesAtSameStep) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(7);
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Train(4);
  ASSERT_TRUE(job.exit.has_value());
  const uint64_t step = job.Version();

  FakeJob resumed(FakeJob::Spec());
  resumed.claims = job.claims;
  resumed.checkpoint_indexes = job.checkpoint_indexes;
  resumed.spec.mutable_parameter_server()->set_replicas(3);
  resumed.options.job = resumed.spec;
  resumed.core = std::make_unique<CoordinatorCore>(resumed.options, resumed.now);
  resumed.Start();
  EXPECT_EQ(resumed.core->view().first_step(), step);
  EXPECT_EQ(resumed.core->view().shards_size(), 3);
  resumed.Train(20 - static_cast<int>(step));
  ASSERT_TRUE(resumed.exit.has_value());
  EXPECT_EQ(resumed.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorEnd, SuspendThatCannotSaveIsBounded) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_timeouts()->set_suspend_checkpoint(4);
  FakeJob job(spec);
  job.Start();
  job.Train(7);
  job.shards[0]->silent_snapshots = true;
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Train(4);
  EXPECT_FALSE(job.exit.has_value());
  job.Pass(absl::Seconds(5));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_TRUE(job.HasEvent("without a new checkpoint"));
}

TEST(CoordinatorEnd, FailureFailsJobAndNamesProcess) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  v1::MemberMessage failure;
  failure.mutable_failure()->set_reason("the gradient of fc1.weight is not finite");
  job.workers[1]->Say(failure);
  job.Pump();
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_EQ(job.exit->message, "worker-1: the gradient of fc1.weight is not finite");
}

TEST(CoordinatorEnd, FailedJobShowsTheStepThatItsShardsReportAsTheyLeave) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  job.workers[0]->frozen = true;
  v1::MemberMessage failure;
  failure.mutable_failure()->set_reason("no");
  job.workers[1]->Say(failure);
  job.Pump();
  ASSERT_LT(job.Progress().step(), 7);
  v1::MemberMessage last;
  *last.mutable_shard_progress()->mutable_view() = job.core->view().id();
  last.mutable_shard_progress()->set_closed(7);
  last.mutable_shard_progress()->set_committed(2);
  for (FakeShard* shard : job.Shards()) {
    EXPECT_LT(job.Progress().step(), 7) << "a shard has not reported the step";
    shard->Say(last);
    job.Pump();
  }
  EXPECT_EQ(job.Progress().step(), 7);
}

TEST(CoordinatorEnd, DoesNotWaitForeverForProcessToLeave) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.workers[0]->frozen = true;
  v1::MemberMessage failure;
  failure.mutable_failure()->set_reason("no");
  job.workers[1]->Say(failure);
  job.Pump();
  EXPECT_FALSE(job.exit.has_value());
  job.Pass(absl::Seconds(6));
  EXPECT_TRUE(job.exit.has_value());
}

}  // namespace
}  // namespace sluice::coordinator

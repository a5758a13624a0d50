// Asynchronous training of a whole coordinator.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

v1::JobSpec Asynchronous() {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  spec.mutable_training()->set_steps(10);  // 320 samples
  return spec;
}

TEST(CoordinatorAsync, AllReadyWorkersAreMembersWithoutMicrobatches) {
  FakeJob job(Asynchronous());
  job.Start();
  const v1::View& view = job.core->view();
  EXPECT_EQ(view.mode(), v1::ASYNCHRONOUS);
  ASSERT_EQ(view.workers_size(), 2);
  EXPECT_EQ(view.workers(0).microbatches_size(), 0);
  EXPECT_EQ(job.Progress().total_samples(), 320);
}

void SaySpeed(FakeWorker& worker, double samples_per_second) {
  v1::MemberMessage message;
  v1::WorkerProgress& progress = *message.mutable_worker_progress();
  *progress.mutable_view() = worker.job->core->view().id();
  progress.add_steps()->set_step(1);
  progress.mutable_steps(0)->set_samples(32);
  progress.set_compute_seconds(32 / samples_per_second);
  worker.Say(message);
}

TEST(CoordinatorAsync, BatchSizeFollowsWorkersSpeed) {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_training()->set_min_batch_size(1);
  spec.mutable_training()->set_max_batch_size(128);
  FakeJob job(spec);
  job.Start();
  job.Pass(absl::Milliseconds(50));
  EXPECT_EQ(job.workers[0]->batch_size, 32u) << "while no worker is measured";

  SaySpeed(*job.workers[0], 100);
  SaySpeed(*job.workers[1], 300);
  job.Pass(absl::Milliseconds(50));
  EXPECT_EQ(job.workers[0]->batch_size, 16u);
  EXPECT_EQ(job.workers[1]->batch_size, 48u);

  job.Kill(*job.workers[1]);
  job.Pass(absl::Milliseconds(50));
  EXPECT_EQ(job.workers[0]->batch_size, 32u) << "alone it has the mean speed";
  const v1::JobProgress progress = job.Progress();
  for (const v1::ProcessStatus& process : progress.processes()) {
    if (process.process().role() != v1::WORKER || process.state() != v1::ProcessStatus::MEMBER) {
      continue;
    }
    EXPECT_EQ(process.batch_size(), 32u);
  }
}

TEST(CoordinatorAsync, WithoutBoundsEveryBatchHasGlobalBatchSize) {
  FakeJob job(Asynchronous());
  job.Start();
  SaySpeed(*job.workers[0], 100);
  SaySpeed(*job.workers[1], 300);
  job.Pass(absl::Milliseconds(50));
  EXPECT_EQ(job.workers[1]->batch_size, 0u);
}

TEST(CoordinatorAsync, JoinDoesNotWaitForStep) {
  FakeJob job(Asynchronous());
  job.Start();
  job.AddWorker(2);
  job.Pass(absl::Milliseconds(300));
  EXPECT_EQ(job.core->view().workers_size(), 3);
}

TEST(CoordinatorAsync, HighestClockAppliedByAnyShardWins) {
  FakeJob job(Asynchronous());
  job.Start();
  FakeWorker& worker = *job.workers[0];
  job.Update(worker, 32);
  job.Update(worker, 32, {job.shards[1].get()});  // staged there only
  EXPECT_EQ(job.shards[1]->ledger.Count(), 32);
  job.Kill(worker);
  EXPECT_EQ(job.shards[1]->ledger.Count(), 64) << "applied at the install";
  const v1::Install& install = job.shards[0]->installs.back();
  ASSERT_EQ(install.clocks_size(), 1);
  EXPECT_EQ(install.clocks(0).clock(), 2);
  EXPECT_EQ(install.ledger().updates(), 2);
  EXPECT_EQ(install.view().first_step(), 2);
}

TEST(CoordinatorAsync, KeepsUnappliedLeasesOfRemainingMembers) {
  FakeJob job(Asynchronous());
  job.Start();
  const uint64_t gone = job.workers[0]->id.incarnation();
  const uint64_t stays = job.workers[1]->id.incarnation();
  FakeShard& arbiter = *job.shards[job.core->view().owner(0)];
  for (const auto& [worker, begin] : {std::make_pair(stays, 0), std::make_pair(gone, 64)}) {
    v1::LeaseRecord record;
    record.set_worker(worker);
    record.mutable_samples()->set_begin(begin);
    record.mutable_samples()->set_end(begin + 64);
    arbiter.leases.push_back(record);
  }
  job.Update(*job.workers[1], 32);
  job.Kill(*job.workers[0]);
  const v1::Install& install = arbiter.installs.back();
  ASSERT_EQ(install.leases_size(), 1);
  EXPECT_EQ(install.leases(0).worker(), stays);
  EXPECT_EQ(install.leases(0).samples().begin(), 32);
  EXPECT_EQ(install.leases(0).samples().end(), 64);
}

TEST(CoordinatorAsync, CheckpointIsViewChangeThatNamesSnapshot) {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_checkpoint()->set_interval_steps(2);
  FakeJob job(spec);
  job.Start();
  const size_t installs = job.shards[0]->installs.size();
  for (int i = 0; i < 3; ++i) job.Update(*job.workers[i % 2], 32);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 2}), 1u);
  const v1::CheckpointIndex& checkpoint_index = job.checkpoint_indexes.at({1, 2});
  EXPECT_EQ(checkpoint_index.samples(), 64);
  EXPECT_EQ(checkpoint_index.ledger().updates(), 2);
  ASSERT_EQ(checkpoint_index.ledger().applied_size(), 1);
  EXPECT_EQ(checkpoint_index.ledger().applied(0).end(), 64);
  EXPECT_EQ(job.shards[0]->installs.size(), installs + 1);
  EXPECT_EQ(job.shards[0]->installs.back().snapshot().step(), 2);
}

// All members compute from one version, with an evaluation every two batches of 32.
v1::JobSpec Together() {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_training()->set_mode(v1::BOUNDED_STALENESS);
  spec.mutable_training()->set_max_staleness(0);
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(2);
  return spec;
}

TEST(CoordinatorAsync, MembersInStepAreHeldAtDueEvaluation) {
  FakeJob job(Together());
  job.Start();
  EXPECT_EQ(job.shards[0]->installs.back().barrier(), 64);
  for (int i = 0; i < 2; ++i) job.Update(*job.workers[i], 32);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 2);
  EXPECT_EQ(job.shards[0]->installs.back().snapshot().step(), 2);
  EXPECT_EQ(job.shards[0]->installs.back().barrier(), 128);
}

TEST(CoordinatorAsync, MembersInStepDoNotWaitForReader) {
  FakeJob job(Together());
  job.Start();
  job.OpenSnapshot(1, 60);
  ASSERT_EQ(job.snapshots.size(), 1u);
  ASSERT_TRUE(job.snapshots[0].snapshot.ok());
  for (int i = 0; i < 2; ++i) job.Update(*job.workers[i], 32);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 2);
  EXPECT_EQ(job.shards[0]->installs.back().barrier(), 128);
  ASSERT_EQ(job.snapshots.size(), 2u);
  EXPECT_EQ(job.snapshots[1].snapshot.status().code(), absl::StatusCode::kAborted);
}

TEST(CoordinatorAsync, MakesCheckpointsWhileReaderOpensSnapshotsInARow) {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_checkpoint()->set_interval_steps(2);
  FakeJob job(spec);
  job.Start();
  uint64_t call = 1;
  job.OpenSnapshot(call);
  for (int i = 0; i < 9; ++i) {
    job.Update(*job.workers[i % 2], 32);
    job.Pass(absl::Milliseconds(100));
    if (!job.snapshots.back().snapshot.ok()) job.OpenSnapshot(++call);
  }
  EXPECT_GT(call, 2u);
  std::vector<uint64_t> saved;
  for (const auto& [name, checkpoint_index] : job.checkpoint_indexes) saved.push_back(name.second);
  EXPECT_THAT(saved, ::testing::ElementsAre(2, 4, 6, 8));
}

TEST(CoordinatorAsync, ReaderThatTrainingDoesNotWaitForMovesNoBarrier) {
  FakeJob job(Together());
  job.Start();
  job.OpenSnapshot(1, 60);
  job.Pass(absl::Seconds(20));
  EXPECT_EQ(job.shards[0]->installs.back().barrier(), 64) << "training has not reached it";
  EXPECT_GT(job.core->NextDeadline(), job.now);
}

TEST(CoordinatorAsync, RestoresLedgerOfCheckpoint) {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_checkpoint()->set_interval_steps(2);
  FakeJob job(spec);
  job.Start();
  for (int i = 0; i < 3; ++i) job.Update(*job.workers[0], 32);
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  const v1::Install& install = job.shards[1]->installs.back();
  EXPECT_EQ(install.view().id().attempt(), 2);
  EXPECT_EQ(install.view().first_step(), 2);
  EXPECT_EQ(install.ledger().applied(0).end(), 64);
  EXPECT_EQ(install.clocks_size(), 0);
}

TEST(CoordinatorAsync, EndsWhenEverySampleIsAppliedOnce) {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(100);
  FakeJob job(spec);
  job.Start();
  for (int i = 0; i < 9; ++i) job.Update(*job.workers[i % 2], 32);
  EXPECT_FALSE(job.exit.has_value());
  job.Update(*job.workers[0], 32);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 10}), 1u);
  EXPECT_EQ(job.Progress().last_evaluation().step(), 10);
  EXPECT_EQ(job.Progress().samples(), 320);
}

TEST(CoordinatorAsync, SuspendSavesAllAppliedSamples) {
  FakeJob job(Asynchronous());
  job.Start();
  job.Update(*job.workers[0], 32);
  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Pump();
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 1}), 1u);
}

TEST(CoordinatorAsync, RestoresIfUpdateAppliedByOneShardIsLostOnAnother) {
  FakeJob job(Asynchronous());
  job.Start();
  job.Update(*job.workers[0], 32, {job.shards[1].get()});
  job.shards[1]->staged.clear();
  job.Kill(*job.workers[0]);
  EXPECT_TRUE(job.HasEvent("neither applied nor staged"));
  job.Pass(absl::Seconds(2));  // waits for a second worker
  EXPECT_EQ(job.core->view().id().attempt(), 2);
}

// ---- change of mode

// The same job with a new coordinator.
void ContinueIn(FakeJob& job, v1::Mode mode) {
  job.options.job.mutable_training()->set_mode(mode);
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
}

v1::JobSpec SavedEvery(v1::Mode mode, uint64_t steps) {
  v1::JobSpec spec = Asynchronous();
  spec.mutable_training()->set_mode(mode);
  spec.mutable_checkpoint()->set_interval_steps(steps);
  return spec;
}

TEST(CoordinatorModes, StepsOfSynchronousJobBecomeLedger) {
  FakeJob job(SavedEvery(v1::SYNCHRONOUS, 5));
  job.Start();
  job.Train(6);
  ContinueIn(job, v1::BOUNDED_STALENESS);
  const v1::View& view = job.core->view();
  EXPECT_EQ(view.mode(), v1::BOUNDED_STALENESS);
  EXPECT_EQ(view.first_step(), 5u);

  const v1::Ledger& ledger = job.shards[0]->installs.back().ledger();
  EXPECT_EQ(ledger.updates(), 5u);
  ASSERT_EQ(ledger.applied_size(), 1);
  EXPECT_EQ(ledger.applied(0).end(), 160u);
  EXPECT_EQ(job.Progress().samples(), 160u);

  while (job.Progress().samples() < 320 && !job.exit.has_value()) job.Update(*job.workers[0], 32);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorModes, LedgerWithoutHolesBecomesStep) {
  FakeJob job(SavedEvery(v1::ASYNCHRONOUS, 3));
  job.Start();
  for (int i = 0; i < 6; ++i) job.Update(*job.workers[0], 16);
  job.Pass(absl::Seconds(1));
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);
  ASSERT_EQ(job.checkpoint_indexes.begin()->second.checkpoint().step(), 6u) << "updates";
  ContinueIn(job, v1::SYNCHRONOUS);
  EXPECT_EQ(job.core->view().mode(), v1::SYNCHRONOUS);
  EXPECT_EQ(job.core->view().first_step(), 3u) << "six updates of half a batch";
  EXPECT_EQ(job.Progress().samples(), 96u);
  job.Train(20);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().step(), 10u);
}

TEST(CoordinatorModes, TrainsHolesOfLedgerAsynchronouslyFirst) {
  FakeJob job(SavedEvery(v1::ASYNCHRONOUS, 2));
  job.Start();
  job.Update(*job.workers[0], 32, {}, /*from=*/16);  // [16, 48)
  job.Update(*job.workers[0], 32, {}, /*from=*/64);  // [64, 96)
  job.Pass(absl::Seconds(1));
  ASSERT_EQ(job.checkpoint_indexes.size(), 1u);

  ContinueIn(job, v1::SYNCHRONOUS);
  EXPECT_EQ(job.claims.size(), 2u);
  EXPECT_EQ(job.core->view().mode(), v1::ASYNCHRONOUS);
  EXPECT_TRUE(job.HasEvent("32 earlier samples that asynchronous training left out"));

  job.Update(*job.workers[0], 16);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().mode(), v1::ASYNCHRONOUS) << "[48, 64) is open";
  job.Update(*job.workers[1], 16);
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.core->view().mode(), v1::SYNCHRONOUS);
  EXPECT_EQ(job.core->view().first_step(), 3u);
  EXPECT_EQ(job.core->view().workers_size(), 2);
  ASSERT_EQ(job.claims.size(), 3u);
  EXPECT_EQ(job.claims[2].parent().attempt(), 2u);
  EXPECT_FALSE(job.HasEvent("restored")) << "it does not count against backoffLimit";

  job.Train(20);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorModes, JobSuspendedBetweenModesContinuesWithOpenSamples) {
  FakeJob job(SavedEvery(v1::ASYNCHRONOUS, 2));
  job.Start();
  job.Update(*job.workers[0], 32, {}, /*from=*/16);
  job.Update(*job.workers[0], 32, {}, /*from=*/64);
  job.Pass(absl::Seconds(1));
  ContinueIn(job, v1::SYNCHRONOUS);
  job.Update(*job.workers[0], 16);
  v1::SetDesiredRequest suspend;
  suspend.set_suspend(true);
  job.core->OnSetDesired(suspend, job.now);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuspended);

  const v1::CheckpointIndex& last = job.checkpoint_indexes.rbegin()->second;
  EXPECT_EQ(last.mode(), v1::ASYNCHRONOUS);
  EXPECT_EQ(last.samples(), 80u);
}

}  // namespace
}  // namespace sluice::coordinator

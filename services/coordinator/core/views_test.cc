// Members that join, leave, freeze and die: the shards' lists of admitted workers, view changes,
// and the restoration of a job that has lost a shard.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/view_members.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

// ---- admissions: FakeJob checks that they are sent before a worker learns of a shard

// Indices of the workers that may open a data stream to the shard.
std::vector<uint32_t> AdmittedBy(const FakeShard& shard) {
  std::vector<uint32_t> indices;
  if (!shard.admitted.has_value()) return indices;
  for (const v1::ProcessId& process : shard.admitted->processes()) {
    if (process.role() == v1::WORKER) indices.push_back(process.index());
  }
  return indices;
}

TEST(CoordinatorAdmissions, SendsListOfLivingWorkersToEachShardWhenItChanges) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  for (FakeShard* shard : job.Shards()) {
    EXPECT_THAT(AdmittedBy(*shard), ::testing::ElementsAre(0, 1));
    const v1::ProcessId& first = shard->admitted->processes(0);
    EXPECT_EQ(first.incarnation(), job.workers[0]->id.incarnation());
  }
  FakeWorker& late = job.AddWorker(2);
  for (FakeShard* shard : job.Shards()) {
    EXPECT_THAT(AdmittedBy(*shard), ::testing::ElementsAre(0, 1, 2));
  }
  job.Kill(late);
  for (FakeShard* shard : job.Shards()) {
    EXPECT_THAT(AdmittedBy(*shard), ::testing::ElementsAre(0, 1));
  }
}

TEST(CoordinatorAdmissions, SendsListAgainToReturningShard) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  FakeShard& shard = *job.shards[0];
  job.Break(shard);
  shard.admitted.reset();
  job.AddWorker(2);
  EXPECT_FALSE(shard.admitted.has_value());
  job.Connect(shard);
  EXPECT_THAT(AdmittedBy(shard), ::testing::ElementsAre(0, 1, 2));
}

TEST(CoordinatorAdmissions, WorkerWithoutStreamStaysAdmittedUntilExpelled) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Break(*job.workers[1]);
  EXPECT_THAT(AdmittedBy(*job.shards[0]), ::testing::ElementsAre(0, 1));
  job.Pass(absl::Seconds(1.1));
  EXPECT_THAT(AdmittedBy(*job.shards[0]), ::testing::ElementsAre(0));
}

// ---- view changes

TEST(CoordinatorViews, WorkerDeathPausesAtOnceAndOthersTakeItsMicrobatches) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  job.CloseOn({job.shards[0].get()});  // one shard is ahead
  EXPECT_EQ(job.shards[0]->version, 4);
  EXPECT_EQ(job.shards[1]->version, 3);

  const v1::ViewId before = job.core->view().id();
  job.Kill(*job.workers[0]);
  const v1::View& view = job.core->view();
  EXPECT_LT(Compare(before, view.id()), 0);
  EXPECT_TRUE(Same(view.previous(), before));
  EXPECT_EQ(view.first_step(), 3) << "the lowest version wins";
  EXPECT_THAT(MemberIndices(view), ::testing::ElementsAre(1));
  EXPECT_EQ(MicrobatchesOf(view, 1), 8);
  EXPECT_EQ(job.Version(), 3);
  job.Train(1);
  EXPECT_EQ(job.Version(), 4);
}

TEST(CoordinatorViews, JoinWaitsForCurrentStep) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  const uint64_t number = job.ViewNumber();
  job.AddWorker(2);
  job.Pass(absl::Milliseconds(300));
  EXPECT_EQ(job.ViewNumber(), number) << "the step is not closed";
  job.Train(4);
  EXPECT_GT(job.ViewNumber(), number);
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(0, 1, 2));
  for (FakeShard* shard : job.Shards()) {
    EXPECT_EQ(shard->installs.back().view().first_step(), job.core->view().first_step());
  }
}

TEST(CoordinatorViews, JoinsInShortOrderAreOneChange) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  const size_t installs = job.shards[0]->installs.size();
  job.AddWorker(2);
  job.Pass(absl::Milliseconds(50));
  job.AddWorker(3);
  job.Train(5);
  EXPECT_EQ(job.core->view().workers_size(), 4);
  EXPECT_EQ(job.shards[0]->installs.size(), installs + 1);
}

TEST(CoordinatorViews, DeathOverridesWaitingJoin) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  job.AddWorker(2);
  job.Pass(absl::Milliseconds(200));
  ASSERT_TRUE(job.shards[0]->after.has_value());
  job.Kill(*job.workers[0]);
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1, 2));
  EXPECT_FALSE(job.shards[0]->after.has_value());
  job.Train(1);
  EXPECT_EQ(job.Version(), 4);
}

TEST(CoordinatorViews, DeathDuringInstallBeginsNextChangeAtOnce) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  job.shards[1]->frozen = true;  // its answers are delayed
  job.Kill(*job.workers[0]);
  EXPECT_EQ(job.core->view().workers_size(), 2) << "not decided yet";
  job.AddWorker(2);
  job.Kill(*job.workers[1]);
  job.shards[1]->frozen = false;
  job.Pump();
  job.Pass(absl::Milliseconds(200));
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(2));
  job.Train(1);
  EXPECT_EQ(job.Version(), 4);
}

TEST(CoordinatorViews, SuspectThatReturnsWithinASecondStaysMember) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  const uint64_t number = job.ViewNumber();
  FakeWorker& worker = *job.workers[0];
  job.Break(worker);
  job.Pass(absl::Milliseconds(900));
  EXPECT_EQ(job.Progress().processes(2).state(), v1::ProcessStatus::SUSPECT);
  job.Connect(worker);
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.ViewNumber(), number);
  EXPECT_FALSE(worker.refusal.has_value());
}

TEST(CoordinatorViews, ExpelsSuspectAfterASecond) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  job.Kill(*job.workers[0], /*reported=*/false);
  job.Pass(absl::Milliseconds(950));
  EXPECT_EQ(job.core->view().workers_size(), 2);
  job.Pass(absl::Milliseconds(100));
  EXPECT_EQ(job.core->view().workers_size(), 1);
}

TEST(CoordinatorViews, ExpelsFrozenWorkerAndNeverReadmitsIt) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  FakeWorker& worker = *job.workers[0];
  worker.frozen = true;
  job.Pass(absl::Seconds(4.9));
  EXPECT_EQ(job.core->view().workers_size(), 2);
  job.Pass(absl::Seconds(0.3));
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1));
  worker.frozen = false;
  job.Connect(worker);
  ASSERT_TRUE(worker.refusal.has_value());
  EXPECT_EQ(worker.refusal->code(), v1::Refusal::EXPELLED);
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1));
}

TEST(CoordinatorViews, RepeatsInstallThatShardMissed) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  FakeShard& shard = *job.shards[1];
  shard.drop_installs = true;
  job.Kill(*job.workers[0]);
  EXPECT_FALSE(Same(shard.view.id(), job.core->view().id()));
  shard.drop_installs = false;
  job.Break(shard);
  job.Connect(shard);
  EXPECT_TRUE(Same(shard.view.id(), job.core->view().id()));
  job.Train(1);
  EXPECT_EQ(job.Version(), 3);
}

TEST(CoordinatorViews, ShardThatMissedViewCountsAtItsFirstStep) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  job.CloseOn({job.shards[1].get()});  // at 3, the other at 2
  FakeShard& shard = *job.shards[1];
  shard.drop_installs = true;
  job.Kill(*job.workers[0]);  // a view at step 2, which shard 1 misses
  job.AddWorker(2);
  shard.drop_installs = false;
  job.Kill(*job.workers[1]);
  EXPECT_EQ(job.core->view().first_step(), 2);
  EXPECT_EQ(job.Version(), 2);
}

TEST(CoordinatorViews, LeavingWorkerContinuesUntilViewWithoutIt) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  FakeWorker& worker = *job.workers[0];
  v1::MemberMessage leave;
  leave.mutable_leave()->set_reason("SIGTERM");
  worker.Say(leave);
  job.Pump();
  EXPECT_EQ(job.core->view().workers_size(), 2);
  job.Train(4);
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1));
  EXPECT_TRUE(Same(worker.view->id(), job.core->view().id())) << "it receives the view";
  job.Kill(worker, /*reported=*/false);
  job.Train(1);
  EXPECT_FALSE(job.HasEvent("worker-0:")) << "its leave was orderly";
}

TEST(CoordinatorViews, ViewWithoutWorkersWaitsForOne) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  job.Kill(*job.workers[0]);
  job.Kill(*job.workers[1]);
  EXPECT_EQ(job.core->view().workers_size(), 0);
  job.Pass(absl::Seconds(5));
  job.AddWorker(0);
  job.Pass(absl::Milliseconds(200));
  EXPECT_EQ(job.core->view().workers_size(), 1);
  job.Train(1);
  EXPECT_EQ(job.Version(), 3);
}

TEST(CoordinatorViews, MicrobatchesFollowMeasuredSpeed) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_steps(500);
  FakeJob job(spec);
  job.Start();
  job.workers[0]->seconds_per_sample = 0.003;
  job.Train(100);
  EXPECT_EQ(MicrobatchesOf(job.core->view(), 0), 2);
  EXPECT_EQ(MicrobatchesOf(job.core->view(), 1), 6);
  const uint64_t number = job.ViewNumber();
  job.Train(200);
  EXPECT_EQ(job.ViewNumber(), number) << "then the division is stable";
}

TEST(CoordinatorViews, WorkersBeyondNumberOfMicrobatchesAreStandbys) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_microbatch_size(32);
  FakeJob job(spec);
  job.Start();
  EXPECT_EQ(job.core->view().workers_size(), 1);
  const uint32_t member = job.core->view().workers(0).process().index();
  job.Train(2);
  job.Kill(*job.workers[member]);
  EXPECT_EQ(job.core->view().workers_size(), 1);
  EXPECT_NE(job.core->view().workers(0).process().index(), member);
}

TEST(CoordinatorViews, FrozenCoordinatorExpelsNoProcessForItsOwnPause) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.now += absl::Seconds(30);
  job.core->OnTick(job.now);
  job.Pump();
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 2);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

// The shards have answered, and the coordinator has not read the answers yet.
TEST(CoordinatorViews, FrozenCoordinatorReadsRepliesOfViewChangeBeforeItExpels) {
  for (const bool timer_first : {true, false}) {
    FakeJob job(FakeJob::Spec());
    job.Start();
    job.Train(2);
    for (const auto& shard : job.shards) shard->frozen = true;
    job.Kill(*job.workers[0]);
    job.now += absl::Seconds(6);
    for (const auto& shard : job.shards) shard->frozen = false;
    v1::MemberMessage beat;
    beat.mutable_heartbeat();
    if (timer_first) {
      job.core->OnTick(job.now);
    } else {
      job.core->OnMessage(job.workers[1]->stream, beat, job.now);
    }
    job.Pump();
    EXPECT_EQ(job.core->view().id().attempt(), 1) << timer_first;
    EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1));
    EXPECT_FALSE(job.HasEvent("restored"));
  }
}

// The coordinator runs again just after a deadline, too early to recognize a late timer.
TEST(CoordinatorViews, CoordinatorFrozenUntilDeadlineReadsMessagesBeforeItExpels) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  job.Pass(absl::Milliseconds(50));
  job.now += absl::Seconds(5) + absl::Milliseconds(20);
  FakeWorker& silent = *job.workers[0];
  silent.frozen = true;
  v1::MemberMessage beat;
  beat.mutable_heartbeat();
  job.core->OnMessage(job.workers[1]->stream, beat, job.now);
  for (const auto& shard : job.shards) job.core->OnMessage(shard->stream, beat, job.now);
  job.Pump();
  EXPECT_EQ(job.core->view().workers_size(), 2);
  EXPECT_EQ(job.core->view().id().attempt(), 1);

  // A worker that stays silent is expelled.
  job.Pass(absl::Seconds(5));
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1));
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

// ---- restoration

TEST(CoordinatorRestoration, ShardDeathBeginsAttemptFromNewestCheckpoint) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  job.Train(8);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 5}), 1u);

  job.Kill(*job.shards[0]);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::STARTING);
  job.Pass(absl::Seconds(1));
  job.AddShard(0);
  const v1::View& view = job.core->view();
  EXPECT_EQ(view.id().attempt(), 2);
  EXPECT_EQ(view.first_step(), 5);
  EXPECT_EQ(view.base().attempt(), 1);
  EXPECT_EQ(view.base().step(), 5);
  ASSERT_EQ(job.claims.size(), 2u);
  EXPECT_EQ(job.claims[1].parent().step(), 5);
  EXPECT_TRUE(job.Progress().restored());
  EXPECT_EQ(job.Progress().restored_from_step(), 5);
  EXPECT_TRUE(job.HasEvent("; the job is restored"));
  EXPECT_TRUE(job.HasEvent("attempt 2: resumed from the checkpoint of attempt 1, step 5"));

  job.Train(6);
  EXPECT_EQ(job.Version(), 11);
  EXPECT_EQ(job.checkpoint_indexes.count({2, 10}), 1u);
}

TEST(CoordinatorRestoration, StartsNewModelWithoutCheckpoint) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(8);
  job.Kill(*job.shards[1]);
  job.AddShard(1);
  EXPECT_EQ(job.core->view().id().attempt(), 2);
  EXPECT_EQ(job.core->view().first_step(), 0);
  EXPECT_FALSE(job.core->view().has_base());
  EXPECT_FALSE(job.claims[1].has_parent());
}

TEST(CoordinatorRestoration, ShardThatDoesNotAnswerPauseIsLost) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  FakeShard& shard = *job.shards[0];
  shard.frozen = true;
  job.Kill(*job.workers[0]);
  job.Pass(absl::Seconds(5.2));
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::STARTING);
  EXPECT_TRUE(job.HasEvent("ps-0"));
}

TEST(CoordinatorRestoration, NewCoordinatorThatLacksAShardClaimsNextAttemptWithHigherTerm) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  job.Train(8);
  const v1::ViewId before = job.core->view().id();
  job.Kill(*job.shards[0], /*reported=*/false);
  job.RestartCoordinator();
  job.AddShard(0);
  job.Pass(absl::Seconds(0.1));
  const v1::View& view = job.core->view();
  EXPECT_EQ(view.id().attempt(), 2);
  EXPECT_GT(view.id().term().counter(), before.term().counter());
  EXPECT_EQ(view.id().term().coordinator(), 8);
  EXPECT_EQ(view.first_step(), 5);
  EXPECT_EQ(view.workers_size(), 2);
  EXPECT_TRUE(job.HasEvent("attempt 2: resumed from the checkpoint of attempt 1, step 5"));

  job.Train(1);
  EXPECT_EQ(job.Version(), 6);
  // The attempt's number shows how often, for any number of coordinators.
  job.Kill(*job.shards[1]);
  job.Pass(absl::Seconds(1));
  job.AddShard(1);
  EXPECT_TRUE(job.HasEvent("attempt 3: resumed from the checkpoint of attempt 1, step 5"));
}

TEST(CoordinatorRestoration, FailsWithReasonAtBackoffLimit) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.set_backoff_limit(1);
  FakeJob job(spec);
  job.Start();
  job.Train(2);
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  EXPECT_EQ(job.core->view().id().attempt(), 2);
  job.Kill(*job.shards[1]);
  ASSERT_TRUE(job.exit.has_value() || job.Progress().phase() == v1::JobProgress::FAILED);
  EXPECT_THAT(job.Progress().reason(), HasSubstr("backoffLimit"));
  EXPECT_THAT(job.Progress().reason(), HasSubstr("ps-1"));
  job.Pass(absl::Seconds(6));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
}

TEST(CoordinatorRestoration, NamesDamagedCheckpointAndUsesOlder) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(4);
  FakeJob job(spec);
  job.Start();
  job.Train(9);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 8}), 1u);
  job.damaged.insert({1, 8});
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  EXPECT_EQ(job.core->view().first_step(), 4);
  EXPECT_TRUE(job.HasEvent("skipped: step 8 is damaged"));
}

TEST(CoordinatorRestoration, FailsIfShardCannotLoadCheckpointThatStorageAccepts) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(4);
  FakeJob job(spec);
  job.Start();
  job.Train(9);
  job.shards[1]->load_error = "partition-00001.safetensors: dtype BF16 is not supported";
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::FAILED);
  EXPECT_THAT(job.Progress().reason(), HasSubstr("partition-00001.safetensors"));
}

TEST(CoordinatorRestoration, FailsWithDifferenceIfCheckpointIsOfAnotherModel) {
  FakeJob job(FakeJob::Spec());
  v1::CheckpointIndex checkpoint_index;
  checkpoint_index.mutable_checkpoint()->set_attempt(1);
  checkpoint_index.mutable_checkpoint()->set_step(3);
  checkpoint_index.set_mode(v1::SYNCHRONOUS);
  v1::TensorSpec& tensor = *checkpoint_index.mutable_table()->add_tensors();
  tensor.set_name("v");
  tensor.set_dtype(v1::FLOAT32);
  job.checkpoint_indexes[{1, 3}] = checkpoint_index;
  job.claims.emplace_back().set_attempt(1);
  job.Start();
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::FAILED);
  EXPECT_THAT(job.Progress().reason(), HasSubstr("tensor 0 is w, not v"));
}

TEST(CoordinatorRestoration, ExitsIfNewerCoordinatorClaims) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  FakeShard& shard = *job.shards[0];
  // Another coordinator has installed a view of the next attempt there.
  shard.view.mutable_id()->set_attempt(2);
  shard.view.mutable_id()->mutable_term()->set_counter(2);
  shard.view.mutable_id()->mutable_term()->set_coordinator(9);
  job.Kill(*job.workers[0]);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
  EXPECT_THAT(job.exit->message, HasSubstr("newer coordinator"));
}

TEST(CoordinatorRestoration, ExitsIfShardReturnsWithNewerTerm) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  FakeShard& shard = *job.shards[0];
  job.Break(shard);
  shard.view.mutable_id()->mutable_term()->set_counter(5);
  job.Connect(shard);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
}

}  // namespace
}  // namespace sluice::coordinator

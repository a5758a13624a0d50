#include "services/coordinator/core/coordinator_core.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

std::vector<uint32_t> MemberIndices(const v1::View& view) {
  std::vector<uint32_t> indices;
  for (const auto& member : view.workers()) indices.push_back(member.process().index());
  return indices;
}

// Indices of the workers that may open a data stream to the shard.
std::vector<uint32_t> AdmittedBy(const FakeShard& shard) {
  std::vector<uint32_t> indices;
  if (!shard.admitted.has_value()) return indices;
  for (const v1::ProcessId& process : shard.admitted->processes()) {
    if (process.role() == v1::WORKER) indices.push_back(process.index());
  }
  return indices;
}

uint64_t MicrobatchesOf(const v1::View& view, uint32_t index) {
  uint64_t count = 0;
  for (const auto& member : view.workers()) {
    if (member.process().index() != index) continue;
    for (const v1::Range& range : member.microbatches()) count += range.end() - range.begin();
  }
  return count;
}

// ---- admissions: FakeJob checks that they are sent before a worker learns of a shard

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

// ---- start

TEST(CoordinatorStart, InstallsFirstViewWhenAllShardsHoldVersionZero) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  const v1::View& view = job.core->view();
  EXPECT_EQ(view.id().attempt(), 1);
  EXPECT_EQ(view.id().term().coordinator(), 7);
  EXPECT_EQ(view.first_step(), 0);
  EXPECT_FALSE(view.has_base());
  EXPECT_FALSE(view.has_previous());
  EXPECT_THAT(MemberIndices(view), ::testing::ElementsAre(0, 1));
  EXPECT_EQ(MicrobatchesOf(view, 0), 4);
  EXPECT_EQ(MicrobatchesOf(view, 1), 4);

  for (FakeShard* shard : job.Shards()) EXPECT_TRUE(Same(shard->view.id(), view.id()));
  for (FakeWorker* worker : job.Workers()) EXPECT_TRUE(Same(worker->view->id(), view.id()));
  ASSERT_EQ(job.claims.size(), 1u);
  EXPECT_EQ(job.claims[0].attempt(), 1);
  EXPECT_FALSE(job.claims[0].has_parent());
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);
}

TEST(CoordinatorStart, WaitsForAllShardsAndOneWorkerThenShortlyForOthers) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  job.AddWorker(0);
  job.Pass(absl::Seconds(4));
  EXPECT_TRUE(job.claims.empty());
  job.AddShard(1);
  job.Pass(absl::Milliseconds(50));
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(0));
}

TEST(CoordinatorStart, WaitsTwoSecondsForSecondWantedWorker) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  job.AddWorker(0);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.ViewNumber(), 0);
  job.Pass(absl::Seconds(1.1));
  EXPECT_NE(job.ViewNumber(), 0);
}

TEST(CoordinatorStart, WorkersThatComeInShortOrderBeginTogether) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_worker()->set_replicas(4);
  FakeJob job(spec);
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  for (uint32_t worker : {0, 1, 2}) {
    job.AddWorker(worker);
    job.Pass(absl::Seconds(1.5));
  }
  EXPECT_EQ(job.ViewNumber(), 0);
  job.Pass(absl::Seconds(0.6));
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(0, 1, 2));
}

TEST(CoordinatorStart, SlowWorkersDelayTheFirstForAtMostHalfAMinute) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_worker()->set_replicas(40);
  spec.mutable_training()->set_global_batch_size(160);
  FakeJob job(spec);
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  for (uint32_t worker = 0; worker < 20; ++worker) {
    EXPECT_EQ(job.ViewNumber(), 0) << worker;
    job.AddWorker(worker);
    job.Pass(absl::Seconds(1.5));
  }
  EXPECT_EQ(job.core->view().workers_size(), 20);
}

TEST(CoordinatorStart, AsksAnotherWorkerIfAskedWorkerDies) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  FakeWorker& first = job.AddWorker(0, /*initializes=*/false);
  FakeWorker& second = job.AddWorker(1);
  const v1::InitId init_id = job.shards[0]->init_id;
  EXPECT_EQ(first.asked, 1);
  EXPECT_EQ(second.asked, 0);
  EXPECT_EQ(job.ViewNumber(), 0);
  job.Kill(first);
  EXPECT_EQ(second.asked, 1);
  EXPECT_LT(Compare(init_id, job.shards[0]->init_id), 0);
  EXPECT_THAT(MemberIndices(job.core->view()), ::testing::ElementsAre(1));
  EXPECT_EQ(job.claims.size(), 1u) << "the same attempt: nothing was trained";
}

TEST(CoordinatorStart, AsksNextWorkerIfVersionZeroIsLate) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_timeouts()->set_initialization(3);
  FakeJob job(spec);
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  job.AddWorker(0, /*initializes=*/false);
  FakeWorker& second = job.AddWorker(1);
  job.Pass(absl::Seconds(2.9));
  EXPECT_EQ(second.asked, 0);
  job.Pass(absl::Seconds(0.2));
  EXPECT_EQ(second.asked, 1);
  EXPECT_NE(job.ViewNumber(), 0);
}

TEST(CoordinatorStart, RestartsInitializationAfterShardIsReplaced) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  FakeShard& second = job.AddShard(1);
  FakeWorker& worker = job.AddWorker(0, /*initializes=*/false);
  job.AddWorker(1);
  job.Kill(second);
  EXPECT_EQ(job.ViewNumber(), 0);
  worker.initializes = true;
  job.AddShard(1);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
  EXPECT_EQ(job.core->view().shards_size(), 2);
}

TEST(CoordinatorStart, RefusesWorkerWithAnotherModelAndNamesDifference) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.workers.push_back(std::make_unique<FakeWorker>(&job, v1::WORKER, 2, 999));
  FakeWorker& odd = *job.workers.back();
  odd.ready = job.workers[0]->ready;
  odd.ready.mutable_table()->mutable_tensors(0)->set_shape(0, 7);
  job.Scale(3);
  job.Connect(odd);
  ASSERT_TRUE(odd.refusal.has_value());
  EXPECT_EQ(odd.refusal->code(), v1::Refusal::MODEL_DIFFERS);
  EXPECT_THAT(odd.refusal->reason(), HasSubstr("tensor w is float32[7], not float32[100000]"));
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);
}

TEST(CoordinatorStart, FailsIfWorkersHaveDifferentModelsAndNamesBoth) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  job.AddWorker(1);
  job.elements = 7;
  job.AddWorker(0);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message, HasSubstr("worker-0 and worker-1 have different models or data: "
                                           "worker-0: tensor w is float32[7], not "
                                           "float32[100000]"));
}

// The worker with another model is ready first, and trains before the others register.
TEST(CoordinatorStart, OneWorkerCannotImposeAnotherModel) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_worker()->set_replicas(3);
  spec.mutable_checkpoint()->set_interval_steps(2);
  FakeJob job(spec);
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  job.elements = int64_t{1} << 30;
  job.AddWorker(2);
  job.Pass(absl::Seconds(3));
  job.Train(5);
  ASSERT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);
  ASSERT_FALSE(job.checkpoint_indexes.empty());

  job.elements = 7;
  job.AddWorker(0);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message, HasSubstr("worker-0 and worker-2 have different models"));
}

TEST(CoordinatorStart, RestoredJobLosesOnlyWorkerWithAnotherModel) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  job.Train(7);
  job.Kill(*job.workers[1]);
  job.RestartCoordinator();
  job.elements = 7;
  FakeWorker& odd = job.AddWorker(1);
  ASSERT_TRUE(odd.refusal.has_value());
  EXPECT_EQ(odd.refusal->code(), v1::Refusal::MODEL_DIFFERS);
  EXPECT_TRUE(job.HasEvent("worker-1: model or data differ from the job's"));

  job.Pass(absl::Seconds(3));
  job.Train(15);
  job.Pass(absl::Seconds(2));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.exit->message,
            "training is complete; refused for another model or other data: worker-1");
}

TEST(CoordinatorStart, FailsWithBoundIfModelIsTooLarge) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  job.elements = int64_t{1} << 50;
  job.AddWorker(0);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_THAT(job.exit->message, HasSubstr("tensor 'w' is too large: a model has at most"));
  EXPECT_THAT(job.exit->message, HasSubstr("kMaxTableBytes"));
}

TEST(CoordinatorStart, KnowsStepToContinueAtBeforeAnyWorkerIsReady) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  FakeJob job(spec);
  job.Start();
  job.Train(7);
  for (const auto& worker : job.workers) job.Kill(*worker);
  job.RestartCoordinator();
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::STARTING);
  EXPECT_EQ(job.Progress().step(), 5);
  EXPECT_EQ(job.Progress().samples(), 5 * 32);

  v1::SetDesiredRequest desired;
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Pass(absl::Seconds(1));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SUSPENDED);
  EXPECT_EQ(job.Progress().step(), 5);
}

TEST(CoordinatorStart, FailsWithReasonIfStorageIsNotWritable) {
  FakeJob job(FakeJob::Spec());
  job.storage_error = absl::PermissionDeniedError("checkpoints: permission denied");
  job.Pump();
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message, HasSubstr("checkpoints: permission denied"));
}

TEST(CoordinatorStart, ReadsStorageAgainAfterTransientError) {
  FakeJob job(FakeJob::Spec());
  job.storage_error = absl::UnavailableError("stale handle");
  job.Pump();
  job.storage_error = absl::OkStatus();
  job.Pass(absl::Seconds(1.1));
  job.Start();
  EXPECT_NE(job.ViewNumber(), 0);
}

TEST(CoordinatorStart, ExpelsNoProcessWhileStorageIsRead) {
  FakeJob job(FakeJob::Spec());
  job.hold_storage = true;
  job.heartbeats = false;  // a process sends nothing before the answer to its registration
  job.Start();
  job.Pass(absl::Seconds(60));
  EXPECT_EQ(job.ViewNumber(), 0);
  job.heartbeats = true;
  job.core->OnStorageRead(StorageContents(), job.now);
  job.Pump();
  EXPECT_NE(job.ViewNumber(), 0);
  EXPECT_FALSE(job.HasEvent("sent nothing"));
  job.Train(20);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
}

TEST(CoordinatorStart, ExpelsSilentMemberAfterStorageIsRead) {
  FakeJob job(FakeJob::Spec());
  job.hold_storage = true;
  job.heartbeats = false;
  job.Start();
  job.Pass(absl::Seconds(60));
  job.core->OnStorageRead(StorageContents(), job.now);
  job.Pump();
  job.Pass(absl::Seconds(6));
  EXPECT_TRUE(job.HasEvent("worker-0: sent nothing for 5s"));
}

TEST(CoordinatorStart, WarnsBitExactJobOfCheckpointOfOtherArithmetic) {
  for (const bool bit_exact : {true, false}) {
    for (const bool same : {true, false}) {
      v1::JobSpec spec = FakeJob::Spec();
      spec.mutable_checkpoint()->set_interval_steps(5);
      spec.mutable_training()->set_bit_exact(bit_exact);
      FakeJob job(spec);
      job.options.isa = "sluice 1, AVX2";
      job.core = std::make_unique<CoordinatorCore>(job.options, job.now);
      job.Start();
      job.Train(6);
      EXPECT_EQ(job.checkpoint_indexes.at({1, 5}).isa(),
                bit_exact ? "sluice 1, AVX2, threads of a worker: 1" : "sluice 1, AVX2");
      if (!same) job.options.isa = "sluice 1, AVX3";
      job.Kill(*job.shards[0], /*told=*/false);
      job.RestartCoordinator();
      job.AddShard(0);
      job.Pass(absl::Seconds(3));
      EXPECT_EQ(job.Progress().restored_from_step(), 5);
      EXPECT_EQ(job.HasEvent("step 5 is of sluice 1, AVX2, threads of a worker: 1, and training "
                             "continues with sluice 1, AVX3, threads of a worker: 1"),
                bit_exact && !same);
      EXPECT_EQ(job.HasEvent("bits may differ"), bit_exact && !same);
    }
  }
}

TEST(CoordinatorStart, ExitsIfAnotherCoordinatorHasTheClaim) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.claims.emplace_back().set_attempt(1);  // after the storage was read, before the claim
  job.AddShard(0);
  job.AddShard(1);
  job.AddWorker(0);
  job.AddWorker(1);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
}

// ---- registration

TEST(CoordinatorRegistration, InvalidMessageClosesOnlyItsStream) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  FakeWorker& worker = *job.workers[0];
  v1::MemberMessage message;
  message.mutable_pause_reply();
  worker.Say(message);
  job.Pump();
  EXPECT_EQ(worker.closed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);
  job.Connect(worker);
  EXPECT_TRUE(worker.closed.ok());
}

TEST(CoordinatorRegistration, RefusesProcessOfAnotherJob) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  FakeWorker stranger(&job, v1::WORKER, 5, 4711);
  v1::MemberMessage message;
  *message.mutable_register_() = stranger.Registration();
  message.mutable_register_()->set_job("default/other/u2");
  job.core->OnConnected(9999, job.now);
  job.core->OnMessage(9999, message, job.now);
  bool refused = false;
  for (const Action& action : job.core->TakeActions()) {
    if (const auto* send = std::get_if<Send>(&action)) {
      refused = refused ||
                (send->stream == 9999 && send->message.refusal().code() == v1::Refusal::WRONG_JOB);
    }
  }
  EXPECT_TRUE(refused);
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
  job.Kill(*job.workers[0], /*told=*/false);
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
  job.Kill(worker, /*told=*/false);
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

  // It expels soon after.
  job.Pass(absl::Milliseconds(200));
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
  job.Kill(*job.shards[0], /*told=*/false);
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

// ---- the end

TEST(CoordinatorEnd, CompleteJobSavesRecordsEndAndReleasesWorkersBeforeShards) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.shards[0]->silent_snapshots = true;
  job.Train(20);
  EXPECT_EQ(job.Version(), 20);
  EXPECT_EQ(job.shards[0]->committed, 20) << "the shards know that the last version is committed";
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SAVING);
  EXPECT_EQ(job.claims.size(), 1u) << "no end record without the manifest";

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

TEST(CoordinatorEnd, TellsRestartedWorkerThatJobHasEnded) {
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

TEST(CoordinatorEnd, TellsUnregisteredProcessThatJobHasEnded) {
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
  job.Kill(*job.shards[0], /*told=*/false);
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

TEST(CoordinatorStart, DoesNotClaimAttemptThatShardKnows) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(2);
  job.claims.clear();  // the file was removed
  job.RestartCoordinator();
  job.Pass(absl::Seconds(3));
  ASSERT_EQ(job.claims.size(), 1u);
  EXPECT_EQ(job.claims[0].attempt(), 2u);
  EXPECT_TRUE(job.HasEvent("claims were removed"));
  job.Train(1);
  EXPECT_FALSE(job.exit.has_value());
}

TEST(CoordinatorStart, TakesHigherTermThanDamagedClaimMayHave) {
  FakeJob job(FakeJob::Spec());
  v1::Claim claim;
  claim.set_format_version(kClaimFormatVersion);
  claim.set_attempt(1);
  claim.mutable_term()->set_counter(4);
  job.claims.push_back(claim);
  job.claims.emplace_back().set_attempt(2);
  ASSERT_TRUE(IsDamaged(job.claims.back()));
  job.Start();
  ASSERT_EQ(job.claims.size(), 3u);
  EXPECT_GT(job.claims.back().term().counter(), 5u);
}

// Claims are damaged and restored between the attempts of a job.
TEST(CoordinatorStart, TermsRiseWhicheverClaimsAreDamaged) {
  std::mt19937 random(1);
  for (int life = 0; life < 50; ++life) {
    std::vector<v1::Claim> whole;
    while (whole.size() < 8) {
      FakeJob job(FakeJob::Spec());
      for (const v1::Claim& claim : whole) {
        const bool damaged = random() % 2 == 0;
        if (damaged) job.claims.emplace_back().set_attempt(claim.attempt());
        if (!damaged) job.claims.push_back(claim);
      }
      job.Start();
      ASSERT_EQ(job.claims.size(), whole.size() + 1);
      if (!whole.empty()) {
        ASSERT_GT(job.claims.back().term().counter(), whole.back().term().counter())
            << "life " << life << ", attempt " << job.claims.size();
      }
      whole.push_back(job.claims.back());
    }
  }
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
      << "claims are read again before the manifest";
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

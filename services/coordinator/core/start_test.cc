// The start of a job and of its coordinator: registration, version 0, the first view, the claim.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/checkpoint/storage.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/view_members.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

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

TEST(CoordinatorStart, WarnsOfEachNoteOnModelOnce) {
  FakeJob job(FakeJob::Spec());
  job.traits.add_notes("Dropout stays on in evaluations.");
  job.traits.add_notes("Buffer 'steps' is not trained.");
  job.Start();
  const std::vector<std::string> events = job.Events();
  for (const std::string& note : job.traits.notes()) {
    EXPECT_EQ(std::count(events.begin(), events.end(), note), 1) << note;
  }
}

TEST(CoordinatorStart, FailsBeforeTrainingIfAStepWouldHaveTooFewSamples) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_steps(200);
  FakeJob job(spec);
  job.traits.set_smallest_batch(2);
  job.traits.set_smallest_batch_module("bn1");
  job.training_samples = 3201;
  job.Pump();
  job.AddWorker(0);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message, HasSubstr("because of its module 'bn1', and step 100, the last of "
                                           "each epoch, would have 1 sample"));
  EXPECT_THAT(job.exit->message, HasSubstr("training.lastBatch: Drop"));
  EXPECT_TRUE(job.claims.empty());
}

TEST(CoordinatorStart, NoMemberGetsASingleSampleWhereTheModelNeedsTwo) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_steps(200);
  FakeJob job(spec);
  job.traits.set_smallest_batch(2);
  job.training_samples = 3217;  // 17 remain at the end of an epoch: 4 microbatches, and 1 sample
  job.Start();
  EXPECT_EQ(MicrobatchesOf(job.core->view(), 0), 5);
  EXPECT_EQ(MicrobatchesOf(job.core->view(), 1), 3);
}

TEST(CoordinatorStart, RefusesWorkerThatNeedsLargerBatches) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.traits.set_smallest_batch(2);
  const FakeWorker& odd = job.AddWorker(2);
  ASSERT_TRUE(odd.refusal.has_value());
  EXPECT_EQ(odd.refusal->code(), v1::Refusal::MODEL_DIFFERS);
  EXPECT_THAT(odd.refusal->reason(), HasSubstr("it cannot compute fewer samples at once than 2"));
}

TEST(CoordinatorStart, FailsIfWorkersHaveDifferentEncodings) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  v1::DataDigest& digest = *job.traits.add_digests();
  digest.set_name("the encoding of the columns");
  digest.set_hash(1);
  job.AddWorker(1);
  digest.set_hash(2);
  job.AddWorker(0);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_THAT(job.exit->message,
              HasSubstr("worker-0 and worker-1 have different models or data: worker-0: the "
                        "encoding of the columns differs"));
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
  job.Pass(absl::Seconds(17));
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
  job.heartbeats = true;
  job.workers[0]->frozen = true;
  job.Pass(absl::Seconds(6));
  EXPECT_TRUE(job.HasEvent("worker-0: sent nothing for 5s"));
}

TEST(CoordinatorStart, WarnsBitExactJobOfCheckpointOfOtherArithmetic) {
  for (const bool bit_exact : {true, false}) {
    for (const bool same : {true, false}) {
      v1::JobSpec spec = FakeJob::Spec();
      spec.mutable_checkpoint()->set_interval_steps(5);
      spec.mutable_training()->set_bit_exact(bit_exact);
      spec.mutable_training()->set_kernels(v1::TrainingSpec::NATIVE);
      FakeJob job(spec);
      job.options.arithmetic = {"sluice 1", "AVX2"};
      job.core = std::make_unique<CoordinatorCore>(job.options, job.now);
      job.Start();
      job.Train(6);
      EXPECT_EQ(job.checkpoint_indexes.at({1, 5}).isa(),
                bit_exact ? "sluice 1, AVX2, threads of a worker: 1" : "sluice 1, AVX2");
      if (!same) job.options.arithmetic.instructions = "AVX3";
      job.Kill(*job.shards[0], /*reported=*/false);
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

TEST(CoordinatorStart, CoordinatorsMachineDoesNotMatterIfKernelsAreFixed) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(5);
  spec.mutable_training()->set_bit_exact(true);
  FakeJob job(spec);
  job.options.arithmetic = {"sluice 1", "AVX2"};
  job.core = std::make_unique<CoordinatorCore>(job.options, job.now);
  job.Start();
  job.Train(6);
  EXPECT_EQ(job.checkpoint_indexes.at({1, 5}).isa(), "sluice 1, x86-64-v3, threads of a worker: 1");
  job.options.arithmetic.instructions = "AVX3";
  job.Kill(*job.shards[0], /*reported=*/false);
  job.RestartCoordinator();
  job.AddShard(0);
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.Progress().restored_from_step(), 5);
  EXPECT_FALSE(job.HasEvent("bits may differ"));
}

v1::Environment Environment(const char* kernels, const char* library) {
  v1::Environment environment;
  environment.set_kernels(kernels);
  environment.set_library(library);
  environment.set_threads(1);
  return environment;
}

TEST(CoordinatorStart, BitExactJobRefusesWorkerThatComputesOtherBits) {
  for (const bool bit_exact : {true, false}) {
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_training()->set_bit_exact(bit_exact);
    FakeJob job(spec);
    *job.traits.mutable_environment() = Environment("x86-64-v3", "PyTorch 2.15.0");
    job.Start();
    job.Train(2);
    job.Kill(*job.workers[1]);
    *job.traits.mutable_environment() = Environment("x86-64-v3", "PyTorch 2.6.0");
    const FakeWorker& other = job.AddWorker(1);
    EXPECT_EQ(other.refusal.has_value(), bit_exact);
    EXPECT_EQ(job.HasEvent("worker-1: its results would not have the job's bits: it computes with "
                           "kernels x86-64-v3; PyTorch 2.6.0; 1 thread, not with kernels "
                           "x86-64-v3; PyTorch 2.15.0; 1 thread"),
              bit_exact);
    EXPECT_FALSE(job.exit.has_value());
  }
}

TEST(CoordinatorStart, BitExactJobFailsIfItsFirstWorkersComputeDifferentBits) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_bit_exact(true);
  spec.mutable_worker()->set_replicas(2);
  FakeJob job(spec);
  job.Pump();
  job.AddShard(0);
  job.AddShard(1);
  *job.traits.mutable_environment() = Environment("OpenBLAS Haswell, ATen AVX2", "LibTorch 1");
  job.AddWorker(0);
  *job.traits.mutable_environment() = Environment("OpenBLAS Zen, ATen AVX2", "LibTorch 1");
  job.AddWorker(1);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message,
              HasSubstr("worker-1 and worker-0 would compute different bits: worker-1: it computes "
                        "with kernels OpenBLAS Zen, ATen AVX2; LibTorch 1; 1 thread, not with "
                        "kernels OpenBLAS Haswell, ATen AVX2; LibTorch 1; 1 thread; with "
                        "`determinism: BitExact` all workers must have the same"));
}

TEST(CoordinatorStart, BitExactJobThatContinuesWithOtherBitsSaysSo) {
  for (const bool bit_exact : {true, false}) {
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_checkpoint()->set_interval_steps(5);
    spec.mutable_training()->set_bit_exact(bit_exact);
    FakeJob job(spec);
    *job.traits.mutable_environment() = Environment("x86-64-v3", "PyTorch 2.6.0");
    job.Start();
    job.Train(6);
    EXPECT_EQ(job.checkpoint_indexes.at({1, 5}).environment().library(), "PyTorch 2.6.0");
    job.Kill(*job.shards[0], /*reported=*/false);
    job.Kill(*job.workers[0]);
    job.Kill(*job.workers[1]);
    job.RestartCoordinator();
    job.AddShard(0);
    *job.traits.mutable_environment() = Environment("x86-64-v3", "PyTorch 2.7.0");
    job.AddWorker(0);
    job.AddWorker(1);
    job.Pass(absl::Seconds(3));
    EXPECT_EQ(job.Progress().restored_from_step(), 5);
    EXPECT_EQ(
        job.HasEvent("step 5 is of workers with kernels x86-64-v3; PyTorch 2.6.0; 1 thread; "
                     "training continues with kernels x86-64-v3; PyTorch 2.7.0; 1 thread, and "
                     "its bits are no longer those of an undisturbed run"),
        bit_exact);
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

}  // namespace
}  // namespace sluice::coordinator

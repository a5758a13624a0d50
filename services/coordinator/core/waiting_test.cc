// Waits that take too long: timeouts.gradients and timeouts.weights.
#include <gtest/gtest.h>

#include <string>

#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

class WaitingTest : public ::testing::Test {
 protected:
  WaitingTest() : job(Spec()) {
    job.Start();
    job.Train(3);
  }
  static v1::JobSpec Spec() {
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_timeouts()->set_heartbeat_timeout(100);
    spec.mutable_timeouts()->set_gradients(15);
    spec.mutable_timeouts()->set_weights(35);
    return spec;
  }
  void SayAwaited(const FakeWorker& worker) {
    v1::MemberMessage message;
    v1::ShardProgress& progress = *message.mutable_shard_progress();
    *progress.mutable_view() = job.core->view().id();
    progress.set_closed(job.Shards()[0]->version);
    progress.add_awaited(worker.id.incarnation());
    job.Shards()[0]->Say(message);
    job.Pump();
  }
  void SayOwed(const FakeShard& shard, uint64_t version, size_t worker = 0) {
    v1::MemberMessage message;
    v1::WorkerProgress& progress = *message.mutable_worker_progress();
    *progress.mutable_view() = job.core->view().id();
    progress.add_owing(shard.id.incarnation());
    progress.set_owed_version(version);
    job.Workers()[worker]->Say(message);
    job.Pump();
  }

  FakeJob job;
};

TEST_F(WaitingTest, NamesAndExpelsWorkerWithOverdueGradients) {
  SayAwaited(*job.Workers()[1]);
  EXPECT_TRUE(job.HasEvent("worker-1: has sent ps-0 no gradients of step 3 in 15s"));
  job.Pass(absl::Milliseconds(200));
  EXPECT_EQ(job.core->view().workers_size(), 1);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

TEST_F(WaitingTest, ReportOfOldViewBlamesNoWorker) {
  v1::MemberMessage message;
  v1::ShardProgress& progress = *message.mutable_shard_progress();
  progress.mutable_view()->set_attempt(1);
  progress.add_awaited(job.Workers()[1]->id.incarnation());
  job.Shards()[0]->Say(message);
  job.Pump();
  EXPECT_FALSE(job.HasEvent("no gradients"));
}

TEST_F(WaitingTest, NamesAndExpelsShardThatWithholdsVersion) {
  SayOwed(*job.Shards()[1], job.Shards()[1]->version);
  SayOwed(*job.Shards()[1], job.Shards()[1]->version, /*worker=*/1);
  EXPECT_TRUE(job.HasEvent("ps-1: owes worker-1 version 3 for 35s"));
  job.Pass(absl::Seconds(1));
  EXPECT_FALSE(job.HasEvent("gradients itself"));
}

TEST_F(WaitingTest, OneWorkerCannotHaveAShardExpelled) {
  for (int i = 0; i < 5; ++i) SayOwed(*job.Shards()[1], job.Shards()[1]->version);
  EXPECT_TRUE(job.HasEvent("ps-1 owes worker-0 version 3 for 35s: other members do not report it"));
  job.Train(2);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
  EXPECT_EQ(job.Version(), 5);
}

TEST_F(WaitingTest, ExpelsNoShardWithoutLimit) {
  v1::JobSpec spec = Spec();
  spec.mutable_timeouts()->clear_weights();
  FakeJob other(spec);
  other.Start();
  other.Train(3);
  for (FakeWorker* worker : other.Workers()) {
    v1::MemberMessage message;
    *message.mutable_worker_progress()->mutable_view() = other.core->view().id();
    message.mutable_worker_progress()->add_owing(other.Shards()[1]->id.incarnation());
    message.mutable_worker_progress()->set_owed_version(2);
    worker->Say(message);
    other.Pump();
  }
  other.Train(1);
  EXPECT_EQ(other.core->view().id().attempt(), 1);
}

TEST_F(WaitingTest, ShardCanAccuseOnlyMembersOfTheView) {
  SayAwaited(job.AddWorker(2));  // not a member until the next view
  v1::MemberMessage message;
  *message.mutable_shard_progress()->mutable_view() = job.core->view().id();
  message.mutable_shard_progress()->set_closed(job.Shards()[0]->version);
  message.mutable_shard_progress()->add_awaited(job.Shards()[1]->id.incarnation());
  job.Shards()[0]->Say(message);
  job.Pump();
  EXPECT_FALSE(job.HasEvent("no gradients"));
}

TEST(WaitingDefault, ExpelsMemberWithoutContributionsAfterTenMinutes) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  EXPECT_EQ(job.shards[0]->job_spec.timeouts().gradients(), 600) << "the limit that shards measure";
}

// After an update of 32 samples.
void LeaseNextSamples(const FakeProcess& holder, FakeJob* job) {
  for (FakeShard* shard : job->Shards()) {
    v1::LeaseRecord& lease = shard->leases.emplace_back();
    lease.set_worker(holder.id.incarnation());
    lease.mutable_samples()->set_begin(32);
    lease.mutable_samples()->set_end(64);
  }
}

TEST(WaitingDefault, ExpelsWorkerThatAppliesNoLeasedSamplesAfterTenMinutes) {
  for (const v1::Mode mode : {v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS}) {
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_training()->set_mode(mode);
    FakeJob job(spec);
    job.Start();
    job.Update(*job.workers[0], 32);
    LeaseNextSamples(*job.workers[1], &job);
    job.Shards()[0]->SayProgress();
    job.Pass(absl::Seconds(590));
    EXPECT_EQ(job.core->view().workers_size(), 2);
    job.Pass(absl::Seconds(15));
    EXPECT_TRUE(job.HasEvent("worker-1: holds samples and has applied nothing in 10m"));
    EXPECT_EQ(job.core->view().workers_size(), 1);
    EXPECT_EQ(job.core->view().id().attempt(), 1);
  }
}

TEST(WaitingDefault, ExpelsNoShardThatArbiterNamesAsLeaseholder) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  FakeJob job(spec);
  job.Start();
  job.Update(*job.workers[0], 32);
  const uint64_t view = job.ViewNumber();
  LeaseNextSamples(*job.shards[1], &job);
  job.Shards()[0]->SayProgress();
  job.Pass(absl::Seconds(605));
  EXPECT_GT(job.ViewNumber(), view) << "the leases were judged";
  EXPECT_FALSE(job.HasEvent("ps-1: holds samples"));
  EXPECT_EQ(job.core->view().shards_size(), 2);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

TEST(WaitingAsynchronous, ExpelsLeaseholderThatArbiterNamesWhileOthersContinue) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  FakeJob job(spec);
  job.Start();
  job.Update(*job.workers[0], 32);
  LeaseNextSamples(*job.workers[1], &job);
  for (int i = 0; i < 7; ++i) {
    job.Pass(absl::Seconds(100));
    job.Update(*job.workers[0], 32, {}, 64);
  }
  EXPECT_EQ(job.core->view().workers_size(), 2);

  v1::MemberMessage message;
  *message.mutable_shard_progress()->mutable_view() = job.core->view().id();
  message.mutable_shard_progress()->set_closed(job.Shards()[0]->version);
  message.mutable_shard_progress()->add_awaited(job.workers[1]->id.incarnation());
  job.Shards()[0]->Say(message);
  job.Pump();
  job.Pass(absl::Seconds(1));
  EXPECT_TRUE(job.HasEvent("worker-1: holds samples and has applied nothing in 10m"));
  EXPECT_EQ(job.core->view().workers_size(), 1);
  EXPECT_TRUE(job.Shards()[0]->leases.empty()) << "the samples are free for other workers";
}

TEST_F(WaitingTest, ExpelsSilentShardAtWeightsTimeoutBeforeHeartbeatTimeout) {
  job.Shards()[1]->frozen = true;
  job.Pass(absl::Seconds(36));
  SayOwed(*job.Shards()[1], job.Shards()[1]->version + 1);
  EXPECT_TRUE(job.HasEvent("ps-1: owes worker-0 version 4 for 35s"));
}

TEST_F(WaitingTest, OnlyNamesShardThatWaitsForGradientsItself) {
  SayOwed(*job.Shards()[1], job.Shards()[1]->version + 1);
  EXPECT_TRUE(job.HasEvent("ps-1 owes worker-0 version 4 for 35s: it waits for gradients itself"));
  EXPECT_EQ(job.Shards().size(), 2u);
  job.Train(2);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

}  // namespace
}  // namespace sluice::coordinator

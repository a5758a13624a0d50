// Waits that last too long: timeouts.gradients and timeouts.weights.
#include <gtest/gtest.h>

#include <string>

#include "services/coordinator/testing/fake_job.h"

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
    spec.mutable_timeouts()->set_silence(100);
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
  void SayOwed(const FakeShard& shard, uint64_t version) {
    v1::MemberMessage message;
    v1::WorkerProgress& progress = *message.mutable_worker_progress();
    *progress.mutable_view() = job.core->view().id();
    progress.add_owing(shard.id.incarnation());
    progress.set_owed_version(version);
    job.Workers()[0]->Say(message);
    job.Pump();
  }

  FakeJob job;
};

TEST_F(WaitingTest, AWorkerWhoseGradientsAreAwaitedForTooLongIsNamedAndLost) {
  SayAwaited(*job.Workers()[1]);
  EXPECT_TRUE(job.HasEvent("worker-1: has sent ps-0 no gradients of step 3 in 15s"));
  job.Pass(absl::Milliseconds(200));
  EXPECT_EQ(job.core->view().workers_size(), 1);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

TEST_F(WaitingTest, AnOldViewBlamesNobody) {
  v1::MemberMessage message;
  v1::ShardProgress& progress = *message.mutable_shard_progress();
  progress.mutable_view()->set_attempt(1);
  progress.add_awaited(job.Workers()[1]->id.incarnation());
  job.Shards()[0]->Say(message);
  job.Pump();
  EXPECT_FALSE(job.HasEvent("no gradients"));
}

TEST_F(WaitingTest, AShardThatKeepsAVersionToItselfIsNamedAndLost) {
  SayOwed(*job.Shards()[1], job.Shards()[1]->version);
  EXPECT_TRUE(job.HasEvent("ps-1: owes worker-0 version 3 for 35s"));
  job.Pass(absl::Seconds(1));
  EXPECT_FALSE(job.HasEvent("gradients itself"));
}

TEST_F(WaitingTest, AShardThatIsSilentForAsLongIsLostBeforeItsSilenceIsTooLong) {
  job.Shards()[1]->frozen = true;
  job.Pass(absl::Seconds(36));
  SayOwed(*job.Shards()[1], job.Shards()[1]->version + 1);
  EXPECT_TRUE(job.HasEvent("ps-1: owes worker-0 version 4 for 35s"));
}

TEST_F(WaitingTest, AShardThatWaitsForGradientsItselfIsNamedOnly) {
  SayOwed(*job.Shards()[1], job.Shards()[1]->version + 1);
  EXPECT_TRUE(job.HasEvent("ps-1 owes worker-0 version 4 for 35s: it waits for gradients itself"));
  EXPECT_EQ(job.Shards().size(), 2u);
  job.Train(2);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

}  // namespace
}  // namespace sluice::coordinator

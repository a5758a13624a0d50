// A coordinator that is cut off from all processes of its job, or cannot tell whether it is.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/copied_job.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

class CutJob : public TrainedJob {
 public:
  explicit CutJob(v1::JobSpec spec = FakeJob::Spec()) : TrainedJob(2, std::move(spec)) {}

  // No process is heard for this long.
  void CutOff(absl::Duration time, bool parent_calls = false) {
    heartbeats = false;
    const absl::Time end = now + time;
    while (now < end) {
      if (parent_calls) core->OnParentCall(now);
      Pass(std::min(end - now, absl::Seconds(1)));
    }
    heartbeats = true;
  }
  void Hear(FakeProcess& process) {
    v1::MemberMessage beat;
    beat.mutable_heartbeat();
    process.Say(beat);
    Pump();
  }
};

void ExpectUnharmed(CutJob& job) {
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().workers_size(), 2);
  EXPECT_EQ(job.view().shards_size(), 2);
  const v1::JobProgress progress = job.Progress();
  for (const v1::ProcessStatus& status : progress.processes()) {
    EXPECT_NE(status.state(), v1::ProcessStatus::EXPELLED);
  }
}

// Up to three heartbeat timeouts if the parent's calls pass, and of any length if they do not.
TEST(CoordinatorCut, CostsNothing) {
  for (const bool parent_calls : {true, false}) {
    for (double seconds = 0.5; seconds <= (parent_calls ? 15 : 60); seconds += 0.5) {
      SCOPED_TRACE(absl::StrCat(seconds, parent_calls ? " s, and the parent calls" : " s"));
      CutJob job;
      const uint64_t view = job.ViewNumber();
      job.CutOff(absl::Seconds(seconds), parent_calls);
      ExpectUnharmed(job);

      // The messages of the others are sent again later.
      for (const auto& worker : job.workers) worker->frozen = true;
      job.shards[0]->frozen = true;
      job.Pass(absl::Seconds(2));
      for (const auto& worker : job.workers) worker->frozen = false;
      job.shards[0]->frozen = false;
      job.Pass(absl::Seconds(10));
      ExpectUnharmed(job);
      EXPECT_EQ(job.ViewNumber(), view);
      EXPECT_EQ(job.HasEvent("the coordinator may have been cut off"), seconds >= 5);
    }
  }
}

// For example because it is on one node with the workers.
TEST(CoordinatorCut, CostsNothingIfOnlyTheWorkersAreHeard) {
  for (const double seconds : {3, 6, 9, 12, 15}) {
    CutJob job;
    for (FakeShard* shard : job.Shards()) shard->frozen = true;
    for (int second = 0; second < seconds; ++second) {
      job.core->OnParentCall(job.now);
      job.Pass(absl::Seconds(1));
    }
    job.shards[0]->frozen = false;
    job.Pass(absl::Seconds(3));
    job.shards[1]->frozen = false;
    job.Pass(absl::Seconds(3));
    ExpectUnharmed(job);
    EXPECT_EQ(job.HasEvent("no shard sent anything"), seconds > 5) << seconds;
  }
}

TEST(CoordinatorCut, OnlyShardOfAJobIsExpelledIfItIsSilent) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_parameter_server()->set_replicas(1);
  CutJob job(spec);
  job.shards[0]->frozen = true;
  job.Pass(absl::Seconds(5.2));
  EXPECT_TRUE(job.HasEvent("ps-0: sent nothing for 5s; the job is restored"));
}

TEST(CoordinatorCut, StreamsThatBreakMeanwhileMayBeOpenedAgain) {
  CutJob job;
  job.CutOff(absl::Seconds(11), /*parent_calls=*/true);
  for (FakeShard* shard : job.Shards()) job.Break(*shard);
  for (FakeWorker* worker : job.Workers()) job.Break(*worker);
  job.CutOff(absl::Seconds(4), /*parent_calls=*/true);
  ExpectUnharmed(job);
  for (FakeShard* shard : job.Shards()) {
    job.Connect(*shard);
    job.Pass(absl::Seconds(1));
  }
  for (FakeWorker* worker : job.Workers()) {
    job.Connect(*worker);
    job.Pass(absl::Seconds(1));
  }
  ExpectUnharmed(job);
}

TEST(CoordinatorCut, StreamsThatAllBreakAtOnceMayBeOpenedAgain) {
  CutJob job;
  for (FakeShard* shard : job.Shards()) job.Break(*shard);
  for (FakeWorker* worker : job.Workers()) job.Break(*worker);
  job.CutOff(absl::Seconds(1.5));
  for (FakeShard* shard : job.Shards()) job.Connect(*shard);
  job.Pass(absl::Seconds(1.5));
  for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
  ExpectUnharmed(job);
}

// ---- deaths

TEST(CoordinatorCut, ProcessThatStaysSilentAfterwardsIsExpelled) {
  CutJob job;
  job.CutOff(absl::Seconds(8));
  job.workers[0]->frozen = true;
  job.Pass(absl::Seconds(4));
  EXPECT_EQ(job.view().workers_size(), 2);
  job.Pass(absl::Seconds(1.2));
  EXPECT_EQ(job.view().workers_size(), 1);
  EXPECT_TRUE(job.HasEvent("worker-0: sent nothing for 5s"));
}

TEST(CoordinatorCut, DeathsThatTheParentReportsCountAtOnce) {
  CutJob job;
  job.CutOff(absl::Seconds(6), /*parent_calls=*/true);
  job.Kill(*job.workers[0]);
  EXPECT_EQ(job.view().workers_size(), 1);
}

TEST(CoordinatorCut, ProcessesThatFreezeTogetherAreExpelledWhileTheParentCalls) {
  CutJob job;
  job.CutOff(absl::Seconds(24), /*parent_calls=*/true);
  ExpectUnharmed(job);
  job.CutOff(absl::Seconds(3), /*parent_calls=*/true);
  EXPECT_TRUE(job.HasEvent("worker-1: sent nothing"));
  EXPECT_TRUE(job.HasEvent("the job is restored"));
}

// ---- a view change

TEST(CoordinatorCut, ViewChangeWaitsForTheNetwork) {
  CutJob job;
  for (FakeShard* shard : job.Shards()) shard->frozen = true;  // no message reaches them
  job.Kill(*job.workers[0]);
  job.CutOff(absl::Seconds(12));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  for (FakeShard* shard : job.Shards()) shard->frozen = false;
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().workers_size(), 1);
  EXPECT_EQ(job.view().shards_size(), 2);
}

// ---- a takeover

// The shard that has come lacks partitions, and the others are awaited for the heartbeat timeout.
// Neither a cut nor a freeze of the coordinator counts.
TEST(CoordinatorCut, TakeoverAwaitsShardsAsLongAfterwards) {
  for (const bool frozen : {false, true}) {
    CopiedJob job(8, Spec(3));
    job.RestartAlone();
    for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
    job.Connect(*job.shards[0]);
    job.Pass(absl::Seconds(2.5));
    ASSERT_TRUE(job.shards[0]->paused);
    ASSERT_FALSE(job.view().has_id()) << "two of three shards are missing";

    if (frozen) {
      job.now += absl::Seconds(8);
      job.core->OnTick(job.now);
      job.Pump();
    } else {
      job.heartbeats = false;
      job.Pass(absl::Seconds(8));
      job.heartbeats = true;
    }
    job.Pass(absl::Seconds(1));
    for (size_t i : {1, 2}) job.Connect(*job.shards[i]);
    job.Pass(absl::Seconds(2));
    EXPECT_EQ(job.view().id().attempt(), 1u) << frozen;
    EXPECT_EQ(job.view().shards_size(), 3) << frozen;
    EXPECT_EQ(job.claims.size(), 1u) << frozen;
  }
}

}  // namespace
}  // namespace sluice::coordinator

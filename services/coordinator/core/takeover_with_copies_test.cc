// Takeover of a job whose partitions have second copies.
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/copied_job.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(TakeoverWithCopies, CopiesStayWhole) {
  CopiedJob job(8, Spec(3));
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 8u);
  EXPECT_EQ(job.Progress().missing_copies(), 0u);
  EXPECT_THAT(job.loss_records, IsEmpty());
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, ShardThatDiedWithTheCoordinatorIsReplaced) {
  CopiedJob job(8, Spec(3));
  job.shards[1]->running = false;
  job.RestartCoordinator();
  job.Pass(absl::Seconds(1));
  EXPECT_FALSE(job.view().has_id()) << "the wanted shards have not come";
  EXPECT_FALSE(job.shards[0]->paused) << "training continues, if it can";

  job.AddShard(1);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 8u);
  EXPECT_EQ(job.view().loss_record(), 1u);
  EXPECT_TRUE(job.HasEvent("ps-1 is gone; its 2 partitions continue on ps-"));
  job.Train(10);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2)) << "the new process has joined";
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, ContinuesWithoutShardsThatDoNotCome) {
  CopiedJob job(8, Spec(3));
  job.shards[1]->running = false;
  job.RestartCoordinator();
  job.Pass(absl::Seconds(4));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 8u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 2));
  ExpectSuccess(job);
}

// A job of three shards, of which two cannot reach the new coordinator yet.
struct SlowlyGatheredJob : CopiedJob {
  explicit SlowlyGatheredJob(v1::JobSpec spec = coordinator::Spec(3))
      : CopiedJob(8, std::move(spec)) {
    for (const int i : {1, 2}) shards[i]->running = false;
    RestartCoordinator();
    Pass(absl::Seconds(5));
    EXPECT_TRUE(shards[0]->paused);
  }
  void ConnectOthers() {
    for (const int i : {1, 2}) {
      shards[i]->running = true;
      Connect(*shards[i]);
    }
  }
};

TEST(TakeoverWithCopies, AwaitsShardsWithoutWhichAPartitionIsMissing) {
  SlowlyGatheredJob job;
  EXPECT_FALSE(job.view().has_id()) << "timeouts.suspect is over";
  EXPECT_FALSE(job.HasEvent("cannot be continued"));
  job.ConnectOthers();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, NextAttemptBeginsIfMissingShardsDoNotComeInTime) {
  SlowlyGatheredJob job;
  job.Pass(absl::Seconds(4));
  EXPECT_TRUE(job.HasEvent("attempt 1 cannot be continued: ps-"));
}

TEST(TakeoverWithCopies, MissingShardThatIsReportedDeadIsNotAwaited) {
  SlowlyGatheredJob job;
  v1::SetDesiredRequest desired;
  for (const int i : {1, 2}) {
    v1::SetDesiredRequest::Death& death = *desired.add_deaths();
    *death.mutable_process() = job.shards[i]->id;
    death.set_reason("killed");
  }
  job.core->OnSetDesired(desired, job.now);
  job.Pump();
  EXPECT_TRUE(job.HasEvent("attempt 1 cannot be continued: ps-"));
}

TEST(TakeoverWithCopies, ShardThatAsksToLeaveMeanwhileIsDrained) {
  for (const uint32_t copies : {1, 2}) {
    CopiedJob job(8, Spec(3, copies));
    job.RestartAlone();
    job.Connect(*job.shards[1]);
    job.AskToLeave(*job.shards[1]);
    EXPECT_FALSE(job.shards[1]->finished) << "the attempt needs its state";
    for (const int i : {0, 2}) job.Connect(*job.shards[i]);
    for (FakeWorker* worker : job.Workers()) job.Connect(*worker);
    EXPECT_EQ(job.view().id().attempt(), 1u);
    job.Train(10);
    EXPECT_TRUE(job.shards[1]->finished);
    EXPECT_THAT(job.Indexes(), ElementsAre(0, 2));
    EXPECT_THAT(job.loss_records, IsEmpty());
    ExpectSuccess(job);
  }
}

TEST(TakeoverWithCopies, ShardAsksAgainWhereItsTakeoverIsUnderWay) {
  CopiedJob job(8, Spec(3));
  job.shards[0]->frozen = true;  // it does not reply to the Pause
  job.RestartCoordinator();
  job.AskToLeave(*job.shards[1]);
  job.Break(*job.shards[1]);
  job.Connect(*job.shards[1]);
  job.AskToLeave(*job.shards[1]);
  job.shards[0]->frozen = false;
  job.Break(*job.shards[0]);
  job.Connect(*job.shards[0]);
  job.Train(10);
  EXPECT_TRUE(job.shards[1]->finished);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.loss_records, IsEmpty());
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, CoordinatorThatIsAskedToStopDrainsShardsThatAreToo) {
  CopiedJob job(8, Spec(3));
  job.core->OnAskedToStop(job.now);
  job.makes_copies = false;
  job.AskToLeave(*job.shards[1]);
  job.Pass(absl::Seconds(3));
  EXPECT_FALSE(job.exit.has_value()) << "the shard is not drained yet";
  job.makes_copies = true;
  job.Train(10);
  job.Pass(absl::Seconds(2));
  EXPECT_TRUE(job.shards[1]->finished);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kLeft);

  job.exit.reset();
  job.RestartCoordinator();
  job.Pass(absl::Seconds(4));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 2));
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, WithOneCopyItWaitsForAllShards) {
  v1::JobSpec spec = Spec(3);
  spec.mutable_parameter_server()->set_copies(1);
  FakeJob job(spec);
  job.elements = kElements;
  job.Start();
  job.Train(4);
  job.shards[1]->running = false;  // it cannot reach the coordinator yet
  job.RestartCoordinator();
  job.Pass(absl::Seconds(20));
  EXPECT_FALSE(job.core->view().has_id());
  job.shards[1]->running = true;
  job.Connect(*job.shards[1]);
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().id().attempt(), 1u);
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, NextAttemptBeginsIfAPartitionIsMissing) {
  FakeJob job(Spec(2));
  job.elements = kElements;
  job.makes_copies = false;
  job.Start();
  job.Train(4);
  job.shards[1]->running = false;
  job.RestartCoordinator();
  job.AddShard(1);
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.core->view().id().attempt(), 2u);
  EXPECT_TRUE(job.HasEvent("attempt 1 cannot be continued: ps-1 is gone, and partition"));
  EXPECT_FALSE(job.HasEvent("the job is restored")) << "backoffLimit is 0";
}

TEST(TakeoverWithCopies, ShardThatDiesMeanwhileIsLeftOut) {
  CopiedJob job(8, Spec(3));
  job.shards[2]->frozen = true;
  job.RestartCoordinator();
  ASSERT_TRUE(job.shards[0]->paused);
  ASSERT_FALSE(job.view().has_id());
  job.Kill(*job.shards[2]);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().loss_record(), 1u);
  ExpectSuccess(job);
}

TEST(TakeoverWithCopies, CarriesOutTheNewestLossRecord) {
  CopiedJob job(8, Spec(3));
  // The record was made, and its coordinator died before the install. The lost shard lives.
  v1::Claim record;
  record.set_attempt(1);
  record.set_loss_record(1);
  record.add_kept(job.shards[0]->id.incarnation());
  record.add_kept(job.shards[2]->id.incarnation());
  job.loss_records.push_back(record);
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 2));
  EXPECT_EQ(job.view().loss_record(), 1u);
  EXPECT_EQ(job.loss_records.size(), 1u);
  EXPECT_EQ(job.shards[1]->stream, 0) << "it is expelled";
  job.Connect(*job.shards[1]);
  ASSERT_TRUE(job.shards[1]->refusal.has_value());
  EXPECT_EQ(job.shards[1]->refusal->code(), v1::Refusal::EXPELLED);
}

TEST(TakeoverWithCopies, LossRecordThatWasCarriedOutIsNotRepeated) {
  CopiedJob job(8, Spec(3));
  job.Kill(*job.shards[1]);
  job.AddShard(1);
  job.Train(10);
  ASSERT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2)) << "the new shard is not in the record";
  EXPECT_EQ(job.view().loss_record(), 1u);
}

TEST(TakeoverWithCopies, ReadsTheStorageAgainIfItLacksTheShardsRecord) {
  CopiedJob job(8, Spec(3));
  job.Kill(*job.shards[1]);
  job.AddShard(1);
  job.Train(10);
  const std::vector<v1::Claim> records = std::exchange(job.loss_records, {});
  int reads = 0;
  job.read_storage = [&]() -> absl::StatusOr<StorageContents> {
    StorageContents contents;
    contents.claims = job.claims;
    if (++reads > 1) {
      contents.claims[0].set_loss_record(1);
      *contents.claims[0].mutable_kept() = records[0].kept();
    }
    return contents;
  };
  job.RestartCoordinator();
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().loss_record(), 1u);
}

TEST(TakeoverWithCopies, NextAttemptBeginsIfTheLossRecordIsDamaged) {
  CopiedJob job(8, Spec(3));
  v1::Claim record;
  record.set_attempt(1);
  record.set_loss_record(1);
  job.loss_records.push_back(record);
  job.RestartCoordinator();
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.view().id().attempt(), 2u);
  EXPECT_TRUE(job.HasEvent("its loss record 1 is damaged"));
}

TEST(TakeoverWithCopies, NewShardThatMissedItsFirstViewJoinsAgain) {
  CopiedJob job(4, Spec(2));
  job.ScaleShards(3);
  FakeShard& added = job.AddShard(2);
  added.drop_installs = true;
  job.Train(4);
  ASSERT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  ASSERT_FALSE(added.has_view);

  added.drop_installs = false;
  job.RestartCoordinator();
  EXPECT_EQ(job.view().id().attempt(), 1u);
  job.Train(10);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(added.has_view);
}

// The job was scaled to three shards, and the new coordinator's manifest says two.
struct ScaledJob : CopiedJob {
  explicit ScaledJob(uint32_t copies) : CopiedJob(4, coordinator::Spec(2, copies)) {
    ScaleShards(3);
    AddShard(2);
    Train(20);
    EXPECT_THAT(Indexes(), ElementsAre(0, 1, 2));
    EXPECT_GT(OwnedBy(shards[2]->id.incarnation()), 0);

    RestartAlone();
    for (const int i : {0, 1}) Connect(*shards[i]);
    for (FakeWorker* worker : Workers()) Connect(*worker);
    EXPECT_TRUE(shards[0]->paused);
    EXPECT_FALSE(view().has_id()) << "a shard of the view is missing";
  }
};

TEST(TakeoverWithCopies, WaitsForShardsBeyondTheManifestsNumber) {
  for (const uint32_t copies : {1, 2}) {
    ScaledJob job(copies);
    job.Pass(absl::Milliseconds(500));
    job.Connect(*job.shards[2]);
    EXPECT_EQ(job.view().id().attempt(), 1u);
    EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
    EXPECT_THAT(job.loss_records, IsEmpty());
    job.Train(10);
    EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2)) << "it is not drained";
    job.ScaleShards(2);
    job.Train(10);
    EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  }
}

TEST(TakeoverWithCopies, ContinuesWithoutShardThatDoesNotComeInTime) {
  ScaledJob job(2);
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().loss_record(), 1u);
  job.Connect(*job.shards[2]);
  EXPECT_EQ(job.shards[2]->stream, 0) << "it comes back as another process";
}

}  // namespace
}  // namespace sluice::coordinator

// Second copies of partitions, loss records, and shards that join and leave while the job trains.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

v1::JobSpec Spec(uint32_t shards, uint32_t copies = 2) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_parameter_server()->set_replicas(shards);
  spec.mutable_parameter_server()->set_partitions(6);
  spec.mutable_parameter_server()->set_copies(copies);
  spec.mutable_training()->set_steps(100);
  spec.set_backoff_limit(0);
  return spec;
}

// So many that all partitions have blocks.
constexpr int64_t kElements = 10'000'000;

// A job that has trained this many steps, and whose copies are whole.
struct CopiedJob : FakeJob {
  explicit CopiedJob(int steps, v1::JobSpec spec) : FakeJob(std::move(spec)) {
    elements = kElements;
    Start();
    Pass(absl::Seconds(1));
    Train(steps);
  }
  const v1::View& view() { return core->view(); }
  uint64_t Incarnation(int position) { return view().shards(position).process().incarnation(); }
  std::set<uint32_t> Indexes() {
    std::set<uint32_t> indexes;
    for (const auto& shard : view().shards()) indexes.insert(shard.process().index());
    return indexes;
  }
  int OwnedBy(uint64_t incarnation) {
    int owned = 0;
    for (const uint32_t owner : view().owner()) {
      owned += Incarnation(static_cast<int>(owner)) == incarnation ? 1 : 0;
    }
    return owned;
  }
};

void ExpectSuccess(FakeJob& job) {
  job.Train(120);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value()) << job.Progress().DebugString();
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
}

TEST(Copies, AreNamedInTheFirstViewAndCounted) {
  FakeJob job(Spec(3));
  job.elements = kElements;
  job.makes_copies = false;
  job.Start();
  const v1::View& view = job.core->view();
  ASSERT_EQ(view.follower_size(), 6);
  for (int p = 0; p < 6; ++p) EXPECT_NE(view.follower(p), view.owner(p) + 1);
  EXPECT_TRUE(view.target().empty());
  EXPECT_EQ(job.Progress().copies(), 6u);
  EXPECT_EQ(job.Progress().missing_copies(), 6u);

  const uint64_t number = job.ViewNumber();
  job.makes_copies = true;
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.Progress().missing_copies(), 0u);
  EXPECT_EQ(job.Progress().processes(0).copies(), 2u);
  EXPECT_TRUE(job.HasEvent("all partitions have a second copy"));
  EXPECT_EQ(job.ViewNumber(), number) << "a copy becomes whole within a view";
  ExpectSuccess(job);
}

TEST(Copies, AreNotNamedInOtherJobs) {
  const std::vector<std::function<void(v1::JobSpec&)>> others = {
      [](v1::JobSpec& spec) { spec.mutable_parameter_server()->set_copies(0); },
      [](v1::JobSpec& spec) { spec.mutable_parameter_server()->set_replicas(1); },
      [](v1::JobSpec& spec) {
        spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
        spec.mutable_training()->mutable_staleness()->set_rule(
            v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
      },
  };
  for (const auto& change : others) {
    v1::JobSpec spec = Spec(2);
    change(spec);
    FakeJob job(spec);
    job.elements = kElements;
    job.Start();
    EXPECT_TRUE(job.core->view().has_id());
    EXPECT_TRUE(job.core->view().follower().empty());
    EXPECT_TRUE(job.core->view().target().empty());
  }
}

TEST(Copies, DeadShardCostsNoStepAndNoRestoration) {
  CopiedJob job(8, Spec(3));
  FakeShard& dead = *job.shards[1];
  const int owned = job.OwnedBy(dead.id.incarnation());
  ASSERT_GT(owned, 0);
  job.Kill(dead);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_EQ(job.view().first_step(), 8u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 2));
  EXPECT_TRUE(job.HasEvent("its 2 partitions continue on ps-"));
  EXPECT_EQ(job.Progress().missing_copies(), job.Progress().copies() - 2)
      << "the partitions of the two other shards had whole copies on each other or on it";
  ASSERT_EQ(job.loss_records.size(), 1u);
  EXPECT_EQ(job.loss_records[0].loss_record(), 1u);
  EXPECT_THAT(job.loss_records[0].kept(), UnorderedElementsAre(job.shards[0]->id.incarnation(),
                                                               job.shards[2]->id.incarnation()));
  EXPECT_EQ(job.view().loss_record(), 1u);
  EXPECT_EQ(job.view().follower_size(), 6) << "new copies are made";

  // The process that replaces it joins, and later holds its part.
  job.AddShard(1);
  job.Train(10);
  job.Pass(absl::Seconds(3));
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(job.HasEvent("ps-1 joined"));
  EXPECT_EQ(job.Progress().missing_copies(), 0u);
  EXPECT_GT(job.OwnedBy(job.shards.back()->id.incarnation()), 0);
  EXPECT_EQ(job.view().loss_record(), 1u) << "views repeat the number";
  EXPECT_EQ(job.claims.size(), 1u);
  ExpectSuccess(job);
}

TEST(Copies, StepThatOnlySomeShardsClosedIsComputedAgain) {
  CopiedJob job(8, Spec(3));
  job.CloseOn({job.shards[1].get()});
  ASSERT_EQ(job.shards[1]->version, 9u);
  job.Kill(*job.shards[1]);
  EXPECT_EQ(job.view().first_step(), 8u);
  ExpectSuccess(job);
}

TEST(Copies, DeathOfOneShardAfterAnotherIsALossOnlyIfNoCopyIsLeft) {
  CopiedJob job(8, Spec(3));
  job.Kill(*job.shards[1]);
  job.Pass(absl::Seconds(2));
  ASSERT_EQ(job.Progress().missing_copies(), 0u);
  job.Kill(*job.shards[2]);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(0));
  EXPECT_EQ(job.view().loss_record(), 2u);
  EXPECT_TRUE(job.view().follower().empty());
  ExpectSuccess(job);
}

TEST(Copies, JobIsRestoredIfACopyWasNotWhole) {
  v1::JobSpec spec = Spec(2);
  spec.set_backoff_limit(1);
  FakeJob job(spec);
  job.elements = kElements;
  job.makes_copies = false;
  job.Start();
  job.Train(3);
  job.Kill(*job.shards[1]);
  EXPECT_TRUE(job.HasEvent("ps-1: died; ps-1 is gone, and partition")) << "it names both";
  EXPECT_TRUE(job.HasEvent("the job is restored"));
  EXPECT_TRUE(job.loss_records.empty());
  job.AddShard(1);
  job.Pass(absl::Seconds(3));
  EXPECT_EQ(job.core->view().id().attempt(), 2u);
}

TEST(Copies, FrozenShardIsReplacedByItsCopies) {
  CopiedJob job(8, Spec(3));
  job.shards[2]->frozen = true;
  job.Train(1);
  EXPECT_EQ(job.Version(), 8u) << "owners wait for the copies on it";
  job.Pass(absl::Seconds(6));
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  job.Train(2);
  EXPECT_EQ(job.Version(), 10u);

  // It may come back only as another process.
  job.shards[2]->frozen = false;
  job.Connect(*job.shards[2]);
  ASSERT_TRUE(job.shards[2]->refusal.has_value());
  EXPECT_EQ(job.shards[2]->refusal->code(), v1::Refusal::EXPELLED);
}

TEST(Copies, DeathDuringASnapshotAbandonsItIfItsStepIsPinned) {
  v1::JobSpec spec = Spec(3);
  spec.mutable_checkpoint()->set_interval_steps(10);
  CopiedJob job(0, spec);
  job.hold_checkpoint_index = true;
  job.Train(12);
  ASSERT_EQ(job.shards[0]->snapshot->step(), 10u);
  job.Kill(*job.shards[1]);
  EXPECT_NE(job.shards[0]->snapshot->step(), 10u) << "the new owners have no pins of it";
  job.hold_checkpoint_index = false;
  job.Train(10);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 10}), 0u);
  EXPECT_FALSE(job.checkpoint_indexes.empty());
  ExpectSuccess(job);
}

TEST(Copies, SnapshotOfALaterStepSurvivesADeath) {
  v1::JobSpec spec = Spec(3);
  spec.mutable_checkpoint()->set_interval_steps(10);
  CopiedJob job(7, spec);
  job.Kill(*job.shards[1]);
  job.Train(5);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 10}), 1u);
}

TEST(Copies, ShardMayDieWhileTheLastCheckpointIsSaved) {
  v1::JobSpec spec = Spec(3);
  spec.mutable_training()->set_steps(10);
  CopiedJob job(0, spec);
  job.hold_checkpoint_index = true;
  job.Train(10);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::SAVING);
  job.hold_checkpoint_index = false;
  job.Kill(*job.shards[0]);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
  EXPECT_EQ(job.checkpoint_indexes.count({1, 10}), 1u);
}

// ---- loss records (R4)

TEST(LossRecords, AreDurableBeforeTheInstall) {
  CopiedJob job(8, Spec(3));
  job.hold_loss_records = true;
  const uint64_t number = job.ViewNumber();
  job.Kill(*job.shards[1]);
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.ViewNumber(), number);
  EXPECT_TRUE(job.shards[0]->paused) << "promised shards wait";

  job.core->OnClaimResult(1, absl::OkStatus(), job.now);
  job.Pump();
  EXPECT_GT(job.ViewNumber(), number);
  EXPECT_EQ(job.view().loss_record(), 1u);
}

TEST(LossRecords, AreNotNeededWithoutTheRule) {
  class WithoutTheRule : public CoordinatorRules {
    bool RecordLosses() const override { return false; }
  };
  const WithoutTheRule rules;
  FakeJob job(Spec(3));
  job.core = std::make_unique<CoordinatorCore>(job.options, job.now, &rules);
  job.elements = kElements;
  job.hold_loss_records = true;
  job.Start();
  job.Pass(absl::Seconds(1));
  job.Kill(*job.shards[1]);
  EXPECT_EQ(job.core->view().shards_size(), 2) << "the install does not wait";
}

TEST(LossRecords, AnotherDeathMeanwhileNeedsAnotherRecord) {
  CopiedJob job(8, Spec(4));
  // Two shards that hold no partition together.
  const v1::View& view = job.view();
  FakeShard* first = job.shards[0].get();
  FakeShard* second = nullptr;
  for (uint32_t other = 1; other < 4 && second == nullptr; ++other) {
    bool together = false;
    for (int p = 0; p < 6; ++p) {
      const std::set<uint32_t> holders = {view.owner(p), view.follower(p) - 1};
      together = together || holders == std::set<uint32_t>{0, other};
    }
    if (!together) second = job.shards[other].get();
  }
  ASSERT_NE(second, nullptr);

  job.hold_loss_records = true;
  job.Kill(*first);
  job.Kill(*second);
  job.hold_loss_records = false;
  const uint64_t number = job.ViewNumber();
  // The first record is made, and keeps a shard that is dead now.
  v1::Claim record;
  record.set_attempt(1);
  record.set_loss_record(1);
  job.loss_records.push_back(record);
  job.core->OnClaimResult(1, absl::OkStatus(), job.now);
  job.Pump();
  EXPECT_GT(job.ViewNumber(), number);
  EXPECT_EQ(job.view().loss_record(), 2u);
  ASSERT_EQ(job.loss_records.size(), 2u);
  EXPECT_EQ(job.loss_records[1].kept_size(), 2);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ExpectSuccess(job);
}

TEST(LossRecords, CoordinatorThatIsNotTheFirstExits) {
  CopiedJob job(8, Spec(3));
  v1::Claim record;
  record.set_attempt(1);
  record.set_loss_record(1);
  record.add_kept(job.shards[1]->id.incarnation());
  job.loss_records.push_back(record);
  job.Kill(*job.shards[1]);
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
  EXPECT_THAT(job.exit->message, HasSubstr("has made loss record 1 of attempt 1"));
}

TEST(LossRecords, CoordinatorExitsIfItReadsOneOfItsAttempt) {
  v1::JobSpec spec = Spec(3);
  spec.mutable_checkpoint()->set_interval_steps(10);
  CopiedJob job(8, spec);
  v1::Claim record;
  record.set_attempt(1);
  record.set_loss_record(1);
  record.add_kept(job.shards[1]->id.incarnation());
  job.loss_records.push_back(record);
  job.Train(4);
  ASSERT_TRUE(job.exit.has_value()) << "before it writes the index of step 10";
  EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
  EXPECT_THAT(job.checkpoint_indexes, IsEmpty());
}

TEST(LossRecords, AreTriedAgainUntilTheStorageTakesThem) {
  CopiedJob job(8, Spec(3));
  job.loss_record_error = absl::ResourceExhaustedError("no space left on device");
  const uint64_t number = job.ViewNumber();
  job.Kill(*job.shards[1]);
  job.Pass(absl::Seconds(4));
  EXPECT_EQ(job.ViewNumber(), number);
  EXPECT_TRUE(job.HasEvent("loss record 1 of attempt 1 cannot be made: no space left on device"));
  job.loss_record_error = absl::OkStatus();
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.view().loss_record(), 1u);
  EXPECT_EQ(job.view().first_step(), 8u);
  ExpectSuccess(job);
}

TEST(LossRecords, RecordThatWasMadeAlthoughTheRequestFailedIsItsOwn) {
  for (const bool own : {true, false}) {
    CopiedJob job(8, Spec(3));
    job.loss_record_error = absl::UnavailableError("no answer");
    job.Kill(*job.shards[1]);
    ASSERT_TRUE(job.shards[0]->paused);
    v1::Claim record;
    record.set_attempt(1);
    record.set_loss_record(1);
    *record.mutable_term() = job.view().id().term();
    record.add_kept(job.shards[2]->id.incarnation());
    if (own) record.add_kept(job.shards[0]->id.incarnation());
    job.loss_records.push_back(record);
    job.loss_record_error = absl::OkStatus();
    job.Pass(absl::Seconds(2));
    if (own) {
      EXPECT_EQ(job.view().loss_record(), 1u);
      EXPECT_EQ(job.loss_records.size(), 1u);
      ExpectSuccess(job);
    } else {
      ASSERT_TRUE(job.exit.has_value());
      EXPECT_EQ(job.exit->reason, ExitReason::kSuperseded);
    }
  }
}

// ---- takeover

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

    ++options.incarnation;
    core = std::make_unique<CoordinatorCore>(options, now);
    Pump();
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

// ---- joins, drains and balance

TEST(MovingShards, NewShardTakesItsPartAndTheOldOnesKeepTraining) {
  for (const uint32_t copies : {1, 2}) {
    CopiedJob job(4, Spec(2, copies));
    job.ScaleShards(3);
    FakeShard& added = job.AddShard(2);
    EXPECT_TRUE(added.ready) << "it has nothing to load";
    EXPECT_EQ(added.prepare.shards_size(), 3) << "the view's, and itself";
    EXPECT_EQ(added.prepare.owner_size(), 6);
    job.Train(20);
    EXPECT_EQ(job.view().id().attempt(), 1u);
    EXPECT_EQ(job.OwnedBy(added.id.incarnation()), 2) << copies;
    EXPECT_TRUE(job.view().target().empty());
    EXPECT_EQ(job.view().follower_size(), copies == 2 ? 6 : 0);
    EXPECT_EQ(job.Progress().missing_copies(), 0u);
    EXPECT_GT(job.Version(), 20u);
    EXPECT_TRUE(job.HasEvent("ps-2 joined"));
    EXPECT_THAT(job.loss_records, IsEmpty());
    const uint64_t number = job.ViewNumber();
    job.Train(10);
    EXPECT_EQ(job.ViewNumber(), number) << "the plan is stable";
    ExpectSuccess(job);
  }
}

TEST(MovingShards, UnwantedShardsAreDrainedAndReleased) {
  for (const uint32_t copies : {1, 2}) {
    CopiedJob job(4, Spec(4, copies));
    job.ScaleShards(2);
    job.Train(20);
    EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
    for (const int i : {2, 3}) {
      EXPECT_TRUE(job.shards[i]->finished) << i;
      EXPECT_TRUE(job.HasEvent(absl::StrCat("ps-", i, " was drained")));
      job.Kill(*job.shards[i]);
    }
    EXPECT_FALSE(job.shards[0]->finished);
    EXPECT_EQ(job.view().id().attempt(), 1u);
    EXPECT_GT(job.Version(), 20u);
    EXPECT_THAT(job.loss_records, IsEmpty()) << "it replied to the Pause";
    ExpectSuccess(job);
  }
}

void AskToLeave(FakeJob& job, FakeProcess& process) {
  v1::MemberMessage message;
  message.mutable_leave()->set_reason("asked to stop by a signal");
  process.Say(message);
  job.Pump();
}

TEST(MovingShards, ShardThatAsksToLeaveIsDrained) {
  CopiedJob job(4, Spec(2));
  AskToLeave(job, *job.shards[0]);
  EXPECT_TRUE(job.HasEvent("ps-0 asks to leave: other shards take its partitions"));
  job.Train(10);
  EXPECT_TRUE(job.shards[0]->finished);
  EXPECT_THAT(job.Indexes(), ElementsAre(1));
  EXPECT_TRUE(job.checkpoint_indexes.empty());
  job.Kill(*job.shards[0]);
  job.AddShard(0);
  job.Train(10);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ExpectSuccess(job);
}

TEST(MovingShards, DrainedShardInstallsTheViewWithoutItFirst) {
  CopiedJob job(4, Spec(2));
  FakeShard& drained = *job.shards[1];
  FakeShard& other = *job.shards[0];
  drained.drop_installs = true;
  job.ScaleShards(1);
  job.Train(6);
  ASSERT_THAT(job.Indexes(), ElementsAre(0));
  EXPECT_TRUE(other.paused) << "it has not got the Install";
  EXPECT_FALSE(drained.finished);

  // The shard gets it again on another stream; then the other shard does, and training continues.
  const uint64_t version = job.view().first_step();
  drained.drop_installs = false;
  job.Break(drained);
  job.Connect(drained);
  EXPECT_FALSE(other.paused);
  EXPECT_TRUE(drained.finished);
  job.Train(2);
  EXPECT_EQ(other.version, version + 2);
  EXPECT_THAT(job.loss_records, IsEmpty());
}

TEST(MovingShards, DeathOfDrainedShardThatHasNotInstalledIsALoss) {
  CopiedJob job(4, Spec(2));
  job.shards[0]->drop_installs = true;
  AskToLeave(job, *job.shards[0]);
  job.Train(6);
  ASSERT_TRUE(job.shards[1]->paused);
  job.Kill(*job.shards[0]);
  EXPECT_FALSE(job.shards[1]->paused);
  EXPECT_EQ(job.view().loss_record(), 1u);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ExpectSuccess(job);
}

TEST(MovingShards, ShardThatDiesWhileItIsDrainedIsALossLikeAnyOther) {
  CopiedJob job(4, Spec(3));
  AskToLeave(job, *job.shards[0]);
  job.Kill(*job.shards[0]);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  EXPECT_THAT(job.Indexes(), ElementsAre(1, 2));
  EXPECT_EQ(job.view().loss_record(), 1u);
}

TEST(MovingShards, NewShardThatDiesChangesNothing) {
  CopiedJob job(4, Spec(2));
  job.ScaleShards(3);
  job.makes_copies = false;
  FakeShard& added = job.AddShard(2);
  job.Train(5);
  ASSERT_THAT(job.Indexes(), ElementsAre(0, 1, 2));
  job.Kill(added);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
  EXPECT_EQ(job.view().id().attempt(), 1u);
  job.makes_copies = true;
  ExpectSuccess(job);
}

TEST(MovingShards, NewShardThatCannotLoadIsExpelled) {
  CopiedJob job(4, Spec(2));
  job.ScaleShards(3);
  FakeShard added(&job, v1::SHARD, 2, 900);
  added.load_error = "out of memory";
  job.strangers.push_back(&added);
  job.Connect(added);
  EXPECT_TRUE(job.HasEvent("ps-2: cannot join: out of memory"));
  job.Train(3);
  EXPECT_THAT(job.Indexes(), ElementsAre(0, 1));
}

TEST(MovingShards, OwnersStayWhileASnapshotIsOpen) {
  v1::JobSpec spec = Spec(2);
  spec.mutable_checkpoint()->set_interval_steps(6);
  CopiedJob job(4, spec);
  job.hold_checkpoint_index = true;
  job.Train(4);  // past step 6
  AskToLeave(job, *job.shards[0]);
  const int owned = job.OwnedBy(job.shards[0]->id.incarnation());
  job.Train(10);
  EXPECT_EQ(job.OwnedBy(job.shards[0]->id.incarnation()), owned) << "it has pins";
  EXPECT_FALSE(job.shards[0]->finished);
  const uint64_t number = job.ViewNumber();
  job.Train(5);
  EXPECT_EQ(job.ViewNumber(), number) << "no view change is in vain";

  job.hold_checkpoint_index = false;
  v1::CheckpointRef saved;
  saved.set_attempt(1);
  saved.set_step(6);
  job.core->OnCheckpointIndexWritten(saved, absl::OkStatus(), job.now);
  job.Train(10);
  EXPECT_TRUE(job.shards[0]->finished);
}

TEST(MovingShards, NewShardTakesItsPartWhileCheckpointsFollowEachOther) {
  v1::JobSpec spec = Spec(2);
  spec.mutable_checkpoint()->set_interval_steps(3);
  CopiedJob job(4, spec);
  job.ScaleShards(3);
  FakeShard& added = job.AddShard(2);
  job.Train(20);
  EXPECT_EQ(job.OwnedBy(added.id.incarnation()), 2);
  EXPECT_TRUE(job.view().target().empty());
  ExpectSuccess(job);
}

TEST(MovingShards, ShardThatKnowsAnOldViewIsNotAdmitted) {
  CopiedJob job(4, Spec(2));
  FakeShard& old = *job.shards[1];
  job.Kill(old);
  ASSERT_THAT(job.Indexes(), ElementsAre(0));
  job.RestartCoordinator();  // it does not know who was expelled
  job.AddShard(1);
  job.Pass(absl::Seconds(1));
  job.Kill(*job.shards.back());
  old.running = true;
  job.Connect(old);
  EXPECT_EQ(old.stream, 0);
  EXPECT_TRUE(job.HasEvent("ps-1: is not in the view with which its attempt continues"));
  EXPECT_EQ(job.view().id().attempt(), 1u);
}

// ---- what shards may report

TEST(HostileCopies, ReportsOfCopiesThatNoViewNamesAreBreaches) {
  CopiedJob job(4, Spec(3));
  FakeShard& shard = *job.shards[0];
  const auto report = [&](std::vector<uint32_t> copies) {
    if (shard.stream == 0) job.Connect(shard);
    v1::MemberMessage message;
    v1::ShardProgress& progress = *message.mutable_shard_progress();
    *progress.mutable_view() = shard.view.id();
    progress.set_closed(shard.version);
    *progress.mutable_copies() = {copies.begin(), copies.end()};
    shard.Say(message);
    job.Pump();
    return shard.closed.message();
  };
  const std::vector<uint32_t> named = shard.NamedCopies();
  ASSERT_EQ(named.size(), 2u);
  EXPECT_EQ(report(named), "");
  EXPECT_THAT(report({shard.Owned()[0]}), HasSubstr("the view names no copy of partition"));
  EXPECT_THAT(report({named[1], named[0]}), HasSubstr("after"));
}

// ---- hot shards

// Trains for this long. Each shard is busy for 20 ms of a step, the one with index 1 three times as
// long for as many bytes.
void TrainWithHotShard(CopiedJob& job, int seconds) {
  for (int step = 0; step < 10 * seconds; ++step) {
    std::map<uint64_t, int> held;
    for (int p = 0; p < job.view().owner_size(); ++p) {
      ++held[job.Incarnation(static_cast<int>(job.view().owner(p)))];
      if (job.view().follower().empty() || job.view().follower(p) == 0) continue;
      ++held[job.Incarnation(static_cast<int>(job.view().follower(p)) - 1)];
    }
    for (FakeShard* shard : job.Shards()) {
      const double cost = shard->id.index() == 1 ? 0.015 : 0.005;
      shard->busy_seconds += cost * held[shard->id.incarnation()];
    }
    job.Train(1);
  }
}

TEST(HotShard, HandsPartitionsToOthersAfterAMinute) {
  for (const uint32_t copies : {1u, 2u}) {
    SCOPED_TRACE(copies);
    v1::JobSpec spec = Spec(3, copies);
    spec.mutable_parameter_server()->set_partitions(24);
    spec.mutable_training()->set_steps(4000);
    CopiedJob job(8, spec);
    const auto hot = [&] { return job.Holder(job.view(), 1)->id.incarnation(); };
    ASSERT_EQ(job.OwnedBy(hot()), 8);
    TrainWithHotShard(job, 50);
    EXPECT_EQ(job.OwnedBy(hot()), 8) << "less than a minute";
    TrainWithHotShard(job, 40);
    EXPECT_TRUE(
        job.HasEvent("times as busy as the median shard for a minute: other shards take "
                     "over partitions"))
        << ::testing::PrintToString(job.Events());
    job.Pass(absl::Seconds(3));
    EXPECT_LE(job.OwnedBy(hot()), 5);
    EXPECT_GE(job.OwnedBy(hot()), 2);
    EXPECT_EQ(job.core->load().cooled(), 1u);

    // No more moves follow.
    const uint64_t number = job.ViewNumber();
    TrainWithHotShard(job, 200);
    EXPECT_EQ(job.ViewNumber(), number);
    EXPECT_EQ(job.view().id().attempt(), 1u);
  }
}

TEST(HotShard, IsLeftAloneWherePartitionsDoNotMove) {
  v1::JobSpec spec = Spec(3, 0);
  spec.mutable_training()->set_mode(v1::ASYNCHRONOUS);
  spec.mutable_training()->set_epochs(1000);
  spec.mutable_training()->mutable_staleness()->set_rule(
      v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
  CopiedJob job(1, spec);
  const uint64_t number = job.ViewNumber();
  for (int i = 0; i < 200; ++i) {
    job.shards[1]->busy_seconds += 0.9;
    for (FakeShard* shard : job.Shards()) {
      shard->busy_seconds += 0.1;
      shard->SayProgress();
    }
    job.Pass(absl::Seconds(1));
  }
  EXPECT_EQ(job.ViewNumber(), number);
  EXPECT_FALSE(job.HasEvent("as busy as the median shard"));
}

}  // namespace
}  // namespace sluice::coordinator

// Second copies of partitions, and loss records.
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/copied_job.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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

// A shard of a job of four shards that holds no partition together with the first one.
FakeShard* FindApart(CopiedJob& job) {
  const v1::View& view = job.view();
  for (uint32_t other = 1; other < 4; ++other) {
    bool together = false;
    for (int p = 0; p < 6; ++p) {
      const std::set<uint32_t> holders = {view.owner(p), view.follower(p) - 1};
      together = together || holders == std::set<uint32_t>{0, other};
    }
    if (!together) return job.shards[other].get();
  }
  return nullptr;
}

TEST(LossRecords, AnotherDeathMeanwhileNeedsAnotherRecord) {
  CopiedJob job(8, Spec(4));
  FakeShard* first = job.shards[0].get();
  FakeShard* second = FindApart(job);
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
    job.made_although_failed = true;
    job.loss_record_error = absl::UnavailableError("no answer");
    job.Kill(*job.shards[1]);
    ASSERT_TRUE(job.shards[0]->paused);
    ASSERT_EQ(job.loss_records.size(), 1u);
    if (!own) job.loss_records[0].mutable_term()->set_coordinator(99);
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

TEST(LossRecords, RecordOfAFailedRequestIsFollowedByTheNextOneIfAnotherShardDies) {
  CopiedJob job(8, Spec(4));
  FakeShard* second = FindApart(job);
  ASSERT_NE(second, nullptr);
  job.made_although_failed = true;
  job.loss_record_error = absl::UnavailableError("no answer");
  job.Kill(*job.shards[0]);
  ASSERT_EQ(job.loss_records.size(), 1u);
  ASSERT_EQ(job.loss_records[0].kept_size(), 3);
  job.Kill(*second);
  job.loss_record_error = absl::OkStatus();
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.view().loss_record(), 2u) << "the first one was its own";
  ASSERT_EQ(job.loss_records.size(), 2u);
  EXPECT_EQ(job.loss_records[1].kept_size(), 2);
  EXPECT_EQ(job.view().id().attempt(), 1u);
  ExpectSuccess(job);
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

}  // namespace
}  // namespace sluice::coordinator

// Asynchronous and bounded-staleness training through ShardCore.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Values = std::vector<float>;

// Members 7 and 8; batches of 4 samples. Unless a test says otherwise, this shard owns both
// partitions and is the arbiter.
class AsynchronousTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shard.job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
    shard.job.mutable_training()->set_steps(10);  // 40 samples
  }
  void Begin() {
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
  }
  v1::Header NewHeader() {
    v1::Header header;
    *header.mutable_view() = shard.core().Status().view;
    return header;
  }
  void Push(StreamId stream, uint64_t clock, uint32_t partition, float value,
            uint64_t samples = 1) {
    const v1::Permit permit = Permitted(stream, clock);
    v1::Header header = shard.MakePush(0, partition, ShardHarness::Microbatches(0, 1), samples);
    header.mutable_push()->set_clock(clock);
    header.mutable_push()->set_ordinal(permit.ordinal());
    shard.Send(stream, header, CordOf(Values(partition == 0 ? 4 : 2, value)));
  }
  void Stage(StreamId stream, uint64_t clock, float value) {
    Push(stream, clock, 0, value);
    Push(stream, clock, 1, value);
  }
  void Apply(StreamId stream, uint64_t clock, uint64_t begin, uint64_t end,
             bool pull_next = false) {
    const v1::Permit permit = Permitted(stream, clock);
    v1::Header header = NewHeader();
    header.mutable_apply()->set_clock(clock);
    header.mutable_apply()->set_ordinal(permit.ordinal());
    header.mutable_apply()->set_staleness(permit.staleness());
    *header.mutable_apply()->mutable_samples() = ShardHarness::Microbatches(begin, end);
    header.mutable_apply()->set_pull_next(pull_next);
    shard.Send(stream, header);
  }
  // The permit of an update. Requests it before the update's first push. Empty if this shard grants
  // no permits.
  v1::Permit Permitted(StreamId stream, uint64_t clock) {
    if (repeats) return {};
    const auto known = permits_.find({stream, clock});
    if (known != permits_.end()) return known->second;
    if (clock == 0 || shard.owner[0] != 0 || !shard.StatusOf(stream).ok()) return {};
    shard.TakeFrames(stream);
    const std::optional<v1::Permit> permit = Permit(stream, clock);
    if (!permit.has_value()) return {};
    return permits_[{stream, clock}] = *permit;
  }
  std::optional<v1::Lease> TakeLease(StreamId stream) {
    std::optional<v1::Lease> lease;
    for (const v1::Header& header : shard.TakeFrames(stream)) {
      EXPECT_TRUE(header.has_view()) << "a worker ignores frames without its view";
      if (header.has_lease()) lease = header.lease();
    }
    return lease;
  }
  std::optional<v1::Lease> Lease(StreamId stream, uint64_t samples = 0, uint64_t clock = 0) {
    shard.TakeFrames(stream);
    v1::Header header = NewHeader();
    header.mutable_lease_request()->set_samples(samples);
    header.mutable_lease_request()->set_clock(clock);
    shard.Send(stream, header);
    return TakeLease(stream);
  }
  std::optional<v1::Permit> TakePermit(StreamId stream) {
    std::optional<v1::Permit> permit;
    for (const v1::Header& header : shard.TakeFrames(stream)) {
      if (header.has_permit()) permit = header.permit();
    }
    return permit;
  }
  std::optional<v1::Permit> Permit(StreamId stream, uint64_t clock, uint64_t base = 0) {
    v1::Header header = NewHeader();
    header.mutable_permit_request()->set_clock(clock);
    header.mutable_permit_request()->set_base_version(base);
    shard.Send(stream, header);
    return TakePermit(stream);
  }
  v1::Install InstallAfter(uint64_t number, uint64_t updates,
                           const std::vector<uint64_t>& members) {
    return shard.MakeInstall(shard.MakeView(number, updates, members));
  }
  void Deliver(const v1::Install& install) {
    v1::CoordinatorMessage message;
    *message.mutable_install() = install;
    shard.Deliver(message);
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
  std::map<std::pair<StreamId, uint64_t>, v1::Permit> permits_;
  bool repeats = false;  // updates are sent again, without permit requests
};

TEST_F(AsynchronousTest, StagesAndAcknowledgesUpdateAndAppliesItWholeAtItsApply) {
  Begin();
  ASSERT_EQ(Lease(one)->samples().end(), 4);
  Push(one, 1, 0, 2);
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty()) << "partition 1 has not arrived";

  Push(one, 1, 1, 2);
  std::vector<v1::Header> frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].staged().clock(), 1);
  EXPECT_EQ(shard.Values(0), (Values{0, 0, 0, 0}));

  Apply(one, 1, 0, 4, /*pull_next=*/true);
  frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_EQ(frames[0].applied().clock(), 1);
  EXPECT_EQ(frames[0].applied().version(), 1);
  EXPECT_EQ(frames[1].data().version(), 1);
  EXPECT_EQ(shard.Values(0), (Values{2, 2, 2, 2}));
  EXPECT_EQ(shard.Values(1), (Values{2, 2}));
  EXPECT_EQ(shard.core().Status().staged_updates, 0);
}

TEST_F(AsynchronousTest, LastPushMayCarryTheApply) {
  Begin();
  Lease(one);
  Push(one, 1, 0, 3, 3);
  v1::Header header = shard.MakePush(0, 1, ShardHarness::Microbatches(0, 1), 3);
  header.mutable_push()->set_clock(1);
  header.mutable_push()->mutable_apply()->set_clock(1);
  *header.mutable_push()->mutable_apply()->mutable_samples() = ShardHarness::Microbatches(0, 4);
  shard.Send(one, header, CordOf({3, 3}));
  const std::vector<v1::Header> frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_TRUE(frames[0].has_applied());
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
}

TEST_F(AsynchronousTest, UpdateIsDividedByItsWeightAndWithoutOneHasNoGradient) {
  Begin();
  Lease(one);
  for (const auto& [clock, weight] : {std::pair(1, 0.5), std::pair(2, 0.0)}) {
    for (const uint32_t partition : {0, 1}) {
      const v1::Permit permit = Permitted(one, clock);
      v1::Header header = shard.MakePush(0, partition, ShardHarness::Microbatches(0, 1), 2);
      header.mutable_push()->set_clock(clock);
      header.mutable_push()->set_ordinal(permit.ordinal());
      header.mutable_push()->set_weight(weight);
      shard.Send(one, header, CordOf(Values(partition == 0 ? 4 : 2, 3)));
    }
    Apply(one, clock, clock * 2 - 2, clock * 2);
    EXPECT_EQ(shard.Version(0), clock);
    EXPECT_EQ(shard.Values(0), (Values{6, 6, 6, 6})) << weight;
  }
}

TEST_F(AsynchronousTest, AcknowledgesRepeatedUpdateWithoutEffect) {
  Begin();
  Lease(one);
  Stage(one, 1, 1);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  const StreamId again = shard.Open(7);
  repeats = true;
  Stage(again, 1, 1);
  Apply(again, 1, 0, 4);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
  const std::vector<v1::Header> frames = shard.TakeFrames(again);
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_TRUE(frames[0].has_staged());
  EXPECT_TRUE(frames[2].has_applied());
  EXPECT_EQ(shard.core().Status().updates_applied, 1);
}

TEST_F(AsynchronousTest, StagedUpdateOutlivesItsStream) {
  Begin();
  Lease(one);
  Stage(one, 1, 1);
  const StreamId again = shard.Open(7);
  Apply(again, 1, 0, 4);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
}

TEST_F(AsynchronousTest, ClosesStreamOfInvalidUpdate) {
  Begin();
  Lease(two);
  Lease(one);
  Push(one, 1, 0, 1);
  Apply(one, 1, 4, 8);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("not staged whole"));

  one = shard.Open(7);
  v1::Header early = shard.MakePush(0, 0, ShardHarness::Microbatches(0, 1), 1);
  early.mutable_push()->set_clock(2);
  shard.Send(one, early, CordOf({1, 1, 1, 1}));
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("while 1 waits"));

  one = shard.Open(7);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("not leased to the sender"));

  one = shard.Open(7);
  Apply(one, 1, 4, 8);
  EXPECT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);

  Push(one, 0, 0, 1);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("without a clock"));
}

// ---------------------------------------------------------------- leases (R8)

TEST_F(AsynchronousTest, LeasesAreDisjointAndUnfinishedLeasesComeFirst) {
  Begin();
  EXPECT_EQ(Lease(one)->samples().end(), 4);
  EXPECT_EQ(Lease(two)->samples().begin(), 4);
  const std::optional<v1::Lease> again = Lease(one);
  EXPECT_EQ(again->samples().begin(), 0) << "the same lease";
  EXPECT_EQ(again->samples().end(), 4);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  EXPECT_EQ(Lease(one)->samples().begin(), 8);
}

TEST_F(AsynchronousTest, LeaseHasRequestedLengthButLeavesWorkForOtherMembers) {
  Begin();
  EXPECT_EQ(Lease(one, 9)->samples().end(), 8) << "only whole updates";
  EXPECT_EQ(Lease(two, 1000)->samples().end(), 16) << "32 left / (2 x 2 members)";
}

TEST_F(AsynchronousTest, WorkerWithoutSamplesWaitsUntilNoWorkerHoldsALease) {
  shard.job.mutable_training()->set_steps(2);
  Begin();
  Lease(one);
  Lease(two);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  const std::optional<v1::Lease> waits = Lease(one);
  EXPECT_TRUE(waits->wait());
  EXPECT_FALSE(waits->done());
  Stage(two, 1, 1);
  Apply(two, 1, 4, 8);
  EXPECT_TRUE(TakeLease(one)->done());
  EXPECT_TRUE(Lease(two)->done());
}

TEST_F(AsynchronousTest, OnlyArbiterGrantsLeasesAndPermits) {
  shard.owner = {1, 0};
  Begin();
  Lease(one);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("owner of partition 0"));
}

// ---------------------------------------------------------------- permits

TEST_F(AsynchronousTest, PermitsBoundAndNumberStagedUpdates) {
  shard.options.max_staged_bytes = 1;  // room for one update, the minimum
  Begin();
  Lease(one);
  Lease(two);
  const std::optional<v1::Permit> first = Permit(one, 1);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->ordinal(), 0);
  EXPECT_FALSE(Permit(two, 1).has_value());
  EXPECT_EQ(Permit(one, 1)->ordinal(), 0) << "a repeated request gets the same permit";
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  const std::optional<v1::Permit> second = TakePermit(two);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->ordinal(), 1);
  EXPECT_EQ(second->staleness(), 1);
}

// timeouts.gradients. The other members continue meanwhile.
TEST_F(AsynchronousTest, ReportsLeaseHolderThatAppliesNothing) {
  shard.job.mutable_timeouts()->set_gradients(15);
  Begin();

  const auto awaited = [this](absl::Duration later) {
    shard.now += later;
    shard.core().OnTick(shard.now);
    std::vector<uint64_t> workers;
    for (const v1::ShardProgress& progress : shard.TakeMessages(
             &v1::MemberMessage::has_shard_progress, &v1::MemberMessage::shard_progress)) {
      workers.assign(progress.awaited().begin(), progress.awaited().end());
    }
    return workers;
  };

  EXPECT_THAT(awaited(absl::Seconds(60)), IsEmpty()) << "no worker holds a lease";
  ASSERT_TRUE(Lease(one, 8).has_value());
  ASSERT_TRUE(Lease(two, 4).has_value());
  EXPECT_THAT(awaited(absl::Seconds(14)), IsEmpty());

  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  ASSERT_TRUE(Lease(two, 4).has_value()) << "a lease request is no progress";
  EXPECT_THAT(awaited(absl::Seconds(2)), ElementsAre(8));
  EXPECT_THAT(awaited(absl::Seconds(14)), UnorderedElementsAre(7, 8));
}

TEST_F(AsynchronousTest, PermitsEndWithTheirView) {
  shard.options.max_staged_bytes = 1;
  Begin();
  Lease(one);
  Lease(two);
  Permit(one, 1);
  Permit(two, 1);
  shard.Pause(2);
  shard.TakeFrames(two);
  Deliver(InstallAfter(2, 0, {7, 8}));
  EXPECT_TRUE(shard.TakeFrames(two).at(0).has_refused()) << "the waiting worker learns of the view";
  Lease(two);
  EXPECT_EQ(Permit(two, 1)->ordinal(), 0);
}

// ---------------------------------------------------------------- views

TEST_F(AsynchronousTest, InstallAppliesTheWinningStagedUpdateAndDropsTheRest) {
  Begin();
  Lease(one);
  Lease(two);
  Stage(one, 1, 1);
  Stage(two, 1, 10);
  shard.Pause(2);
  const v1::PauseReply reply = shard.TakePauseReplies().at(0);
  EXPECT_THAT(reply.staged(), SizeIs(2));
  EXPECT_THAT(reply.leases(), SizeIs(2));
  Apply(one, 1, 0, 4);
  EXPECT_EQ(shard.core().Status().updates_applied, 0) << "the shard keeps its promise";

  v1::Install install = InstallAfter(2, 1, {7});
  v1::ClockRecord& winner = *install.add_clocks();
  winner.set_worker(7);
  winner.set_clock(1);
  *winner.mutable_samples() = ShardHarness::Microbatches(0, 4);
  *install.mutable_ledger()->add_applied() = ShardHarness::Microbatches(0, 4);
  install.mutable_ledger()->set_updates(1);
  Deliver(install);

  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
  EXPECT_EQ(shard.core().Status().updates_applied, 1);
  EXPECT_EQ(shard.core().Status().staged_updates, 0);
  EXPECT_EQ(Lease(one)->samples().begin(), 4) << "the expelled member's samples";

  Apply(one, 1, 0, 4);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));

  shard.Pause(3);
  const v1::PauseReply after = shard.TakePauseReplies().at(0);
  ASSERT_THAT(after.clocks(), SizeIs(1));
  EXPECT_EQ(after.clocks(0).clock(), 1);
  EXPECT_EQ(after.ledger().updates(), 1);
  ASSERT_THAT(after.ledger().applied(), SizeIs(1));
  EXPECT_EQ(after.ledger().applied(0).end(), 4);
}

TEST_F(AsynchronousTest, DroppedUpdateIsStagedAgainInNewView) {
  Begin();
  Lease(one);
  Stage(one, 1, 1);
  shard.Pause(2);

  v1::Install install = InstallAfter(2, 0, {7, 8});
  v1::LeaseRecord& lease = *install.add_leases();
  lease.set_worker(7);
  *lease.mutable_samples() = ShardHarness::Microbatches(0, 4);
  Deliver(install);

  Apply(one, 1, 0, 4);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("not staged whole"));

  one = shard.Open(7);
  EXPECT_EQ(Lease(one)->samples().begin(), 0);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  EXPECT_EQ(shard.Values(0), (Values{1, 1, 1, 1}));
}

TEST_F(AsynchronousTest, PinsSnapshotAtTheInstallThatNamesIt) {
  Begin();
  Lease(one);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  shard.Pause(2);

  v1::Install install = InstallAfter(2, 1, {7, 8});
  *install.mutable_ledger()->add_applied() = ShardHarness::Microbatches(0, 4);
  install.mutable_snapshot()->set_snapshot_id(5);
  install.mutable_snapshot()->set_step(1);
  install.mutable_snapshot()->set_write(true);
  shard.TakeMessages();
  Deliver(install);

  const auto pinned = shard.TakeMessages(&v1::MemberMessage::has_snapshot_pinned,
                                         &v1::MemberMessage::snapshot_pinned);
  ASSERT_THAT(pinned, SizeIs(1));
  EXPECT_EQ(pinned[0].version(), 1);

  const std::vector<WritePartition> writes = shard.TakeActions<WritePartition>();
  ASSERT_THAT(writes, SizeIs(2));
  ASSERT_THAT(writes[0].content->clocks, SizeIs(1));
  EXPECT_EQ(writes[0].content->clocks[0].worker(), 7);
}

// Found by the simulator: the file of another version was written under the checkpoint's name.
TEST_F(AsynchronousTest, DoesNotPinASnapshotThatWasClosedBeforeTheInstallCame) {
  Begin();
  Lease(one);
  Stage(one, 1, 1);
  Apply(one, 1, 0, 4);
  shard.Pause(2);
  v1::Install install = InstallAfter(2, 1, {7, 8});
  *install.mutable_ledger()->add_applied() = ShardHarness::Microbatches(0, 4);
  install.mutable_snapshot()->set_snapshot_id(5);
  install.mutable_snapshot()->set_write(true);  // of the first view, at step 0
  Deliver(install);
  EXPECT_THAT(shard.TakeActions<WritePartition>(), IsEmpty());
}

// ---------------------------------------------------------------- norms

TEST_F(AsynchronousTest, ReportsItsNormAndClipsByTheNormInTheApply) {
  shard.owner = {1, 0};
  shard.job.mutable_optimizer()->set_clip_norm(1);
  Begin();
  Push(one, 1, 1, 3);
  const std::vector<v1::Header> frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(1));
  ASSERT_THAT(frames[0].staged().norms(), SizeIs(1));
  EXPECT_EQ(frames[0].staged().norms(0).square_sum(), 18);
  v1::Header header = NewHeader();
  header.mutable_apply()->set_clock(1);
  *header.mutable_apply()->mutable_samples() = ShardHarness::Microbatches(0, 4);
  header.mutable_apply()->set_square_sum(36);
  shard.Send(one, header);
  EXPECT_NEAR(shard.Values(1)[0], 0.5, 1e-6);
}

TEST_F(AsynchronousTest, SkipsNonFiniteUpdateIfConfigured) {
  shard.job.mutable_training()->set_non_finite(v1::TrainingSpec::SKIP);
  Begin();
  Lease(one);
  Stage(one, 1, INFINITY);
  v1::Header header = NewHeader();
  header.mutable_apply()->set_clock(1);
  *header.mutable_apply()->mutable_samples() = ShardHarness::Microbatches(0, 4);
  header.mutable_apply()->set_non_finite(true);
  shard.Send(one, header);
  EXPECT_EQ(shard.Values(0), (Values{0, 0, 0, 0}));
  EXPECT_EQ(shard.core().Status().steps_skipped, 1);
  EXPECT_EQ(shard.core().Status().updates_applied, 1);
}

TEST_F(AsynchronousTest, NonFiniteUpdateFailsTheJobByDefault) {
  Begin();
  Lease(one);
  Stage(one, 1, NAN);
  Apply(one, 1, 0, 4);
  const auto failures =
      shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_EQ(failures[0].reason(), "update 1: w[0:4]: the gradient is not finite");
}

// ---------------------------------------------------------------- bounded staleness (R13)

class BoundedStalenessTest : public AsynchronousTest {
 protected:
  void SetUp() override {
    AsynchronousTest::SetUp();
    shard.job.mutable_training()->set_mode(v1::BOUNDED_STALENESS);
    shard.job.mutable_training()->set_max_staleness(1);
    shard.job.mutable_training()->set_steps(1000);
  }
  void Pull(StreamId stream, uint64_t clock, const std::vector<uint64_t>& counted = {}) {
    shard.TakeFrames(stream);
    v1::Header header = NewHeader();
    header.mutable_pull()->set_clock(clock);
    for (uint64_t holder : counted) header.mutable_pull()->add_counted(holder);
    shard.Send(stream, header);
  }
  // Stages and applies one update of samples [begin, begin + 4).
  void Update(StreamId stream, uint64_t clock, uint64_t begin) {
    Stage(stream, clock, 1);
    Apply(stream, clock, begin, begin + 4);
  }
};

TEST_F(BoundedStalenessTest, PullWaitsForSlowestLeaseHolder) {
  Begin();
  const uint64_t mine = Lease(one, 400)->samples().begin();
  const uint64_t theirs = Lease(two, 400)->samples().begin();

  Update(one, 1, mine);
  Pull(one, 1);
  std::vector<v1::Header> frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_THAT(frames[0].pull_answer().counted(), ElementsAre(8));

  Update(one, 2, mine + 4);
  Pull(one, 2);
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty()) << "7 is two updates ahead";

  Update(two, 1, theirs);
  frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_EQ(frames[0].pull_answer().clock(), 2);
  EXPECT_TRUE(frames[1].has_data());
}

TEST_F(BoundedStalenessTest, MemberWithoutLeaseBlocksNoOtherMember) {
  Begin();
  const uint64_t begin = Lease(one, 400)->samples().begin();
  for (uint64_t clock = 1; clock <= 5; ++clock) Update(one, clock, begin + (clock - 1) * 4);
  Pull(one, 5);
  EXPECT_THAT(shard.TakeFrames(one), SizeIs(3));
}

TEST_F(BoundedStalenessTest, RaisesClockOfNewLeaseHolderToTheLowestHolder) {
  Begin();
  const uint64_t begin = Lease(one, 400)->samples().begin();
  for (uint64_t clock = 1; clock <= 5; ++clock) Update(one, clock, begin + (clock - 1) * 4);
  EXPECT_EQ(Lease(two, 400)->clock(), 5);
  Pull(one, 5);
  EXPECT_THAT(shard.TakeFrames(one), SizeIs(3));
}

TEST_F(BoundedStalenessTest, OtherShardWaitsForLeaseHoldersCountedByTheArbiter) {
  shard.owner = {1, 0};
  Begin();
  Pull(one, 2, {8});
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty());
  Push(two, 1, 1, 1);
  Apply(two, 1, 0, 4);
  const std::vector<v1::Header> frames = shard.TakeFrames(one);
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_TRUE(frames[0].has_data()) << "only the arbiter sends a PullAnswer";
  Pull(one, 50, {9});
  EXPECT_THAT(shard.TakeFrames(one), SizeIs(1)) << "9 is not a member";
}

TEST_F(BoundedStalenessTest, LearnsClockRaisedByTheArbiterFromPull) {
  shard.owner = {1, 0};
  Begin();
  Pull(one, 6, {8});
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty());
  Pull(two, 5);
  EXPECT_THAT(shard.TakeFrames(one), SizeIs(1));
}

TEST_F(BoundedStalenessTest, InstallAnswersParkedPullsWithNewView) {
  Begin();
  const uint64_t mine = Lease(one, 400)->samples().begin();
  Lease(two, 400);
  Update(one, 1, mine);
  Update(one, 2, mine + 4);
  Pull(one, 2);
  EXPECT_THAT(shard.TakeFrames(one), IsEmpty());
  shard.Pause(2);
  Deliver(InstallAfter(2, 2, {7}));
  EXPECT_TRUE(shard.TakeFrames(one).at(0).has_refused());
  Pull(one, 2);
  EXPECT_THAT(shard.TakeFrames(one), SizeIs(3)) << "the slow member has left";
}

}  // namespace
}  // namespace sluice::ps

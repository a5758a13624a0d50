// Copies of partitions in asynchronous training through ShardCore (docs/protocol.md 8.7): two
// shards, `a` owns both partitions, `b` has their copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_pair_test.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Values = std::vector<float>;

constexpr auto kRange = ShardHarness::Microbatches;

// Members 7 and 8; batches of 4 samples.
class AsynchronousCopiesTest : public ShardPairTest {
 protected:
  AsynchronousCopiesTest() {
    for (ShardHarness* shard : {&a, &b}) {
      shard->job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
      shard->job.mutable_training()->set_steps(10);  // 40 samples
    }
  }

  // Then view 2, with copies.
  void Begin() {
    BeginWithoutCopies();
    ChangeView(2, 0, {}, {});
  }
  void BeginWhole() {
    Begin();
    Pump();
    ASSERT_EQ(b.core().Status().copies, 2);
  }
  // `whole`: the partitions whose copy is whole.
  void ChangeView(uint64_t number, uint64_t updates, const std::vector<uint32_t>& whole,
                  const std::vector<v1::ClockRecord>& clocks) {
    v1::CoordinatorMessage message = MakeInstallWithCopies(number, updates, whole);
    for (const v1::ClockRecord& record : clocks) {
      *message.mutable_install()->add_clocks() = record;
      *message.mutable_install()->mutable_ledger()->add_applied() = record.samples();
    }
    Install(message);
  }
  // Frames from a to b, without their answers.
  void ToCopies() {
    for (SendToShard& send : a.TakeActions<SendToShard>()) b.Send(at_b, send.header, send.payload);
  }
  v1::Header NewHeader() {
    v1::Header header;
    *header.mutable_view() = a.core().Status().view;
    return header;
  }
  void AskForLease(StreamId stream, uint64_t clock) {
    v1::Header header = NewHeader();
    header.mutable_lease_request()->set_samples(4);
    header.mutable_lease_request()->set_clock(clock);
    a.Send(stream, header);
  }
  // Frames of one kind that the worker has received since the last call of this method.
  struct Received {
    std::optional<v1::Lease> lease;
    std::optional<v1::Permit> permit;
    std::vector<uint64_t> staged, applied;
  };
  Received Take(StreamId stream) {
    Received received;
    for (const v1::Header& header : a.TakeFrames(stream)) {
      if (header.has_lease()) received.lease = header.lease();
      if (header.has_permit()) received.permit = header.permit();
      if (header.has_staged()) received.staged.push_back(header.staged().clock());
      if (header.has_applied()) received.applied.push_back(header.applied().clock());
    }
    return received;
  }
  // Gets a lease and a permit for the update.
  void Prepare(StreamId stream, uint64_t clock) {
    AskForLease(stream, clock - 1);
    Pump();
    samples_[stream] = Take(stream).lease.value_or(v1::Lease()).samples();
    v1::Header header = NewHeader();
    header.mutable_permit_request()->set_clock(clock);
    a.Send(stream, header);
    permits_[stream] = Take(stream).permit.value_or(v1::Permit());
  }
  void Push(StreamId stream, uint64_t clock, float value) {
    for (uint32_t partition : {0u, 1u}) {
      v1::Header header = a.MakePush(0, partition, kRange(0, 1), 4);
      header.mutable_push()->set_clock(clock);
      header.mutable_push()->set_ordinal(permits_[stream].ordinal());
      a.Send(stream, header, CordOf(Values(partition == 0 ? 4 : 2, value)));
    }
  }
  void Stage(StreamId stream, uint64_t clock, float value) {
    Prepare(stream, clock);
    Push(stream, clock, value);
  }
  v1::Header MakeApply(StreamId stream, uint64_t clock) {
    v1::Header header = NewHeader();
    header.mutable_apply()->set_clock(clock);
    header.mutable_apply()->set_ordinal(permits_[stream].ordinal());
    header.mutable_apply()->set_staleness(permits_[stream].staleness());
    *header.mutable_apply()->mutable_samples() = samples_[stream];
    return header;
  }
  void Apply(StreamId stream, uint64_t clock) { a.Send(stream, MakeApply(stream, clock)); }
  void Update(StreamId stream, uint64_t clock, float value) {
    Stage(stream, clock, value);
    Pump();
    Apply(stream, clock);
    Pump();
  }
  v1::ClockRecord Record(StreamId stream, uint64_t worker, uint64_t clock) {
    v1::ClockRecord record;
    record.set_worker(worker);
    record.set_clock(clock);
    *record.mutable_samples() = samples_[stream];
    return record;
  }

  bool CopiesDiffer() {
    return StateHash(*b.core().CopyContent(0)) != StateHash(*a.core().Content(0));
  }

  std::map<StreamId, v1::Range> samples_;
  std::map<StreamId, v1::Permit> permits_;
};

// ---- making copies

TEST_F(AsynchronousCopiesTest, FollowerReceivesTheStateAndBecomesWhole) {
  BeginWhole();
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, CopyHasTheBitsOfItsOwnerAfterEachUpdate) {
  BeginWhole();
  for (uint64_t clock = 1; clock <= 2; ++clock) {
    Update(one, clock, 1 + static_cast<float>(clock));
    Update(two, clock, 2 - static_cast<float>(clock));
    EXPECT_EQ(a.core().Status().updates_applied, 2 * clock);
    ExpectEqualCopies();
  }
}

TEST_F(AsynchronousCopiesTest, CopyCatchesUpWithUpdatesThatCameDuringItsTransfer) {
  Begin();
  std::vector<SendToShard> state = a.TakeActions<SendToShard>();
  ASSERT_THAT(state, SizeIs(2));
  // The state of partition 1 is late; its updates are queued.
  b.Send(at_b, state[0].header, state[0].payload);
  Update(one, 1, 3);
  Update(two, 1, 5);
  EXPECT_EQ(b.core().Status().copies, 1);
  EXPECT_EQ(a.core().Status().updates_applied, 2) << "a copy that is not whole acks entries";
  b.Send(at_b, state[1].header, state[1].payload);
  Pump();
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, AcksAreHeldBackWhileTooManyUpdatesAreQueued) {
  b.options.max_copy_queue_bytes = 0;
  Begin();
  std::vector<SendToShard> state = a.TakeActions<SendToShard>();
  ASSERT_THAT(state, SizeIs(2));
  b.Send(at_b, state[0].header, state[0].payload);
  Update(one, 1, 3);  // the part for partition 1 is queued
  const BoundUse use = b.core().Status().bounds[static_cast<size_t>(Bound::kCopyQueueBytes)];
  EXPECT_EQ(use.used, 2 * sizeof(float));
  EXPECT_GT(use.reached, 0u);
  EXPECT_THAT(Take(one).applied, IsEmpty());
  AskForLease(two, 0);
  Pump();
  EXPECT_FALSE(Take(two).lease.has_value());
  b.Send(at_b, state[1].header, state[1].payload);
  Pump();
  EXPECT_THAT(Take(one).applied, ElementsAre(1));
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, ACopyCatchesUpByOneUpdateAtATime) {
  Begin();
  Carry();  // the states, which are not read yet
  for (const StreamId stream : {one, two}) {
    AskForLease(stream, 0);
    Carry();
    samples_[stream] = Take(stream).lease.value_or(v1::Lease()).samples();
    v1::Header header = NewHeader();
    header.mutable_permit_request()->set_clock(1);
    a.Send(stream, header);
    permits_[stream] = Take(stream).permit.value_or(v1::Permit());
    Push(stream, 1, 3);
    Carry();
    Apply(stream, 1);
    Carry();
  }
  EXPECT_EQ(a.core().Status().updates_applied, 2);
  EXPECT_TRUE(b.ReadCopyIfDue());  // partition 0
  EXPECT_TRUE(b.TickIfDue());
  EXPECT_EQ(b.core().Status().copies, 0);
  EXPECT_TRUE(b.TickIfDue());
  EXPECT_EQ(b.core().Status().copies, 1);
  Pump();
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, APromiseReleasesAcksThatWereHeldBack) {
  b.options.max_copy_queue_bytes = 0;
  Begin();
  std::vector<SendToShard> state = a.TakeActions<SendToShard>();
  ASSERT_THAT(state, SizeIs(2));
  b.Send(at_b, state[0].header, state[0].payload);
  Update(one, 1, 3);
  EXPECT_THAT(Take(one).applied, IsEmpty());
  b.Pause(3);
  Pump();
  EXPECT_THAT(Take(one).applied, ElementsAre(1));
}

TEST_F(AsynchronousCopiesTest, NewCopyReceivesWhatIsStagedAndLeased) {
  a.options.copy_transfer_bytes = 1;  // one partition at a time
  Begin();
  std::vector<SendToShard> state = a.TakeActions<SendToShard>();
  ASSERT_THAT(state, SizeIs(1));
  Stage(one, 1, 3);
  EXPECT_THAT(Take(one).staged, IsEmpty());
  ToCopies();  // the update of partition 0, before its state
  b.Send(at_b, state[0].header, state[0].payload);
  Pump();  // the state of partition 1 follows, after what is staged of it
  EXPECT_EQ(b.core().Status().copies, 2);
  EXPECT_TRUE(a.core().Status().staged_updates == 1);
  Apply(one, 1);
  Pump();
  ExpectEqualCopies();
}

// ---- R6, R8

TEST_F(AsynchronousCopiesTest, UpdateIsAckedOnceTheCopyHasStagedIt) {
  BeginWhole();
  Stage(one, 1, 3);
  EXPECT_THAT(Take(one).staged, IsEmpty());
  Pump();
  EXPECT_THAT(Take(one).staged, ElementsAre(1));
}

TEST_F(AsynchronousCopiesTest, ApplyOfUpdateThatWasNotAckedBreaksTheContract) {
  BeginWhole();
  Stage(one, 1, 3);
  Apply(one, 1);
  EXPECT_THAT(a.StatusOf(one).message(), HasSubstr("was not acked"));
  EXPECT_EQ(a.core().Status().updates_applied, 0);
}

TEST_F(AsynchronousCopiesTest, ApplyIsAnsweredOnceTheCopyHasAppliedTheUpdate) {
  BeginWhole();
  Stage(one, 1, 3);
  Pump();
  Take(one);
  Apply(one, 1);
  EXPECT_EQ(a.core().Status().updates_applied, 1) << "the owner applies at once";
  EXPECT_THAT(Take(one).applied, IsEmpty());
  Apply(one, 1);  // a repetition
  EXPECT_THAT(Take(one).applied, IsEmpty());
  EXPECT_TRUE(CopiesDiffer());
  Pump();
  EXPECT_THAT(Take(one).applied, ElementsAre(1));
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, UpdateThatTheCopyLacksIsNotReportedAsProgress) {
  BeginWhole();
  Stage(one, 1, 3);
  Pump();
  const auto samples = [this] {
    a.now += absl::Seconds(1);
    a.core().OnTick(a.now);
    const auto progress =
        a.TakeMessages(&v1::MemberMessage::has_shard_progress, &v1::MemberMessage::shard_progress);
    return progress.empty() ? 0 : progress.back().samples();
  };
  Apply(one, 1);
  EXPECT_EQ(samples(), 0);
  Pump();
  EXPECT_EQ(samples(), 4);
}

TEST_F(AsynchronousCopiesTest, LeaseIsGivenOnceTheCopyHasRecordedIt) {
  BeginWhole();
  AskForLease(one, 0);
  EXPECT_FALSE(Take(one).lease.has_value());
  AskForLease(one, 0);  // a repetition
  EXPECT_FALSE(Take(one).lease.has_value());
  Pump();
  EXPECT_TRUE(Take(one).lease.has_value());
  b.TakeMessages();
  b.Pause(3);
  const std::vector<v1::PauseReply> replies = b.TakePauseReplies();
  ASSERT_THAT(replies, SizeIs(1));
  ASSERT_THAT(replies[0].leases(), SizeIs(1));
  EXPECT_EQ(replies[0].leases(0).worker(), 7);
  EXPECT_EQ(replies[0].leases(0).samples().end(), 4);
}

// ---- lost streams

TEST_F(AsynchronousCopiesTest, OwnerRepeatsWhatWasNotAcked) {
  Begin();
  Discard();
  Connect();
  Pump();
  EXPECT_EQ(b.core().Status().copies, 2);
  Prepare(one, 1);
  Push(one, 1, 3);
  Discard();
  Connect();
  Pump();
  Apply(one, 1);
  Discard();
  Connect();
  Pump();
  EXPECT_THAT(Take(one).applied, ElementsAre(1));
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, EntriesAreCarriedOutOnce) {
  BeginWhole();
  Stage(one, 1, 3);
  ToCopies();
  Connect();  // the acks are lost
  Pump();
  Apply(one, 1);
  ToCopies();
  Connect();
  Pump();
  EXPECT_THAT(Take(one).applied, ElementsAre(1));
  ExpectEqualCopies();
}

// ---- promises and views

TEST_F(AsynchronousCopiesTest, PromisedShardDropsEntries) {
  BeginWhole();
  b.Pause(3);
  Stage(one, 1, 3);
  Pump();
  EXPECT_THAT(Take(one).staged, IsEmpty());
  EXPECT_EQ(b.core().Status().waiting_frames, 0);
}

TEST_F(AsynchronousCopiesTest, PromisedShardAcksEntriesAgain) {
  BeginWhole();
  Stage(one, 1, 3);
  ToCopies();
  b.Pause(3);
  Connect();  // the acks are lost
  EXPECT_THAT(Take(one).staged, IsEmpty());
  Pump();
  EXPECT_THAT(Take(one).staged, ElementsAre(1));
}

TEST_F(AsynchronousCopiesTest, InstallBringsCopiesToTheUpdatesThatItKeeps) {
  BeginWhole();
  Stage(one, 1, 3);
  Stage(two, 1, 5);
  Pump();
  Apply(one, 1);  // the copy has it staged
  ChangeView(3, 1, {0, 1}, {Record(one, 7, 1)});
  EXPECT_EQ(a.core().Status().updates_applied, 1) << "the update of the second worker is dropped";
  EXPECT_EQ(b.core().Status().copies, 2);
  ExpectEqualCopies();
}

TEST_F(AsynchronousCopiesTest, CopyBecomesTheOwnerWithTheUpdatesThatTheInstallKeeps) {
  BeginWhole();
  Update(one, 1, 3);
  const v1::ClockRecord first = Record(one, 7, 1);
  Stage(two, 1, 5);
  Pump();
  Apply(two, 1);  // a dies before the copy has it
  const uint64_t wanted = StateHash(*a.core().Content(0));
  b.TakeMessages();
  b.Pause(3);
  const std::vector<v1::PauseReply> replies = b.TakePauseReplies();
  ASSERT_THAT(replies, SizeIs(1));
  ASSERT_THAT(replies[0].copied(), SizeIs(1));
  EXPECT_EQ(replies[0].copied(0).worker(), 7);

  b.owner = {0, 0};
  v1::View view = b.MakeView(3, 2, {7, 8});
  view.mutable_shards()->SwapElements(0, 1);
  view.mutable_shards()->RemoveLast();
  v1::CoordinatorMessage message;
  *message.mutable_install() = b.MakeInstall(view);
  *message.mutable_install()->add_clocks() = first;
  *message.mutable_install()->add_clocks() = Record(two, 8, 1);
  message.mutable_install()->mutable_ledger()->add_applied()->set_end(8);
  b.Deliver(message);
  ASSERT_NE(b.core().Content(0), nullptr);
  EXPECT_EQ(StateHash(*b.core().Content(0)), wanted);
  EXPECT_EQ(b.core().Status().updates_applied, 2);
}

// ---- frames that break the contract

TEST_F(AsynchronousCopiesTest, RefusesEntriesThatBreakTheContract) {
  BeginWhole();
  const auto refuses = [this](const v1::Header& header, const std::string& why) {
    at_b = b.Open(kShardIncarnation, v1::SHARD);
    b.Send(at_b, header);
    EXPECT_THAT(b.StatusOf(at_b).message(), HasSubstr(why));
  };
  v1::Header header = NewHeader();
  v1::CopyEntry& entry = *header.mutable_copy_entry();
  entry.set_worker(99);
  refuses(header, "without a sequence number");
  entry.set_sequence(100);
  refuses(header, "not a member");
  entry.set_worker(0);
  refuses(header, "not for the mode of the view");
  entry.set_worker(7);
  refuses(header, "an empty entry");
  entry.mutable_leased()->mutable_samples()->set_end(1000);
  refuses(header, "samples [0, 1000) of 40");
  entry.mutable_leased()->mutable_samples()->set_end(4);
  refuses(header, "entry 100 comes after entry");
  entry.mutable_applied()->set_clock(1);
  entry.mutable_applied()->mutable_samples()->set_end(4);
  entry.mutable_applied()->set_ordinal(1000);
  refuses(header, "ordinal 1000");
  entry.mutable_applied()->set_ordinal(0);
  entry.set_sequence(1);
  refuses(header, "which is not staged");
  entry.mutable_gradients()->set_partition(9);
  refuses(header, "partition 9 is not owned by the sender");

  v1::Header norms = NewHeader();
  norms.mutable_norms()->set_step(0);
  refuses(norms, "not for the mode of the view");

  v1::Header ack = NewHeader();
  ack.mutable_copy_ack()->set_sequence(9);
  a.Send(at_a, ack);
  EXPECT_THAT(a.StatusOf(at_a).message(), HasSubstr("entry 9 is acked"));
}

}  // namespace
}  // namespace sluice::ps

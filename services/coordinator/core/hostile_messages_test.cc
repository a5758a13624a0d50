// Members that lie: the coordinator refuses each message of control.proto with impossible numbers,
// and the job continues as if it had not been sent.

#include "services/coordinator/core/testing/hostile_messages.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

// The job's progress as the operator sees it, without its processes and events.
std::string StateOf(FakeJob& job) {
  v1::JobProgress progress = job.Progress();
  progress.clear_events();
  progress.clear_processes();
  progress.clear_samples_per_second();
  return progress.ShortDebugString();
}

v1::JobSpec SpecOf(v1::Mode mode) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(mode);
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(50);
  spec.mutable_timeouts()->set_suspect(20);
  return spec;
}

struct Lie {
  std::string name;
  v1::Role role = v1::SHARD;
  v1::Mode mode = v1::SYNCHRONOUS;
  std::function<void(FakeJob&, v1::MemberMessage*)> say;
};

// A job that has trained three steps; a checkpoint's snapshot is open at a later step.
class HostileTest : public ::testing::TestWithParam<Lie> {};

TEST_P(HostileTest, IsRefusedAndJobContinues) {
  const Lie& lie = GetParam();
  v1::JobSpec spec = SpecOf(lie.mode);
  if (lie.mode == v1::SYNCHRONOUS) spec.mutable_checkpoint()->set_interval_steps(10);
  FakeJob job(spec);
  job.Start();
  if (lie.mode == v1::SYNCHRONOUS) {
    job.Train(3);
  } else {
    for (int i = 0; i < 3; ++i) job.Update(*job.workers[0], 32);
  }
  FakeProcess& liar = lie.role == v1::SHARD ? static_cast<FakeProcess&>(*job.shards[1])
                                            : static_cast<FakeProcess&>(*job.workers[1]);
  const std::string before = StateOf(job);
  v1::MemberMessage message;
  lie.say(job, &message);
  liar.Say(message);
  job.Pump();
  EXPECT_EQ(StateOf(job), before);
  EXPECT_EQ(liar.closed.code(), absl::StatusCode::kInvalidArgument) << liar.closed;
  EXPECT_EQ(job.core->refusals().messages, 1u);
  ASSERT_FALSE(job.exit.has_value());

  // The process may return, and train.
  job.Connect(liar);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
  if (lie.mode == v1::SYNCHRONOUS) {
    job.Train(17);
  } else {
    for (int i = 0; i < 17; ++i) job.Update(*job.workers[0], 32);
    job.Pass(absl::Seconds(1));
  }
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
  EXPECT_EQ(job.Progress().total_steps(), 20);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

std::function<void(FakeJob&, v1::MemberMessage*)> Progress(
    const std::function<void(v1::ShardProgress*)>& change) {
  return [change](FakeJob& job, v1::MemberMessage* message) {
    v1::ShardProgress& progress = *message->mutable_shard_progress();
    *progress.mutable_view() = job.core->view().id();
    progress.set_closed(3);
    progress.set_committed(2);
    change(&progress);
  };
}

std::function<void(FakeJob&, v1::MemberMessage*)> Pinned(
    const std::function<void(v1::SnapshotPinned*)>& change) {
  return [change](FakeJob& job, v1::MemberMessage* message) {
    v1::SnapshotPinned& pinned = *message->mutable_snapshot_pinned();
    pinned.set_snapshot_id(job.shards[1]->snapshot->snapshot_id());
    *pinned.mutable_view() = job.core->view().id();
    *pinned.mutable_name() = job.shards[1]->snapshot->name();
    change(&pinned);
  };
}

std::function<void(FakeJob&, v1::MemberMessage*)> Written(
    const std::function<void(v1::SnapshotWritten*)>& change) {
  return [change](FakeJob& job, v1::MemberMessage* message) {
    v1::SnapshotWritten& written = *message->mutable_snapshot_written();
    written.set_snapshot_id(job.shards[1]->snapshot->snapshot_id());
    *written.mutable_view() = job.core->view().id();
    *written.mutable_name() = job.shards[1]->snapshot->name();
    change(&written);
  };
}

uint32_t OwnedBy(FakeJob& job, size_t shard) { return job.shards[shard]->Owned().front(); }

INSTANTIATE_TEST_SUITE_P(
    Messages, HostileTest,
    ::testing::Values(
        Lie{"ClosedPastTheJob", v1::SHARD, v1::SYNCHRONOUS,
            Progress([](auto* progress) { progress->set_closed(1'000'000); })},
        Lie{"ClosedLargestNumber", v1::SHARD, v1::SYNCHRONOUS,
            Progress([](auto* progress) { progress->set_closed(kHuge); })},
        Lie{"CommittedPastWhatIsClosed", v1::SHARD, v1::SYNCHRONOUS,
            Progress([](auto* progress) { progress->set_committed(20); })},
        Lie{"SkippedMoreThanCanBe", v1::SHARD, v1::SYNCHRONOUS,
            Progress([](auto* progress) { progress->set_skipped_steps(kHuge); })},
        Lie{"DroppedMoreThanCanBe", v1::SHARD, v1::SYNCHRONOUS,
            Progress([](auto* progress) { progress->set_dropped_contributions(kHuge); })},
        Lie{"AppliedMoreSamplesThanTheJobHas", v1::SHARD, v1::ASYNCHRONOUS,
            Progress([](auto* progress) { progress->set_samples(641); })},
        Lie{"AppliedMoreUpdatesThanThereAreSamples", v1::SHARD, v1::ASYNCHRONOUS,
            Progress([](auto* progress) { progress->set_closed(641); })},
        Lie{"PinnedAnotherVersion", v1::SHARD, v1::SYNCHRONOUS,
            Pinned([](auto* pinned) { pinned->set_version(7); })},
        Lie{"WroteForLessThanNoTime", v1::SHARD, v1::SYNCHRONOUS,
            Written([](auto* written) { written->set_seconds(-1); })},
        Lie{"WroteForNoNumberOfSeconds", v1::SHARD, v1::SYNCHRONOUS,
            Written([](auto* written) { written->set_seconds(std::nan("")); })},
        Lie{"WroteLongName", v1::SHARD, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              const uint32_t own = OwnedBy(job, 1);
              Written([own](auto* written) {
                written->add_files()->set_partition(own);
                written->mutable_files(0)->set_name(std::string(10'000, 'x'));
              })(job, message);
            }},
        Lie{"PastAStepBeyondTheJob", v1::SHARD, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              v1::SnapshotFailed& failed = *message->mutable_snapshot_failed();
              failed.set_snapshot_id(job.shards[1]->snapshot->snapshot_id());
              *failed.mutable_view() = job.core->view().id();
              *failed.mutable_name() = job.shards[1]->snapshot->name();
              failed.set_past(1'000'000);
            }},
        Lie{"ShardSaysReady", v1::SHARD, v1::SYNCHRONOUS,
            [](FakeJob&, v1::MemberMessage* message) { message->mutable_ready(); }},
        Lie{"WorkerSaysProgressOfAShard", v1::WORKER, v1::SYNCHRONOUS, Progress([](auto*) {})},
        Lie{"RegistersTwice", v1::WORKER, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              *message->mutable_register_() = job.workers[1]->Registration();
            }},
        Lie{"MoreDataThanThereIs", v1::WORKER, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              *message->mutable_ready() = job.workers[1]->ready;
              message->mutable_ready()->set_training_samples(kHuge);
            }},
        Lie{"MoreDigestsThanAllowed", v1::WORKER, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              *message->mutable_ready() = job.workers[1]->ready;
              for (int i = 0; i < 17; ++i) {
                message->mutable_ready()->add_digests()->set_name(absl::StrCat("digest ", i));
              }
            }},
        Lie{"LongNameOfADigest", v1::WORKER, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              *message->mutable_ready() = job.workers[1]->ready;
              message->mutable_ready()->add_digests()->set_name(std::string(257, 'a'));
            }},
        Lie{"NameThatIsNoText", v1::WORKER, v1::SYNCHRONOUS,
            [](FakeJob& job, v1::MemberMessage* message) {
              *message->mutable_ready() = job.workers[1]->ready;
              message->mutable_ready()->mutable_table()->mutable_tensors(0)->set_name("w\xff");
            }},
        Lie{"NoMessage", v1::WORKER, v1::SYNCHRONOUS, [](FakeJob&, v1::MemberMessage*) {}}),
    [](const ::testing::TestParamInfo<Lie>& lie) { return lie.param.name; });

// ---- PauseReply: a shard answers a pause with impossible content

struct Answer {
  std::string name;
  v1::Mode mode = v1::SYNCHRONOUS;
  std::function<void(FakeJob&, v1::PauseReply*)> change;
};

class HostileReplyTest : public ::testing::TestWithParam<Answer> {};

TEST_P(HostileReplyTest, IsRefusedAndHonestReplyCounts) {
  FakeJob job(SpecOf(GetParam().mode));
  job.Start();
  const bool synchronous = GetParam().mode == v1::SYNCHRONOUS;
  if (synchronous) {
    job.Train(3);
  } else {
    for (int i = 0; i < 3; ++i) job.Update(*job.workers[0], 32);
  }
  FakeShard& liar = *job.shards[1];
  const uint64_t view = job.ViewNumber();
  liar.frozen = true;  // the pause is not delivered yet
  job.Kill(*job.workers[1]);
  ASSERT_FALSE(liar.waiting.empty());
  ASSERT_TRUE(liar.waiting.back().has_pause());

  v1::MemberMessage message;
  v1::PauseReply& reply = *message.mutable_pause_reply();
  *reply.mutable_pause() = liar.waiting.back().pause().id();
  *reply.mutable_view() = liar.view.id();
  *reply.mutable_newest() = liar.view;
  for (uint32_t p : liar.Owned()) {
    reply.add_partitions()->set_partition(p);
    reply.mutable_partitions(reply.partitions_size() - 1)->set_version(liar.version);
  }
  reply.set_committed(liar.committed);
  GetParam().change(job, &reply);
  liar.Say(message);
  job.Pump();
  EXPECT_EQ(liar.closed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(job.ViewNumber(), view) << "the reply has not led to a view";

  liar.frozen = false;
  job.Connect(liar);
  job.Pass(absl::Milliseconds(200));
  EXPECT_GT(job.ViewNumber(), view);
  EXPECT_EQ(job.core->view().first_step(), 3);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
  EXPECT_FALSE(job.exit.has_value());
}

INSTANTIATE_TEST_SUITE_P(
    Replies, HostileReplyTest,
    ::testing::Values(
        Answer{"VersionPastTheJob", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) { reply->mutable_partitions(0)->set_version(21); }},
        Answer{"PartitionTwice", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) { *reply->add_partitions() = reply->partitions(0); }},
        Answer{"CommittedPastItsVersion", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) { reply->set_committed(4); }},
        Answer{"ViewThatNeverWas", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 reply->mutable_view()->set_number(1'000'000);
                 reply->mutable_newest()->mutable_id()->set_number(1'000'000);
               }},
        Answer{"ViewWithAnotherFirstStep", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) { reply->mutable_newest()->set_first_step(19); }},
        Answer{"NewestIsNotItsView", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) { reply->mutable_newest()->mutable_id()->Clear(); }},
        Answer{"ViewOfAnOlderAttempt", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 reply->mutable_view()->set_attempt(0);
                 *reply->mutable_newest()->mutable_id() = reply->view();
               }},
        Answer{"TermBeyondAll", v1::SYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 reply->mutable_view()->mutable_term()->set_counter(kHuge);
                 *reply->mutable_newest()->mutable_id() = reply->view();
               }},
        Answer{"LedgerPastTheJob", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 v1::Range& range = *reply->mutable_ledger()->add_applied();
                 range.set_end(kHuge);
               }},
        Answer{"LedgerOutOfOrder", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 for (uint64_t begin : {64, 0}) {
                   v1::Range& range = *reply->mutable_ledger()->add_applied();
                   range.set_begin(begin);
                   range.set_end(begin + 32);
                 }
               }},
        Answer{"UpdatesPastTheJob", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) { reply->mutable_ledger()->set_updates(kHuge); }},
        Answer{"ClockPastTheJob", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) { reply->add_clocks()->set_clock(kHuge); }},
        Answer{"ClocksOfAWorkerTwice", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 reply->add_clocks()->set_worker(7);
                 reply->add_clocks()->set_worker(7);
               }},
        Answer{"ClockOfSamplesPastTheJob", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 reply->add_clocks()->mutable_samples()->set_end(100'000);
               }},
        Answer{"LeaseBackwards", v1::ASYNCHRONOUS,
               [](FakeJob&, auto* reply) {
                 reply->add_leases()->mutable_samples()->set_begin(64);
                 reply->mutable_leases(0)->mutable_samples()->set_end(32);
               }}),
    [](const ::testing::TestParamInfo<Answer>& answer) { return answer.param.name; });

// ---- a shard that is in no view: it knows everything of the attempt, and answers no PrepareState

struct JobWithOutsider : FakeJob {
  explicit JobWithOutsider(v1::JobSpec spec) : FakeJob(std::move(spec)) {}
  void AddOutsider() {
    ScaleShards(3);
    strangers = {&outsider};
    Connect(outsider);
  }
  const v1::OpenSnapshot& OpenOne() { return shards[0]->snapshot.value(); }
  // Shard 0 has passed the step of the open snapshot.
  void PassSnapshot() {
    shards[0]->Say(Failed());
    Pump();
  }
  v1::MemberMessage Failed() {
    v1::MemberMessage message;
    v1::SnapshotFailed& failed = *message.mutable_snapshot_failed();
    failed.set_snapshot_id(OpenOne().snapshot_id());
    *failed.mutable_name() = OpenOne().name();
    failed.set_past(1);
    return message;
  }

  Liar outsider{this, Stranger(*this, v1::SHARD, 2, 4711)};
};

v1::JobSpec LongJob() {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_steps(100);
  return spec;
}

TEST(HostileOutsider, SnapshotFailedClosesNoSnapshot) {
  JobWithOutsider job(LongJob());
  job.Start();
  job.Train(3);
  job.AddOutsider();
  job.OpenSnapshot(41);
  const uint64_t open = job.OpenOne().snapshot_id();
  job.outsider.Say(job.Failed());
  job.Pump();
  EXPECT_EQ(job.OpenOne().snapshot_id(), open);
  job.PassSnapshot();
  EXPECT_GT(job.OpenOne().snapshot_id(), open) << "a shard of the attempt is believed";
}

TEST(HostileShard, FailsNoCheckpointThatIsComplete) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(15);
  FakeJob job(spec);
  job.Start();
  job.Train(14);
  job.OpenSnapshot(41);
  job.Train(2);
  ASSERT_EQ(job.checkpoint_indexes.count({1, 15}), 1u);
  ASSERT_EQ(job.shards[0]->snapshot->step(), 15u) << "the reader holds it";
  v1::MemberMessage message;
  v1::SnapshotFailed& failed = *message.mutable_snapshot_failed();
  failed.set_snapshot_id(job.shards[0]->snapshot->snapshot_id());
  *failed.mutable_name() = job.shards[0]->snapshot->name();
  failed.set_reason("disk full");
  job.shards[0]->Say(message);
  job.Pump();
  EXPECT_EQ(job.Progress().checkpoint().error(), "");
  EXPECT_FALSE(job.HasEvent("no checkpoint at step 15"));
}

// A shard that reports more updates than it has, in each view.
TEST(HostileShard, RepeatsNoLastCheckpointByReportsOfMoreUpdates) {
  for (const bool suspended : {false, true}) {
    FakeJob job(SpecOf(v1::ASYNCHRONOUS));
    job.Start();
    job.hold_checkpoint_index = true;
    for (int i = 0; i < (suspended ? 3 : 20); ++i) job.Update(*job.workers[0], 32);
    if (suspended) {
      v1::SetDesiredRequest desired;
      desired.set_suspend(true);
      job.core->OnSetDesired(desired, job.now);
    }
    job.Pass(absl::Seconds(1));
    ASSERT_TRUE(job.shards[1]->snapshot.has_value());
    const v1::CheckpointRef last = job.shards[1]->snapshot->name();

    v1::MemberMessage message;
    Progress([](auto* progress) { progress->set_closed(40); })(job, &message);
    job.shards[1]->Say(message);
    job.Pump();
    job.core->OnCheckpointIndexWritten(last, absl::OkStatus(), job.now);
    job.Pass(absl::Seconds(1));
    ASSERT_TRUE(job.exit.has_value()) << "the version is saved again";
    EXPECT_EQ(job.exit->reason, suspended ? ExitReason::kSuspended : ExitReason::kSucceeded);
  }
}

TEST(HostileOutsider, SnapshotWrittenFailsNoCheckpoint) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_checkpoint()->set_interval_steps(10);
  JobWithOutsider job(spec);
  job.Start();
  job.Train(3);
  job.AddOutsider();
  v1::MemberMessage message;
  v1::SnapshotWritten& written = *message.mutable_snapshot_written();
  written.set_snapshot_id(job.OpenOne().snapshot_id());
  *written.mutable_name() = job.OpenOne().name();
  written.add_files()->set_partition(0);
  job.outsider.Say(message);
  job.Pump();
  EXPECT_EQ(job.Progress().checkpoint().error(), "");
  job.Train(8);
  EXPECT_EQ(job.checkpoint_indexes.count({1, 10}), 1u);
}

TEST(HostileOutsider, SnapshotPinnedDoesNotCount) {
  JobWithOutsider job(LongJob());
  job.Start();
  job.Train(3);
  job.AddOutsider();
  job.OpenSnapshot(41);
  for (int i = 0; i < 4; ++i) job.PassSnapshot();
  EXPECT_EQ(job.OpenOne().step(), 3 + 16u) << "the coordinator looks further ahead each time";
  v1::MemberMessage message;
  v1::SnapshotPinned& pinned = *message.mutable_snapshot_pinned();
  pinned.set_snapshot_id(job.OpenOne().snapshot_id());
  *pinned.mutable_name() = job.OpenOne().name();
  pinned.set_version(job.OpenOne().step());
  job.outsider.Say(message);
  job.Pump();
  job.PassSnapshot();
  EXPECT_EQ(job.OpenOne().step(), 3 + 32u);
}

TEST(HostileOutsider, FailedInitRequestFailsNoJob) {
  JobWithOutsider job(LongJob());
  job.Pump();
  for (const uint32_t index : {0, 1}) job.AddShard(index);
  for (const uint32_t index : {0, 1}) job.AddWorker(index, /*initializes=*/false);
  job.AddOutsider();
  v1::MemberMessage message;
  *message.mutable_state_ready()->mutable_init_id() = job.shards[0]->init_id;
  message.mutable_state_ready()->set_error("no memory");
  job.outsider.Say(message);
  job.Pump();
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::INITIALIZING);
}

}  // namespace
}  // namespace sluice::coordinator

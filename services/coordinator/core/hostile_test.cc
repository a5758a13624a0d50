// Members, readers and strangers that lie: the coordinator refuses each message of control.proto
// with impossible numbers, and the job continues as if it had not been sent.

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

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
    std::function<void(v1::ShardProgress*)> change) {
  return [change](FakeJob& job, v1::MemberMessage* message) {
    v1::ShardProgress& progress = *message->mutable_shard_progress();
    *progress.mutable_view() = job.core->view().id();
    progress.set_closed(3);
    progress.set_committed(2);
    change(&progress);
  };
}

std::function<void(FakeJob&, v1::MemberMessage*)> Pinned(
    std::function<void(v1::SnapshotPinned*)> change) {
  return [change](FakeJob& job, v1::MemberMessage* message) {
    v1::SnapshotPinned& pinned = *message->mutable_snapshot_pinned();
    pinned.set_snapshot_id(job.shards[1]->snapshot->snapshot_id());
    *pinned.mutable_view() = job.core->view().id();
    *pinned.mutable_name() = job.shards[1]->snapshot->name();
    change(&pinned);
  };
}

std::function<void(FakeJob&, v1::MemberMessage*)> Written(
    std::function<void(v1::SnapshotWritten*)> change) {
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

// ---- identity and terms

v1::Register Stranger(const FakeJob& job, v1::Role role, uint32_t index, uint64_t incarnation) {
  v1::Register request;
  request.set_job(JobName(job.spec));
  request.set_wire_version(1);
  request.mutable_process()->set_role(role);
  request.mutable_process()->set_index(index);
  request.mutable_process()->set_incarnation(incarnation);
  return request;
}

// A process that registers with any content.
class Liar final : public FakeProcess {
 public:
  Liar(FakeJob* job, v1::Register request)
      : FakeProcess(job, request.process().role(), request.process().index(),
                    request.process().incarnation()),
        request(std::move(request)) {}
  void OnMessage(const v1::CoordinatorMessage& message) override {
    if (message.has_refusal()) refusal = message.refusal();
  }
  v1::Register Registration() const override { return request; }
  void Announce() override {}

  v1::Register request;
};

TEST(HostileRegistration, OfUnwantedIndexIsPostponedUntilJobWantsIt) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  auto stranger = std::make_unique<FakeWorker>(&job, v1::WORKER, 777, 4711);
  FakeWorker& worker = *stranger;
  worker.ready = job.workers[0]->ready;
  job.workers.push_back(std::move(stranger));
  job.Connect(worker);
  EXPECT_EQ(worker.closed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(worker.closed.message(), HasSubstr("the job wants 2 workers, and worker-777"));
  EXPECT_FALSE(worker.refusal.has_value()) << "it may continue and retry";
  EXPECT_EQ(job.Progress().processes_size(), 4);

  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 2);
  job.Scale(778);
  job.Connect(worker);
  job.Train(4);
  EXPECT_EQ(job.core->view().workers_size(), 3);
}

TEST(HostileRegistration, MemberWithIndexThatIsNoLongerWantedMayReturn) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Scale(1);
  job.Break(*job.workers[1]);
  job.Connect(*job.workers[1]);
  EXPECT_TRUE(job.workers[1]->closed.ok()) << job.workers[1]->closed;
  job.Train(2);
  EXPECT_EQ(job.Version(), 2);
}

TEST(HostileRegistration, WithIncarnationOfAnotherProcessIsRefused) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.OpenSnapshot(1);
  const uint64_t view = job.ViewNumber();
  const uint64_t reader = 1'000'001;
  for (const uint64_t incarnation :
       {job.workers[0]->id.incarnation(), job.shards[0]->id.incarnation(), reader}) {
    job.Kill(*job.workers[1]);
    job.Pass(absl::Seconds(1));
    Liar liar(&job, Stranger(job, v1::WORKER, 1, incarnation));
    job.strangers = {&liar};
    job.Connect(liar);
    ASSERT_TRUE(liar.refusal.has_value()) << incarnation;
    EXPECT_EQ(liar.refusal->code(), v1::Refusal::DUPLICATE);
    job.strangers.clear();
  }
  EXPECT_GT(job.ViewNumber(), view);
  job.Train(3);
  EXPECT_GE(job.Version(), 3);
}

TEST(HostileRegistration, IgnoresTermsAndAttemptsThatWorkersReport) {
  for (const bool running : {false, true}) {
    FakeJob job(FakeJob::Spec());
    if (running) {
      job.Start();
      job.Train(2);
      job.Kill(*job.workers[1]);
    } else {
      job.Pump();
    }
    Liar liar(&job, Stranger(job, v1::WORKER, 1, 4711));
    v1::ViewId& view = *liar.request.mutable_newest_view();
    view.set_attempt(1'000'000);
    view.mutable_term()->set_counter(1'000'000);
    job.strangers = {&liar};
    job.Connect(liar);
    EXPECT_FALSE(job.exit.has_value());
    if (!running) {
      job.AddShard(0);
      job.AddShard(1);
      job.AddWorker(0);
      job.Pass(absl::Seconds(3));
    }
    job.Train(2);
    EXPECT_EQ(job.core->view().id().attempt(), 1);
    EXPECT_EQ(job.core->view().id().term().counter(), 1);
    job.strangers.clear();
  }
}

TEST(HostileRegistration, NumbersAndTextsAreBounded) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Kill(*job.workers[1]);
  const std::vector<std::function<void(v1::Register*)>> changes = {
      [](auto* request) { request->set_address(std::string(100'000, 'a')); },
      [](auto* request) { request->set_host("host\xff"); },
      [](auto* request) { request->set_metrics_address(std::string(513, 'm')); },
      [](auto* request) { request->mutable_newest_view()->set_attempt(kHuge); },
      [](auto* request) { request->mutable_newest_view()->mutable_term()->set_counter(kHuge); },
  };
  for (const auto& change : changes) {
    Liar liar(&job, Stranger(job, v1::WORKER, 1, 4711));
    change(&liar.request);
    job.strangers = {&liar};
    job.Connect(liar);
    EXPECT_EQ(liar.closed.code(), absl::StatusCode::kInvalidArgument);
    job.strangers.clear();
  }
  EXPECT_EQ(job.Progress().processes_size(), 4) << "two shards, a worker, and one departed worker";
  EXPECT_FALSE(job.exit.has_value());
}

TEST(HostileRegistration, ImpossibleTermOfShardEndsNoCoordinator) {
  FakeJob job(FakeJob::Spec());
  job.Pump();
  Liar liar(&job, Stranger(job, v1::SHARD, 1, 4711));
  liar.request.mutable_newest_view()->mutable_term()->set_counter(kHuge);
  job.strangers = {&liar};
  job.Connect(liar);
  EXPECT_EQ(liar.closed.code(), absl::StatusCode::kInvalidArgument);
  job.strangers.clear();
  job.Start();
  job.Train(1);
  EXPECT_EQ(job.core->view().id().term().counter(), 1);
}

TEST(HostileStreams, WithoutRegistrationAreBoundedInNumber) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  for (StreamId stream = 1'000'000; stream < 1'000'000 + 4096; ++stream) {
    job.core->OnConnected(stream, job.now);
  }
  EXPECT_EQ(job.core->refusals().registrations, 0u);
  job.core->OnConnected(2'000'000, job.now);
  EXPECT_EQ(job.core->refusals().registrations, 1u);
  job.Train(2);
  EXPECT_EQ(job.Version(), 2);
}

// ---- members

TEST(HostileMember, ThatRepeatedlyBreaksContractIsExpelled) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  FakeWorker& liar = *job.workers[1];
  for (int i = 0; i < 3; ++i) {
    if (liar.stream == 0) job.Connect(liar);
    liar.Say({});
    job.Pump();
  }
  EXPECT_TRUE(job.HasEvent("worker-1: broke the protocol 3 times"));
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.core->view().workers_size(), 1);
  EXPECT_EQ(job.core->view().id().attempt(), 1);
}

v1::MemberMessage Failure(const std::string& reason) {
  v1::MemberMessage message;
  message.mutable_failure()->set_reason(reason);
  return message;
}

TEST(HostileMember, FailureOfUnneededWorkerFailsOnlyThatWorker) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Kill(*job.workers[1]);
  job.Pass(absl::Seconds(1));
  Liar liar(&job, Stranger(job, v1::WORKER, 1, 4711));
  job.strangers = {&liar};
  job.Connect(liar);
  liar.Say(Failure(std::string(100'000, 'x') + "\xff"));
  job.Pump();
  EXPECT_FALSE(job.exit.has_value());
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING);
  EXPECT_NE(liar.stream == 0, liar.closed.ok()) << "its stream is closed";
  for (const std::string& event : job.Events()) EXPECT_LT(event.size(), 5000u);
  job.Train(2);
  EXPECT_EQ(job.Version(), 2);
}

TEST(HostileMember, FailureOfMemberFailsJobWithPrintableReason) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.workers[1]->Say(Failure("no \xff" + std::string(100'000, 'x')));
  job.Pump();
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::FAILED);
  EXPECT_THAT(job.Progress().reason(), HasSubstr("worker-1: no ?x"));
  EXPECT_LT(job.Progress().reason().size(), 5000u);
}

TEST(HostileMember, CountsOnlyPossibleReportsOfMembers) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  job.Train(3);
  const double loss = job.Progress().loss();
  const double compute = job.Progress().compute_seconds();
  const auto report = [](double loss_sum, uint64_t samples, double seconds) {
    v1::MemberMessage message;
    v1::WorkerProgress& progress = *message.mutable_worker_progress();
    progress.add_steps()->set_samples(samples);
    progress.mutable_steps(0)->set_loss_sum(loss_sum);
    progress.set_compute_seconds(seconds);
    return message;
  };
  FakeWorker& standby = job.AddWorker(2);
  standby.Say(report(1e6, 16, 0.1));  // it is not a member yet
  FakeWorker& member = *job.workers[0];
  member.Say(report(1e289, 16, 1e300));
  member.Say(report(4, uint64_t{1} << 60, std::nan("")));
  member.Say(report(std::nan(""), 16, -1));
  job.Pump();
  EXPECT_DOUBLE_EQ(job.Progress().loss(), loss);
  EXPECT_LT(job.Progress().compute_seconds(), compute + 20);
  EXPECT_GE(job.core->refusals().figures, 4u);

  const v1::JobProgress told = job.Progress();
  for (const v1::ProcessStatus& process : told.processes()) {
    EXPECT_TRUE(std::isfinite(process.samples_per_second()));
    EXPECT_LE(process.samples_per_second(), 1e9);
  }
  for (int i = 0; i < 100; ++i) {
    v1::MemberMessage message = report(4, 16, 1e-300);
    message.mutable_worker_progress()->set_pushed_bytes(kHuge);
    member.Say(message);
  }
  job.Pump();
  EXPECT_LE(job.Progress().pushed_bytes(), uint64_t{100} << 48);

  const v1::JobProgress later = job.Progress();
  for (const v1::ProcessStatus& process : later.processes()) {
    EXPECT_LE(process.samples_per_second(), 1e9);
  }
  job.Train(2);
  EXPECT_EQ(job.Version(), 5);
}

// ---- evaluation

TEST(HostileEvaluation, RangeOfImpossibleResultGoesToAnotherWorker) {
  const std::vector<std::function<void(v1::EvaluationResult*)>> changes = {
      [](auto* result) { result->set_count(result->count() + 1); },
      [](auto* result) { result->set_count(0); },
      [](auto* result) { result->set_correct(1e300); },
      [](auto* result) { result->set_correct(-1); },
      [](auto* result) { result->set_correct(std::nan("")); },
      [](auto* result) { result->set_loss_sum(1e289); },
  };
  for (const auto& change : changes) {
    v1::JobSpec spec = FakeJob::Spec();
    spec.mutable_data()->mutable_evaluation()->set_interval_steps(3);
    FakeJob job(spec);
    job.Start();
    FakeWorker& liar = *job.workers[1];
    liar.evaluates = false;
    job.Train(4);
    ASSERT_FALSE(liar.evaluations.empty());
    const v1::Evaluate& asked = liar.evaluations.back();
    v1::MemberMessage message;
    v1::EvaluationResult& result = *message.mutable_evaluation_result();
    result.set_evaluation(asked.evaluation());
    *result.mutable_samples() = asked.samples();
    result.mutable_name()->set_attempt(1);
    result.mutable_name()->set_step(asked.version());
    result.set_count(asked.samples().end() - asked.samples().begin());
    result.set_loss_sum(1);
    change(&result);
    liar.evaluates = true;  // from now on
    liar.Say(message);
    job.Pump();
    EXPECT_EQ(job.Progress().last_evaluation().samples(), 1000);
    EXPECT_LT(job.Progress().last_evaluation().loss(), 100);
    EXPECT_LE(job.Progress().last_evaluation().accuracy(), 100);
  }
}

TEST(HostileEvaluation, OfOtherSamplesThanAskedIsIgnored) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(3);
  FakeJob job(spec);
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->evaluates = false;
  job.Train(4);
  v1::MemberMessage message;
  v1::EvaluationResult& result = *message.mutable_evaluation_result();
  result.set_evaluation(job.workers[1]->evaluations.back().evaluation());
  result.mutable_samples()->set_end(1000);  // all
  result.set_count(1000);
  job.workers[1]->Say(message);
  job.Pump();
  EXPECT_FALSE(job.Progress().has_last_evaluation());
}

// ---- the operator

TEST(HostileOperator, SizesAndDeathsAreBounded) {
  FakeJob job(FakeJob::Spec());
  job.Start();
  v1::SetDesiredRequest desired;
  desired.set_workers(4'000'000'000);
  desired.set_suspend(true);
  job.core->OnSetDesired(desired, job.now);
  job.Train(3);
  EXPECT_EQ(job.Progress().phase(), v1::JobProgress::TRAINING) << "the request was ignored";
}

}  // namespace
}  // namespace sluice::coordinator

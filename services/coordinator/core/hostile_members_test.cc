// Strangers, members and operators that lie: registrations, streams, failures, figures, results of
// evaluations and sizes that cannot be. The job continues.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/core/testing/hostile_messages.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

// ---- identity and terms

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

  const v1::JobProgress progress = job.Progress();
  for (const v1::ProcessStatus& process : progress.processes()) {
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

TEST(HostileEvaluation, ImpossibleMetricsChangeNothing) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(3);
  FakeJob job(spec);
  job.traits.add_metrics("auc");
  job.Start();
  for (FakeWorker* worker : job.Workers()) worker->computes_metrics = false;
  job.Train(4);
  FakeWorker& asked = job.workers[0]->computations.empty() ? *job.workers[1] : *job.workers[0];
  FakeWorker& liar = &asked == job.workers[0].get() ? *job.workers[1] : *job.workers[0];
  ASSERT_EQ(asked.computations.size(), 1u);

  v1::MemberMessage message;
  *message.mutable_metric_values() = FakeWorker::ValuesOf(asked.computations[0]);
  liar.Say(message);  // was not asked
  message.mutable_metric_values()->mutable_metrics(0)->set_name("f1");
  asked.Say(message);
  job.Pump();
  EXPECT_FALSE(job.Progress().has_last_evaluation());
  ASSERT_EQ(asked.computations.size() + liar.computations.size(), 2u) << "a worker is asked again";

  for (FakeWorker* worker : job.Workers()) {
    if (worker->computations.empty()) continue;
    *message.mutable_metric_values() = FakeWorker::ValuesOf(worker->computations.back());
    message.mutable_metric_values()->set_error("\xff not UTF-8");
    worker->Say(message);
  }
  job.Pump();
  EXPECT_EQ(job.Progress().last_evaluation().metrics(0).value(), 1000);
}

TEST(HostileReady, WithImpossibleMetricsIsRefused) {
  const std::vector<std::vector<std::string>> cases = {
      {"loss"}, {"a b"}, {"auc", "auc"}, {std::string(64, 'x')}, std::vector<std::string>(33, "m")};
  for (const std::vector<std::string>& names : cases) {
    FakeJob job(FakeJob::Spec());
    job.Start();
    job.traits.Clear();
    for (const std::string& name : names) job.traits.add_metrics(name);
    const FakeWorker& liar = job.AddWorker(2);
    job.Pass(absl::Seconds(1));
    EXPECT_FALSE(liar.was_member);
    EXPECT_TRUE(job.HasEvent("metric")) << "the event names what is impossible";
  }
}

// ---- the operator

TEST(HostileOperator, SizesAndDeathsAreBounded) {
  v1::SetDesiredRequest desired;
  EXPECT_TRUE(CheckSetDesired(desired).ok());
  desired.set_workers(4'000'000'000);
  EXPECT_EQ(CheckSetDesired(desired).code(), absl::StatusCode::kInvalidArgument);

  desired.set_workers(1);
  for (int i = 0; i <= kMaxDeaths; ++i) desired.add_deaths();
  EXPECT_EQ(CheckSetDesired(desired).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::coordinator
